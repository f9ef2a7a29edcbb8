"""Effects: what the protocol of a client asks its driver to do, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tickertape.base.errors import PublishRejected, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.connection_state import ConnectionState


class Waiter(Protocol):
    """The outcome of one call, for its caller."""

    def settle(self, outcome: object) -> None:
        """Set the outcome, a value or the error to raise; the first one stays."""


class Sink(Protocol):
    """The receiving end of one subscription: a stream, with or without a handler."""

    def push(self, batch: MessageBatch) -> None:
        """Take a batch that was delivered."""

    def started(self, after: str, found: bool) -> None:
        """The server placed it; see `Started`."""

    def caught_up(self) -> None:
        """The replay has caught up, or reached its stop."""

    def noticed(self, bookmark: str) -> None:
        """Everything up to `bookmark` was delivered."""

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Nothing more is delivered."""

    def again(self) -> None:
        """What was not given to the handler yet is delivered again, on another connection."""


class SharedBodies(Protocol):
    """A batch for several subscriptions, as far as its handlers need it."""

    def bodies(self) -> list[bytes]:
        """Return all bodies of the batch."""


Part = tuple[Sink, MessageBatch, Sequence[int]]
"""The share of one sink in a batch for several: messages, and their rows in the batch."""


class Send(NamedTuple):
    """Write these buffers to the connection, after all earlier ones."""

    buffers: list[Buffer]


class EndConnection(NamedTuple):
    """Close the connection; the driver then tells the machine that it is lost, with this error."""

    error: TickertapeError


class ResolveCall(NamedTuple):
    """The call with this token has its outcome: a value, or the error to raise."""

    token: Waiter
    outcome: object


class DeliverBatch(NamedTuple):
    """Give `batch` to `sink`, which came with the subscription."""

    sink: Sink
    batch: MessageBatch


class DeliverShared(NamedTuple):
    """Give each sink its share of one batch. Handlers are called in the order of the batch."""

    shared: SharedBodies
    parts: list[Part]


class OrderTogether(NamedTuple):
    """The subscriptions of `sinks` were resumed together: from here on their handlers keep one order."""

    sinks: list[Sink]


class DuplicatesDropped(NamedTuple):
    """The messages of `batch` are not handed on: they were delivered before. The application wants to see
    them."""

    batch: MessageBatch


class Started(NamedTuple):
    """The server placed the bookmark subscription of `sink`."""

    sink: Sink
    after: str
    """The bookmark of the last message before its start, EPOCH at the beginning; empty when it is unknown."""
    found: bool
    """Whether the log has the bookmark that was asked for."""


class CaughtUp(NamedTuple):
    """The replay of `sink` has caught up, or reached its stop."""

    sink: Sink


class Notice(NamedTuple):
    """`sink` was given everything of its subscription up to this bookmark of the log."""

    sink: Sink
    bookmark: str


class End(NamedTuple):
    """Nothing more comes to `sink`.

    `reason` is a word for programs; `error` is None when it was asked for.
    """

    sink: Sink
    reason: str
    error: TickertapeError | None


class WillRedeliver(NamedTuple):
    """The connection of a subscription that is kept is lost: what `sink` has not handed on comes again."""

    sink: Sink


class ReportError(NamedTuple):
    """The application's exception listener is to hear of this."""

    error: TickertapeError


class FailedWrite(NamedTuple):
    """The server refused that many messages. `batch` holds them when there is a publish store, else None."""

    error: PublishRejected
    messages: int
    batch: MessageBatch | None


class StoreHasRoom(NamedTuple):
    """The publish store has more room than before: publishes that wait may try again."""


class ConnectionDown(NamedTuple):
    """A connection that was logged on is lost, and not because the application closed the client."""

    error: TickertapeError
    connection: int
    """Which one, counted from 1."""


class State(NamedTuple):
    """Call the connection-state listeners."""

    state: ConnectionState


SinkEffect: TypeAlias = Started | CaughtUp | Notice | End | WillRedeliver
"""Effects for a sink."""
Effect = (
    SinkEffect
    | Send
    | EndConnection
    | ResolveCall
    | DeliverBatch
    | DeliverShared
    | OrderTogether
    | DuplicatesDropped
    | ReportError
    | FailedWrite
    | StoreHasRoom
    | ConnectionDown
    | State
)
