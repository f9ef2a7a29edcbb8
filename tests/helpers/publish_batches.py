"""Batches as put into a publish store, and the messages that it holds.

Must never look into a store but through `held`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tickertape.base.names import publisher_id
from tickertape.batch.encode import batch_from_bodies
from tickertape.client.publish_store import PublishStore, Stored


def stored(first: int, *bodies: bytes, name: str = "pricing-1") -> Stored:
    """Return a batch of the client `name` for the topic `orders`, with sequences from `first` on."""
    return stored_all(first, bodies, name)


def stored_all(first: int, bodies: Sequence[bytes], name: str) -> Stored:
    """Return a batch like `stored`, of bodies in a sequence."""
    batch = batch_from_bodies("orders", bodies, publisher=publisher_id(name), first_sequence=first)
    return Stored(first, first + len(bodies) - 1, batch)


def held_batches(store: PublishStore) -> list[list[bytes]]:
    """Return the bodies of each batch."""
    return [stored.batch.bodies_list() for stored in store.held()]


def held_messages(store: PublishStore) -> dict[int, bytes]:
    """Return each body by its sequence, in the order of the store. No sequence repeats."""
    messages = [
        (int(sequence), body)
        for stored in store.held()
        for sequence, body in zip(stored.batch.sequences, stored.batch.bodies_list(), strict=True)
    ]
    found = dict(messages)
    assert len(found) == len(messages), "a sequence is held twice"
    return found
