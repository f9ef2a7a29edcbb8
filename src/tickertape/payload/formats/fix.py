"""Message types `fix` and `nvfix`: fields `tag=value`, each terminated by a separator.

All values are strings. The caller decides which ones are numbers. The length and checksum fields of a FIX
message are not checked.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from tickertape.base.errors import BadPath
from tickertape.payload.limits import fix_searched_tags_max
from tickertape.payload.paths import Path, Select, check_paths
from tickertape.payload.types import Unreadable, unreadable_by

_TAG: Final = re.compile(r"[0-9]+")


class Fix:
    """`35=D<SOH>55=IBM<SOH>`. NVFIX has names instead of tags.

    `separator` is one byte. The last one may be missing. A body without fields is valid."""

    def __init__(self, name: str, *, numbered: bool, separator: bytes = b"\x01") -> None:
        self.name: Final = name
        self._numbered = numbered
        self._separator = separator
        end = re.escape(separator)
        tag = rb"[0-9]+" if numbered else rb"[^=" + end + rb"]+"
        self._wrong = re.compile(end + rb"(?!" + tag + rb"=|\Z)").search

    def reader(self, paths: Sequence[Path]) -> FixReader:
        """See `MessageType`."""
        check_paths(paths)
        wanted = [(self._tag(path), path.steps[1] if len(path.steps) == 2 else None) for path in paths]
        return FixReader(wanted, self._framed, self._separator)

    def check(self, body: bytes) -> None:
        """See `MessageType`."""
        self._framed(body)

    def unreadable(self, bodies: Sequence[bytes]) -> tuple[list[int], str]:
        """See `MessageType`."""
        return unreadable_by(self.check, bodies)

    def projector(self, select: Select) -> Callable[[bytes], bytes]:
        """See `MessageType`."""
        for _, path in select.entries:
            if path.steps:
                self._tag(path)
        chosen = {tag.encode(): choice.keep for tag, choice in select.root.below.items()}
        others = select.root.keep
        separator = self._separator

        def project(body: bytes) -> bytes:
            try:
                self._framed(body)
            except Unreadable:
                return body
            kept = [f for f in body.split(separator) if f and chosen.get(f[: f.index(b"=")], others)]
            if kept and body.endswith(separator):
                kept.append(b"")
            return separator.join(kept)

        return project

    def merger(self) -> Callable[[bytes, bytes], bytes]:
        """See `MessageType`.

        A repeated tag is an array, which is replaced as a whole: each value of the delta takes the place of
        one of the body, in order. Further values follow at the end, like new fields, and excess ones are
        removed. So the entries of a repeating group remain together if their number does not change, or if
        the group is the end of the body. The delta has all entries of a group that it changes. Checksums and
        lengths in a message are not updated.
        """
        separator = self._separator

        def merge(old: bytes, delta: bytes) -> bytes:
            changes = self._framed(delta)
            try:
                self._framed(old)
            except Unreadable:
                return delta
            if not old:
                return delta
            if not delta:
                return old
            fields = _merged(_split(old, separator), _split(changes, separator))
            if old.endswith(separator):
                fields.append(b"")
            return separator.join(fields)

        return merge

    def _framed(self, body: bytes) -> bytes:
        """Return the body with a separator before its first field. Raises `Unreadable`."""
        framed = self._separator + body
        wrong = self._wrong(framed)
        if wrong is not None:
            tag = "a number" if self._numbered else "a name"
            raise Unreadable(
                f"{self.name}: the field at byte {wrong.start()} does not start with {tag} and ="
            )
        return framed

    def _tag(self, path: Path) -> bytes:
        """Return the tag in `path`."""
        name, *more = path.steps
        if len(more) > 1 or not isinstance(name, str) or any(isinstance(step, str) for step in more):
            raise BadPath(
                f"Invalid field '{path}': fields of {self.name} are not nested. Use /tag or /tag[0]."
            )
        if self._numbered and _TAG.fullmatch(name) is None:
            raise BadPath(f"Invalid field '{path}': fields of fix are numeric tags. Use for example /35.")
        return name.encode()


class FixReader:
    """Reads tags from FIX (a `FieldReader`)."""

    def __init__(
        self, wanted: Sequence[tuple[bytes, Any]], framed: Callable[[bytes], bytes], separator: bytes
    ) -> None:
        tags = list(dict.fromkeys(tag for tag, _ in wanted))
        picks = [(tags.index(tag), element) for tag, element in wanted if element is not None]
        self._framed = framed
        self._tags = tags
        self._fields = (_sought if len(tags) <= fix_searched_tags_max else _taken_apart)(tags, separator)
        self._elements = picks
        at = iter(range(len(tags), len(tags) + len(picks)))
        self.access: tuple[str, ...] = tuple(
            f"[{tags.index(tag) if element is None else next(at)}]" for tag, element in wanted
        )
        self.quick: Callable[[bytes], Any] = self.decode
        self.doubts: tuple[type[Exception], ...] = ()

    def decode(self, body: bytes) -> list[Any]:
        """See `FieldReader`."""
        fields = self._fields(self._framed(body))
        once = dict(fields)
        values: list[Any]
        if len(once) == len(fields):
            values = [_text(once[tag]) if tag in once else None for tag in self._tags]
        else:
            values = _repeated(fields, self._tags)
        if self._elements:
            values += [_element(values[at], n) for at, n in self._elements]
        return values


_Fields = list[tuple[bytes, bytes]]


def _sought(tags: Sequence[bytes], separator: bytes) -> Callable[[bytes], _Fields]:
    """Return a function that finds the fields of a few tags by searching."""
    if not tags:
        return lambda _: []
    end = re.escape(separator)
    found: Callable[[bytes], _Fields] = re.compile(
        end + b"(" + b"|".join(map(re.escape, tags)) + b")=([^" + end + b"]*+)"
    ).findall
    return found


def _taken_apart(tags: Sequence[bytes], separator: bytes) -> Callable[[bytes], _Fields]:
    """Return a function that finds the fields of many tags. Its work does not grow with their number."""
    wanted = frozenset(tags)

    def found(framed: bytes) -> _Fields:
        parts = (field.partition(b"=") for field in framed.split(separator))
        return [(tag, value) for tag, _, value in parts if tag in wanted]

    return found


def _repeated(fields: _Fields, tags: Sequence[bytes]) -> list[Any]:
    """Return the values of `tags` if some tags occur more than once."""
    several: dict[bytes, list[Any]] = {tag: [] for tag in tags}
    for tag, value in fields:
        several[tag].append(_text(value))
    return [None if not found else found[0] if len(found) == 1 else found for found in several.values()]


def _text(value: bytes) -> str | None:
    """Return a value as text: UTF-8, or Latin-1 if that is invalid. None for an empty value."""
    try:
        return value.decode() or None
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _split(body: bytes, separator: bytes) -> list[bytes]:
    return [field for field in body.split(separator) if field]


def _merged(fields: list[bytes], changes: list[bytes]) -> list[bytes]:
    """Return `fields` with the values of `changes`, by tag."""
    new: dict[bytes, deque[bytes]] = {}
    for field in changes:
        new.setdefault(field[: field.index(b"=")], deque()).append(field)
    merged = []
    for field in fields:
        values = new.get(field[: field.index(b"=")])
        if values is None:
            merged.append(field)
        elif values:
            merged.append(values.popleft())
    for field in changes:
        values = new[field[: field.index(b"=")]]
        if values and values[0] is field:
            merged.append(values.popleft())
    return merged


def _element(value: Any, n: int) -> Any:
    """Return element `n` of a tag. A tag that is not repeated has one element."""
    several = value if type(value) is list else [value]
    return several[n] if n < len(several) else None
