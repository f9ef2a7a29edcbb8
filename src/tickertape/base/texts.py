"""Owns how text from outside is shown in an error message.

Must never let such text into a message unescaped or at full length.
"""

from __future__ import annotations

import re
from typing import Final

shown_characters_max: Final = 80
"""Above this a text is cut when it is shown."""


def shown(text: str) -> str:
    """`text` quoted, escaped, and cut when it is long."""
    return repr(text if len(text) <= shown_characters_max else text[: shown_characters_max - 3] + "...")


said_characters_max: Final = 2000
"""Above this what a library says of an error is cut."""

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def said(error: BaseException, characters_max: int = said_characters_max) -> str:
    """What a library says of an error, in one line, cut when it is long, without colours and other bytes that
    move a terminal."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."
