"""Bodies of records: views, blocks, pins, and claims for compaction."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.helpers.record_rows import appended, int64s, joined
from tickertape.base.errors import LimitReached
from tickertape.engine.sow.state import blocks as module
from tickertape.engine.sow.state.blocks import (
    BLOCKS_END,
    NO_VIEW,
    BodyBlocks,
    View,
    Views,
    in_block,
    stored_bytes,
)

SMALL = 64
"""Bytes of a block in most tests."""


def fields(views: Views, row: int) -> tuple[int, bytes, int, int]:
    """Return length, prefix, block and offset of a view of a long body."""
    length, prefix, block, offset = struct.unpack("<i4sii", views[row].tobytes())
    return length, prefix, block, offset


def view_of(views: Views, row: int) -> View:
    head, place = views[row].tolist()
    return head, place


def body(number: int, size: int) -> bytes:
    return bytes((number * 31 + i) % 251 for i in range(size))


# -- append and read ----------------------------------------------------------------------------------


def test_views_of_long_bodies_have_length_prefix_block_and_offset() -> None:
    blocks = BodyBlocks(SMALL)
    bodies = [body(1, 13), body(2, 50), body(3, 20)]
    views = appended(blocks, bodies)
    assert fields(views, 0) == (13, bodies[0][:4], 0, 0)
    assert fields(views, 1) == (50, bodies[1][:4], 0, 13)
    assert fields(views, 2) == (20, bodies[2][:4], 1, 0)


def test_views_of_short_bodies_have_the_body_and_zeros() -> None:
    blocks = BodyBlocks(SMALL)
    for size in range(13):
        expected = struct.pack("<i12s", size, body(9, size))
        assert appended(blocks, [body(9, size)])[0].tobytes() == expected
        assert struct.pack("<QQ", *blocks.append_one(body(9, size))) == expected
    assert blocks.block_count == blocks.live_bytes == blocks.nbytes == 0


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_of_all_sizes_are_read_back_in_any_order(
    kind: type, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickertape.engine.sow.state.blocks._FEW_VIEWS", few)
    blocks = BodyBlocks(SMALL)
    bodies = [
        body(i, size) for i, size in enumerate([0, 1, 4, 12, 13, 63, 64, 65, 200, 5, 0, 30, 30, 30, 12, 3])
    ]
    data, offsets = joined(bodies)
    views = blocks.append(kind(data), offsets)
    order = [15, 3, 8, 8, 0, 11, 12, 13, 7, 6, 5, 2, 1, 4, 9, 10, 14]
    assert blocks.take(views) == bodies
    assert blocks.take(views[order]) == [bodies[i] for i in order]
    assert [blocks.take_one(view_of(views, i)) for i in range(len(bodies))] == bodies
    joined_bodies, places = blocks.gather(views[order])
    expected, expected_places = joined([bodies[i] for i in order])
    assert bytes(joined_bodies) == expected
    assert places.tolist() == expected_places.tolist()
    assert blocks.live_bytes == stored_bytes(views) == sum(len(b) for b in bodies if len(b) > 12)


@pytest.mark.parametrize("distance", [1, 100_000])
@pytest.mark.parametrize("short", [0, 13])
def test_many_bodies_of_few_blocks_are_joined_in_any_order(distance: int, short: int) -> None:
    blocks = BodyBlocks(1 << 15)
    generator = np.random.default_rng(distance + short)
    bodies = [generator.bytes(size) for size in generator.integers(short, 300, 2_000).tolist()]
    views = appended(blocks, bodies[:1_000])
    blocks._next *= distance
    views = np.concatenate((views, appended(blocks, bodies[1_000:])))
    order = generator.permutation(2_000)
    joined_bodies, offsets = blocks.gather(views[order])
    expected, expected_offsets = joined([bodies[i] for i in order.tolist()])
    assert bytes(joined_bodies) == expected
    assert offsets.tolist() == expected_offsets.tolist()
    assert blocks.pin(views).take(views[order]) == [bodies[i] for i in order.tolist()]
    assert bytes(blocks.gather(views)[0]) == b"".join(bodies)


def test_scalar_and_vector_appends_store_alike() -> None:
    one, many = BodyBlocks(SMALL), BodyBlocks(SMALL)
    bodies = [body(i, size) for i, size in enumerate([20, 12, 44, 70, 1, 64, 0, 33, 33])]
    views = appended(many, bodies)
    assert [one.append_one(b) for b in bodies] == [view_of(views, i) for i in range(len(bodies))]
    assert (one.live_bytes, one.block_count, one.nbytes) == (many.live_bytes, many.block_count, many.nbytes)


def test_append_of_a_part_of_a_batch_reads_only_that_part() -> None:
    blocks = BodyBlocks(SMALL)
    bodies = [body(i, 20) for i in range(9)]
    data, offsets = joined(bodies)
    views = blocks.append(memoryview(data), offsets[3:7])
    assert blocks.take(views) == bodies[3:6]
    assert blocks.live_bytes == 60


def test_append_without_bodies_returns_no_views() -> None:
    blocks = BodyBlocks(SMALL)
    assert blocks.append(b"", int64s([0])).shape == (0, 2)
    assert appended(blocks, [b"", b""]).tolist() == [[*NO_VIEW], [*NO_VIEW]]
    assert blocks.take(appended(blocks, [])) == []
    assert blocks.gather(appended(blocks, []))[0] == b""


def test_bodies_never_span_blocks_and_a_large_one_has_a_block_of_that_size() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(1, 40), body(2, 65), body(3, 24), body(4, 1)])
    assert [fields(views, i)[2:] for i in range(3)] == [(0, 0), (1, 0), (0, 40)]
    assert blocks.block_count == 2
    views = appended(blocks, [body(5, 13)])  # the open block is full
    assert fields(views, 0)[2:] == (2, 0)


def test_block_numbers_end_with_an_error() -> None:
    blocks = BodyBlocks(SMALL)
    blocks._next = BLOCKS_END - 1
    assert fields(appended(blocks, [body(1, 60)]), 0)[2] == BLOCKS_END - 1
    with pytest.raises(LimitReached, match="Restart the server"):
        appended(blocks, [body(2, 60)])
    assert blocks.block_count == 1


# -- drop ---------------------------------------------------------------------------------------------


def test_drop_lowers_live_bytes_and_frees_empty_blocks() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(1, 30), body(2, 30), body(3, 30), body(4, 5)])
    blocks.drop(views[[0, 3]])
    assert (blocks.live_bytes, blocks.block_count) == (60, 2)
    blocks.drop_one(view_of(views, 1))
    assert (blocks.live_bytes, blocks.block_count) == (30, 1)
    assert blocks.take(views[2:]) == [body(3, 30), body(4, 5)]
    blocks.drop_one(view_of(views, 3))
    blocks.drop(views[2:])
    assert (blocks.live_bytes, blocks.block_count, blocks.nbytes) == (0, 0, 0)
    assert fields(appended(blocks, [body(5, 30)]), 0)[2:] == (2, 0)


def test_blocks_are_found_after_many_others_were_freed() -> None:
    blocks = BodyBlocks(SMALL)
    first = appended(blocks, [body(0, 60)])
    kept = [first]
    for number in range(1, 1_000):
        views = appended(blocks, [body(number, 60)])
        if number % 100:
            blocks.drop(views)
        else:
            kept.append(views)
    assert blocks.block_count == 10
    assert len(blocks._numbers) <= 128
    views = np.concatenate(kept)
    assert blocks.take(views) == [body(100 * i, 60) for i in range(10)]
    blocks.drop(views[::2])
    for row in range(1, 10, 2):
        blocks.drop_one(view_of(views, row))
    assert (blocks.live_bytes, blocks.block_count) == (0, 0)


def test_memory_counts_used_bytes_of_the_open_block_and_claims() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(1, 30)])
    assert blocks.nbytes == 30
    blocks.claim(views, int64s([5]))
    assert blocks.nbytes == 34
    appended(blocks, [body(2, 40)])
    assert blocks.nbytes == SMALL + 4 + 40


# -- pins ---------------------------------------------------------------------------------------------


def test_pinned_bodies_stay_readable_until_the_last_release() -> None:
    blocks = BodyBlocks(SMALL)
    bodies = [body(1, 30), body(2, 8), body(3, 30), body(4, 30)]
    views = appended(blocks, bodies)
    one, two = blocks.pin(views[:3]), blocks.pin(views[3:])
    two.extend(views)
    assert blocks.held_bytes == 0
    blocks.drop(views)
    assert blocks.held_bytes == 2 * SMALL
    assert one.take(views[:3]) == bodies[:3]
    assert bytes(two.gather(views[::-1])[0]) == b"".join(bodies[::-1])
    assert (one.nbytes, two.nbytes) == (SMALL, 2 * SMALL)
    one.release()
    one.release()
    assert blocks.held_bytes == 2 * SMALL
    assert two.take(views) == bodies
    two.release()
    assert blocks.held_bytes == 0


def test_release_before_the_block_is_freed_holds_nothing() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(1, 30)])
    blocks.pin(views).release()
    blocks.drop(views)
    assert blocks.held_bytes == 0


def test_pin_has_only_the_blocks_of_pinned_views() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(1, 60), body(2, 60)])
    pin = blocks.pin(views[:1])
    with pytest.raises(KeyError):
        pin.take(views)
    empty = blocks.pin(appended(blocks, []))
    assert empty.nbytes == 0
    assert empty.take(appended(blocks, [b"short"])) == [b"short"]


def test_narrow_pin_has_only_the_blocks_of_the_remaining_views() -> None:
    blocks = BodyBlocks(SMALL)
    bodies = [body(number, 60) for number in range(3)]
    views = appended(blocks, [*bodies, body(9, 8)])
    pin, other = blocks.pin(views), blocks.pin(views[:1])
    blocks.drop(views)
    pin.narrow(views[1:2])
    assert (pin.nbytes, blocks.held_bytes) == (SMALL, 2 * SMALL)
    assert pin.take(views[1:2]) == bodies[1:2]
    assert other.take(views[:1]) == bodies[:1]
    other.release()
    pin.narrow(views[3:])
    assert blocks.held_bytes == 0
    assert pin.take(views[3:]) == [body(9, 8)]
    pin.release()


def test_pin_of_blocks_with_distant_numbers_has_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISTINCT_SPAN_MAX", 3)
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(i, 60) for i in range(9)])
    pin = blocks.pin(views[[0, 8, 4, 0]])
    assert pin.nbytes == 3 * SMALL
    blocks.drop(views)
    assert pin.take(views[[4, 0, 8]]) == [body(4, 60), body(0, 60), body(8, 60)]


# -- compaction ---------------------------------------------------------------------------------------


def test_emptiest_block_is_less_than_half_live_closed_and_claimed() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(i, 16) for i in range(12)])  # three blocks
    appended(blocks, [body(12, 16)])  # an open one
    blocks.claim(views[:8], np.arange(8))
    blocks.drop(views[[0, 1]])
    assert blocks.emptiest() is None  # half of it is live
    blocks.drop(views[[2, 4, 5, 6, 8, 9, 10]])
    assert blocks.emptiest() == 0
    blocks.drop(views[[3]])
    assert blocks.emptiest() == 1
    assert sorted(blocks.take_owners(1).tolist()) == [4, 5, 6, 7]
    assert blocks.emptiest() is None  # no claims are left in block 1, and none exist in block 2
    blocks.claim(views[[11]], int64s([11]))
    assert blocks.emptiest() == 2


def test_open_block_is_not_compacted() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(i, 20) for i in range(3)])
    blocks.claim(views, np.arange(3))
    blocks.drop(views[:2])
    assert blocks.emptiest() is None
    appended(blocks, [body(4, 20)])
    assert blocks.emptiest() == 0


def test_owners_of_a_block_are_returned_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "sow_compaction_slots_max", 3)
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(i, 13) for i in range(4)])
    blocks.claim(views, int64s([2**32 - 1, 7, 7, 5]))
    assert sorted(blocks.take_owners(0).tolist()) == [5, 7, 7]
    assert blocks.take_owners(0).tolist() == [2**32 - 1]
    assert blocks.take_owners(0).tolist() == []
    assert blocks.nbytes == 52


@pytest.mark.parametrize("runs_max", [1, 1_000])
def test_claims_of_mixed_blocks_are_recorded_for_each_block(
    runs_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLAIM_RUNS_MAX", runs_max)
    blocks = BodyBlocks(SMALL)
    bodies = [body(i, 13 + i % 40) if i % 3 else b"short" for i in range(60)]
    views = appended(blocks, bodies)
    order = np.random.default_rng(1).permutation(60)
    blocks.claim(views[order], order)
    blocks.claim_one(view_of(views, 0), 0)
    for number in range(blocks.block_count):
        expected = in_block(views, number).nonzero()[0]
        assert sorted(blocks.take_owners(number).tolist()) == expected.tolist()


def test_move_stores_bodies_anew_and_frees_the_old_block() -> None:
    blocks = BodyBlocks(SMALL)
    views = appended(blocks, [body(i, 20) for i in range(4)])
    blocks.drop(views[[1]])
    moved = blocks.move(0, views[[0, 2]])
    assert blocks.take(moved) == [body(0, 20), body(2, 20)]
    assert [fields(moved, i)[2:] for i in range(2)] == [(1, 20), (1, 40)]
    assert (blocks.live_bytes, blocks.block_count) == (60, 1)
