"""Owns the question whose a file is: what is another's, or a newer program's, is no damaged store of ours.

Must never look behind magic and version: what follows them is damaged or whole, and the formats say which.
"""

from __future__ import annotations

from typing import Final

_MAGIC_BYTES: Final = 8
_VERSION_END: Final = 10


def check_owner(content: bytes, magic: bytes, version: int, kind: str) -> str | None:
    """Why a file may not be written over whatever else is wrong with it; None when it is ours.

    A beginning of `magic`, and zeros alone, are taken for ours: nobody else has anything to lose there. The
    version is looked at before any checksum, because a newer format may have another one.
    """
    if not magic.startswith(content[:_MAGIC_BYTES]) and content.strip(b"\0"):
        return f"it is not {kind}"
    found = int.from_bytes(content[_MAGIC_BYTES:_VERSION_END], "little")
    if found > version:
        return f"it has version {found}, and this program knows up to {version}"
    return None
