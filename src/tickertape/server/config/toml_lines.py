"""TOML line numbers: the line of each key and each array element of a document.

`tomllib` returns values without lines. This module reads only documents that `tomllib` has accepted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final

from tickertape.server.limits import configuration_depth_max

Path = tuple[str | int, ...]
"""Path in a document: keys, and indices of array elements."""

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_INLINE_BLANK: Final = re.compile(r"[ \t]*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
# Possessive quantifiers avoid backtracking state for each character of a string. Groups are atomic instead,
# because `re` of Python 3.11.2 (Debian 12) matches a possessive repeat of a group incorrectly.
_STRING: Final = re.compile(
    r'"""(?>(?:[^"\\]++|\\.|"(?!""))*)"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?>(?:[^"\\]++|\\.)*)"|' + r"'[^']*'",
    re.DOTALL,
)
# A date and its time may have one blank between them. Any other scalar ends at the first of these characters.
_SCALAR: Final = re.compile(r"\d{4}-\d\d-\d\d [^,\]}\s#]+|[^,\]}\s#]+")


# Comments and strings in a text that may be invalid TOML. Single-line strings end with the line.
_SKIPPED: Final = re.compile(
    r'#[^\n]*+|"""(?>(?:[^"\\]++|\\.|"(?!""))*)"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?>(?:[^"\\\n]++|\\.)*)"|'
    r"'[^'\n]*+'",
    re.DOTALL,
)
_LONG_KEY: Final = re.compile(
    rf'(?<![A-Za-z0-9_"-])(?:[A-Za-z0-9_"-]++[ \t]*+\.[ \t]*+){{{configuration_depth_max}}}'
)


class TooDeep(ValueError):
    """A value on line `line` is nested deeper than `configuration_depth_max`."""

    def __init__(self, line: int) -> None:
        super().__init__(f"Nested more than {configuration_depth_max} levels deep. Use fewer levels.")
        self.line = line


def check_keys(text: str) -> None:
    """Raise `TooDeep` for a dotted key with too many parts, before `tomllib` parses it.

    Parsing time and memory grow with the square of the number of parts. A small file could block the process
    for hours.
    """
    bare = _SKIPPED.sub(_stand_in, text)
    found = _LONG_KEY.search(bare)
    if found is not None:
        raise TooDeep(bare.count("\n", 0, found.start()) + 1)


def _stand_in(match: re.Match[str]) -> str:
    """Return a replacement of a comment or a string, with the same number of lines."""
    return '""' + "\n" * match[0].count("\n")


def find_lines(text: str) -> dict[Path, int]:
    """Return the line number, from 1, of each table, key and array element of a valid document.

    Raises `TooDeep`."""
    return _Walk(text).lines


class _Walk:
    """One pass over a document."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Path, int] = {}
        self._text = text
        self._at = 0
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._elements: dict[Path, int] = {}
        """Number of tables of each array of tables, up to the current place."""
        table: Path = ()
        while self._skip(_BLANK):
            if text.startswith("[[", self._at):
                table = self._header(2, "]]")
            elif text[self._at] == "[":
                table = self._header(1, "]")
            else:
                self._pair(table)

    def _skip(self, blanks: re.Pattern[str]) -> bool:
        """Skip blanks. Return False at the end of the text."""
        match = blanks.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._at < len(self._text)

    def _line(self) -> int:
        return bisect_right(self._starts, self._at)

    def _header(self, width: int, closing: str) -> Path:
        line = self._line()
        self._at += width
        *parents, last = self._keys()
        self._at += len(closing)
        path: Path = ()
        for key in parents:
            path = self._inside((*path, key))
            self.lines.setdefault(path, line)
        path = (*path, last)
        if width == 2:
            self.lines.setdefault(path, line)
            self._elements[path] = self._elements.get(path, 0) + 1
        path = self._inside(path)
        self.lines[path] = line
        return path

    def _below(self, path: Path, key: str | int) -> Path:
        if len(path) >= configuration_depth_max:
            raise TooDeep(self._line())
        return (*path, key)

    def _inside(self, path: Path) -> Path:
        """Return the path of the last table of an array of tables, and any other path as it is."""
        count = self._elements.get(path)
        return path if count is None else (*path, count - 1)

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip(_INLINE_BLANK)
            quoted = self._text[self._at] in "\"'"
            match = (_STRING if quoted else _BARE_KEY).match(self._text, self._at)
            assert match is not None
            keys.append(_unquoted(match[0]) if quoted else match[0])
            self._at = match.end()
            self._skip(_INLINE_BLANK)
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = self._below(path, key)
            self.lines.setdefault(path, line)
        self._at += 1  # the equals sign
        self._skip(_INLINE_BLANK)
        self._value(path)

    def _value(self, path: Path) -> None:
        opening = self._text[self._at]
        if opening == "[":
            self._at += 1
            index = 0
            while self._next_member("]"):
                member = self._below(path, index)
                self.lines[member] = self._line()
                self._value(member)
                index += 1
        elif opening == "{":
            self._at += 1
            while self._next_member("}"):
                self._pair(path)
        else:
            match = (_STRING if opening in "\"'" else _SCALAR).match(self._text, self._at)
            assert match is not None
            self._at = match.end()

    def _next_member(self, closing: str) -> bool:
        """Move to the next member of an array or inline table. Return False after the last one."""
        self._skip(_BLANK)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_BLANK)
        if self._text[self._at] == closing:
            self._at += 1
            return False
        return True


def _unquoted(text: str) -> str:
    """Return the key of a quoted text."""
    import tomllib

    return next(iter(tomllib.loads(f"{text} = 0")))
