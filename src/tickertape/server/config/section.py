"""Configuration section: one table while it is read, and the keys left over at the end.

Invariant: no key passes unread: `finish` reports the others as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from tickertape.base.errors import ConfigurationError, UsageError
from tickertape.base.limits import MIB
from tickertape.base.names import check_topic, is_pattern
from tickertape.base.text_format import shown
from tickertape.base.units import parse_interval, parse_size
from tickertape.server.config.document import (
    KEY_CHARACTERS_MAX,
    UNUSABLE,
    ConfigNode,
    ConfigProblem,
    ConfigProblems,
    SourceLocation,
    is_utf8,
    shown_key,
)

MISSING: Final = "is missing here"
"""The text of a problem that a broken line beside it may explain."""

_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=str)


class Section:
    """A table: its keys are asked for one by one, then `finish`ed. `name` is how messages call it."""

    def __init__(self, node: ConfigNode, name: str, problems: ConfigProblems) -> None:
        self._location = node.location
        self._name = name
        self._problems = problems
        self._table: dict[str, ConfigNode] = {}
        self._asked: dict[str, None] = {}
        self._later: frozenset[str] = frozenset()
        if isinstance(node.value, dict):
            self._table = node.value
        else:
            self.problem("", f"is a table: write [{name}] and its keys below", node.location)

    def value(self, key: str, convert: Callable[[Any], _Value], default: _Value) -> _Value:
        """The value of `key`, or `default` when it is absent, unusable, or `convert` refuses it with a
        `UsageError`."""
        self._asked[key] = None
        node = self._table.get(key)
        if node is None or node.value is UNUSABLE:
            return default
        try:
            return convert(node.value)
        except UsageError as error:
            self.problem(key, str(error), node.location)
            return default

    def values(self, **converters: Callable[[Any], Any]) -> dict[str, Any]:
        """The values of these keys, without those that are absent, unusable or refused."""
        found = {key: self.value(key, convert, UNUSABLE) for key, convert in converters.items()}
        return {key: value for key, value in found.items() if value is not UNUSABLE}

    def required(self, key: str, convert: Callable[[Any], _Value], default: _Value) -> _Value:
        """As `value`, of a required key."""
        if key not in self._table and not self._later & self._table.keys():
            self.problem(key, MISSING, self._location)
        return self.value(key, convert, default)

    def table(self, key: str) -> Section:
        """The table below `key`; an empty one when it is absent."""
        self._asked[key] = None
        return Section(self._table.get(key, ConfigNode({}, self._location)), self._inner(key), self._problems)

    def optional_table(self, key: str) -> Section | None:
        """The table below `key`; None when it is absent."""
        self._asked[key] = None
        return self.table(key) if key in self._table else None

    def tables(self, key: str) -> list[Section] | None:
        """The tables of an array of tables; None when it is absent or something else."""
        self._asked[key] = None
        node = self._table.get(key)
        if node is None:
            return None
        name = self._inner(key)
        if not isinstance(node.value, list) or not all(isinstance(m.value, dict) for m in node.value):
            self.problem(key, f"is a list of tables: write [[{name}]] and its keys below", node.location)
            return None
        return [Section(member, name, self._problems) for member in node.value]

    def not_built(self, *keys: str) -> None:
        """Refuse keys of planned features explicitly: they have no effect today."""
        self._later = frozenset(keys)
        for key in keys:
            if key in self._table:
                self.problem(key, "is not built yet; take it out", self._table[key].location)

    def has(self, key: str) -> bool:
        """Whether the key is written here."""
        return key in self._table

    def location(self, key: str) -> SourceLocation:
        """Return the location of `key`, or of the table if the key is absent."""
        node = self._table.get(key)
        return self._location if node is None else node.location

    def problem(self, key: str, text: str, location: SourceLocation | None = None) -> None:
        """Note a problem of `key`."""
        self._problems.append(
            ConfigProblem(location or self.location(key), self._inner(shown_key(key)), text)
        )

    def finish(self, *also: str) -> None:
        """Report the keys that were not read; `also` names keys that were read elsewhere."""
        takes = ", ".join([*self._asked, *also])
        where = f"[{self._name}]" if self._name else "the file"
        for key, node in self._table.items():
            if key in self._asked or key in self._later:
                continue
            # Close matches are costly, and useless beside that many problems.
            suggest = not self._problems.more
            close = _close_match(key, [*self._asked, *also, *self._later]) if suggest else ""
            guess = f"did you mean {shown(close)}? " if close else ""
            self.problem(key, f"unknown; {guess}{where} takes {takes}", node.location)

    def _inner(self, key: str) -> str:
        return ".".join(part for part in (self._name, key) if part)


def _close_match(word: str, words: list[str]) -> str:
    if len(word) > KEY_CHARACTERS_MAX:
        return ""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word.lower(), words, n=1)), "")


def text_of(value: Any) -> str:
    """`value`, which is text. Raises `ConfigurationError`."""
    if not isinstance(value, str):
        raise ConfigurationError(f"is text in quotes, not {kind_of(value)}")
    if not is_utf8(value):
        raise ConfigurationError(f"{shown(value)} is not text in UTF-8")
    return value


def kind_of(value: Any) -> str:
    """Return `value` as it is shown in a problem."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return shown(str(value).lower() if isinstance(value, bool) else str(value)).strip("'")


