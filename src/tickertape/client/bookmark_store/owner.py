"""Owner of a bookmark store file: a digest of the client name in spare bytes of the header.

A file of an earlier version has zeros there, and programs of an earlier version ignore the digest, so it
changes no format version.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from crc32c import crc32c

_OWNER: Final = struct.Struct("<8sI")
"""The digest, then the checksum of salt and digest."""
OWNER_AT: Final = 48
OWNER_END: Final = OWNER_AT + _OWNER.size


def owner_named(name: str) -> bytes:
    """The digest of a client name."""
    return blake2b(name.encode(), digest_size=8).digest()


def mark(owner: bytes, salt: int) -> bytes:
    """The bytes at `OWNER_AT` in the header of a file with that salt; zeros for no owner."""
    if not owner:
        return bytes(_OWNER.size)
    return _OWNER.pack(owner, crc32c(struct.pack("<I", salt) + owner))


def marked(content: bytes, owner: bytes, salt: int) -> bytes:
    """The content of a file, bound to that owner."""
    return content[:OWNER_AT] + mark(owner, salt) + content[OWNER_END:]


def owner_of(content: bytes, salt: int) -> bytes:
    """The digest in a file; empty when it is bound to no name, or that was not written whole."""
    owner, crc = _OWNER.unpack_from(content, OWNER_AT)
    return owner if crc == crc32c(struct.pack("<I", salt) + owner) else b""
