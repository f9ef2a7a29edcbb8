"""Sets of positions as bytes: one encoding for each, and everything else is refused."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tickertape.engine.queues.state.position_set_format import (
    _encode,
    decode_set,
    encode_set,
    lowest_of,
    read_roaring,
)

END = (1 << 63) - 1
RANDOM = Random(3)
SETS = {
    "empty": [],
    "zero": [0],
    "a run over blocks": range(60_000, 200_000),
    "a run over chunks": range(7, 3_000_000),
    "chunks apart": [*range(1 << 20), *range(1 << 21, 3 << 20)],
    "dense": RANDOM.sample(range(300_000), 100_000),
    "sparse": RANDOM.sample(range(1 << 40), 3_000),
    "far apart": [3, 1 << 40, 1 << 62],
    "every other": range(0, 200_000, 2),
    "more than a chunk, far apart": [*range(1 << 20), 1 << 40, 1 << 62],
    "more than a chunk, every other": [*range(0, 40, 2), *range(41, (1 << 20) + 9)],
}


@pytest.mark.parametrize("name", SETS)
def test_position_set_decodes_to_the_encoded_set(name: str) -> None:
    positions = BitMap64(SETS[name])
    data = encode_set(positions)
    assert decode_set(data, END) == positions
    assert lowest_of(data) == (positions.min() if positions else None)


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_bitmaps_of_version_0_are_read(name: str, optimized: bool) -> None:
    positions = BitMap64(SETS[name])
    if optimized:
        positions.run_optimize()
    assert read_roaring(positions.serialize(), END) == positions


def test_equal_position_sets_have_equal_bytes() -> None:
    made = BitMap64(range(1_000, 90_000))
    made.run_optimize()
    one_by_one = BitMap64()
    for position in range(90_000):
        one_by_one.add(position)
    one_by_one.remove_range(0, 1_000)
    assert encode_set(made) == encode_set(one_by_one) == bytes([0xE8, 0x07, 0xA8, 0xB7, 0x05])


@pytest.mark.parametrize(
    "data",
    [
        b"\x05",  # within a run
        b"\x05\x80",  # within a number
        b"\x05\x00",  # an empty run
        b"\x05\x01\x00\x01",  # two runs that are one
        b"\x85\x00\x01",  # a number that could be shorter
        b"\xff" * 9 + b"\x01\x01",  # more than 63 bits
        b"\x60\x10",  # beyond the end
        (b"\xff" * 8 + b"\x7f") * 2,  # far beyond it, in sum beyond 64 bits
        (b"\xff" * 8 + b"\x7f") * 4,
    ],
)
def test_invalid_position_set_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^a set "):
        decode_set(data, 100)


def test_huge_run_in_a_position_set_is_refused_without_allocation() -> None:
    data = encode_set(BitMap64([0])).replace(b"\x01", b"\xff" * 8 + b"\x7f")
    with pytest.raises(ValueError, match="positions at or above"):
        decode_set(data, 1 << 40)


def plain_bytes(numbers: list[int]) -> bytes:
    """Encode numbers one by one, as the document says."""
    out = bytearray()
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


EDGES = [number for bits in range(7, 63, 7) for number in ((1 << bits) - 1, 1 << bits)]
NUMBERS = st.integers(0, 200) | st.sampled_from([0, *EDGES, END]) | st.integers(0, END)


@given(st.lists(NUMBERS, max_size=60))
def test_numbers_of_every_length_have_the_documented_bytes(numbers: list[int]) -> None:
    assert _encode(np.array(numbers, np.uint64)) == plain_bytes(numbers)


@given(st.binary(max_size=40))
def test_any_bytes_are_the_encoding_of_a_set_or_refused(data: bytes) -> None:
    try:
        found = decode_set(data, 1 << 20)
    except ValueError:
        return
    assert encode_set(found) == data


@given(st.lists(st.integers(0, 1 << 21), max_size=30), st.data())
def test_damaged_bitmaps_of_version_0_are_refused_or_read(places: list[int], data: st.DataObject) -> None:
    broken = bytearray(BitMap64(places).serialize())
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(broken)))
    for part in (bytes(broken), bytes(broken[:cut])):
        try:
            read_roaring(part, 1 << 22)
        except ValueError:
            continue
