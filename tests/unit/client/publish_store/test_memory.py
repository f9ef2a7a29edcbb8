"""The publish store in memory."""

from __future__ import annotations

import pytest

from tests.helpers.publish_batches import stored
from tickertape.base.errors import BadOption
from tickertape.client.publish_store import MemoryPublishStore


def contents(store: MemoryPublishStore) -> list[tuple[int, int, list[bytes]]]:
    return [(first, last, batch.bodies_list()) for first, last, batch in store.held()]


def test_it_holds_batches_in_order_until_they_are_persisted() -> None:
    store = MemoryPublishStore()
    first, second = stored(5, b"a"), stored(6, b"b", b"c")
    store.put(first)
    store.put(second)
    assert contents(store) == [(5, 5, [b"a"]), (6, 7, [b"b", b"c"])]
    assert store.size_bytes == first.batch.nbytes + second.batch.nbytes
    assert store.unpersisted_count() == 3
    store.discard(5)
    assert contents(store) == [(6, 7, [b"b", b"c"])]
    assert store.size_bytes == second.batch.nbytes
    store.discard(100)
    assert (store.size_bytes, store.unpersisted_count(), store.last_sequence) == (0, 0, 7)


def test_a_batch_that_is_persisted_in_part_is_cut() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b", b"c"))
    store.discard(6)
    assert contents(store) == [(7, 7, [b"c"])]
    assert store.size_bytes == store.held()[0].batch.nbytes
    store.held()[0].batch.verify()


def test_discarding_below_what_is_held_changes_nothing() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a"))
    store.discard(4)
    assert contents(store) == [(5, 5, [b"a"])]


def test_replace_takes_one_batch_out_of_the_middle() -> None:
    store = MemoryPublishStore()
    for first, body in ((5, b"a"), (6, b"b"), (7, b"c")):
        store.put(stored(first, body))
    store.replace(6, 6, None)
    assert contents(store) == [(5, 5, [b"a"]), (7, 7, [b"c"])]
    store.replace(6, 6, None)
    assert store.unpersisted_count() == 2
    assert store.size_bytes == sum(batch.nbytes for _, _, batch in store.held())


def test_replace_finds_what_is_left_of_a_batch_that_was_cut() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b", b"c"))
    store.discard(5)
    store.replace(5, 7, None)
    assert contents(store) == []
    assert store.size_bytes == 0


def test_replace_keeps_what_it_is_told_to() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b"))
    store.replace(5, 6, stored(6, b"b").batch)
    assert contents(store) == [(6, 6, [b"b"])]


def test_sequences_that_do_not_rise_are_a_mistake_of_the_caller() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b"))
    with pytest.raises(AssertionError):
        store.put(stored(6, b"c"))


def test_its_bound_is_a_size() -> None:
    assert MemoryPublishStore("2MB").bytes_max == 2 * 1024 * 1024
    assert MemoryPublishStore().bytes_max == 64 * 1024 * 1024


@pytest.mark.parametrize("size", [0, -1, "0", "many"])
def test_a_bound_that_holds_nothing_is_refused(size: int | str) -> None:
    with pytest.raises(BadOption):
        MemoryPublishStore(size)


def test_an_unknown_way_to_be_full_is_refused() -> None:
    with pytest.raises(BadOption, match="'drop'"):
        MemoryPublishStore(when_full="drop")  # type: ignore[arg-type]
