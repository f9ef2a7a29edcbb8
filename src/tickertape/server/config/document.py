"""Configuration documents: TOML files with includes and `${VAR}`, sections, and value converters.

This module resolves `${VAR}` and `include`. `config.py` defines the keys. Problems are collected with file,
line and key, so that one run reports all of them.

Invariant: no key is ignored. `Section.finish` reports unread keys as unknown.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from tickertape.base.errors import BadName, ConfigurationError, UsageError
from tickertape.base.limits import KIB, MIB, client_name_bytes_max
from tickertape.base.names import check_client_name, check_topic, is_pattern
from tickertape.base.text_format import did_you_mean, is_utf8, listed, shown
from tickertape.base.units import parse_interval, parse_size
from tickertape.server.config.toml_lines import TooDeep, check_keys, find_lines
from tickertape.server.limits import (
    configuration_bytes_max,
    configuration_problems_max,
    configuration_total_bytes_max,
    include_depth_max,
    included_files_max,
)

_VARIABLE: Final = re.compile(r"\$(\$?)\{([^{}]*)(\}?)")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE: Final = re.compile(r"\s*\(at line (\d+), column \d+\)")
_ONE_LINE_PAIR: Final = re.compile(r"[ \t]*[^\s\[#=][^\[=]*=[ \t]*(?!\[|\{|\"\"\"|''').*")
"""A line with a key and its value, valid or not. The parser can skip it to find further errors."""
_SYNTAX_PROBLEMS_MAX: Final = 10
_SECOND_LOOK_BYTES_MAX: Final = 64 * KIB
"""Largest file that is parsed again without a line that has a syntax error."""
KEY_CHARACTERS_MAX: Final = 60
"""Longer keys are cut in messages. Valid keys are far shorter."""
_INTEGER_MAX: Final = 2**63 - 1
_HINTS: Final = {
    "Invalid value": "put strings in quotes, other values are numbers, true, false, times and [lists]",
    "Illegal character": "add the missing closing quote, or remove the control character",
    "Unterminated string": "add the missing closing quote",
    "Expected '='": "write key = value, or [table]",
    "Invalid statement": "write key = value, [table] or # comment",
    "Expected newline": "write one value on a line, with strings in quotes",
    "Cannot overwrite": "remove the duplicate key",
    "Cannot declare": "remove the duplicate table, or write [[name]] for another element of a list",
    "Unclosed array": "separate list elements with commas, and end the list with ]",
    "Unescaped": "write \\\\ for a backslash, or use single quotes",
    "Invalid initial character": "write an inline table on one line, without a comma at its end",
}


UNUSABLE: Final = object()
"""Placeholder of a value whose problem is already reported."""


class SourceLocation(NamedTuple):
    """File and line of a value. Line 0: the value is not from a line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class ConfigNode(NamedTuple):
    """A value and its location: a table, an array, or a scalar as parsed by `tomllib`."""

    value: Any
    """`dict[str, ConfigNode]`, `list[ConfigNode]`, str, int, float, bool, date or time, or `UNUSABLE`."""
    location: SourceLocation


class ConfigProblem(NamedTuple):
    """A problem of a configuration: its location, its key, and the allowed values."""

    location: SourceLocation
    key: str
    text: str

    def __str__(self) -> str:
        named = not self.location.line and repr(self.location.file) in self.text
        where = "" if named else str(self.location)
        return ": ".join(part for part in (where, self.key, self.text) if part)


class ConfigProblems(list[ConfigProblem]):
    """The problems of one configuration: the first `configuration_problems_max`, and a count of the
    others."""

    more = 0

    def append(self, problem: ConfigProblem) -> None:
        """Add a problem. Above the limit only count it."""
        if len(self) < configuration_problems_max:
            super().append(problem)
        else:
            self.more += 1


def read_document(path: Path, environment: Mapping[str, str], problems: ConfigProblems) -> ConfigNode:
    """Return the table of `path` with its includes merged and variables replaced.

    A scalar of the including file overrides that key of an included file. Tables are merged key by key.
    Arrays of tables are concatenated, included files first. Never raises: invalid parts are added to
    `problems` and left out."""
    try:
        return _DocumentReader(environment, problems).read(path, ())
    except _UnreadableError as error:
        problems.append(error.problem)
        return ConfigNode({}, SourceLocation(str(path), 0))


