"""Parts of error messages: external text (escaped and shortened), near names, and wrong types."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

shown_characters_max: Final = 80
"""Length above which `shown` shortens a text."""


def shown(text: str) -> str:
    """Return `text` quoted, escaped, and shortened if it is long."""
    return repr(text if len(text) <= shown_characters_max else text[: shown_characters_max - 3] + "...")


number_bits_max: Final = 256
"""Bits above which `shown_number` gives the size of an integer instead of its digits."""


def shown_number(value: float) -> str:
    """Return the digits of a number, or the size of a very large integer."""
    if isinstance(value, int) and value.bit_length() > number_bits_max:
        return f"an integer of {value.bit_length():,} bits"
    return str(value)


def is_utf8(text: str) -> bool:
    """Return whether `text` can be encoded as UTF-8. Text from the system may contain surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_finite(value: float) -> bool:
    """Return whether `value` is a finite number in the range of a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


near_name_characters_max: Final = 64
"""Length above which a word has no near name: the search is quadratic."""
near_names_max: Final = 100
"""Number of names that are compared, because a server does it on its event loop."""


def near_name(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """Return the name in `known` that resembles `word` most, ignoring case, or "".

    `likeness` is the least accepted similarity, from 0 to 1.
    """
    if not 0 < len(word) <= near_name_characters_max:
        return ""
    from difflib import get_close_matches  # imported late: only errors need it

    names = {name.lower(): name for name in islice(known, near_names_max)}
    return next((names[near] for near in get_close_matches(word.lower(), names, 1, likeness)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'NAME'?` with the near name of `word` in the closed set `known`, or ""."""
    near = near_name(word, known)
    return f" Did you mean {near!r}?" if near not in ("", word) else ""


def not_one_of(problem: str, word: object, known: Collection[str]) -> str:
    """Return the error text for a `word` outside the closed set `known`: near name, and all names.

    `problem` is its first words, such as "Unknown option".
    """
    text = word if isinstance(word, str) else repr(word)
    return f"{problem} {shown(text)}.{did_you_mean(text, known)} Use {listed(known)}."


def listed(names: Iterable[str]) -> str:
    """Return the names as `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def wrong_type(name: str, value: object, use: str) -> str:
    """Return the error text for the argument `name` whose `value` has a wrong type."""
    return f"Invalid {name} of type {type(value).__name__}. Use {use}."


said_characters_max: Final = 2000
"""Length above which `said` shortens an error text."""

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def said(error: BaseException, characters_max: int = said_characters_max) -> str:
    """Return a library's error text in one line, shortened, without colours and control characters."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def described(error: BaseException, characters_max: int = said_characters_max) -> str:
    """Return the type of `error`, and its text if it has one, without a full stop at the end."""
    text = said(error, characters_max)
    text = text if text.endswith("...") else text.removesuffix(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
