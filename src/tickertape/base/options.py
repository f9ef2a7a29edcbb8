"""Parse the option string of commands: `rate=2x,conflation_key=[/a,/b],bookmark,`.

The parser returns names and values. Each command decides which options exist. Items are separated by commas.
Blanks around names and values and empty items are ignored, so constants that end in a comma can be joined.
A value in square brackets keeps its commas. Quotes protect brackets inside it.
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
"""Option string without any option."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BLANKS: Final = " \t"
_TEXTS_KEPT: Final = 64
"""Size of the parser's cache. Reconnecting clients send the same options."""
_CLOSING: Final = {"[": "]", "(": ")"}


def parse_options(text: str) -> dict[str, str | None]:
    """Return the options of `text` in order: a text (brackets kept), or None for a flag without `=`.

    Raises `BadOption` with the position in `text` for a duplicate or invalid name, an empty value, and
    unbalanced brackets or quotes. Raises it also above `option_bytes_max` or `option_parts_max`.
    """
    return dict(_parsed(text)) if text else {}  # a copy, because callers may modify it


@lru_cache(maxsize=_TEXTS_KEPT)
def _parsed(text: str) -> dict[str, str | None]:
    options: dict[str, str | None] = {}
    if len(text) > option_bytes_max:
        raise BadOption(
            f"Options of {len(text):,} characters are too long. Use at most {option_bytes_max:,} characters."
        )
    if text.count(",") >= option_parts_max:
        raise BadOption(
            f"Too many options: {text.count(',') + 1:,} items. Use at most {option_parts_max} items."
        )
    if text.strip(_BLANKS) == NO_OPTIONS:
        return options
    for at, item in _split(text):
        name, equals, value = (part.strip(_BLANKS) for part in item.partition("="))
        if not name and not equals:
            continue
        if _NAME.fullmatch(name) is None:
            raise BadOption(
                f"Invalid option {shown(item.strip(_BLANKS))} (at position {at}). "
                f"Use name or name=value, separated by commas."
            )
        if equals and not value:
            raise BadOption(f"Invalid option {shown(name)} (at position {at}): no value after '='. Add one.")
        if value.startswith("[") and not _is_one_bracket(value):
            raise BadOption(
                f"Invalid option {shown(name)} (at position {at}): text after the closing bracket in "
                f"{shown(value)}. Remove it."
            )
        if name in options:
            raise BadOption(f"Duplicate option {shown(name)} (at position {at}). Give it once.")
        options[name] = value if equals else None
    return options


def format_options(options: Mapping[str, str | None]) -> str:
    """Return the option string of `options`, the inverse of `parse_options`."""
    if not options:
        return ""
    return ",".join([name if value is None else f"{name}={value}" for name, value in options.items()])


def list_value(value: str) -> tuple[str, ...]:
    """Return the members of a list value, `[/a,/b]` or bare `/a`, without surrounding blanks.

    Raises `BadOption` for an empty list or member.
    """
    inner = value.strip(_BLANKS)
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    members = tuple(item.strip(_BLANKS) for _, item in _split(inner, in_list=True))
    if not all(members):
        raise BadOption(f"Invalid list {shown(value)}: a member is empty. Use [first,second].")
    return members


def _split(text: str, *, in_list: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the parts between commas outside brackets, with positions.

    Quotes and `(` have a meaning only within brackets.
    """
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
                raise BadOption(
                    f"Unmatched {character!r} at position {at} in {shown(text)}. Remove it or open a bracket."
                )
        elif character == "," and not open_brackets:
            yield start, text[start:at]
            start = at + 1
    if quote:
        raise BadOption(f"Unclosed quote at position {quote_at} in {shown(text)}. Close it.")
    if open_brackets:
        raise BadOption(f"Unclosed bracket at position {open_brackets[-1][1]} in {shown(text)}. Close it.")
    yield start, text[start:]


def _is_one_bracket(value: str) -> bool:
    """Return whether the bracket that opens `value` closes at its end."""
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
