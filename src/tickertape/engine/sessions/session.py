"""Session: the state of one connection after its logon."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.engine.runtime.holes import PublisherConnection
from tickertape.engine.runtime.statistics import Statistics


class Subscriber(NamedTuple):
    """User, client name and client software of a subscriber."""

    user: str | None
    name: str
    software: str = ""
    """Name and version of the client software. Empty if unknown."""


class Session:
    """State of one connection after its logon."""

    def __init__(
        self,
        conn: int,
        subscriber: Subscriber,
        publisher: int,
        derived: int,
        statistics: Statistics,
        ack_conflation: float = 0.0,
    ) -> None:
        self.conn = conn
        self.name = subscriber.name
        self.user = subscriber.user
        self.subscriber = subscriber
        """The inputs of filter functions about the subscriber."""
        self.publisher = publisher
        self.publishing = PublisherConnection()
        """Claim of the publisher, and the last sequence stored from this connection."""
        self.derived = derived
        """Publisher id of messages without sequences."""
        self.frames = 0
        """Publish frames received."""
        self._statistics = statistics
        self.published_messages = 0
        """Accepted messages."""
        self.published_bytes = 0
        self.sent_messages = 0
        """Delivered messages."""
        self.sent_bytes = 0
        self.ack_conflation = ack_conflation
        """Minimum interval between two persisted acknowledgements, in seconds. 0 disables conflation."""
        self.draining = False
        """Whether it published while the server was stopping. Only credit is accepted from it then."""
        self.writable = True
        """Whether the driver can buffer more data for the connection."""
        self.ended = False
        """Whether the connection is closed. Nothing is sent to it, while its subscriptions are removed."""

    def end(self) -> None:
        """Mark the connection as closed."""
        self.ended, self.writable = True, False
        self.ack_conflation = 0.0  # no acknowledgement is held for a closed connection

    def published(self, batch: MessageBatch, *, recorded: bool) -> None:
        """Count an accepted publish frame."""
        if not recorded:
            self._statistics.unrecorded(batch)
        self.published_messages += batch.count
        self.published_bytes += batch.body_bytes

    def sent(self, messages: int, body_bytes: int) -> None:
        """Count delivered messages."""
        self.sent_messages += messages
        self.sent_bytes += body_bytes
        self._statistics.sent(messages, body_bytes)
