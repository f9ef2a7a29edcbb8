"""Store limits: checks a message against the store's space, and makes the errors of a full store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tickertape.base.client_limits import message_too_large
from tickertape.base.errors import (
    MessageTooLarge,
    StoreError,
    StoreFailed,
    StoreFull,
    TickertapeError,
    UsageError,
)
from tickertape.base.limits import message_bytes_max, message_cost_bytes
from tickertape.client.publish_store.protocol import PublishStore, Stored

BATCH_OVERHEAD_BYTES: Final = 128
"""Header, run and padding of a batch, generously: what a batch takes in the store beside its messages."""


def check_size(size: int, store: PublishStore | None, bytes_max: int = message_bytes_max) -> None:
    """Raise `MessageTooLarge` for a cost of `size` that can never be kept, or never be published to a server
    that takes messages of `bytes_max`."""
    if size - message_cost_bytes > bytes_max:
        raise message_too_large(size - message_cost_bytes, bytes_max)
    if store is not None and size + BATCH_OVERHEAD_BYTES > store.bytes_max:
        raise MessageTooLarge(
            f"a message of {size:,} bytes never fits a publish store with bytes_max={store.bytes_max:,}"
        )


def check_new_store(store: object, unpersisted: int) -> None:
    """Raise `UsageError` for what is no publish store, and while the present one holds so many messages."""
    if store is not None and not isinstance(store, PublishStore):
        raise UsageError(f"a {type(store).__name__} is no publish store; MemoryPublishStore is one")
    if unpersisted:
        raise UsageError(f"the publish store still holds {unpersisted} message(s): publish_flush() first")


def free_bytes(store: PublishStore) -> int:
    """Return the cost that one more batch may have."""
    return store.bytes_max - store.size_bytes - BATCH_OVERHEAD_BYTES


def store_full_error(store: PublishStore, size: int) -> StoreFull:
    """The error for a message that has to wait."""
    return StoreFull(
        f"the publish store holds {store.size_bytes:,} of {store.bytes_max:,} bytes and the message needs "
        f"{size + BATCH_OVERHEAD_BYTES:,}: wait for acknowledgements or give it a larger bytes_max"
    )


def keep(put: Callable[[Stored], None], stored: Stored) -> None:
    """Let a store keep a batch. Raises `StoreError`, also for what a store of the application raises."""
    try:
        put(stored)
    except StoreFull as error:  # of a store without `bytes_max`: a wait for room never ended
        raise as_store_error(error) from error
    except TickertapeError:
        raise
    except Exception as error:
        raise as_store_error(error) from error


def as_store_error(error: Exception) -> StoreError:
    """Return an exception of a publish store as a `TickertapeError`."""
    if isinstance(error, StoreError):
        return error
    failure = StoreFailed(f"the publish store failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def not_stored(error: StoreError, count: int) -> StoreFailed:
    """The error that tells that `count` messages that were published are not in their store."""
    failure = StoreFailed(
        f"{count} message(s) that were published could not be put into the publish store, and are lost when "
        f"this process ends before it takes them: {error}"
    )
    failure.__cause__ = error
    return failure
