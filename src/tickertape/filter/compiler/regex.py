"""Regular expressions: validates, costs and compiles them, and searches with RE2.

Expressions whose search could need more than `pattern_states_max` states are rejected. RE2 stays linear for
them but becomes a hundred times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tickertape.base.errors import BadTopic
from tickertape.base.limits import topic_bytes_max
from tickertape.base.text_format import shown
from tickertape.filter.language.regex_syntax import RegexShape, TooLarge
from tickertape.filter.limits import (
    pattern_depth_max,
    pattern_program_bytes_max,
    pattern_set_memory_bytes,
    pattern_states_max,
)

_CACHED: Final = 512
META_CHARACTERS: Final = frozenset("\\^$.|?*+()[]{}")
"""Characters with a special meaning in an expression."""
_CONSTRUCTS: Final = (
    ("(?=", "look-ahead"),
    ("(?!", "look-ahead"),
    ("(?<=", "look-behind"),
    ("(?<!", "look-behind"),
    ("(?<", "look-behind"),
    ("(?>", "an atomic group"),
    ("(?(", "a condition"),
    ("(?R", "recursion"),
    ("(?#", "a comment"),
    ("++", "a possessive repetition"),
    ("*+", "a possessive repetition"),
    ("?+", "a possessive repetition"),
)

_NO_LINEAR_SEARCH: Final = "is not supported, because it has no linear-time search"


class BadPattern(ValueError):
    """An expression that is rejected. The text gives the reason and the cure."""

    def __init__(self, reason: str, at: int, cure: str) -> None:
        super().__init__(f"{reason}. {cure}")
        self.reason = reason
        self.at = at
        """Position in the expression, in characters from 0."""


class Pattern:
    """A compiled RE2 expression, created by `compile_topic_pattern`."""

    __slots__ = ("_match", "size", "states", "steps", "text")

    def __init__(self, text: str, match: Callable[[bytes], Any], costs: Costs, size: int) -> None:
        self.text = text
        self._match = match
        self.states = costs.states
        """States that a search may need in the worst case."""
        self.steps = costs.steps
        """Cost of computing `states`, about the cost of compiling the pattern."""
        self.size = size
        """Instructions of its program: the cost per byte of a combined search."""

    def search(self, text: str) -> bool:
        """Return whether a match starts anywhere in `text`."""
        return self._match(text.encode()) is not None


@lru_cache(maxsize=_CACHED)
def compile_pattern(text: str) -> Pattern:
    """Compile the expression `text`. Raises `BadPattern`."""
    import re2  # imported late: most servers start without a pattern

    options = re2.Options()
    options.log_errors = False
    strict = re2.Options()
    strict.log_errors = False
    strict.max_mem = pattern_program_bytes_max
    try:
        program = re2.compile(text, strict)
    except re2.error as error:
        raise _refused(text, error) from None
    _check_depth(text)
    if (at := text.find("\\C")) >= 0:
        raise BadPattern("\\C (a single byte of a character) is not supported", at, "Use . for a character")
    costs = costs_of(text)
    prefix = literal_prefix(text)
    if prefix is not None:
        return Pattern(text, _beginning(prefix.encode()), costs, program.programsize)
    matcher = re2.Set.SearchSet(options)
    matcher.Add(text)
    matcher.Compile()
    return Pattern(text, matcher.Match, costs, program.programsize)


def literal_prefix(text: str) -> str | None:
    """Return the string that a text must start with to match the expression `text`, if that is all."""
    prefix = text[1:]
    return prefix if prefix and text[0] == "^" and META_CHARACTERS.isdisjoint(prefix) else None


def _beginning(prefix: bytes) -> Callable[[bytes], bool | None]:
    return lambda text: text.startswith(prefix) or None


def _check_depth(text: str) -> None:
    """Raise `BadPattern` for groups that are nested too deeply for the recursive parser."""
    depth, escaped = 0, False
    for at, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "(":
            depth += 1
            if depth > pattern_depth_max:
                raise BadPattern(
                    f"groups are nested more than {pattern_depth_max} levels deep", at, "Use fewer groups"
                )
        elif character == ")":
            depth -= 1


def _refused(text: str, error: Exception) -> BadPattern:
    said = error.args[0] if error.args else ""
    reason = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if "too large" in reason:
        return BadPattern("the regular expression is too large", 0, "Use a shorter one")
    fragment = reason.rpartition(": ")[2]
    at = max(text.find(fragment), 0) if fragment != reason else 0
    for sign, construct in _CONSTRUCTS:
        if fragment.startswith(sign) or text.startswith(sign, at):
            return BadPattern(f"{construct} {_NO_LINEAR_SEARCH}", at, "Remove it")
    if fragment[:1] == "\\" and (fragment[1:2].isdigit() or fragment[1:2] in {"g", "k"}):
        return BadPattern(f"a back reference {_NO_LINEAR_SEARCH}", at, "Remove it")
    kind = shown(reason.removesuffix(f": {fragment}"))[1:-1]
    return BadPattern(f"invalid regular expression: {kind} in {shown(fragment)}", at, "Correct it")


class Costs(NamedTuple):
    """Cost of an expression."""

    states: int
    """Maximum states of a search, over all texts."""
    steps: int
    """Steps of the computation."""


def costs_of(text: str) -> Costs:
    """Return the cost of searches for `text`, which RE2 accepts.

    Raises `BadPattern` for more than `pattern_states_max` states, or if the computation takes more than
    `pattern_steps_max` steps.
    """
    try:
        shape = RegexShape(text)
        return Costs(_count_states(shape), shape.steps)
    except TooLarge as error:
        raise BadPattern(error.reason, 0, error.cure) from None


def _count_states(shape: RegexShape) -> int:
    letters = _letters(shape)
    start = 0 if shape.anchored else shape.first
    waiting, seen = [shape.first], {shape.first}
    while waiting:
        candidates = waiting.pop()
        steps = len(letters)
        for places in {candidates & letter for letter in letters}:
            reached = start
            left = places
            while left:
                bit = left & -left
                reached |= shape.follow[bit.bit_length() - 1]
                left ^= bit
                steps += 1
            if reached not in seen:
                seen.add(reached)
                waiting.append(reached)
        if len(seen) > pattern_states_max:
            raise BadPattern(
                "the regular expression is too expensive: a search may need more than "
                f"{pattern_states_max} states", 0, "Use fewer repetitions, or anchor it with ^"
            )  # fmt: skip
        shape.spend(steps)
    return len(seen)


def _letters(shape: RegexShape) -> list[int]:
    """Return the character classes that the expression distinguishes, each with its positions."""
    edges = sorted({0, *(low for ranges in shape.classes for low, _ in ranges)}
                   | {high + 1 for ranges in shape.classes for _, high in ranges})  # fmt: skip
    index = {edge: at for at, edge in enumerate(edges)}
    columns = [0] * len(edges)
    for place, ranges in enumerate(shape.classes):
        for low, high in ranges:
            begin, end = index[low], index[high + 1]
            shape.spend(1 + (end - begin) // 4)
            for at in range(begin, end):
                columns[at] |= 1 << place
    return list(set(columns))


def compile_topic_pattern(text: str) -> Pattern:
    """Compile the topic pattern `text`, an unanchored expression. Raises `BadTopic`."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > topic_bytes_max:
        raise BadTopic(f"Topic pattern too long: {size:,} bytes. Use at most {topic_bytes_max:,} bytes.")
    try:
        return compile_pattern(text)
    except BadPattern as error:
        raise BadTopic(f"Invalid topic pattern {shown(text)} at position {error.at}: {error}.") from None
    except UnicodeEncodeError:
        raise BadTopic(
            f"Invalid topic pattern {shown(text)}: it is not valid Unicode. Use valid Unicode text."
        ) from None


class PatternSet:
    """Patterns that are searched in one pass."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = tuple(patterns)
        self._match = _together(self._patterns)

    def found(self, text: str) -> list[int]:
        """Return the indices of the patterns that match anywhere in `text`, in any order."""
        if self._match is not None:
            numbers: list[int] = self._match(text.encode()) or []
            if len(self._patterns) in numbers:
                numbers.remove(len(self._patterns))
                return numbers
        return [number for number, pattern in enumerate(self._patterns) if pattern.search(text)]


def _together(patterns: tuple[Pattern, ...]) -> Callable[[bytes], Any] | None:
    """Return one combined search. None if it needs too much memory."""
    import re2  # imported late: most servers start without a pattern

    options = re2.Options()
    options.log_errors = False
    options.max_mem = pattern_set_memory_bytes
    matcher = re2.Set.SearchSet(options)
    for pattern in patterns:
        matcher.Add(pattern.text)
    matcher.Add("")  # matches every text, unless the search gave up
    try:
        matcher.Compile()
    except re2.error:
        return None
    match: Callable[[bytes], Any] = matcher.Match
    return match
