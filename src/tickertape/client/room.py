"""Owns what a message may take: at most so much by itself, and no more than a publish store has room for.

Must never decide what happens then: to send what is gathered, or to wait.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.errors import MessageTooLarge, StoreFull
from tickertape.base.limits import message_bytes_max, message_cost_bytes
from tickertape.client.publish_store.protocol import PublishStore

BATCH_OVERHEAD_BYTES: Final = 128
"""Header, run and padding of a batch, generously: what a batch takes in the store beside its messages."""


def check_size(size: int, store: PublishStore | None) -> None:
    """Raise `MessageTooLarge` for a cost of `size` that can never be published, or never be kept."""
    if size - message_cost_bytes > message_bytes_max:
        raise MessageTooLarge(
            f"a message of {size - message_cost_bytes:,} bytes: at most {message_bytes_max:,} are allowed"
        )
    if store is not None and size + BATCH_OVERHEAD_BYTES > store.bytes_max:
        raise MessageTooLarge(
            f"a message of {size:,} bytes never fits a publish store with bytes_max={store.bytes_max:,}"
        )


def room_in(store: PublishStore) -> int:
    """What one more batch may cost."""
    return store.bytes_max - store.size_bytes - BATCH_OVERHEAD_BYTES


def no_room(store: PublishStore, gathered: int, size: int) -> StoreFull:
    """The error for a message that has to wait."""
    return StoreFull(
        f"the publish store holds {store.size_bytes + gathered:,} of {store.bytes_max:,} bytes and "
        f"the message needs {size:,}: wait for acknowledgements or give it a larger bytes_max"
    )
