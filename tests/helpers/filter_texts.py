"""Owns filters and values made by chance, for whoever compares or measures: many kinds, small, often related.

Must never decide anything by itself: `choose` does, of Hypothesis or of a seeded generator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Choose: TypeAlias = Callable[[Sequence[Any]], Any]

TEXTS = [
    "", "x", "abc", "abd", "b", "24", "24.0", "007", "7", "-1", "1e2", "1e999", ".5", "5.", "+", "NaN", "é",
    "Infinity", "9007199254740993", "18446744073709551615", "18446744073709551616", "1 ", "z\n", "1" * 65,
]  # fmt: skip
NUMBERS = [
    0, 1, 2, 5, 7, 24, 100, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, 24.0, 7.5, -0.0, 1e300, 1e-7,
]  # fmt: skip
WORDS = [None, True, False]
FIELDS = ["/a", "/a", "/b", "/b", "/c", "/a[0]", "/b[1]", "/c/k"]
CONSTANTS = [
    *("'" + text.replace("'", "''") + "'" for text in TEXTS),
    *(repr(number) for number in NUMBERS),
    "NULL", "TRUE", "FALSE", "NAN_VALUE()", "18446744073709551615", '"it\'s"', "'it''s'",
]  # fmt: skip
SIGNS = ["=", "==", "!=", "<>", "<", "<=", ">", ">="]
PATTERNS = ["'b'", "'^a'", "'c$'", "'[0-9]+'", "'(?i)X'", "'^.$'", "'z|7'", "''", "'^'"]
PREDICATES = [
    "signs", "signs", "constant", "mirror", "between", "bounds", "in", "mixed", "like", "affix", "null",
    "nan", "value",
]  # fmt: skip


class FilterTexts:
    """Filters of the fields `/a`, `/b` and `/c`."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose

    def constant(self) -> str:
        return str(self._choose(CONSTANTS))

    def constants(self, most: int = 4) -> str:
        return ", ".join(self.constant() for _ in range(self._choose(range(1, most + 1))))

    def operand(self, depth: int = 2) -> str:
        kind = self._choose(["field", "field", "field", "constant", "call", "arithmetic"])
        if kind == "constant" or (not depth and kind != "field"):
            return self.constant()
        if kind == "field":
            return str(self._choose(FIELDS))
        one = self.operand(depth - 1)
        if kind == "arithmetic":
            sign = self._choose(["+", "-", "*", "/", "%", ""])
            return f"({one} {sign} {self.operand(depth - 1)})" if sign else f"(- {one})"
        name = self._choose(["UPPER", "LENGTH", "ABS", "COALESCE", "CONCAT", "INSTR", "STREQUAL"])
        two = name in {"COALESCE", "CONCAT", "INSTR", "STREQUAL"}
        return f"{name}({one}, {self.operand(depth - 1)})" if two else f"{name}({one})"

    def predicate(self) -> str:
        choose = self._choose
        field, negation = choose(FIELDS), choose(["", "", "NOT "])
        one = choose([field, field, self.operand()])
        match choose(PREDICATES):
            case "signs":
                return f"{one} {choose(SIGNS)} {self.operand()}"
            case "constant":
                return f"{one} {choose(SIGNS)} {self.constant()}"
            case "mirror":
                return f"{self.constant()} {choose(SIGNS)} {one}"
            case "between":
                return f"{one} {negation}BETWEEN {self.operand(1)} AND {self.operand(1)}"
            case "bounds":
                return f"{one} {negation}BETWEEN {self.constant()} AND {self.constant()}"
            case "in":
                return f"{one} {negation}IN ({self.constants()})"
            case "mixed":
                return f"{one} {negation}IN ({self.constants()}, {choose(FIELDS)})"
            case "like":
                return f"{one} {negation}LIKE {choose(PATTERNS)}"
            case "affix":
                return f"{one} {negation}{choose(['BEGINS', 'ENDS'])} WITH ({self.constants()})"
            case "null":
                return f"{one} IS {negation}NULL"
            case "nan":
                return f"{one} IS {negation}NAN"
        return str(one)

    def filter(self, depth: int = 3) -> str:
        choose = self._choose
        kind = choose(["predicate", "predicate", "joined", "not", "compared", "if"]) if depth else "predicate"
        if kind == "predicate":
            return self.predicate()
        one = self.filter(depth - 1)
        if kind == "not":
            return f"NOT ({one})"
        other = self.filter(depth - 1)
        if kind == "joined":
            return f"({one}) {choose(['AND', 'OR', 'and', 'oR'])} ({other})"
        if kind == "compared":
            return f"({one}) {choose(SIGNS)} ({other})"
        return f"IF({one}, {self.operand(1)}, {other}) = 1"
