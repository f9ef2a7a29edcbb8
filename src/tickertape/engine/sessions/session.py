"""Session: the state of one connection after its logon."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.engine.runtime.statistics import Statistics


class Subscriber(NamedTuple):
    """User, client name and client software of a subscriber."""

    user: str | None
    name: str
    software: str = ""
    """Name and version of its client software, as it says; empty when it does not."""


class Session:
    """State of one connection after its logon."""

    def __init__(
        self,
        conn: int,
        name: str,
        user: str | None,
        publisher: int,
        derived: int,
        statistics: Statistics,
        software: str = "",
    ) -> None:
        self.conn = conn
        self.name = name
        self.user = user
        self.subscriber = Subscriber(user, name, software)
        """What its filters may ask about it."""
        self.publisher = publisher
        self.derived = derived
        """Publisher id of its messages without sequences."""
        self.frames = 0
        """Publish frames received."""
        self._statistics = statistics
        self.published_messages = 0
        """Messages of those frames that were taken."""
        self.published_bytes = 0
        self.sent_messages = 0
        """Messages delivered to it."""
        self.sent_bytes = 0
        self.ack_conflation = 0.0
        """Seconds between two persisted acknowledgements at least; 0: they leave with every commit."""
        self.draining = False
        """It published while the server was stopping: nothing more is taken from it but credit."""
        self.writable = True
        """False while the driver has more to write than it should."""

    def published(self, batch: MessageBatch, *, recorded: bool) -> None:
        """Count a publish frame that was accepted."""
        if not recorded:
            self._statistics.unrecorded(batch)
        self.published_messages += batch.count
        self.published_bytes += batch.body_bytes

    def sent(self, messages: int, body_bytes: int) -> None:
        """Messages were delivered to it."""
        self.sent_messages += messages
        self.sent_bytes += body_bytes
        self._statistics.sent_messages += messages
        self._statistics.sent_bytes += body_bytes
