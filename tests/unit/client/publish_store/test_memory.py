"""The publish store in memory."""

from __future__ import annotations

import pytest

from tests.helpers.publish_batches import stored
from tickertape.base.errors import BadOption
from tickertape.client.publish_store import MemoryPublishStore


def contents(store: MemoryPublishStore) -> list[tuple[int, int, list[bytes]]]:
    return [(first, last, batch.bodies_list()) for first, last, batch in store.held()]


def test_memory_store_holds_batches_in_order_until_persisted() -> None:
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


def test_partially_persisted_batch_is_cut() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b", b"c"))
    store.discard(6)
    assert contents(store) == [(7, 7, [b"c"])]
    assert store.size_bytes == store.held()[0].batch.nbytes
    store.held()[0].batch.verify()


def test_discard_below_the_held_sequences_changes_nothing() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a"))
    store.discard(4)
    assert contents(store) == [(5, 5, [b"a"])]


def test_replace_removes_a_batch_between_others() -> None:
    store = MemoryPublishStore()
    for first, body in ((5, b"a"), (6, b"b"), (7, b"c")):
        store.put(stored(first, body))
    store.replace(6, 6, None)
    assert contents(store) == [(5, 5, [b"a"]), (7, 7, [b"c"])]
    store.replace(6, 6, None)
    assert store.unpersisted_count() == 2
    assert store.size_bytes == sum(batch.nbytes for _, _, batch in store.held())


def test_replace_removes_the_rest_of_a_cut_batch() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b", b"c"))
    store.discard(5)
    store.replace(5, 7, None)
    assert contents(store) == []
    assert store.size_bytes == 0


def test_replace_keeps_the_given_rest_of_a_batch() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b"))
    store.replace(5, 6, stored(6, b"b").batch)
    assert contents(store) == [(6, 6, [b"b"])]


def test_put_with_falling_sequence_fails_an_assertion() -> None:
    store = MemoryPublishStore()
    store.put(stored(5, b"a", b"b"))
    with pytest.raises(AssertionError):
        store.put(stored(6, b"c"))


def test_memory_store_limit_is_parsed_as_size() -> None:
    assert MemoryPublishStore("2MB").bytes_max == 2 * 1024 * 1024
    assert MemoryPublishStore().bytes_max == 64 * 1024 * 1024


@pytest.mark.parametrize("size", [0, -1, "0", "many"])
def test_memory_store_with_invalid_limit_raises(size: int | str) -> None:
    with pytest.raises(BadOption):
        MemoryPublishStore(size)


def test_memory_store_with_unknown_when_full_raises() -> None:
    with pytest.raises(BadOption, match="'drop'"):
        MemoryPublishStore(when_full="drop")  # type: ignore[arg-type]
