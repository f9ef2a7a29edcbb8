"""Field paths (`/parent/child`, `/data[0]`, `/a/b/@attr`, `/35`) and select lists (`[-/,+/id]`).

A path has the same meaning in every message type. A name selects a member of an object. A name applied to an
array selects the member of each of its objects, and the result is one array. A subscript selects one element,
counted from 0. The message types apply the decisions of select lists to bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tickertape.base.errors import BadOption, BadPath
from tickertape.base.text_format import shown
from tickertape.payload.limits import (
    path_characters_max,
    path_forms_max,
    path_steps_max,
    path_subscript_max,
    paths_per_reader_max,
    select_entries_max,
)

NAME: Final = r"[^\s\x00-\x1f\x7f/\[\](){}<>,;'\"`=!+*%&|\\]+"
"""A name in a path, as a regular expression: no white space, brackets, quotes or operators except the
hyphen."""

_STEP: Final = re.compile(rf"/({NAME})|\[([0-9]+)\]")


@dataclass(frozen=True, slots=True)
class Path:
    """A path to a value. `steps` are names (`str`) and subscripts (`int`, from 0). No steps: the whole
    body."""

    steps: tuple[str | int, ...]

    def __str__(self) -> str:
        """Return the text that `parse_path` parses to an equal path."""
        return "".join(f"[{s}]" if isinstance(s, int) else f"/{s}" for s in self.steps) or "/"


def parse_path(text: str) -> Path:
    """Parse a path such as `/a/b[0]/@attr`. It starts with a name.

    Raises `BadPath` with the position in `text` if it is invalid, or has more than 1,024 characters
    (`path_characters_max`) or 32 steps (`path_steps_max`).
    """
    if len(text) > path_characters_max:
        raise BadPath(f"Path too long: {len(text):,} characters. Use at most {path_characters_max:,}.")
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (found[1] is None and not steps):
            raise BadPath(f"Invalid path {shown(text)} at position {at}: {_wanted(text, at, steps)}.", at)
        if len(steps) == path_steps_max:
            raise BadPath(
                f"Invalid path {shown(text)}. Use at most {path_steps_max} names and subscripts.", at
            )
        steps.append(_subscript(found[2], text, at) if found[1] is None else found[1])
        at = found.end()
    if not steps:
        raise BadPath("Invalid path '': it is empty. Use /name, /parent/child or /name[0].")
    return Path(tuple(steps))


def path_reason(error: BadPath) -> str:
    """Return the text of an error about a path, for use inside a sentence that gives the position."""
    before, _, after = str(error).removesuffix(".").rpartition(f" at position {error.position}")
    text = before + after
    return text[:1].lower() + text[1:]


def check_paths(paths: Sequence[Path]) -> None:
    """Raise `BadPath` if reading `paths` together could cost more than the length of a body justifies.

    This is above `paths_per_reader_max`, or if the same names have subscripts in more than `path_forms_max`
    different places (`/a/b`, `/a[0]/b`): each form iterates over the same arrays again.
    """
    if len(paths) > paths_per_reader_max:
        raise BadPath(f"Too many fields: {len(paths):,}. Use at most {paths_per_reader_max} per message.")
    forms: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path in paths:
        form = tuple("[]" if isinstance(step, int) else f"/{step}" for step in path.steps)
        for end in range(1, len(form) + 1):
            if end == len(form) or form[end] != "[]":
                names = tuple(step for step in form[:end] if step != "[]")
                forms.setdefault(names, set()).add(form[:end])
    for names, seen in forms.items():
        if len(seen) > path_forms_max:
            raise BadPath(
                f"Too many forms of the path {shown(''.join(names))}: more than {path_forms_max}, such as "
                "/a[0]/b and /a/b[0]. Use subscripts after the same names."
            )


def _subscript(digits: str, text: str, at: int) -> int:
    if len(digits) > len(str(path_subscript_max)) or int(digits) > path_subscript_max:
        raise BadPath(
            f"Invalid path {shown(text)} at position {at}: the subscript is too large. "
            f"Use at most {path_subscript_max:,}.",
            at,
        )
    return int(digits)


def _wanted(text: str, at: int, steps: list[str | int]) -> str:
    if not steps:
        return "a path starts with / and a name. Use /name, /parent/child or /name[0]"
    if text[at] == "[":
        return "the subscript is not a number. Use a number from 0, as in /name[0]"
    if text[at] == "/":
        return "the name after / is missing. Add one, or remove the /"
    return f"a name cannot contain {text[at]!r}. Remove it"


# -- select lists -------------------------------------------------------------------------------------


_BLANKS: Final = " \t"


@dataclass(slots=True)
class Choice:
    """Decision for a value and for the names below it. Read-only after `parse_select`."""

    keep: bool
    """Whether the value is kept. Names in `below` have their own decision."""
    below: dict[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Select:
    """A select list: its entries in order (True for `+`), and the resulting decisions."""

    entries: tuple[tuple[bool, Path], ...]
    root: Choice = field(compare=False, repr=False)

    def __str__(self) -> str:
        """Return the text that `parse_select` parses to an equal select list."""
        return "[" + ",".join(f"{'+' if keep else '-'}{path}" for keep, path in self.entries) + "]"


def parse_select(text: str) -> Select:
    """Parse a select list, with or without brackets: entries `+/path` and `-/path`, where `/` selects
    everything.

    The first entry sets the initial state: nothing for `-/` or `+/field`, everything for `+/` or `-/field`.
    Later entries override earlier ones for everything below their path. Raises `BadOption` with the position
    in `text` for invalid entries, subscripts, and more than 256 entries (`select_entries_max`).
    """
    if text.count(",") >= select_entries_max:
        raise BadOption(
            f"Select list too long: {text.count(',') + 1:,} entries. Use at most {select_entries_max}."
        )
    entries = tuple(_entry(item, at, text) for at, item in _items(text))
    keep, path = entries[0]
    root = Choice(keep if not path.steps else not keep)
    for keep, path in entries:
        _apply(root, keep, path)
    return Select(entries, root)


def _items(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts between commas inside the brackets, stripped, with their positions."""
    start = len(text) - len(text.lstrip(_BLANKS))
    end = len(text.rstrip(_BLANKS))
    if text[start:end].startswith("["):
        if not text[:end].endswith("]"):
            raise BadOption(
                f"Invalid select list {shown(text)} at position {end}: the closing bracket is missing. Add ]."
            )
        start, end = start + 1, end - 1
    for item in text[start:end].split(","):
        yield start + len(item) - len(item.lstrip(_BLANKS)), item.strip(_BLANKS)
        start += len(item) + 1


def _entry(item: str, at: int, text: str) -> tuple[bool, Path]:
    if item[:1] not in {"+", "-"}:
        raise BadOption(
            f"Invalid select list {shown(text)} at position {at}: {shown(item)} is not an entry. "
            "Use +/field, -/field, or +/ or -/ for all fields."
        )
    if item[1:] == "/":
        return item[0] == "+", Path(())
    try:
        path = parse_path(item[1:])
    except BadPath as error:
        raise BadOption(
            f"Invalid select list {shown(text)} at position {at + 1 + error.position}: {path_reason(error)}."
        ) from error
    if not all(isinstance(step, str) for step in path.steps):
        raise BadOption(
            f"Invalid select list {shown(text)} at position {at}: {shown(item)} has a subscript. "
            "Select by name. Within an array, a name applies to each object."
        )
    return item[0] == "+", path


def _apply(root: Choice, keep: bool, path: Path) -> None:
    node = root
    for step in path.steps:
        assert isinstance(step, str)
        node = node.below.setdefault(step, Choice(node.keep))
    node.keep = keep
    node.below.clear()
