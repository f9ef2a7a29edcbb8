"""Owns what every publish store has to do, as checks that an application runs on a store of its own.

Must never know how a store keeps anything: it is asked by its protocol only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tickertape.base.errors import StoreOfAnother
from tickertape.batch.builder import batch_from_bodies
from tickertape.batch.select import slice_batch
from tickertape.client.publish_store.protocol import AppendingPublishStore, PublishStore, Stored

NAME = "checked"
FIRST = 1_000


def check_publish_store(make: Callable[[], PublishStore], *, survives: bool = False) -> None:
    """Raise `AssertionError` where a store does not do what its client needs.

    `make` gives a fresh, empty store each time, or with `survives=True` the one that it gave before, opened
    again after `close`: then what it held, and its highest sequence, must still be there.
    """
    store = make()
    assert isinstance(store, PublishStore), "it lacks methods of PublishStore"
    store.attach(NAME)
    _is_fresh(store)
    _holds_in_order(store)
    _cuts_what_is_settled_in_part(store)
    _replaces_in_the_middle(store)
    if isinstance(store, AppendingPublishStore):
        _seals_what_was_appended(store)
    last = store.last_sequence
    store.put(_stored(last + 1, b"left"))
    assert _refuses_another(store), "it serves a client of another name"
    if survives:
        store.close()
        store = make()
        store.attach(NAME)
        assert _contents(store) == [(last + 1, b"left")], "it forgot what it held"
        assert store.last_sequence >= last + 1, "it forgot its highest sequence"
        store.discard(last + 1)
        store.close()
        store = make()
        store.attach(NAME)
        assert _contents(store) == [], "it brought back what was settled"
        assert store.last_sequence >= last + 1, "an empty store forgot its highest sequence"
    store.close()


def _refuses_another(store: PublishStore) -> bool:
    try:
        store.attach("another")
    except StoreOfAnother:
        return True
    return False


def _is_fresh(store: PublishStore) -> None:
    assert (store.last_sequence, store.size_bytes, store.unpersisted_count()) == (0, 0, 0), "it is not fresh"
    assert len(store.held()) == 0
    assert store.bytes_max > 0
    assert store.when_full in ("block", "raise")


def _holds_in_order(store: PublishStore) -> None:
    store.put(_stored(FIRST, b"a"))
    store.put(_stored(FIRST + 1, b"b", b"c"))
    assert _contents(store) == [(FIRST, b"a"), (FIRST + 1, b"b"), (FIRST + 2, b"c")]
    assert (store.unpersisted_count(), store.last_sequence) == (3, FIRST + 2)
    size = store.size_bytes
    assert size > 0
    store.discard(FIRST - 1)
    assert store.unpersisted_count() == 3, "it let go of what is not settled"
    store.discard(FIRST)
    assert _contents(store) == [(FIRST + 1, b"b"), (FIRST + 2, b"c")]
    assert store.size_bytes < size
    store.discard(FIRST + 1_000_000)
    assert (store.unpersisted_count(), store.size_bytes) == (0, 0)
    assert store.last_sequence >= FIRST + 2, "an empty store forgot its highest sequence"


def _cuts_what_is_settled_in_part(store: PublishStore) -> None:
    first = store.last_sequence + 1
    store.put(_stored(first, b"a", b"b", b"c"))
    store.discard(first + 1)
    assert _contents(store) == [(first + 2, b"c")]
    store.held()[0].batch.verify()
    store.discard(first + 2)
    assert (store.unpersisted_count(), store.size_bytes) == (0, 0)


def _replaces_in_the_middle(store: PublishStore) -> None:
    first = store.last_sequence + 1
    middle = _stored(first + 1, b"b", b"c", b"d")
    for stored in (_stored(first, b"a"), middle, _stored(first + 4, b"e")):
        store.put(stored)
    store.replace(first + 1, first + 3, slice_batch(middle.batch, 1, 3))
    assert [body for _, body in _contents(store)] == [b"a", b"c", b"d", b"e"]
    store.replace(first + 1, first + 3, None)
    assert _contents(store) == [(first, b"a"), (first + 4, b"e")]
    store.replace(first + 1, first + 3, None)
    assert store.unpersisted_count() == 2, "it let go of more than it was told to"
    store.discard(first + 4)
    assert (store.unpersisted_count(), store.size_bytes) == (0, 0)


def _seals_what_was_appended(store: AppendingPublishStore) -> None:
    before, first = store.last_sequence, store.last_sequence + 1
    for number, body in enumerate((b"a", b"b")):
        store.append(first + number, "orders", body)
    assert (store.last_sequence, store.unpersisted_count()) == (before, 0), "told of before it was sealed"
    store.seal(_stored(first, b"a", b"b"))
    assert _contents(store) == [(first, b"a"), (first + 1, b"b")]
    store.append(first + 2, "orders", b"c")
    write = store.writer("orders")
    bodies = [b"c"]
    if write is not None and write(first + 3, b"d"):
        bodies.append(b"d")
    store.seal(_stored(first + 2, *bodies))
    assert [body for _, body in _contents(store)] == [b"a", b"b", *bodies], "what was written is not kept"
    store.discard(first + 3)
    store.seal(_stored(first + 4, b"e"))
    assert _contents(store) == [(first + 4, b"e")], "what was not appended is not kept"
    store.discard(first + 4)
    assert store.unpersisted_count() == 0


def _stored(first: int, *bodies: bytes) -> Stored:
    batch = batch_from_bodies("orders", bodies, publisher=9, first_sequence=first)
    return Stored(first, first + len(bodies) - 1, batch)


def _contents(store: PublishStore) -> Sequence[tuple[int, bytes]]:
    found = []
    for first, last, batch in store.held():
        sequences = batch.sequences.tolist()
        assert (first, last) == (sequences[0], sequences[-1])
        found += list(zip(sequences, batch.bodies_list(), strict=True))
    assert found == sorted(found)
    assert len(found) == store.unpersisted_count()
    return found
