"""Mutations of valid input: small changes, and corrected checksums, which would hide them otherwise.

Must never know how a target reacts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Final

from crc32c import crc32c

from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.wire.commands import PREFACE

NUMBERS: Final = (0, 1, 2, 7, 8, 16, 127, 128, 255, 256, 4095, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1)
WIDE_NUMBERS: Final = (*NUMBERS, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_INPUT_BYTES_MAX: Final = 1 << 16
_COMMIT_MAGIC: Final = b"TCMT"


def mutated(data: bytes, others: Sequence[bytes], words: Sequence[bytes], rng: Random) -> bytes:
    """Return `data` with one to four changes, some with pieces of `others` and `words`."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _change(out, others, words, rng)
        del out[_INPUT_BYTES_MAX:]
    return bytes(out)


def _change(out: bytearray, others: Sequence[bytes], words: Sequence[bytes], rng: Random) -> None:
    at = rng.randrange(len(out) + 1)
    match rng.randrange(9):
        case 0 if out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        case 1 if out:
            out[at % len(out)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        case 2:
            del out[at : at + rng.randrange(1, 17)]
        case 3:
            del out[at:]
        case 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        case 5:
            size = rng.randrange(1, 33)
            out[at:at] = out[at : at + size] * rng.choice((1, 1, 2, 50))
        case 6:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            size = rng.randrange(1, 65)
            out[at : at + rng.choice((0, size))] = other[start : start + size]
        case 7 if words:
            out[at : at + rng.choice((0, 1, 4))] = rng.choice(words)
        case _:
            wide = rng.random() < 0.3
            at &= ~7 if wide else ~3
            number = (
                struct.pack("<Q", rng.choice(WIDE_NUMBERS))
                if wide
                else struct.pack("<I", rng.choice(NUMBERS))
            )
            out[at : at + len(number)] = number


def mended_frames(data: bytes) -> bytes:
    """Return a stream behind its preface with the correct checksums of its frames."""
    out = bytearray(data)
    at = len(PREFACE)
    while at + 16 <= len(out):
        frame_bytes, header_bytes = struct.unpack_from("<II", out, at)
        end, header_end = at + frame_bytes, at + 16 + header_bytes
        batch = header_end + -header_bytes % 8
        if not (header_end <= batch <= end <= len(out)):
            break
        batch_crc = crc32c(bytes(out[batch:end])) if batch < end else 0
        struct.pack_into("<II", out, at + 8, crc32c(bytes(out[at + 16 : header_end])), batch_crc)
        at = end
    return bytes(out)


def mended_segment(data: bytes) -> bytes:
    """Return a segment with the correct checksums, and the correct chain, of its header and commits."""
    if len(data) < segment_header_bytes:
        return data
    out = bytearray(data)
    chain = _sealed(out, 0, segment_header_bytes)
    at = segment_header_bytes
    while at + commit_header_bytes <= len(out) and out[at : at + 4] == _COMMIT_MAGIC:
        body_bytes = struct.unpack_from("<I", out, at + 44)[0]
        body = at + commit_header_bytes
        if body + body_bytes > len(out):
            break
        struct.pack_into("<I", out, at + 64, crc32c(bytes(out[body : body + body_bytes])))
        struct.pack_into("<I", out, at + 68, chain)
        chain = _sealed(out, at, commit_header_bytes)
        at = body + body_bytes
    return bytes(out)


def _sealed(out: bytearray, at: int, size: int) -> int:
    """Write the checksum of `size` bytes into their last four, and return it."""
    crc = crc32c(bytes(out[at : at + size - 4]))
    struct.pack_into("<I", out, at + size - 4, crc)
    return crc