class _UnreadableError(Exception):
    """A file that cannot be used at all. Line 0: the problem has no line."""

    def __init__(self, location: SourceLocation, text: str) -> None:
        super().__init__(text)
        self.problem = ConfigProblem(location, "", text)


class _DocumentReader:
    """One document with its includes."""

    def __init__(self, environment: Mapping[str, str], problems: ConfigProblems) -> None:
        self._environment = environment
        self._problems = problems
        self._files = 0
        self._bytes = 0

    def read(self, path: Path, outer: tuple[Path, ...]) -> ConfigNode:
        """Read a file with its includes. `outer`: the including files, outermost first."""
        file = str(path)
        text = self._text_of(path)
        try:
            table, lines = self._parsed(file, text)
            node = self._locate(table, (), file, lines)
        except TooDeep as error:
            raise _UnreadableError(SourceLocation(file, error.line), str(error)) from None
        except RecursionError:
            text = f"Cannot read {file!r}: nested too deeply. Use fewer levels."
            raise _UnreadableError(SourceLocation(file, 0), text) from None
        include = node.value.pop("include", None)
        return node if include is None else self._include(node, include, path, (*outer, path))

    def _text_of(self, path: Path) -> str:
        data = _bytes_of(path)
        self._bytes += len(data)
        if self._bytes > configuration_total_bytes_max:
            text = (
                f"Cannot read {str(path)!r}: with it the configuration exceeds "
                f"{configuration_total_bytes_max} bytes. Include fewer or smaller files."
            )
            raise _UnreadableError(SourceLocation(str(path), 0), text)
        try:
            return data.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise _UnreadableError(
                SourceLocation(str(path), line),
                f"not UTF-8 (byte {error.start}). Save the file as UTF-8.",
            ) from None

    def _parsed(self, file: str, text: str) -> tuple[dict[str, Any], Mapping[Any, int]]:
        """Return the table of `text` and its lines. Lines with syntax errors are reported and skipped."""
        before = 0
        for _ in range(_SYNTAX_PROBLEMS_MAX):
            check_keys(text)
            try:
                return tomllib.loads(text), find_lines(text)
            except tomllib.TOMLDecodeError as error:
                line, problem = _explained(error, text)
            except TooDeep:
                raise
            except ValueError:  # raised by Python for a number of thousands of digits
                problem = f"Cannot read {file!r}: a number has too many digits. Use fewer digits."
                raise _UnreadableError(SourceLocation(file, 0), problem) from None
            rows = text.split("\n")
            if (
                line <= before
                or len(text) > _SECOND_LOOK_BYTES_MAX
                or _ONE_LINE_PAIR.fullmatch(rows[line - 1]) is None
            ):
                raise _UnreadableError(SourceLocation(file, line), problem)
            self._problems.append(ConfigProblem(SourceLocation(file, line), "", problem))
            before = line
            rows[line - 1] = ""
            text = "\n".join(rows)
        raise _UnreadableError(
            SourceLocation(file, before), "More syntax errors follow this line. Correct these first."
        )

    def _locate(
        self, value: Any, path: tuple[str | int, ...], file: str, lines: Mapping[Any, int]
    ) -> ConfigNode:
        location = SourceLocation(file, lines.get(path, 1))
        if isinstance(value, dict):
            nodes = {k: self._locate(v, (*path, k), file, lines) for k, v in value.items()}
            value = {k: node for k, node in nodes.items() if node.value is not None}
        elif isinstance(value, list):
            value = [self._locate(v, (*path, i), file, lines) for i, v in enumerate(value)]
        elif isinstance(value, str) and "${" in value:
            value = self._substitute(value, location, path)
        elif isinstance(value, int) and abs(value) > _INTEGER_MAX:
            problem = f"Number too large (more than 63 bits). Use at most {_INTEGER_MAX}."
            self._problems.append(ConfigProblem(location, _key(path), problem))
            value = None  # TOML has no null, so None marks a value to leave out
        return ConfigNode(value, location)

    def _substitute(self, text: str, location: SourceLocation, path: tuple[str | int, ...]) -> Any:
        """Return `text` with its variables replaced, or `UNUSABLE` if one is invalid or not set."""
        key, usable = _key(path), True

        def replace(match: re.Match[str]) -> str:
            nonlocal usable
            escaped, name, closing = match.groups()
            if escaped:
                return match[0][1:]
            if not closing or _VARIABLE_NAME.fullmatch(name) is None:
                problem = f"Invalid variable {shown(match[0])}. Write ${{NAME}}, or $${{ for a literal ${{."
                self._problems.append(ConfigProblem(location, key, problem))
            elif name not in self._environment:
                problem = f"environment variable {shown(name)} is not set"
                self._problems.append(ConfigProblem(location, key, problem))
            elif not is_utf8(self._environment[name]):
                problem = f"environment variable {shown(name)} is not UTF-8"
                self._problems.append(ConfigProblem(location, key, problem))
            else:
                return self._environment[name]
            usable = False
            return ""

        replaced = _VARIABLE.sub(replace, text)
        return replaced if usable else UNUSABLE

    def _include(
        self, node: ConfigNode, include: ConfigNode, path: Path, files: tuple[Path, ...]
    ) -> ConfigNode:
        members = include.value
        if isinstance(members, list):
            members = [member for member in members if member.value is not UNUSABLE]
        if not isinstance(members, list) or not all(isinstance(m.value, str) and m.value for m in members):
            text = 'must be a list of file names, such as ["topics.toml"]'
            self._problems.append(ConfigProblem(include.location, "include", text))
            return node
        whole = ConfigNode({}, node.location)
        for member in members:
            inner = path.parent / member.value
            problem = self._refusal(inner, files)
            if problem:
                self._problems.append(ConfigProblem(member.location, "include", problem))
                continue
            self._files += 1
            try:
                whole = _joined(whole, self.read(inner, files))
            except _UnreadableError as error:
                inside = error.problem
                # report a missing file at the line that includes it
                if not inside.location.line:
                    inside = ConfigProblem(member.location, "include", str(inside))
                self._problems.append(inside)
        return _joined(whole, node)

    def _refusal(self, inner: Path, files: tuple[Path, ...]) -> str:
        if "\0" in str(inner):
            return f"Invalid file name {shown(str(inner))}. Remove the NUL character."
        real = os.path.realpath(inner)
        same = [file for file in files if os.path.realpath(file) == real]
        if same:
            names = " -> ".join(str(file) for file in (*files[files.index(same[0]) :], inner))
            return f"Circular include: {names}. Remove one of these includes."
        if len(files) > include_depth_max:
            return f"Includes nested more than {include_depth_max} deep. Use fewer levels."
        if self._files >= included_files_max:
            return f"More than {included_files_max} included files. Merge some of them."
        return ""


