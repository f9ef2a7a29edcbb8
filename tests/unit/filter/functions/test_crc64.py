"""CRC64 equals the check of xz files for all lengths."""

from __future__ import annotations

import lzma
from random import Random

import pytest

from tickertape.filter.functions.crc64 import crc64


def _of_xz(data: bytes) -> int:
    """Return the CRC-64 in an xz file of `data`, the last field of the block before the index."""
    made = lzma.compress(data, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, preset=0)
    index_bytes = (int.from_bytes(made[-8:-4], "little") + 1) * 4
    end = len(made) - 12 - index_bytes
    return int.from_bytes(made[end - 8 : end], "little")


def test_crc64_of_the_standard_check_text() -> None:
    assert crc64("123456789") == 0x995DC9BBDF1939FA
    assert crc64("") == 0


@pytest.mark.parametrize(
    "length",
    [1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 319, 320, 321, 4_097, 65_535, 65_536, 65_537, 65_793, 150_000],
)
def test_crc64_agrees_with_xz(length: int) -> None:
    rng = Random(length)
    for letters in ("\0", "a", "abé€😀\0"):
        text = "".join(rng.choices(letters, k=length))
        assert crc64(text) == _of_xz(text.encode())
