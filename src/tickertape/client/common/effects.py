"""Effects: requests of the client protocol state machine to its driver, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tickertape.base.errors import PublishRejected, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.connection_state import ConnectionState


class Waiter(Protocol):
    """Future outcome of one call."""

    def settle(self, outcome: object) -> None:
        """Set the outcome: a value, or the error to raise. Later calls have no effect."""


class Sink(Protocol):
    """Receiver of one subscription: a stream, with or without a handler."""

    def snapshot_begun(self, as_of: str, position: int | None) -> None:
        """Handle the start of the result of a query (see `SnapshotBegun`)."""

    def snapshot_ended(self, as_of: str, matches: int, topic_matches: int, records: int) -> None:
        """Handle the end of the result of a query (see `SnapshotEnded`)."""

    def push(self, batch: MessageBatch) -> None:
        """Receive a delivered batch."""

    def started(self, after: str, found: bool) -> None:
        """Handle the start of the subscription (see `Started`)."""

    def caught_up(self) -> None:
        """Handle that the replay has caught up, or reached its end."""

    def noticed(self, bookmark: str) -> None:
        """Handle a notice: all messages up to `bookmark` were delivered."""

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Handle the end of the subscription."""

    def again(self) -> None:
        """Drop messages that the handler has not received. They are redelivered on another connection."""


class SharedBodies(Protocol):
    """The part of a batch for several subscriptions that handlers need."""

    def bodies(self) -> list[bytes]:
        """Return all bodies of the batch."""


Part = tuple[Sink, MessageBatch, Sequence[int]]
"""The share of one sink in a batch for several subscriptions: messages, and their rows in the batch."""


class Send(NamedTuple):
    """Write these buffers to the connection, in order."""

    buffers: list[Buffer]


class EndConnection(NamedTuple):
    """Close the connection. The driver then reports the loss, with this error, to the state machine."""

    error: TickertapeError


class ResolveCall(NamedTuple):
    """Settle the call with this token: a value, or the error to raise."""

    token: Waiter
    outcome: object


class DeliverBatch(NamedTuple):
    """Deliver `batch` to the sink of its subscription."""

    sink: Sink
    batch: MessageBatch


class DeliverShared(NamedTuple):
    """Deliver one batch to several sinks. Handlers are called in the order of the batch."""

    shared: SharedBodies
    parts: list[Part]


class OrderTogether(NamedTuple):
    """Keep one order across the handlers of `sinks`, whose subscriptions were resumed together."""

    sinks: list[Sink]


class DuplicatesDropped(NamedTuple):
    """Report dropped duplicates to the application: the messages of `batch` were delivered before."""

    batch: MessageBatch


class Started(NamedTuple):
    """Report the start of the bookmark subscription of `sink`."""

    sink: Sink
    after: str
    """Bookmark of the last message before the start, EPOCH for the start of the log, or empty if unknown."""
    found: bool
    """Whether the log has the requested bookmark."""

    def inform(self) -> None:
        """Call the sink."""
        self.sink.started(self.after, self.found)


class SnapshotBegun(NamedTuple):
    """Report the start of the result of the query of `sink`."""

    sink: Sink
    as_of: str
    """Bookmark of the last message before the result, EPOCH without one."""
    position: int | None
    """Position of the result in the log. None: no SOW topic matches the pattern."""

    def inform(self) -> None:
        """Call the sink."""
        self.sink.snapshot_begun(self.as_of, self.position)


class SnapshotEnded(NamedTuple):
    """Report the end of the result of the query of `sink`."""

    sink: Sink
    as_of: str
    matches: int
    topic_matches: int
    records: int

    def inform(self) -> None:
        """Call the sink."""
        self.sink.snapshot_ended(self.as_of, self.matches, self.topic_matches, self.records)


class CaughtUp(NamedTuple):
    """Report that the replay of `sink` has caught up, or reached its end."""

    sink: Sink

    def inform(self) -> None:
        """Call the sink."""
        self.sink.caught_up()


class Notice(NamedTuple):
    """Report that all messages up to this bookmark of the log were delivered to `sink`."""

    sink: Sink
    bookmark: str

    def inform(self) -> None:
        """Call the sink."""
        self.sink.noticed(self.bookmark)


class End(NamedTuple):
    """Report the end of the subscription of `sink`.

    `reason` is a machine-readable word. `error` is None for a requested end.
    """

    sink: Sink
    reason: str
    error: TickertapeError | None

    def inform(self) -> None:
        """Call the sink."""
        self.sink.end(self.reason, self.error)


class WillRedeliver(NamedTuple):
    """Report the lost connection of a kept subscription: messages that `sink` has not passed on are
    redelivered."""

    sink: Sink

    def inform(self) -> None:
        """Call the sink."""
        self.sink.again()


class ReportError(NamedTuple):
    """Report an error to the application's exception listener."""

    error: TickertapeError


class FailedWrite(NamedTuple):
    """Report rejected messages. `batch` holds them if the client has a publish store, else None."""

    error: PublishRejected
    messages: int
    batch: MessageBatch | None


class StoreHasRoom(NamedTuple):
    """Wake waiting publishes: the publish store has more free space."""


class ConnectionDown(NamedTuple):
    """Report the loss of a connection after its logon, except by `close()` of the client."""

    error: TickertapeError
    connection: int
    """Number of the connection, from 1."""


class State(NamedTuple):
    """Call the connection-state listeners."""

    state: ConnectionState


SinkEffect: TypeAlias = Started | SnapshotBegun | SnapshotEnded | CaughtUp | Notice | End | WillRedeliver
"""Effects for a sink. `inform` performs them."""
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
