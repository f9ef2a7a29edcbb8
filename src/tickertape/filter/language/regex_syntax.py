"""Parser for RE2 expressions: finds the character positions and their possible successors.

It reads expressions that RE2 has accepted and counts the states of a search. RE2 does the matching.
Assertions (`^`, `\\b`) count as empty, except one at the start.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

from tickertape.filter.limits import pattern_positions_max, pattern_steps_max

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points, both ends inclusive."""

_ATOM_STEPS: Final = 8
_LAST: Final = 0x10FFFF
_ANY: Final[Ranges] = ((0, _LAST),)
_LINE: Final[Ranges] = ((0, 9), (11, _LAST))
_DIGIT: Final[Ranges] = ((48, 57),)
_WORD: Final[Ranges] = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROL: Final = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_POSIX: Final[dict[str, Ranges]] = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": _DIGIT, "graph": ((33, 126),),
    "lower": ((97, 122),), "print": ((32, 126),), "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)), "upper": ((65, 90),), "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip
_REPEAT: Final = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_FLAGS: Final = re.compile(r"\?(?:P?<\w+>|([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)]))")
_HEX: Final = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_OCTAL: Final = re.compile(r"[0-7]{1,3}")
_UNICODE: Final = re.compile(r"[pP](?:\{\^?\w+\}|\w)")


