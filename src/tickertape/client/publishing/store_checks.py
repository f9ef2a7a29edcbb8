"""Checks of a publish store: free space, sequences, errors, and claims of acknowledged messages.

Invariants:
- A claim is never above the highest sequence that the publish store had acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

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
from tickertape.base.text_format import described, wrong_type
from tickertape.client.limits import foreign_sequences_max
from tickertape.client.publish_store.protocol import ClaimingPublishStore, PublishStore, Stored

BATCH_OVERHEAD_BYTES: Final = 128
"""Upper bound of the header, run and padding of a stored batch."""


def check_size(size: int, store: PublishStore | None, bytes_max: int = message_bytes_max) -> None:
    """Raise `MessageTooLarge` if a message with cost `size` exceeds the server's `bytes_max`, or never fits
    into `store`."""
    if size - message_cost_bytes > bytes_max:
        raise message_too_large(size - message_cost_bytes, bytes_max)
    if store is not None and size + BATCH_OVERHEAD_BYTES > store.bytes_max:
        raise MessageTooLarge(
            f"Cannot store a message of {size:,} bytes: it never fits a publish store with "
            f"bytes_max={store.bytes_max:,}. Use a larger bytes_max."
        )


def check_new_store(store: object, unpersisted: int) -> None:
    """Raise `UsageError` if `store` is not a publish store, or if the current one holds messages."""
    if store is not None and not isinstance(store, PublishStore):
        raise UsageError(wrong_type("publish store", store, "a PublishStore, such as MemoryPublishStore"))
    if unpersisted:
        raise UsageError(
            f"Cannot replace the publish store: it still holds {unpersisted} message(s). "
            "Call publish_flush() first."
        )


def free_bytes(store: PublishStore) -> int:
    """Return the maximum cost of the next batch."""
    return store.bytes_max - store.size_bytes - BATCH_OVERHEAD_BYTES


def store_full_error(store: PublishStore, size: int) -> StoreFull:
    """Return the error for a message that must wait for free space."""
    return StoreFull(
        f"Cannot store the message: the publish store holds {store.size_bytes:,} of {store.bytes_max:,} "
        f"bytes, and the message needs {size + BATCH_OVERHEAD_BYTES:,}. Wait for acknowledgements or use a "
        "larger bytes_max."
    )


def keep(put: Callable[[Stored], None], stored: Stored) -> None:
    """Store a batch with `put`. Raises `StoreError`, also for exceptions of a custom store."""
    try:
        put(stored)
    except StoreFull as error:  # from a store without `bytes_max`: waiting for space would never end
        raise as_store_error(error) from error
    except TickertapeError:
        raise
    except Exception as error:
        raise as_store_error(error) from error


def as_store_error(error: Exception) -> StoreError:
    """Return an exception of a publish store as a `TickertapeError`."""
    if isinstance(error, StoreError):
        return error
    failure = StoreFailed(f"Cannot use the publish store: it raised {described(error)}. Correct the store.")
    failure.__cause__ = error
    return failure


def not_stored(error: StoreError, count: int) -> StoreFailed:
    """Return the error for `count` accepted messages that the store did not accept."""
    failure = StoreFailed(
        f"Cannot store {count} published message(s). They are lost if this process ends before the publish "
        f"store works again. Cause: {error}"
    )
    failure.__cause__ = error
    return failure


# -- sequences ----------------------------------------------------------------------------------------


def taken_over(name: str, held: Sequence[Stored], sent: int, last: int) -> PublisherTakenOver | None:
    """Return the error if another process may have used the sequences of `held`. Return None if `held` may be
    sent.

    `sent` is the highest sequence that this client sent, `last` the last persisted one of its name. If `last`
    is higher, another process published under the name. It is then unknown whether messages up to `last` are
    stored: the server would drop a resent message as a duplicate and acknowledge it.
    """
    if last <= sent or not held or held[0].first > last:
        return None
    count = sum(stored.batch.count for stored in held)
    return PublisherTakenOver(
        f"Cannot publish under the client name {name!r}: another process "
        f"did, the server holds sequence {last}, "
        f"and this client sent none above {sent}. {count} message(s) of this client, sequences "
        f"{held[0].first} to {held[-1].last}, may be stored or not. They stay in the publish store and are "
        "not sent. Use a unique client name for each process. Then publish the batches that held() of "
        "this store returns through a fresh store (set_publish_store)."
    )


def first_sequence(last: int, now: Now) -> int:
    """Return the first sequence above those of another process, whose last persisted sequence is `last`.

    The other process may have assigned higher sequences that are not stored yet, and may still send them.
    These are below the clock in microseconds, or at most `foreign_sequences_max` above `last` if the clock is
    behind.
    """
    clock = now.wall * 1000
    return (clock if clock > last else last + foreign_sequences_max) + 1


def check_sequences_left(name: str, last: int) -> None:
    """Raise `BadCommand` if too few sequences are left above `last` for a publish store."""
    if last <= last_persisted_max - 2 * foreign_sequences_max - 1:
        return
    raise BadCommand(
        f"Cannot use a publish store under the client name {name!r}: the sequences of this name are used "
        f"up. The last sequence at the server is {last}, and the largest allowed sequence is "
        f"{last_persisted_max}. Use another client name with a fresh publish store. Then publish the "
        "batches that the old store returns from held(). Without a publish store the old name "
        "still works."
    )


def next_sequence(store: PublishStore, last: int, now: Now) -> int:
    """Return the next sequence for `store`. A fresh store does not know sequences of earlier processes."""
    if store.last_sequence:
        return store.last_sequence + 1
    fresh = now.wall * 1000 + 1
    return fresh if last < fresh else first_sequence(last, now)


# -- claims -------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Fields of a logon."""

    persisted: int = 0
    session: int = 0


_NONE: Final = Claim()


class Claims:
    """Claims of the logons of one client. Their session numbers rise with any store and clock."""

    def __init__(self) -> None:
        self._session = 0

    def next(self, store: PublishStore | None, now: Now) -> Claim:
        """Return the claim of the next logon. Raises `StoreError`, also for exceptions of a custom store."""
        if store is None:
            return _NONE
        session = max(now.wall, self._session + 1)
        persisted = 0
        if isinstance(store, ClaimingPublishStore):
            try:
                persisted = min(store.persisted_sequence, store.last_sequence, last_persisted_max)
                session = max(session, store.next_session(session))
            except Exception as error:
                raise as_store_error(error) from error
        self._session = session
        return Claim(max(persisted, 0), session)
