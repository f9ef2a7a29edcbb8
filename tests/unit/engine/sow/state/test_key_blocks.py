"""Blocks of long keys: places, garbage, and compaction."""

from __future__ import annotations

import numpy as np
import pytest

from tickertape.engine.sow.state.key_blocks import KeyBlocks


def test_keys_are_found_at_places_in_several_blocks() -> None:
    blocks = KeyBlocks(64)
    keys = [bytes([65 + n]) * (13 + n) for n in range(20)]
    places = blocks.append(range(20), keys)
    assert [blocks.key(place, len(key)) for place, key in zip(places, keys, strict=True)] == keys
    assert len({place & 0xFFFFFFFF for place in places}) > 5
    assert blocks.live_bytes == sum(map(len, keys))


def test_key_longer_than_a_block_has_a_separate_block() -> None:
    blocks = KeyBlocks(16)
    keys = [b"a" * 100, b"b" * 13, b"c" * 100]
    places = blocks.append([1, 2, 3], keys)
    assert [place >> 32 for place in places] == [0, 0, 0]
    assert [blocks.key(place, len(key)) for place, key in zip(places, keys, strict=True)] == keys


@pytest.mark.parametrize("block_bytes", [16, 64, 100, 1 << 20])
def test_joined_keys_are_stored_like_single_ones(block_bytes: int) -> None:
    keys = [bytes([65 + n]) * (13 + n * 7 % 40) for n in range(30)]
    single, joined = KeyBlocks(block_bytes), KeyBlocks(block_bytes)
    ends = np.array([*map(len, keys)], np.int64).cumsum()
    places = joined.append_joined(np.arange(30), b"".join(keys), ends).tolist()
    assert places == single.append(range(30), keys)
    lengths = [*map(len, keys)]
    for blocks in (single, joined):
        for gone in (places[0::3], places[1::3]):
            blocks.release(gone, [lengths[places.index(place)] for place in gone])
        blocks.append([40], [b"k" * 13])
    assert [joined.key(place, lengths[at]) for at, place in [*enumerate(places)][2::3]] == keys[2::3]
    assert (joined.nbytes, joined.live_bytes) == (single.nbytes, single.live_bytes)


def test_block_without_live_keys_is_removed() -> None:
    blocks = KeyBlocks(32)
    places = blocks.append([1, 2, 3], [b"a" * 16, b"b" * 16, b"c" * 16])
    full = blocks.nbytes
    blocks.release(places[:1], [16])
    assert blocks.nbytes == full
    blocks.release(places[1:2], [16])
    assert blocks.nbytes == 16 + 8
    blocks.release(places[2:], [16])
    assert blocks.live_bytes == 0
    blocks.append([4, 5, 6], [b"d" * 16] * 3)
    assert blocks.nbytes <= 4 * (16 + 8)


def test_compaction_returns_each_key_of_the_emptiest_block_once() -> None:
    blocks = KeyBlocks(64)
    keys = [b"%013d" % n for n in range(40)]
    places = blocks.append(range(40), keys)
    assert blocks.examine(10) is None
    dead = [place for n, place in enumerate(places) if n % 4]
    blocks.release(dead, [13] * len(dead))
    first = blocks.examine(3)
    assert first is not None
    second = blocks.examine(3)
    assert second is not None
    assert first[0].tolist() + second[0].tolist() == [0, 1, 2, 3]
    assert first[1].tolist() + second[1].tolist() == places[:4]
    moved = blocks.append([0], [keys[0]])
    blocks.release(places[:1], [13])
    assert blocks.key(moved[0], 13) == keys[0]
    following = blocks.examine(100)
    assert following is not None
    assert following[0].tolist() == [4, 5, 6, 7]


def test_compaction_needs_no_step_without_garbage() -> None:
    blocks = KeyBlocks(64)
    blocks.append(range(100), [b"%013d" % n for n in range(100)])
    assert blocks.examine(100) is None
