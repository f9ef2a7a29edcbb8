"""Select lists: parse `[-/,+/event_id,+/description]` and decide which fields are kept.

The message types apply these decisions to bodies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tickertape.base.errors import BadOption, BadPath
from tickertape.base.text_format import shown
from tickertape.payload.limits import select_entries_max
from tickertape.payload.paths import Path, parse_path

_BLANKS: Final = " \t"


@dataclass(slots=True)
class Choice:
    """Decision for a value and for the names below it. Read only, once `parse_select` returned it."""

    keep: bool
    """Whether the value stays; fields named in `below` decide for themselves."""
    below: dict[str, Choice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Select:
    """A select list: its entries in order, True for `+`, and the decisions that they come to."""

    entries: tuple[tuple[bool, Path], ...]
    root: Choice = field(compare=False, repr=False)

    def __str__(self) -> str:
        """Return the text that `parse_select` reads back to an equal select list."""
        return "[" + ",".join(f"{'+' if keep else '-'}{path}" for keep, path in self.entries) + "]"


def parse_select(text: str) -> Select:
    """Parse the select list in `text`, with or without brackets: entries `+/path` and `-/path`, where `/` is
    everything.

    The first entry sets what is begun with: `-/` or `+/field` with nothing, `+/` or `-/field` with all.
    Later entries win over earlier ones, for all below their path. Raises `BadOption`, with the position in
    `text`, for entries that are none, subscripts, and more than `select_entries_max`.
    """
    if text.count(",") >= select_entries_max:
        raise BadOption(
            f"a select list of {text.count(',') + 1:,} entries: at most {select_entries_max} are read"
        )
    entries = tuple(_entry(item, at, text) for at, item in _items(text))
    keep, path = entries[0]
    root = Choice(keep if not path.steps else not keep)
    for keep, path in entries:
        _apply(root, keep, path)
    return Select(entries, root)


def _items(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts between commas inside the brackets, without blanks around them, with their
    positions."""
    start = len(text) - len(text.lstrip(_BLANKS))
    end = len(text.rstrip(_BLANKS))
    if text[start:end].startswith("["):
        if not text[:end].endswith("]"):
            raise BadOption(f"the select list {shown(text)} has no closing bracket (position {end})")
        start, end = start + 1, end - 1
    for item in text[start:end].split(","):
        yield start + len(item) - len(item.lstrip(_BLANKS)), item.strip(_BLANKS)
        start += len(item) + 1


def _entry(item: str, at: int, text: str) -> tuple[bool, Path]:
    if item[:1] not in {"+", "-"}:
        raise BadOption(
            f"{shown(item)} at position {at} of the select list {shown(text)} is no entry: entries are "
            f"+/field, -/field, and +/ or -/ for all fields"
        )
    if item[1:] == "/":
        return item[0] == "+", Path(())
    try:
        path = parse_path(item[1:])
    except BadPath as error:
        raise BadOption(f"position {at + 1 + error.position} of the select list: {error}") from error
    if not all(isinstance(step, str) for step in path.steps):
        raise BadOption(
            f"{shown(item)} at position {at} of the select list has a subscript: fields are selected by "
            f"name, and within an array in each of its objects"
        )
    return item[0] == "+", path


def _apply(root: Choice, keep: bool, path: Path) -> None:
    node = root
    for step in path.steps:
        assert isinstance(step, str)
        node = node.below.setdefault(step, Choice(node.keep))
    node.keep = keep
    node.below.clear()
