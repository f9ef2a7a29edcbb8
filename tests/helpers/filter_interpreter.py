"""Independent interpreter of filters: walks the tree for each message, and compares arrays pair by pair.

Must never use anything of the package but the tree: a comparison cannot find defects in shared code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from tickertape.filter.language import ast as t
from tickertape.payload.paths import Path

Lookup = Callable[[Path], Any]


def plain(value: Any) -> Any:
    """Return a scalar, or None for every other value."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, dict | list) or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return float(value)
    return value


def first(value: Any) -> Any:
    if isinstance(value, list):
        return plain(value[0]) if value else None
    return plain(value)


def members(value: Any) -> list[Any]:
    """Return the elements of an array, or the single value. An empty array is NULL."""
    if isinstance(value, list):
        return [plain(v) for v in value] or [None]
    return [plain(value)]


def as_number(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        if len(value) > 64 or not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
            return None
        if re.fullmatch("[+-]?[0-9]+", value):
            whole = int(value)
            return whole if -(2**63) <= whole < 2**64 else float(whole)
        return None if math.isinf(float(value)) else float(value)
    return value


def as_text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        text = repr(value)
        return "0" if value == 0 else text.removesuffix(".0")
    return str(int(value))


def compare(sign: str, a: Any, b: Any) -> bool | None:
    """Two scalars."""
    if a is None or b is None:
        return None
    x, y = as_number(a), as_number(b)
    odd = [n for n in (x, y) if isinstance(n, float) and not math.isfinite(n)]
    if x is None or y is None:
        if odd:
            return sign == "!="
        x, y = as_text(a), as_text(b)
    return bool({"=": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[sign])


def any_of(answers: list[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False


def all_of(answers: list[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def opposite(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


class Interpreter:
    """Of one message, whose fields `lookup` finds."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def raw(self, node: t.Node) -> Any:
        return self._lookup(node.path) if isinstance(node, t.Field) else self.value(node)

    def value(self, node: t.Node) -> Any:
        match node:
            case t.Literal():
                return plain(node.value)
            case t.Field():
                return first(self._lookup(node.path))
            case t.Negative():
                value = as_number(self.value(node.operand))
                return None if value is None else self._checked(-value)
            case t.Arithmetic():
                return self._calculated(node)
            case t.Call():
                return self._called(node)
        return self.truth(node)

    @staticmethod
    def _checked(value: Any) -> Any:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return None
        return None if isinstance(value, float) and math.isinf(value) else value

    def _calculated(self, node: t.Arithmetic) -> Any:
        a, b = as_number(self.value(node.left)), as_number(self.value(node.right))
        if a is None or b is None or (node.operator in "/%" and b == 0):
            return None
        whole = isinstance(a, int) and isinstance(b, int)
        try:
            match node.operator:
                case "+":
                    found = a + b
                case "-":
                    found = a - b
                case "*":
                    found = a * b
                case "/":
                    found = a // b if whole and a % b == 0 else a / b
                case _:
                    if whole:
                        found = a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))
                    else:
                        found = math.fmod(a, b)
        except (OverflowError, ValueError):
            return None
        return self._checked(found)

    def _called(self, node: t.Call) -> Any:
        if node.name == "IF":
            return self.value(node.arguments[1 if self.truth(node.arguments[0]) is True else 2])
        values = [self.value(argument) for argument in node.arguments]
        if node.name == "COALESCE":
            return next((v for v in values if v is not None), None)
        if None in values:
            return None
        text = as_text(values[0]) if values else ""
        match node.name:
            case "UPPER":
                return text.upper()
            case "LENGTH":
                return len(text)
            case "CONCAT":
                return "".join(map(as_text, values))
            case "INSTR":
                return text.find(as_text(values[1])) + 1
            case "STREQUAL":
                return text == as_text(values[1])
            case "ABS":
                number = as_number(values[0])
                return None if number is None else self._checked(abs(number))
            case "NAN_VALUE":
                return math.nan
        raise NotImplementedError(node.name)

    def truth(self, node: t.Node) -> bool | None:
        match node:
            case t.And():
                return all_of([self.truth(term) for term in node.terms])
            case t.Or():
                return any_of([self.truth(term) for term in node.terms])
            case t.Not():
                return opposite(self.truth(node.operand))
            case t.IsNull():
                value = self.raw(node.operand)
                value = (value[0] if value else None) if isinstance(value, list) else value
                return value is None or value in ("", b"")
            case t.IsNan():
                value = self.value(node.operand)
                return None if value is None else isinstance(value, float) and math.isnan(value)
            case t.Comparison() | t.Between() | t.In() | t.Like() | t.Affix():
                return self._pairs(node)
        number = as_number(self.value(node))
        return None if number is None or math.isnan(number) else number != 0

    def _pairs(self, node: t.Node) -> bool | None:
        match node:
            case t.Comparison():
                right = members(self.raw(node.right))
                return any_of(
                    [compare(node.operator, a, b) for a in members(self.raw(node.left)) for b in right]
                )
            case t.Between():
                low, high = self.value(node.low), self.value(node.high)
                found = members(self.raw(node.operand))
                return any_of([all_of([compare(">=", v, low), compare("<=", v, high)]) for v in found])
            case t.In():
                others = [b for member in node.members for b in members(self.raw(member))]
                found = members(self.raw(node.operand))
                return any_of([compare("=", a, b) for a in found for b in others])
            case t.Like():
                pattern = node.pattern.replace("$", r"\Z")  # in Python, $ also matches before a last line end
                texts = map(as_text, members(self.raw(node.operand)))
                return any_of([None if v is None else bool(re.search(pattern, v)) for v in texts])
            case t.Affix():
                affixes = [as_text(self.value(member)) for member in node.members]
                texts = map(as_text, members(self.raw(node.operand)))
                return any_of([_affixed(v, a, node.ends) for v in texts for a in affixes])
        raise NotImplementedError(node)


def _affixed(value: str | None, affix: str | None, ends: bool) -> bool | None:
    if value is None or affix is None:
        return None
    return value.endswith(affix) if ends else value.startswith(affix)
