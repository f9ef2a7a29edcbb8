"""Publish store protocol: keeps batches in order until they are persisted or rejected.

When to send or resend is decided by `client/publishing/publisher.py`. `StoreOptions` is what all stores are
told of their bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from tickertape.base.errors import BadOption, StoreOfAnother
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
    """Keeps what was published and is not yet known to be persisted.

    A store serves one client at a time. Its client calls it under one lock, so it needs none of its own.
    Sequences rise from batch to batch and inside each batch.
    """

    def attach(self, name: str) -> None:
        """The client `name` is going to use it. Raises `StoreOfAnother` when it belongs to another name."""

    def close(self) -> None:
        """Let go of files and locks, if there are any; what is held stays held."""

    @property
    def bytes_max(self) -> int:
        """Bytes of encoded batches that the store holds at most."""

    @property
    def when_full(self) -> WhenFull:
        """What a publish does that finds no room: wait for acknowledgements, or raise `StoreFull`."""

    @property
    def size_bytes(self) -> int:
        """Encoded bytes held now."""

    @property
    def last_sequence(self) -> int:
        """The highest sequence ever put, persisted or not; 0 for a fresh store."""

    def put(self, stored: Stored) -> None:
        """Keep one batch, whose sequences are above `last_sequence`. Called before the batch is sent."""

    def discard(self, sequence: int) -> None:
        """Let go of every message with a sequence up to and including `sequence`: it is persisted."""

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Let go of the messages `first` to `last`, which lie in one batch, but keep `rest` of them.

        `rest` is None or a batch of some of these messages. Nothing happens when they are no longer held."""

    def held(self) -> Sequence[Stored]:
        """What is held, in the order of sequences."""

    def unpersisted_count(self) -> int:
        """Messages held."""


@runtime_checkable
class AppendingPublishStore(PublishStore, Protocol):
    """A publish store that is given every message at once, and not only when its batch is made."""

    def append(
        self,
        sequence: int,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
    ) -> None:
        """Keep one message, which is part of the next batch. When it returns, the message is kept.

        The number of a message that was not accepted after all is given again: then the later one counts.
        Until `seal` neither `held` nor `last_sequence` tells of it. Raises `StoreError`; then it is not kept.
        """

    def writer(self, topic: str) -> Callable[[int, bytes], bool] | None:
        """A faster `append` of more messages of `topic` without labels: `write(sequence, body)`; None when
        there is none. Called after an `append` to the same batch, and good until the batch ends.

        `write` gives False where it kept nothing and `append` has to be asked.
        """

    def seal(self, stored: Stored) -> None:
        """What was appended since the last batch is this batch; what was not appended of it is kept now."""


@runtime_checkable
class LogonNotingPublishStore(PublishStore, Protocol):
    """A publish store that remembers whether its messages were all accepted before the first logon.

    Only then may a server that does not record a topic take messages of it unsequenced. The messages of
    any other store count as accepted for a recorded topic.
    """

    @property
    def never_logged_on(self) -> bool:
        """Whether no server ever accepted a logon with this store, in an earlier process either."""

    def note_logon(self) -> None:
        """A server accepted a logon: durable, like a message, when it returns. Raises `StoreError`."""


class StoreOptions(ABC):
    """What every publish store is told of its bound; see `PublishStore`. Raises `BadOption`."""

    def __init__(self, bytes_max: int | str, when_full: WhenFull) -> None:
        self._bytes_max = checked_size(bytes_max, when_full)
        self._when_full = when_full

    def __repr__(self) -> str:
        where = "" if self.path is None else f" {str(self.path)!r}"
        return f"<{type(self).__name__}{where}, {self.size_bytes:,} of {self.bytes_max:,} bytes>"

    path: Path | None = None
    """Directory of the store; None in memory."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of encoded batches that the store holds."""

    @property
    def bytes_max(self) -> int:
        """Bytes of encoded batches that the store holds at most."""
        return self._bytes_max

    @property
    def when_full(self) -> WhenFull:
        """What a publish does that finds no room."""
        return self._when_full


def checked_size(bytes_max: int | str, when_full: str, option: str = "bytes_max") -> int:
    """`bytes_max` in bytes. Raises `BadOption` for a size that holds nothing, and another `when_full`."""
    size = parse_size(bytes_max) if isinstance(bytes_max, str) else bytes_max
    if size <= 0:
        raise BadOption(f"{option}={bytes_max!r}: a publish store needs room for at least one message")
    if when_full not in ("block", "raise"):
        raise BadOption(f"when_full={when_full!r}: use 'block' or 'raise'")
    return size


def another(what: str, owner: str, name: str) -> StoreOfAnother:
    """The error of a client that is not the owner."""
    return StoreOfAnother(
        f"{what} belongs to the client name {owner!r}, not {name!r}: its messages have sequences of that "
        "name. Use that name, or another store"
    )