class TooLarge(Exception):
    """The expression has too many character positions, or counting takes too many steps."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cure = cure


class RegexPart(NamedTuple):
    """A part of an expression: positions at which a match of it can start and end, as bit sets."""

    nullable: bool
    first: int
    last: int


_NOTHING: Final = RegexPart(True, 0, 0)


class RegexShape:
    """Character positions of `pattern`: the matching characters and the following positions of each."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._folded = self._dotall = self._multiline = False
        self.classes: list[Ranges] = []
        self.follow: list[int] = []
        self.steps = 0
        """Steps used."""
        self.anchored = pattern.startswith(("^", "\\A")) and not _has_bare_bar(pattern)
        """Whether a match can only start at the start of the text."""
        whole = self._alternatives()
        self.first, self.last = whole.first, whole.last

    # -- combining parts --

    def _place(self, ranges: Ranges) -> RegexPart:
        if len(self.classes) >= pattern_positions_max:
            raise TooLarge(
                "the regular expression is too long after expanding its repetitions", "Use fewer repetitions"
            )
        if self._folded:
            ranges = _both_cases(ranges)
        bit = 1 << len(self.classes)
        self.classes.append(ranges)
        self.follow.append(0)
        return RegexPart(False, bit, bit)

    def spend(self, steps: int) -> None:
        """Count steps. Raises `TooLarge` above the limit."""
        self.steps += steps
        if self.steps > pattern_steps_max:
            raise TooLarge(
                "the regular expression is too expensive", "Use fewer optional repetitions, or split it"
            )

    def _link(self, last: int, first: int) -> None:
        self.spend(last.bit_count())
        while last:
            bit = last & -last
            self.follow[bit.bit_length() - 1] |= first
            last ^= bit

    def _joined(self, a: RegexPart, b: RegexPart) -> RegexPart:
        self._link(a.last, b.first)
        return RegexPart(
            a.nullable and b.nullable,
            a.first | b.first if a.nullable else a.first,
            a.last | b.last if b.nullable else b.last,
        )

    # -- the grammar --

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _alternatives(self) -> RegexPart:
        flags = (self._folded, self._dotall, self._multiline)
        found = self._sequence()
        while self._peek("|"):
            self._at += 1
            other = self._sequence()
            found = RegexPart(
                found.nullable or other.nullable, found.first | other.first, found.last | other.last
            )
        self._folded, self._dotall, self._multiline = flags
        return found

    def _sequence(self) -> RegexPart:
        found = _NOTHING
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            found = self._joined(found, self._repeated())
        return found

    def _repeated(self) -> RegexPart:
        begin = self._at
        state = (self._folded, self._dotall, self._multiline)
        found = self._atom()
        while self._at < len(self._text):
            low, high = self._repetition()
            if low is None:
                return found
            if (low, high) in {(0, None), (1, None), (0, 1)}:
                if high is None:
                    self._link(found.last, found.first)
                found = RegexPart(found.nullable or low == 0, found.first, found.last)
            else:
                found = self._copies(begin, state, found, low, high)
        return found

    def _repetition(self) -> tuple[int | None, int | None]:
        text, at = self._text, self._at
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        low, high = simple.get(text[at], (None, None))
        end = at + 1
        if low is None:
            counted = _REPEAT.match(text, at)
            if counted is None:
                return None, None
            low, end = int(counted[1]), counted.end()
            high = low if counted[2] is None else int(counted[3]) if counted[3] else None
        if text.startswith("?", end):
            end += 1
        self._at = end
        return low, high

    def _copies(
        self, begin: int, state: tuple[bool, bool, bool], one: RegexPart, low: int, high: int | None
    ) -> RegexPart:
        """Return repetitions of `one`, which has been parsed once, by parsing its text again."""
        end = self._at
        found = one if low else RegexPart(True, one.first, one.last)
        for number in range(1, max(low, high if high is not None else low, 1)):
            self._at = begin
            self._folded, self._dotall, self._multiline = state
            again = self._atom()
            if number >= low:
                again = RegexPart(True, again.first, again.last)
            found = self._joined(found, again)
            one = again
        if high is None:
            self._link(one.last, one.first)
        elif high == 0:
            found = _NOTHING
        self._at = end
        return found

    def _atom(self) -> RegexPart:
        self.spend(_ATOM_STEPS)
        sign = self._text[self._at]
        self._at += 1
        if sign == "(":
            return self._group()
        if sign == "[":
            return self._place(self._bracket())
        if sign == ".":
            return self._place(_ANY if self._dotall else _LINE)
        if sign in "^$":
            return _NOTHING
        if sign == "\\":
            return self._escape()
        return self._place(((ord(sign), ord(sign)),))

    def _group(self) -> RegexPart:
        outer = (self._folded, self._dotall, self._multiline)
        head = _FLAGS.match(self._text, self._at)
        if head is not None:
            self._at = head.end()
            for letters, value in ((head[1] or "", True), (head[2] or "", False)):
                self._folded = value if "i" in letters else self._folded
                self._dotall = value if "s" in letters else self._dotall
            if head[3] == ")":
                return _NOTHING  # the flags apply up to the end of the enclosing group
        found = self._alternatives()
        self._at += 1
        self._folded, self._dotall, self._multiline = outer
        return found

    def _escape(self) -> RegexPart:
        sign = self._text[self._at]
        if sign in "AzbB":
            self._at += 1
            return _NOTHING
        if sign == "Q":
            end = self._text.find("\\E", self._at)
            end = len(self._text) if end < 0 else end
            found = _NOTHING
            for letter in self._text[self._at + 1 : end]:
                found = self._joined(found, self._place(((ord(letter), ord(letter)),)))
            self._at = end + 2
            return found
        return self._place(self._escaped())

    def _escaped(self) -> Ranges:
        """Return the class of an escape. `_at` is after the backslash."""
        text, at = self._text, self._at
        sign = text[at]
        self._at += 1
        if sign.lower() in _CLASSES:
            ranges = _CLASSES[sign.lower()]
            return ranges if sign.islower() else _others(ranges)
        if sign in "pPC":
            found = _UNICODE.match(text, at)
            self._at = found.end() if found else self._at
            return _ANY  # a superset, which is safe for counting
        if sign in _CONTROL:
            return ((_CONTROL[sign], _CONTROL[sign]),)
        found = _HEX.match(text, at)
        if found is not None:
            self._at = found.end()
            code = int(found[1] or found[2], 16)
            return ((code, code),)
        found = _OCTAL.match(text, at)
        if found is not None:
            self._at = found.end()
            return ((int(found[0], 8), int(found[0], 8)),)
        return ((ord(sign), ord(sign)),)

    def _bracket(self) -> Ranges:
        text = self._text
        negative = self._peek("^")
        self._at += negative
        found: list[tuple[int, int]] = []
        begin = self._at
        while self._at == begin or text[self._at] != "]":
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(text, self._at)
            if posix is not None:
                self._at = posix.end()
                ranges = _POSIX[posix[2]]
                found.extend(_others(ranges) if posix[1] else ranges)
                continue
            low = self._member()
            if len(low) == 1 and self._peek("-") and text[self._at + 1] != "]":
                self._at += 1
                found.append((low[0][0], self._member()[0][1]))
            else:
                found.extend(low)
        self._at += 1
        ranges = tuple(found)
        if negative and self._folded:
            ranges = _both_cases(ranges)
        return _others(ranges) if negative else ranges

    def _member(self) -> Ranges:
        sign = self._text[self._at]
        self._at += 1
        return self._escaped() if sign == "\\" else ((ord(sign), ord(sign)),)


def _has_bare_bar(pattern: str) -> bool:
    """Return whether a `|` may be outside parentheses. True if in doubt."""
    depth = 0
    escaped = False
    for sign in pattern:
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        elif sign in "([":
            depth += 1
        elif sign in ")]":
            depth -= 1
        elif sign == "|" and depth <= 0:
            return True
    return False


def _others(ranges: Ranges) -> Ranges:
    found: list[tuple[int, int]] = []
    begin = 0
    for low, high in sorted(ranges):
        if low > begin:
            found.append((begin, low - 1))
        begin = max(begin, high + 1)
    if begin <= _LAST:
        found.append((begin, _LAST))
    return tuple(found)


def _both_cases(ranges: Ranges) -> Ranges:
    """Return the ranges with the other case of ASCII letters, and of single letters above ASCII."""
    found = list(ranges)
    for low, high in ranges:
        for first, last, shift in ((65, 90, 32), (97, 122, -32)):
            if low <= last and high >= first:
                found.append((max(low, first) + shift, min(high, last) + shift))
        if low == high and low > 127:
            other = chr(low).swapcase()
            found.extend((ord(c), ord(c)) for c in other[:1])
    return tuple(found)