_DIGITS_MAX: Final = 20


def flag_of(value: Any) -> bool:
    """Read a flag. Raises `ConfigurationError`."""
    # As text too, because that is all that ${VAR} can give.
    flag = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise ConfigurationError(f"is true or false, not {kind_of(value)}")
    return flag


def check_choice(value: Any, names: Sequence[str]) -> None:
    """`value` is one of `names`."""
    if value not in names:
        allowed = ", ".join(f'"{name}"' for name in names)
        raise ConfigurationError(f"is one of {allowed}, not {kind_of(value)}")


def choice_of(names: Sequence[_Choice]) -> Callable[[Any], _Choice]:
    """Return what reads one of `names`."""

    def convert(value: Any) -> _Choice:
        check_choice(value, names)
        return cast("_Choice", value)

    return convert


def path_of(value: Any, noun: str) -> str:
    """The path of a file or a directory, which `noun` says."""
    path = text_of(value)
    if not path or "\0" in path:
        raise ConfigurationError(f"is the path of a {noun}, not {shown(path)}")
    return path


def topic_of(value: Any, remedy: str = "a topic is named in full here") -> str:
    """The name of a topic; the server's own have a $, and count as patterns. Raises `BadTopic` too."""
    name = text_of(value)
    if is_pattern(name):
        raise ConfigurationError(f"{shown(name)} is a pattern: {remedy}")
    check_topic(name)
    return name


def size_of(value: Any, example: str, least: int = 0) -> int:
    """A size in bytes, at least `least`. Raises `BadOption` too."""
    if isinstance(value, dict | list):
        raise ConfigurationError(f'is a size such as "{example}", not {kind_of(value)}')
    size = parse_size(value)
    if size < least:
        raise ConfigurationError(f"is at least {least // MIB}MB, not {kind_of(value)}")
    return size


def seconds_of(value: Any) -> float:
    """A time in seconds. Raises `BadOption` too."""
    if isinstance(value, dict | list):
        raise ConfigurationError(f'is a time such as 1 (seconds) or "500ms", not {kind_of(value)}')
    return parse_interval(value)


def count_of(value: Any, least: int, most: int) -> int:
    """A whole number, `least` to `most`."""
    # As text too, because that is all that ${VAR} can give.
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit():
        count = int(text)
        if least <= count <= most:
            return count
    raise ConfigurationError(f"is a number, {least:,} to {most:,}, not {kind_of(value)}")