def _bytes_of(path: Path) -> bytes:
    location = SourceLocation(str(path), 0)
    try:
        with path.open("rb") as file:
            data = file.read(configuration_bytes_max + 1)
    except OSError as error:
        text = f"Cannot read {str(path)!r}: {error.strerror or error}. Check the path and its permissions."
        raise _UnreadableError(location, text) from None
    except ValueError:
        text = f"Invalid file name {shown(str(path))}. Remove the NUL character."
        raise _UnreadableError(SourceLocation("", 0), text) from None
    if len(data) > configuration_bytes_max:
        text = f"Cannot read {str(path)!r}: it has more than {configuration_bytes_max} bytes. Split it."
        raise _UnreadableError(location, text)
    return data


def _explained(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """Return the line of a syntax error, and its text with a hint."""
    at = _LINE.search(str(error))
    line = int(at[1]) if at else text.rstrip().count("\n") + 1
    found = _LINE.sub("", str(error)).replace(" (at end of document)", ", at the end of the file")
    hint = next((hint for begin, hint in _HINTS.items() if found.startswith(begin)), "")
    return line, f"Invalid TOML: {shown(found)[1:-1]}" + (f" ({hint})" if hint else "")


def _key(path: tuple[str | int, ...]) -> str:
    return ".".join(shown_key(part) for part in path if isinstance(part, str))


def shown_key(key: str) -> str:
    """Return `key` for a message. Long and unprintable keys are quoted, escaped and cut."""
    return key if len(key) <= KEY_CHARACTERS_MAX and key.isprintable() else shown(key)


def _joined(under: ConfigNode, over: ConfigNode) -> ConfigNode:
    """Merge two values of one key: tables key by key, arrays of tables concatenated, else `over`."""
    if isinstance(under.value, dict) and isinstance(over.value, dict):
        table = dict(under.value)
        for key, node in over.value.items():
            table[key] = _joined(table[key], node) if key in table else node
        return ConfigNode(table, over.location if over.value else under.location)
    if _is_tables(under) and _is_tables(over):
        return ConfigNode([*under.value, *over.value], over.location)
    return over


def _is_tables(node: ConfigNode) -> bool:
    return isinstance(node.value, list) and all(isinstance(member.value, dict) for member in node.value)


# -- sections -----------------------------------------------------------------------------------------


MISSING: Final = "is missing here"
"""Text of a missing key. `examine` drops the problem in files with syntax errors."""

_Value = TypeVar("_Value")
_Choice = TypeVar("_Choice", bound=str)


class Section:
    """A table. Callers read its keys one by one, then call `finish`. `name`: its name in messages."""

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
            self.problem("", f"must be a table: write [{name}] and its keys below", node.location)

    def value(self, key: str, convert: Callable[[Any], _Value], default: _Value) -> _Value:
        """Return the converted value of `key`.

        Return `default` if the key is absent or unusable, or if `convert` raises a `UsageError`."""
        self._asked[key] = None
        node = self._table.get(key)
        if node is None or node.value is UNUSABLE:
            return default
        try:
            return convert(node.value)
        except UsageError as error:
            self.problem(key, str(error).partition("\n")[0], node.location)
            return default

    def values(self, **converters: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the converted values of these keys, without absent and invalid keys."""
        found = {key: self.value(key, convert, UNUSABLE) for key, convert in converters.items()}
        return {key: value for key, value in found.items() if value is not UNUSABLE}

    def required(self, key: str, convert: Callable[[Any], _Value], default: _Value) -> _Value:
        """Return the value of a required key, as `value`. Report a missing key."""
        if key not in self._table and not self._later & self._table.keys():
            self.problem(key, MISSING, self._location)
        return self.value(key, convert, default)

    def table(self, key: str) -> Section:
        """Return the table `key`, or an empty table if it is absent."""
        self._asked[key] = None
        return Section(self._table.get(key, ConfigNode({}, self._location)), self._inner(key), self._problems)

    def optional_table(self, key: str) -> Section | None:
        """Return the table `key`, or None if it is absent."""
        self._asked[key] = None
        return self.table(key) if key in self._table else None

    def tables(self, key: str) -> list[Section] | None:
        """Return the tables of the array of tables `key`. None if it is absent or of another type."""
        self._asked[key] = None
        node = self._table.get(key)
        if node is None:
            return None
        name = self._inner(key)
        if not isinstance(node.value, list) or not all(isinstance(m.value, dict) for m in node.value):
            self.problem(key, f"must be a list of tables: write [[{name}]] and its keys below", node.location)
            return None
        return [Section(member, name, self._problems) for member in node.value]

    def not_built(self, *keys: str) -> None:
        """Reject keys of planned features by name."""
        self._later = frozenset(keys)
        for key in keys:
            if key in self._table:
                self.problem(key, "is not supported yet. Remove it.", self._table[key].location)

    def has(self, key: str) -> bool:
        """Return whether the table has the key."""
        return key in self._table

    def location(self, key: str) -> SourceLocation:
        """Return the location of `key`, or of the table if the key is absent."""
        node = self._table.get(key)
        return self._location if node is None else node.location

    def problem(self, key: str, text: str, location: SourceLocation | None = None) -> None:
        """Report a problem of `key`."""
        self._problems.append(
            ConfigProblem(location or self.location(key), self._inner(shown_key(key)), text)
        )

    def finish(self, *also: str) -> None:
        """Report unread keys as unknown. `also`: keys that another module has read."""
        takes = ", ".join([*(key for key in self._asked if key not in self._later), *also])
        where = f"[{self._name}]" if self._name else "The file"
        for key, node in self._table.items():
            if key in self._asked or key in self._later:
                continue
            # Close matches are slow, and not useful with this many problems.
            suggest = not self._problems.more
            guess = _place_of(key) if suggest else ""
            if not guess and suggest:
                guess = did_you_mean(key, [*self._asked, *also, *self._later])
            self.problem(key, f"unknown key.{guess} {where} takes {takes}", node.location)

    def _inner(self, key: str) -> str:
        return ".".join(part for part in (self._name, key) if part)


def _place_of(key: str) -> str:
    """Return the advice to move a key that other tables have, or ""."""
    tables = [table for table, keys in _known_keys().items() if table and key in keys]
    return f" Move it to {listed(tables)}." if tables else ""


@cache
def _known_keys() -> dict[str, dict[str, Any]]:
    """Return the description of each key by table, as written in a file ("[journal]")."""
    text = files("tickertape.server.config").joinpath("keys.toml").read_text("utf-8")
    return tomllib.loads(text)


def text_of(value: Any) -> str:
    """Return `value` if it is a string. Raises `ConfigurationError`."""
    if not isinstance(value, str):
        raise ConfigurationError(f"must be a string in quotes, not {kind_of(value)}")
    if not is_utf8(value):
        raise ConfigurationError(f"must be UTF-8, not {shown(value)}")
    return value


def kind_of(value: Any) -> str:
    """Return the text of `value` for a message: a string in quotes, as an error has each value."""
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return shown(value)
    return shown(str(value).lower() if isinstance(value, bool) else str(value)).strip("'")


_DIGITS_MAX: Final = 20


def flag_of(value: Any) -> bool:
    """Read a flag. Raises `ConfigurationError`."""
    # Strings are accepted too, because ${VAR} always gives a string.
    flag = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise ConfigurationError(f"must be true or false, not {kind_of(value)}")
    return flag


def check_choice(value: Any, names: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless `value` is one of `names`."""
    if value not in names:
        allowed = ", ".join(f'"{name}"' for name in names)
        near = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ConfigurationError(f"must be one of {allowed}, not {kind_of(value)}{near and '.'}{near}")


def choice_of(names: Sequence[_Choice]) -> Callable[[Any], _Choice]:
    """Return a converter that accepts one of `names`."""

    def convert(value: Any) -> _Choice:
        check_choice(value, names)
        return cast("_Choice", value)

    return convert


def path_of(value: Any, noun: str) -> str:
    """Return `value` as a path. `noun`: "file" or "directory", for messages."""
    path = text_of(value)
    if not path or "\0" in path:
        raise ConfigurationError(f"must be the path of a {noun}, not {shown(path)}")
    return path


def topic_of(value: Any, remedy: str = "Use the full name of a topic.") -> str:
    """Return `value` as a topic name. Internal topics of the server contain a $ and count as patterns.

    Raises `ConfigurationError` or `BadTopic`."""
    name = text_of(value)
    if is_pattern(name):
        raise ConfigurationError(f"must be a topic name, not the pattern {shown(name)}. {remedy}")
    check_topic(name)
    return name


def instance_name_of(value: Any) -> str:
    """Return `value` as the name of a server. Raises `ConfigurationError`."""
    name = text_of(value)
    try:
        check_client_name(name)
    except BadName:
        raise ConfigurationError(
            f"must be 1 to {client_name_bytes_max} bytes without control characters, not {shown(name)}"
        ) from None
    return name


def size_of(value: Any, example: str, least: int = 0) -> int:
    """Return `value` as a size in bytes, at least `least`. Raises `ConfigurationError` or `BadOption`."""
    if isinstance(value, dict | list):
        raise ConfigurationError(f'must be a size such as "{example}", not {kind_of(value)}')
    size = parse_size(value)
    if size < least:
        raise ConfigurationError(f"must be at least {least // MIB}MB, not {kind_of(value)}")
    return size


def seconds_of(value: Any) -> float:
    """Return `value` as a duration in seconds. Raises `ConfigurationError` or `BadOption`."""
    if isinstance(value, dict | list):
        raise ConfigurationError(f'must be a time such as 1 (seconds) or "500ms", not {kind_of(value)}')
    return parse_interval(value)


def count_of(value: Any, least: int, most: int) -> int:
    """Return `value` as an integer from `least` to `most`. Raises `ConfigurationError`."""
    # Strings are accepted too, because ${VAR} always gives a string.
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit():
        count = int(text)
        if least <= count <= most:
            return count
    raise ConfigurationError(f"must be an integer from {least:,} to {most:,}, not {kind_of(value)}")
