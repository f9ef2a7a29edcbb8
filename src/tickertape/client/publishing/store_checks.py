"""Checks of a publish store: its room, its sequences, and the errors that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tickertape.base.client_limits import message_too_large
from tickertape.base.errors import (
    BadCommand,
    MessageTooLarge,
    PublisherTakenOver,
    StoreError,
    StoreFailed,
    StoreFull,
    TickertapeError,
    UsageError,
)
from tickertape.base.interfaces import Now
from tickertape.base.limits import last_persisted_max, message_bytes_max, message_cost_bytes
from tickertape.client.limits import foreign_sequences_max
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


# -- sequences ----------------------------------------------------------------------------------------


def taken_over(name: str, held: Sequence[Stored], sent: int, last: int) -> PublisherTakenOver | None:
    """The error when what is held may have been passed by another process; None when it may be sent.

    `sent` is the highest sequence this client sent, `last` the last persisted one of this name. What the
    server holds is ours only as far as we sent. When it is more, somebody else published, and of what we hold
    at or below that nobody can say whether it is stored: sent again it would be dropped as a duplicate, and
    acknowledged.
    """
    if last <= sent or not held or held[0].first > last:
        return None
    count = sum(stored.batch.count for stored in held)
    return PublisherTakenOver(
        f"another process published under the client name {name!r}: the server holds its sequence {last}, "
        f"and this client sent none above {sent}. {count} message(s) of this client, sequences "
        f"{held[0].first} to {held[-1].last}, may be stored or not; they stay in the publish store and are "
        "not sent. Give each process a name of its own; then publish again, with a fresh store "
        "(set_publish_store), what held() of this one has"
    )


def first_sequence(last: int, now: Now) -> int:
    """Where numbers begin above those of another process, which was persisted up to `last`.

    It may have given more that nobody stored yet, and come back with them: they lie below the clock, or,
    where the clock is behind what is stored, not far above that.
    """
    clock = now.wall * 1000
    return (clock if clock > last else last + foreign_sequences_max) + 1


def check_sequences_left(name: str, last: int) -> None:
    """Raise `BadCommand` when the server stores too few sequences above `last` for a publish store."""
    if last <= last_persisted_max - 2 * foreign_sequences_max - 1:
        return
    raise BadCommand(
        f"Cannot use a publish store under the client name {name!r}: the server holds its sequence {last}, "
        f"and sequences end at {last_persisted_max}. Use another client name with a fresh publish store, and "
        "publish there what held() of this one has. Without a publish store this name can still be used"
    )


def next_sequence(store: PublishStore, last: int, now: Now) -> int:
    """Where numbers go on with `store`. A fresh one cannot know what an earlier process of this name
    published."""
    if store.last_sequence:
        return store.last_sequence + 1
    fresh = now.wall * 1000 + 1
    return fresh if last < fresh else first_sequence(last, now)
