"""Key table: exact slots, bounded work of each call, reuse of slots, and memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tickertape.batch.format import I8, Int64s, Labels, offsets_from
from tickertape.engine.sow.state.key_blocks import KeyBlocks
from tickertape.engine.sow.state.key_index import KeyIndex, KeyTable

SECRET = bytes(range(16))
BLOCK_BYTES = 512


class NumberedKeys(KeyTable):
    """Table whose unmixed hash of a key is the number that the key has as text."""

    hash_of = staticmethod(lambda key: int(str(key, "ascii")) - (1 << 63))


class TwinKeys(KeyTable):
    """Table in which all keys have one hash."""

    hash_of = staticmethod(lambda _: 7)


def slots_of(values: Iterable[int]) -> Int64s:
    return np.array(list(values), I8)


def column_of(keys: list[bytes]) -> Labels:
    return Labels(offsets_from(np.array([*map(len, keys)], np.int32)), b"".join(keys))


def texts(numbers: Iterable[int], prefix: str = "") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in numbers]


def test_key_table_is_a_key_index() -> None:
    index: KeyIndex = KeyTable(SECRET)
    assert len(index) == index.slots == 0
    assert index.find([]).tolist() == index.insert([]).tolist() == []
    assert index.live().tolist() == index.keys_of(slots_of([])) == []
    index.remove(slots_of([]))
    index.release(slots_of([]))


def test_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="Use at least 16 random bytes"):
        KeyTable(b"x" * 15)


@pytest.mark.parametrize("scalar_max", [0, 1_000])
def test_keys_that_differ_in_one_byte_or_the_length_have_separate_slots(scalar_max: int) -> None:
    table = TwinKeys(SECRET, scalar_max=scalar_max)
    keys = [b"", b"\0", b"\0\0", b"a", b"a\0", b"abcd", b"abcde", b"x" * 12, b"x" * 11 + b"y"]
    keys += [b"x" * 13, b"x" * 12 + b"y", b"x" * 4_096, b"x" * 4_095 + b"y", b"x" * 4_095]
    slots = table.insert(keys)
    assert sorted(slots.tolist()) == list(range(len(keys)))
    assert table.find(keys).tolist() == slots.tolist()
    assert table.keys_of(slots) == keys
    assert table.find([b"b", b"x" * 10, b"x" * 14, b"\0\0\0"]).tolist() == [-1] * 4


@pytest.mark.parametrize("scalar_max", [0, 1_000])
@pytest.mark.parametrize("length", [4, 30])
def test_keys_with_one_hash_are_found_removed_and_inserted(scalar_max: int, length: int) -> None:
    table = TwinKeys(SECRET, scalar_max=scalar_max)
    keys = texts(range(1_000, 1_200), "x" * (length - 4))
    slots = table.insert(keys)
    table.remove(slots[::2])
    expected = [-1 if at % 2 == 0 else slot for at, slot in enumerate(slots.tolist())]
    assert table.find(keys).tolist() == expected
    more = table.insert(keys[::2])
    assert table.find(keys[::2]).tolist() == more.tolist()
    assert table.find(keys[1::2]).tolist() == slots[1::2].tolist()


@pytest.mark.parametrize("kind", [KeyTable, TwinKeys])
def test_filled_table_compares_all_bytes_of_equal_hashes(kind: type[KeyTable]) -> None:
    keys = [b"a", b"a\0", b"x" * 12, b"x" * 11 + b"y", b"x" * 13, b"x" * 12 + b"y", b"x" * 20, b"x" * 28]
    keys += [b"x" * 27 + b"y", b"x" * 19 + b"y" + b"x" * 8, b"x" * 4_096, b"x" * 4_095 + b"y"]
    table = kind(SECRET)
    first, second, third = table.fill(
        [column_of(keys), column_of(keys[4:]), column_of(keys[::3])], [True] * 3
    )
    assert first.tolist() == [-1, 0, 1, -1, *[-1] * 8]
    assert second.tolist() == [2, 3, -1, 4, 5, -1, 6, 7]
    assert third.tolist() == [8, 9, 10, 11]
    assert sorted(table.keys_of(slots_of(range(12)))) == sorted(keys)
    assert sorted(table.find(keys).tolist()) == list(range(12))
    assert len(table) == table.slots == 12


def test_filled_table_has_more_keys_than_places_in_a_bucket() -> None:
    table = NumberedKeys(SECRET)
    keys = texts(range(100_000))
    (slots,) = table.fill([column_of(keys)], [True])
    assert slots.tolist() == list(range(100_000))
    assert table.find(keys).tolist() == slots.tolist()
    assert not table.entries_moved
    table.remove(slots[::2])
    assert table.find(keys[1::2]).tolist() == slots[1::2].tolist()


def test_table_with_slots_is_not_filled() -> None:
    table = KeyTable(SECRET)
    table.insert([b"a"])
    with pytest.raises(ValueError, match="it has keys already"):
        table.fill([column_of([b"b"])], [True])


def test_removed_slot_keeps_the_key_and_is_not_reused_before_the_release() -> None:
    table = KeyTable(SECRET)
    keys = [b"short", b"a key above 12 bytes"]
    slots = table.insert(keys)
    table.remove(slots)
    assert len(table) == 0
    assert table.find(keys).tolist() == [-1, -1]
    assert table.keys_of(slots) == keys
    assert table.live().tolist() == [False, False]
    again = table.insert(keys)
    assert again.tolist() == [2, 3]
    assert table.keys_of(slots) == keys
    table.release(slots)
    assert sorted(table.insert([b"x", b"y", b"z"]).tolist()) == [0, 1, 4]
    assert table.find(keys).tolist() == [2, 3]
    assert table.live().tolist() == [True] * 5
    assert table.slots == len(table) == 5


@pytest.mark.parametrize("count", [3, 100])
def test_slots_without_a_key_are_neither_removed_nor_released(count: int) -> None:
    table = KeyTable(SECRET)
    slots = table.insert(texts(range(count)))
    with pytest.raises(ValueError, match="Cannot release keys"):
        table.release(slots)
    with pytest.raises(ValueError, match="Cannot remove keys"):
        table.remove(slots_of([0, -1]))
    table.remove(slots)
    with pytest.raises(ValueError, match="Cannot remove keys"):
        table.remove(slots[:1])
    table.release(slots)
    with pytest.raises(ValueError, match="Cannot release keys"):
        table.release(slots[:1])


def test_returned_slots_and_live_bits_do_not_change_later() -> None:
    table = KeyTable(SECRET)
    slots = table.insert([b"a"])
    live = table.live()
    table.remove(slots.copy())
    table.release(slots.copy())
    table.insert(texts(range(5_000)))
    assert live.tolist() == [True]
    assert slots.tolist() == [0]


# -- bounded work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 100, 2_000])
def test_growth_moves_few_entries_in_each_call_and_loses_none(batch: int) -> None:
    step_max = 256
    table = KeyTable(SECRET, step_max=step_max)
    keys = texts(range(4_000 if batch == 1 else 20_000))
    largest = 0
    for at in range(0, len(keys), batch):
        before = table.entries_moved
        table.insert(keys[at : at + batch])
        inserted = table.entries_moved
        assert table.find(keys[at // 2 : at // 2 + 1]).tolist() == [at // 2]
        largest = max(largest, inserted - before, table.entries_moved - inserted)
    assert 0 < largest <= step_max
    assert table.find(keys).tolist() == list(range(len(keys)))
    assert table.entries_moved < 3 * len(keys)


def test_removal_moves_few_entries_in_each_call() -> None:
    table = KeyTable(SECRET, step_max=64)
    keys = texts(range(10_000))
    slots = table.insert(keys[:6_000])
    slots = np.concatenate([slots, table.insert(keys[6_000:])])
    moved = table.entries_moved
    for at in range(0, 3_000, 50):
        table.remove(slots[at : at + 50])
        assert moved < table.entries_moved <= moved + 64
        moved = table.entries_moved
    assert table.find(keys).tolist() == [-1] * 3_000 + list(range(3_000, 10_000))


def test_small_calls_move_few_entries() -> None:
    table = KeyTable(SECRET)
    table.insert(texts(range(50_000)))
    moved = table.entries_moved
    table.insert(texts(range(50_000, 100_000)))
    moved = table.entries_moved
    table.insert([b"one more"])
    assert moved < table.entries_moved <= moved + 68


def test_growth_ends_after_searches_alone() -> None:
    table = KeyTable(SECRET)
    table.insert(texts(range(3_000)))
    table.insert(texts(range(3_000, 10_000)))
    for _ in range(10_000 // 64 + 2):
        table.find([b"absent"])
    moved = table.entries_moved
    table.find([b"absent"] * 1_000)
    assert table.entries_moved == moved == 3_000


@pytest.mark.parametrize("shift", [0, 8, 21, 32, 40, 52])
def test_keys_with_similar_hashes_are_spread_over_the_table(shift: int) -> None:
    table = NumberedKeys(SECRET)
    keys = texts(number << shift for number in range(2_048))
    table.insert(keys)
    before = table.buckets_read
    assert (table.find(keys) >= 0).all()
    assert table.buckets_read - before <= 1.3 * len(keys)


def test_keys_that_collide_under_one_secret_are_spread_under_another() -> None:
    table = NumberedKeys(SECRET)
    numbers = texts(range(1 << 16))
    keys = [numbers[at] for at in np.flatnonzero(table._hashes(numbers) >> np.uint64(58) == 0)]
    other = NumberedKeys(b"another secret of 16 bytes")
    assert len(keys) > 500
    reads = []
    for one in (table, other):
        one.insert(keys)
        before = one.buckets_read
        one.find(keys)
        reads.append(one.buckets_read - before)
    assert reads[0] > 2 * len(keys)
    assert reads[1] <= 1.3 * len(keys)


# -- memory ---------------------------------------------------------------------------------------------


def test_short_keys_need_at_most_25_bytes_beside_the_view() -> None:
    table = KeyTable(SECRET)
    rows = 4 * 65_536
    table.insert([number.to_bytes(8, "little") for number in range(rows)])
    assert table.nbytes <= (25 + 16) * rows


def test_slots_are_reused_when_keys_are_replaced() -> None:
    table = KeyTable(SECRET)
    slots = table.insert(texts(range(1_000)))
    for start in range(1_000, 20_000, 1_000):
        table.remove(slots)
        table.release(slots)
        slots = table.insert(texts(range(start, start + 1_000)))
    assert table.slots == 1_000
    assert table.nbytes < 200_000


@pytest.mark.parametrize("batch", [5, 50])
def test_bytes_of_released_long_keys_are_compacted_in_bounded_steps(batch: int) -> None:
    blocks = KeyBlocks(BLOCK_BYTES)
    table = KeyTable(SECRET, blocks=blocks)
    kept = texts(range(100), "a key that stays for ever ")
    kept_slots = list[int]()
    slots = slots_of([])
    for start in range(0, 100 * batch, batch):
        keys = texts(range(start, start + batch), "a key that is replaced ")
        more = table.insert([kept[start // batch], *keys])
        kept_slots.append(int(more[0]))
        table.remove(slots)
        examined = table.keys_examined
        table.release(slots)
        assert table.keys_examined - examined <= 64 + 10 * batch
        slots = more[1:]
        assert table.keys_of(more[1:]) == keys
    assert table.keys_examined > 0
    assert table.find(kept).tolist() == kept_slots
    assert table.keys_of(slots_of(kept_slots)) == kept
    for _ in range(20):
        table.find([b"absent"])
    assert blocks.nbytes <= 3 * (blocks.live_bytes + BLOCK_BYTES)


def test_key_under_compaction_with_another_key_in_the_slot_is_dropped() -> None:
    blocks = KeyBlocks(64)
    table = KeyTable(SECRET, blocks=blocks)
    long = texts(range(10, 70), "a long key number ")
    slots = table.insert(long).tolist()
    dead = [slot for slot in slots if slot % 3]
    table.remove(slots_of(dead))
    table.release(slots_of(dead))
    # Each reused slot gets a short key with a view that ends with the place of the long key before it. Each
    # block has three long keys of 20 bytes.
    places = {slot: slot // 3 | 20 * (slot % 3) << 32 for slot in dead}
    short = [b"%04d" % slot + places[slot].to_bytes(8, "little") for slot in reversed(dead)]
    assert table.insert(short).tolist() == dead[::-1]
    for _ in range(50):
        table.find([b"absent"])
    assert table.keys_examined > 15
    assert table.keys_of(slots_of(dead[::-1])) == short
    assert table.find(long).tolist() == [-1 if slot % 3 else slot for slot in slots]
    assert blocks.live_bytes == 20 * 20
