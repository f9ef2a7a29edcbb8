"""Random filters and values of many kinds, small and often related.

Must never decide anything by itself: `choose` does, with Hypothesis or with a seeded generator.
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


ODD_CONSTANTS = [
    "1e308", "-1e308", "1e-320", "9" * 40, "-" + "9" * 40, "9223372036854775807", "-9223372036854775808",
    "0.0", "-0.0", "'NaN'", "'-inf'", "'Infinity'", "'1e400'", "NAN_VALUE()", "NULL", "''", "TRUE", "FALSE",
    "253402300799", "253402300800", "-62135596800", "-62135596801", "1e18", "-1e18", "0.9999999",
    "'9999-12-31'", "'0001-01-01'", "'02-29'", "'366'", "'\x01'", "'\U0010ffff'", "'\ufffe'", "'\u01c5ß'",
    "CHAR_VALUE(55296)", "CHAR_VALUE(0.5)", "CHAR_VALUE(1114111)", "'" + "x" * 300 + "'", "'(['", "'\\'",
]  # fmt: skip
DIRECTIVES = [
    "%Y", "%Y", "%y", "%m", "%d", "%H", "%M", "%S", "%f", "%j", "%%", "%%Y", "-", " ", ":", "(", "[", "\\",
    ".*", "%", "%q", "é",
]  # fmt: skip
ODD_PATTERNS = [
    "a*",
    "(?i)straße",
    "^$",
    "x|",
    "[^a]",
    "\\pL",
    "(a?){9}b",
    "\\Q",
    "([",
    "$^",
    ".",
    "\\x{10FFFF}",
]


class OddFilterTexts:
    """Expressions of every function with odd values: many are refused, and none may raise anything else."""

    def __init__(self, choose: Choose, functions: Sequence[tuple[str, str, int]]) -> None:
        """`functions`: names, signatures (`tickertape.filter.functions.registry`) and the most arguments."""
        self._choose = choose
        self._functions = functions

    def time_format(self) -> str:
        """Return a time format, with repeated and unknown directives."""
        return "".join(self._choose(DIRECTIVES) for _ in range(self._choose(range(1, 7))))

    def operand(self, depth: int = 3) -> str:
        """Return a field, a constant, a calculation, or a call of any function."""
        kind = self._choose(["field", "constant", "call", "call", "call", "arithmetic"]) if depth else "field"
        if kind == "field":
            return str(self._choose([*FIELDS, "/c/k/k", "/a[3]/k", *ODD_CONSTANTS[:6]]))
        if kind == "constant":
            return str(self._choose([*ODD_CONSTANTS, *CONSTANTS]))
        if kind == "arithmetic":
            sign = self._choose(["+", "-", "*", "/", "%"])
            return f"({self.operand(depth - 1)} {sign} {self.operand(depth - 1)})"
        name, signature, most = self._choose(self._functions)
        letters = signature.replace("?", "").rstrip("*")
        least = len(signature.split("?")[0].rstrip("*"))
        count = self._choose(range(least, min(most, least + 2) + 1))
        arguments = [self._argument(letters[min(at, len(letters) - 1)], name, depth) for at in range(count)]
        return f"{name}({', '.join(arguments)})"

    def _argument(self, letter: str, name: str, depth: int) -> str:
        if letter == "a":
            return str(self._choose([*FIELDS, "/c/k", self._choose(ODD_CONSTANTS)]))
        if letter != "p":
            return self.operand(depth - 1)
        text = self.time_format() if name.startswith("STR") else self._choose(ODD_PATTERNS)
        return "'" + text.replace("'", "''") + "'"

    def filter(self) -> str:
        """Return a condition on odd values, joined with others, at times nested deeply."""
        choose = self._choose
        one = self.operand()
        found = choose(
            [
                f"{one} {choose(SIGNS)} {self.operand(1)}",
                f"{one} BETWEEN {self.operand(1)} AND {self.operand(1)}",
                f"{one} IN ({choose(ODD_CONSTANTS)}, {choose(ODD_CONSTANTS)})",
                f"{one} LIKE '{choose(ODD_PATTERNS)}'",
                f"{one} BEGINS WITH ({choose(ODD_CONSTANTS)})",
                f"{one} IS NULL",
                f"{one} IS NAN",
                one,
            ]
        )
        depth = choose([0, 0, 0, 1, 5, 38])
        for number in range(depth):
            found = f"IF({found}, {choose(FIELDS)}, 1)" if number % 2 else f"NOT ({found})"
        return f"{found} {choose(['AND', 'OR'])} {self.filter()}" if choose(range(3)) == 0 else str(found)
