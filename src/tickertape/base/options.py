"""Parse the option string of commands: `rate=2x,conflation_key=[/a,/b],bookmark,`.

The parser returns names and values; the command decides which options exist. Items are separated by commas.
Blanks around names and values are ignored and empty items allowed, so constants that end in a comma can be
concatenated. A value in square brackets keeps its commas; quotes protect brackets inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from tickertape.base.errors import BadOption
from tickertape.base.limits import option_bytes_max, option_parts_max
from tickertape.base.text_format import shown

NO_OPTIONS: Final = "none"
"""The option text without any option."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BLANKS: Final = " \t"
_TEXTS_KEPT: Final = 64
"""Clients that come back bring the options that they had."""
_CLOSING: Final = {"[": "]", "(": ")"}


def parse_options(text: str) -> dict[str, str | None]:
    """Options of `text` in their order: the value as text (brackets kept), or None for a flag without `=`.

    Raises `BadOption`, with the position in `text`, for a name given twice, a name that is none, an empty
    value, brackets or quotes that are not closed, and more than `option_bytes_max` or
    `option_parts_max`.
    """
    return dict(_parsed(text))  # whoever asked may change it


@lru_cache(maxsize=_TEXTS_KEPT)
def _parsed(text: str) -> dict[str, str | None]:
    options: dict[str, str | None] = {}
    if len(text) > option_bytes_max:
        raise BadOption(f"options of {len(text):,} characters: at most {option_bytes_max:,} are read")
    if text.count(",") >= option_parts_max:
        raise BadOption(f"options of {text.count(',') + 1:,} parts: at most {option_parts_max} are read")
    if text.strip(_BLANKS) == NO_OPTIONS:
        return options
    for at, item in _split(text):
        name, equals, value = (part.strip(_BLANKS) for part in item.partition("="))
        if not name and not equals:
            continue
        if _NAME.fullmatch(name) is None:
            raise BadOption(
                f"{shown(item.strip(_BLANKS))} (at position {at}) is no option: "
                f"options are name or name=value, comma-separated"
            )
        if equals and not value:
            raise BadOption(f"option {shown(name)[1:-1]} (at position {at}) has no value after its =")
        if value.startswith("[") and not _is_one_bracket(value):
            raise BadOption(
                f"option {shown(name)[1:-1]} (at position {at}) has text after its closing bracket: "
                f"{shown(value)}"
            )
        if name in options:
            raise BadOption(f"option {shown(name)[1:-1]} is given twice (again at position {at})")
        options[name] = value if equals else None
    return options


def format_options(options: Mapping[str, str | None]) -> str:
    """Return the option string of `options`; `parse_options` reads it back to equal values."""
    return ",".join(name if value is None else f"{name}={value}" for name, value in options.items())


def list_value(value: str) -> tuple[str, ...]:
    """Members of a list value, `[/a,/b]` or bare `/a`, without blanks around them.

    Raises `BadOption` for an empty list or member.
    """
    inner = value.strip(_BLANKS)
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    members = tuple(item.strip(_BLANKS) for _, item in _split(inner, in_list=True))
    if not all(members):
        raise BadOption(f"{shown(value)} has an empty member; a list is [first,second]")
    return members


def _split(text: str, *, in_list: bool = False) -> Iterator[tuple[int, str]]:
    """Parts between commas outside brackets, with positions; quotes and `(` count within brackets only."""
    open_brackets: list[tuple[str, int]] = []
    quote = ""
    quote_at = start = 0
    for at, character in enumerate(text):
        if quote:
            if character == quote:
                quote = ""
        elif (in_list or open_brackets) and character in "'\"":
            quote, quote_at = character, at
        elif character == "[" or (character == "(" and (in_list or open_brackets)):
            open_brackets.append((_CLOSING[character], at))
        elif character == "]" or (character == ")" and open_brackets):
            if not open_brackets or open_brackets.pop()[0] != character:
                raise BadOption(f"{character!r} at position {at} closes no bracket, in {shown(text)}")
        elif character == "," and not open_brackets:
            yield start, text[start:at]
            start = at + 1
    if quote:
        raise BadOption(f"the quote at position {quote_at} is not closed, in {shown(text)}")
    if open_brackets:
        raise BadOption(f"the bracket at position {open_brackets[-1][1]} is not closed, in {shown(text)}")
    yield start, text[start:]


def _is_one_bracket(value: str) -> bool:
    """Return whether the bracket that opens `value` closes at its very end."""
    depth = 0
    quote = ""
    for at, character in enumerate(value):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
            if depth == 0:
                return at == len(value) - 1
    return False
