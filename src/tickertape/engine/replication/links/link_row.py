"""Link rows: the state of each link, for statistics."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tickertape.batch import MessageBatch
from tickertape.wire.link import LinkNames, LinkRequest, LinkRuns, link_name_bytes, link_position_bytes

Level = Literal["async", "sync", "downgraded", ""]
"""Whether acknowledgements wait for a destination. `downgraded`: they would, but for a downgrade. Empty for a
source."""
LinkState = Literal["down", "opening", "resync", "live", "refused"]
"""State of a link. `resync`: it brings rows that were persisted before the handshake. `refused`: an operator
must act."""


class LinkCounters:
    """Counts of a link since the start of the server, over all of its connections."""

    __slots__ = ("bytes", "connects", "disconnects", "messages", "named", "requested")

    def __init__(self) -> None:
        self.connects = 0
        """Completed handshakes."""
        self.disconnects = 0
        """Ended connections after their handshake."""
        self.messages = 0
        """Sent or received messages and control records."""
        self.bytes = 0
        """Sent or received cost of rows."""
        self.named = 0
        """Rows that were sent or received by their names only."""
        self.requested = 0
        """Named rows whose bodies the destination requested."""

    def count(self, command: object, batch: MessageBatch | None = None) -> None:
        """Count a command of the link with its batch, in either direction."""
        if isinstance(command, LinkRuns) and batch is not None:
            self.messages += batch.count
            self.bytes += batch.cost
        elif isinstance(command, LinkNames):
            self.named += len(command.rows) // link_name_bytes
            self.bytes += len(command.rows)
        elif isinstance(command, LinkRequest):
            self.requested += len(command.positions) // link_position_bytes


class LinkRow(NamedTuple):
    """A configured destination, or an incoming link."""

    name: str
    """Name of the other instance."""
    direction: Literal["out", "in"]
    state: LinkState
    log: str
    """Log id of the other instance in hexadecimal digits. Empty: unknown."""
    position: int
    """Position in the log of the source before which the destination has all rows on its disk."""
    behind: int
    """Rows of the source that the destination may lack. 0 for incoming links."""
    unsent: int
    """Rows of the source that the link has not examined yet. 0 for incoming links."""
    pinned: int | None
    """Lowest position that retention keeps for the link. None: no rows are kept for it."""
    held: int
    """Frames that the destination holds. 0 for outgoing links."""
    paused: str
    """Cause for which the destination takes no rows now. Empty without one."""
    error: str
    """Text of the last error. Empty without one."""
    level: Level
    """Whether acknowledgements wait for the destination. Empty for incoming links."""
    behind_seconds: float
    """Age of the oldest row that the destination may lack. 0 without one, and for incoming links."""
    stopped: bool
    """Whether an operator has paused the link. False for incoming links."""
    downgrades: int
    """Downgrades since the start of the server."""
    counters: LinkCounters
