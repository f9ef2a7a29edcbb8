"""Publish store protocol: keeps batches in order until they are persisted or rejected.

`client/publishing/publisher.py` decides when to send or resend. `StoreOptions` holds the capacity options of
all stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from tickertape.base.errors import BadOption, StoreOwnerMismatch
from tickertape.base.text_format import not_one_of
from tickertape.base.units import parse_size
from tickertape.batch.message_batch import MessageBatch

WhenFull = Literal["block", "raise"]


class Stored(NamedTuple):
    """One batch of a store, with its first and last sequence."""

    first: int
    last: int
    batch: MessageBatch


@runtime_checkable
class PublishStore(Protocol):
    """Store of published messages, until the client knows that they are persisted.

    A store serves one client at a time. The client calls it under one lock, so a store needs no lock.
    Sequences increase from batch to batch and within each batch. A `Stored` is a named tuple with three
    fields: first sequence, last sequence and `MessageBatch`.
    """

    def attach(self, name: str) -> None:
        """Prepare for use by client `name`. Raises `StoreOwnerMismatch` if another name owns the store."""

    def close(self) -> None:
        """Release files and locks. Stored messages stay stored."""

    @property
    def bytes_max(self) -> int:
        """Capacity in bytes of encoded batches."""

    @property
    def when_full(self) -> WhenFull:
        """Behaviour of a publish without free space: `"block"` waits for acknowledgements, `"raise"` raises
        `StoreFull`."""

    @property
    def size_bytes(self) -> int:
        """Current size in encoded bytes."""

    @property
    def last_sequence(self) -> int:
        """Highest sequence ever stored, even if its message was removed. 0 for a fresh store."""

    def put(self, stored: Stored) -> None:
        """Store one batch with sequences above `last_sequence`. The client sends the batch afterwards.

        Raises `StoreError` if the batch is not stored.
        """

    def discard(self, sequence: int) -> None:
        """Remove all messages up to and including `sequence`. The server has persisted them."""

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Replace the messages `first` to `last` (sequence numbers, all in one batch) by `rest`.

        `rest` is a batch of some of these messages, or None to remove all. The call has no effect if
        the store does not have the messages any more.
        """

    def held(self) -> Sequence[Stored]:
        """Return the stored batches in the order of sequences."""

    def unpersisted_count(self) -> int:
        """Return the number of stored messages."""


@runtime_checkable
class AppendingPublishStore(PublishStore, Protocol):
    """A publish store that receives every message immediately, before its batch is complete."""

    def append(
        self,
        sequence: int,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
    ) -> None:
        """Store one message of the next batch. When the call returns, the message is stored.

        `expiration_ms` is the lifetime in milliseconds, 0 for none. An empty text means no value. If
        `publish` fails after this call, the next message has the same `sequence` and replaces this one.
        `held` and `last_sequence` exclude the message until `seal`. Raises `StoreError` if the message is not
        stored.
        """

    def writer(self, topic: str) -> Callable[[int, bytes], bool] | None:
        """Return a faster `append` as a function `write(sequence, body)`, or None if the store has none.

        `write` is only for messages of `topic` that have no expiration, correlation id or key. The client
        calls `writer` after an `append`, and calls `write` only until the next `seal`. If
        `write` returns False, it stored nothing, and the client calls `append`.
        """

    def seal(self, stored: Stored) -> None:
        """Store the batch `stored` in place of the messages appended since the last batch.

        In most cases the store has exactly the messages of `stored` already, and writes none of them.
        Otherwise it adds missing ones, and drops appended messages that are not in `stored`. Raises
        `StoreError` if the batch is not stored.
        """


@runtime_checkable
class LogonNotingPublishStore(PublishStore, Protocol):
    """A publish store that records whether a server has ever accepted a logon with it.

    Before its first logon, a client does not know which topics are persistent, so it stores every message.
    After the logon, it removes the messages of non-persistent topics from the store, and sends them without
    sequence numbers. It does the same with messages of an earlier process that never logged on. A
    process that has logged on stores only messages of persistent topics. The next process resends these
    messages. If their topic is not persistent any more, the server ends the new connection with
    `TopicNotRecorded`. All publish stores of Tickertape follow this protocol.
    """

    @property
    def never_logged_on(self) -> bool:
        """Whether no server has ever accepted a logon with this store, in this or an earlier process."""

    def note_logon(self) -> None:
        """Record that a server accepted a logon. The record is as durable as a message. Raises
        `StoreError`."""


@runtime_checkable
class ClaimingPublishStore(PublishStore, Protocol):
    """A publish store that knows its acknowledged messages, and numbers the logons of its clients.

    A client reports both at each logon. A server that replicates then knows which messages other servers
    have. With a store without these methods, the client reports no acknowledged messages. Messages
    of an unavailable server can then be missing from subscriptions after a failover, until the server is
    available. All publish stores of Tickertape follow this protocol.
    """

    @property
    def persisted_sequence(self) -> int:
        """Highest sequence of a `discard`, at most `last_sequence`. 0 before the first `discard`.

        It survives as the messages do. After a crash it may be lower, but never higher."""

    def next_session(self, clock: int) -> int:
        """Return the number of the next logon: at least `clock`, and above all earlier numbers of the store.

        `clock` is the wall clock in microseconds since 1970 UTC. The call need not sync. Raises
        `StoreError`."""


class StoreOptions(ABC):
    """Capacity options of every publish store (see `PublishStore`). Raises `BadOption`."""

    def __init__(self, bytes_max: int | str, when_full: WhenFull) -> None:
        self._bytes_max = checked_size(bytes_max, when_full)
        self._when_full = when_full

    def __repr__(self) -> str:
        where = "" if self.path is None else f" {str(self.path)!r}"
        return f"<{type(self).__name__}{where}, {self.size_bytes:,} of {self.bytes_max:,} bytes>"

    path: Path | None = None
    """Directory of the store. None for a store in memory."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of encoded batches that the store holds."""

    @property
    def bytes_max(self) -> int:
        """Capacity in bytes of encoded batches."""
        return self._bytes_max

    @property
    def when_full(self) -> WhenFull:
        """Behaviour of a publish without free space: `"block"` (wait) or `"raise"` (`StoreFull`)."""
        return self._when_full


def checked_size(bytes_max: int | str, when_full: str, option: str = "bytes_max") -> int:
    """Return `bytes_max` in bytes. Raises `BadOption` for a size of 0 or less and an invalid `when_full`."""
    size = parse_size(bytes_max) if isinstance(bytes_max, str) else bytes_max
    if size <= 0:
        raise BadOption(f"Invalid {option} {bytes_max!r}. Use a size above 0 bytes.")
    if when_full not in ("block", "raise"):
        raise BadOption(not_one_of("Invalid when_full", when_full, ("block", "raise")))
    return size


def another(what: str, owner: str, name: str) -> StoreOwnerMismatch:
    """Return the error for a client name that does not own the store."""
    return StoreOwnerMismatch(
        f"Cannot use {what} for client {name!r}: it belongs to client {owner!r}, and its messages have "
        "sequences of that client. Use that client name, or another store."
    )
