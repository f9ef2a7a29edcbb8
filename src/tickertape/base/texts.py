"""Owns how text from outside is shown in an error message.

Must never let such text into a message unescaped or at full length.
"""

from __future__ import annotations

from typing import Final

shown_characters_max: Final = 80
"""Above this a text is cut when it is shown."""


def shown(text: str) -> str:
    """`text` quoted, escaped, and cut when it is long."""
    return repr(text if len(text) <= shown_characters_max else text[: shown_characters_max - 3] + "...")
