"""Backlog: waiting messages of slow subscriptions with the same interest, stored once for all of them.

It is a chain of blocks, in memory or on disk. A position in it consists of a block and a message index.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.batch import merge
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.limits import block_bytes_max, block_pieces_max, block_seconds_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.subscription_index import InterestGroup
from tickertape.engine.subscriptions.subscription import Feed, FeedService, Subscription
from tickertape.engine.transient.shared_frames import SharedFrame, SharedFrames, detach


class BacklogPosition(NamedTuple):
    """Location of a block on disk. `crc` is the CRC32C of its bytes."""

    file: int
    offset: int
    size: int
    crc: int


NOWHERE: Final = BacklogPosition(0, 0, 0, 0)


class BacklogBlock(SharedFrames):
    """Consecutive messages of a backlog: in memory, on disk (without pieces), or both.

    A closed block has one piece."""

    __slots__ = (
        "backlog", "cursors", "freed", "next", "on_disk", "open", "pins", "place", "readers", "since",
        "wanted",
    )  # fmt: skip

    def __init__(self, backlog: Backlog, since: float) -> None:
        super().__init__()
        self.backlog = backlog
        self.since = since
        """Monotonic time (seconds) of its first message."""
        self.open = True
        """Whether more messages may be appended."""
        self.cursors = 0
        """Number of subscriptions at one of its messages, plus one while its messages are being delivered."""
        self.next: BacklogBlock | None = None
        self.place = NOWHERE
        """Location on disk, also while it is being written."""
        self.on_disk = False
        self.freed = False
        """Whether it has left its backlog."""
        self.readers: dict[TransientFeed, None] = {}
        """Subscriptions that wait until it is read back."""
        self.wanted = False
        """Whether it is being read back, or waits for that."""
        self.pins = 0
        """Subscriptions that will be sent its messages next. A pinned block stays in memory."""

    def takes(self, piece: SharedFrame, now: float) -> bool:
        """Return whether a piece can be appended."""
        return (
            self.open
            and self.cost + piece.batch.cost <= block_bytes_max
            and len(self.pieces) < block_pieces_max
            and now < self.since + block_seconds_max
        )

    def close(self) -> None:
        """Close the block, and merge its pieces into one."""
        self.open = False
        if len(self.pieces) > 1:
            self.put(SharedFrame(detach(merge([piece.batch for piece in self.pieces]))))


class Backlog(InterestGroup["TransientFeed"]):
    """Subscriptions with the same interest, and their waiting messages. Each subscription needs the messages
    from its own position on."""

    def __init__(self, interest: Interest) -> None:
        super().__init__(interest)
        self.head: BacklogBlock | None = None
        self.tail: BacklogBlock | None = None
        self.to_write: BacklogBlock | None = None
        """First block that may not be written to disk yet. No earlier block must be written."""
        self.offline = 0
        """Number of its waiting subscriptions whose connections spill to disk."""
        self.dirty_bytes = 0
        """Memory of blocks that are not on disk."""

    def grow(self, now: float) -> BacklogBlock:
        """Append a block."""
        last, block = self.tail, BacklogBlock(self, now)
        if last is None:
            self.head = block
        else:
            last.next = block
        self.tail = block
        if self.to_write is None:
            self.to_write = block
        return block

    def shrink(self) -> BacklogBlock:
        """Remove the first block."""
        block = self.head
        assert block is not None
        self.head = block.next
        if self.head is None:
            self.tail = None
        if self.to_write is block:
            self.to_write = block.next
        return block

    def next_to_write(self) -> BacklogBlock | None:
        """Return the first block that is neither on disk nor being written, or None."""
        block = self.to_write
        while block is not None and block.place is not NOWHERE:
            block = block.next
        self.to_write = block
        return block


class TransientFeed(Feed):
    """A subscription to non-persistent topics."""

    def __init__(
        self,
        subscription: Subscription,
        interest: Interest,
        service: FeedService,
        conflating: ConflationBuffer | None = None,
    ) -> None:
        super().__init__(subscription, interest.topic, service)
        self.interest = interest
        self.since = 0
        """Number of the first publish that it receives."""
        self.line = [self]
        """This subscription and its replacements, in order, starting with the first unfinished one. The first
        one receives its waiting messages first. Messages wait for the others only after it is finished."""
        self.over = False
        """Whether no more messages arrive for it."""
        self.conflating = conflating
        """Conflation of its messages. Its interest then has no select list."""
        self.backlog = Backlog(interest)
        """Its own backlog with conflation. Otherwise the shared backlog of its interest, once it is added."""
        self.block: BacklogBlock | None = None
        """Block of the next message. None if no message waits."""
        self.message = 0
        self.left = 0
        """Number of waiting messages."""
        self.backlog_bytes = 0
        """Cost of the waiting messages."""
        self.waits_since = 0.0
        """Monotonic time (seconds) since when messages have been waiting without interruption."""

    @property
    def owed(self) -> bool:
        """Whether messages wait for it or for a subscription that it replaces."""
        return bool(self.line and self.line[0].left)

    def leave_line(self) -> None:
        """Remove finished subscriptions from the front of the line."""
        while self.line and self.line[0].over and not self.line[0].left:
            del self.line[0]
