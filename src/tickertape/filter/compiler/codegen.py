"""Code generator: turns a filter tree into Python source that evaluates only the necessary parts.

A condition is generated as "is it true" or "is it false". Three-valued results are generated only where a
condition is used as a value. A comparison of a field with a constant tests the common types first and falls
back to the general rule.

Invariants:
* Filter text never becomes source code: constants and functions are passed by name. So filters that differ
  in their constants only have the same source, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tickertape.filter.compiler.regex import Pattern, compile_pattern
from tickertape.filter.functions import arrays as operators
from tickertape.filter.functions.arrays import Arrays, elements
from tickertape.filter.functions.numbers import ARITHMETIC, negative
from tickertape.filter.functions.regexp_replace import replacing
from tickertape.filter.functions.registry import MESSAGE_FUNCTIONS, SUBSCRIBER_FUNCTIONS, call_of
from tickertape.filter.functions.values import (
    NUMERIC,
    ODD,
    Number,
    Truth,
    is_nan,
    is_null,
    key,
    negated,
    number,
    scalar,
    text,
    truth,
)
from tickertape.filter.language.ast import (
    CONDITIONS,
    Affix,
    And,
    Arithmetic,
    Between,
    Call,
    Comparison,
    Field,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
)
from tickertape.payload.paths import Path

_TEXTUAL: Final = ODD | {str}
_EXACT: Final = 1 << 63
"""Numbers below this compare exactly with any integer, and with the float of a larger integer."""
_MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PYTHON: Final = {"=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def every(terms: tuple[Truth, ...]) -> Truth:
    """Return the AND of all terms."""
    return False if False in terms else None if None in terms else True


def some(terms: tuple[Truth, ...]) -> Truth:
    """Return the OR of all terms."""
    return True if True in terms else None if None in terms else False


def among(value: Any, members: tuple[Any, ...], arrays: Arrays) -> Truth:
    """Return `value IN (members)`."""
    return some(tuple(operators.equal(value, member, arrays) for member in members))


_GENERAL: Final[dict[str, Any]] = {
    "ODD": ODD, "NUMERIC": NUMERIC, "TEXTUAL": _TEXTUAL, "scalar": scalar, "is_null": is_null,
    "is_nan": is_nan, "negated": negated, "truth": truth, "negative": negative, "every": every, "some": some,
    "among": among,
    "equal": operators.equal, "unequal": operators.unequal, "less": operators.less,
    "at_most": operators.at_most, "between": operators.between, "one_of": operators.one_of,
    "affixed": operators.affixed,
}  # fmt: skip
_ARITHMETIC: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}
_GENERAL.update({name: ARITHMETIC[sign] for sign, name in _ARITHMETIC.items()})


def searching(pattern: Pattern) -> Callable[[Any, Arrays], Truth]:
    """Return a function that evaluates LIKE with `pattern` on any value."""
    search = pattern.search

    def like(value: Any, arrays: Arrays) -> Truth:
        if value.__class__ is list:
            found = elements(value, arrays)
            hit = any(map(search, found.searchable_texts()))
            return True if hit else None if found.unknown else False
        one = value if value.__class__ is str else text(scalar(value))
        return search(one) if one else None

    return like


class CodeGenerator:
    """Generates expressions over `m` (a decoded body), `i` (its index) and `arrays`."""

    def __init__(self, access: Mapping[Path, str]) -> None:
        self._access = access
        self._index = {path: at for at, path in enumerate(access)}
        self._values = 0
        self.names: dict[str, Any] = dict(_GENERAL)
        """Objects that the expressions refer to."""

    def _named(self, value: Any) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    # -- values --

    def raw(self, node: Node) -> str:
        """Return source text for the value of `node`. A field gives the raw value of the body."""
        return f"m{self._access[node.path]}" if isinstance(node, Field) else self.value(node)

    def value(self, node: Node) -> str:
        """Return source text for the scalar value of `node`."""
        if isinstance(node, Literal):
            value = None if node.value == "" else node.value
            return repr(value) if value.__class__ in {bool, type(None)} else self._named(value)
        if isinstance(node, Field):
            return f"scalar({self.raw(node)})"
        if isinstance(node, Arithmetic):
            return f"{_ARITHMETIC[node.operator]}({self.value(node.left)}, {self.value(node.right)})"
        if isinstance(node, Negative):
            return f"negative({self.value(node.operand)})"
        if isinstance(node, Call):
            return self._call(node)
        return self.truth(node)

    def _call(self, node: Call) -> str:
        if node.name in MESSAGE_FUNCTIONS:
            return f"(c_{MESSAGE_FUNCTIONS[node.name]}[i] or None)"
        if node.name in SUBSCRIBER_FUNCTIONS:
            return f"c_{SUBSCRIBER_FUNCTIONS[node.name]}"
        if node.name == "IF":
            condition, then, otherwise = node.arguments
            return f"({self.value(then)} if {self.yes(condition)} else {self.value(otherwise)})"
        if node.name == "REGEXP_REPLACE":
            subject, pattern, by = node.arguments
            assert isinstance(pattern, Literal)
            name = self._named(replacing(str(pattern.value)))
            return f"{name}({self.value(subject)}, {self.value(by)}, arrays)"
        arguments = [self.value(argument) for argument in node.arguments]
        if node.name.startswith("ARRAY_"):
            arguments[:1] = [self.raw(node.arguments[0]), "arrays"]
        name = f"f_{node.name}"
        self.names[name] = call_of(node.name)
        return f"{name}({', '.join(arguments)})"

    # -- three-valued conditions --

    def truth(self, node: Node) -> str:
        """Return source text that evaluates to True, False or None."""
        if isinstance(node, And | Or):
            terms = "".join(f"{self.truth(term)}, " for term in node.terms)
            return f"{'every' if isinstance(node, And) else 'some'}(({terms}))"
        if isinstance(node, Not):
            return f"negated({self.truth(node.operand)})"
        if isinstance(node, Comparison):
            return self._compared(node.operator, self.raw(node.left), self.raw(node.right))
        if isinstance(node, Between):
            return (
                f"between({self.raw(node.operand)}, {self.value(node.low)}, {self.value(node.high)}, arrays)"
            )
        if isinstance(node, In):
            return self._in(node, self.raw(node.operand))
        if isinstance(node, Like):
            name = self._named(searching(compile_pattern(node.pattern)))
            return f"{name}({self.raw(node.operand)}, arrays)"
        if isinstance(node, Affix):
            return self._affixed(node, self.raw(node.operand))
        if isinstance(node, IsNull):
            return f"is_null({self.raw(node.operand)})"
        if isinstance(node, IsNan):
            return f"is_nan({self.value(node.operand)})"
        return f"truth({self.value(node)})"

    def _compared(self, operator: str, left: str, right: str) -> str:
        if operator in {">", ">="}:
            operator, left, right = _MIRRORED[operator], right, left
        function = {"=": "equal", "!=": "unequal", "<": "less", "<=": "at_most"}[operator]
        return f"{function}({left}, {right}, arrays)"

    def _in(self, node: In, operand: str) -> str:
        if all(isinstance(member, Literal) for member in node.members):
            keys, null = constant_keys(node)
            return f"one_of({operand}, {self._named(keys)}, {null}, arrays)"
        members = "".join(f"{self.raw(member)}, " for member in node.members)
        return f"among({operand}, ({members}), arrays)"

    def _affixed(self, node: Affix, operand: str) -> str:
        members, null = affixes(node)
        return f"affixed({operand}, {self._named(members)}, {node.ends}, {null}, arrays)"

    # -- two-valued conditions --

    def yes(self, node: Node) -> str:
        """Return source text that is true if `node` is true."""
        if isinstance(node, And | Or):
            word = " and " if isinstance(node, And) else " or "
            return f"({word.join(map(self.yes, node.terms))})"
        if isinstance(node, Not):
            return self.no(node.operand)
        return self._direct(node, True) or f"({self.truth(node)} is True)"

    def no(self, node: Node) -> str:
        """Return source text that is true if `node` is false."""
        if isinstance(node, And | Or):
            word = " or " if isinstance(node, And) else " and "
            return f"({word.join(map(self.no, node.terms))})"
        if isinstance(node, Not):
            return self.yes(node.operand)
        return self._direct(node, False) or f"({self.truth(node)} is False)"

    def _direct(self, node: Node, wanted: bool) -> str | None:
        """Return faster source text for comparing a field or computed value with constants, or None."""
        operand = getattr(node, "operand", None) or getattr(node, "left", None)
        if isinstance(node, Comparison) and not isinstance(operand, Field) and isinstance(operand, Literal):
            node = Comparison(_MIRRORED[node.operator], node.right, node.left)
            operand = node.left
        if not _has_direct(node, wanted):
            return None  # checked first: nested code would be generated twice per level
        if isinstance(operand, Field):
            name = f"v{self._index[operand.path]}"
        elif isinstance(operand, Call | Arithmetic | Negative):
            self._values += 1
            name = f"t{self._values}"
        else:
            return None
        first = f"({name} := {self.raw(operand)})"
        if isinstance(node, Comparison) and isinstance(node.right, Literal):
            return self._direct_comparison(node.operator, node.right.value, name, first, wanted)
        if isinstance(node, IsNull):
            found = f"({first} is None or {name} == '' or {name}.__class__ in ODD and is_null({name}))"
            return found if wanted else f"(not {found})"
        if isinstance(node, In):
            return self._direct_in(node, name, first)
        if isinstance(node, Affix):
            method = "endswith" if node.ends else "startswith"
            quick = f"{name}.{method}({self._named(affixes(node)[0])})"
            return f"({quick} if {first}.__class__ is str else {self._affixed(node, name)} is True)"
        if isinstance(node, Between):
            return self._direct_between(node, name, first, wanted)
        return None

    def _direct_comparison(self, sign: str, constant: Any, name: str, first: str, wanted: bool) -> str:
        comparable = key(constant)
        simple = _is_simple(comparable)
        other = self._named(comparable)
        general = f"{self._compared(sign, name, self._named(constant))} is {wanted}"
        if sign == "=" and wanted:
            rest = "TEXTUAL" if simple else "ODD"
            return f"({first} == {other} or {name}.__class__ in {rest} and {general})"
        kind = f"{first}.__class__ in NUMERIC" if simple else f"{first}.__class__ is str and {name}"
        quick = f"{'' if wanted else 'not '}{name} {_PYTHON[sign]} {other}"
        return f"({quick} if {kind} else {general})"

    def _direct_in(self, node: In, name: str, first: str) -> str:
        keys, null = constant_keys(node)
        constant = self._named(keys)
        kind = "is str" if all(member.__class__ is str for member in keys) else "in NUMERIC"
        general = f"one_of({name}, {constant}, {null}, arrays) is True"
        return f"({name} in {constant} if {first}.__class__ {kind} else {general})"

    def _direct_between(self, node: Between, name: str, first: str, wanted: bool) -> str:
        bounds = [bound.value for bound in (node.low, node.high) if isinstance(bound, Literal)]
        low, high = (self._named(number(bound)) for bound in bounds)
        general = f"between({name}, {', '.join(map(self._named, bounds))}, arrays) is {wanted}"
        quick = f"{'' if wanted else 'not '}{low} <= {name} <= {high}"
        return f"({quick} if {first}.__class__ in NUMERIC else {general})"


def _has_direct(node: Node, wanted: bool) -> bool:
    """Return whether `node` has a faster form, judged by its constants."""
    if isinstance(node, Comparison):
        comparable = key(node.right.value) if isinstance(node.right, Literal) else None
        return _is_simple(comparable) or comparable.__class__ is str
    if isinstance(node, Between):
        bounds = (node.low, node.high)
        return all(isinstance(bound, Literal) and _is_simple(number(bound.value)) for bound in bounds)
    if isinstance(node, In | Affix):
        return wanted and all(isinstance(member, Literal) for member in node.members)
    return isinstance(node, IsNull)


def _is_simple(value: Number | str | None) -> bool:
    """Return whether `value` compares with raw values in the same way as with their scalars."""
    return value.__class__ in NUMERIC and -_EXACT < value < _EXACT  # type: ignore[operator]


def constant_keys(node: In) -> tuple[frozenset[Any], bool]:
    """Return the keys of the constants of `node`, and whether one of the constants is NULL."""
    values = {member.value for member in node.members if isinstance(member, Literal)}
    keys = frozenset(key(value) for value in values if value is not None and value != "")
    return frozenset(k for k in keys if k == k), not values.isdisjoint({None, ""})


def affixes(node: Affix) -> tuple[tuple[str, ...], bool]:
    """Return the constants of `node` as strings, and whether one of them is NULL."""
    texts = [text(member.value) for member in node.members if isinstance(member, Literal)]
    return tuple(dict.fromkeys(t for t in texts if t)), not all(texts)


def is_condition(node: Node) -> bool:
    """Return whether `node` is always true, false or unknown."""
    return isinstance(node, CONDITIONS)
