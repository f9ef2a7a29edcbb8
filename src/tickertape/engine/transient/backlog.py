"""Backlog: messages that slow subscriptions with the same interest wait for, once for all of them.

It is a chain of blocks, in memory or on disk. A position in it is a block and the number of a message.
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
    """Position of a block on disk. `crc` is the CRC32C of its bytes."""

    file: int
    offset: int
    size: int
    crc: int


NOWHERE: Final = BacklogPosition(0, 0, 0, 0)


class BacklogBlock(SharedFrames):
    """Consecutive messages of a backlog: in memory, on disk (without pieces), or both. It has one piece once
    it is closed."""

    __slots__ = (
        "backlog", "cursors", "freed", "next", "on_disk", "open", "pins", "place", "readers", "since",
        "wanted",
    )  # fmt: skip

    def __init__(self, backlog: Backlog, since: float) -> None:
        super().__init__()
        self.backlog = backlog
        self.since = since
        """When its first message came, monotonic seconds."""
        self.open = True
        """More may be appended."""
        self.cursors = 0
        """Subscriptions that are at a message of it, and one while what it begins with is handed on."""
        self.next: BacklogBlock | None = None
        self.place = NOWHERE
        """On disk, or where it is being written."""
        self.on_disk = False
        self.freed = False
        """It has left its backlog."""
        self.readers: dict[TransientFeed, None] = {}
        """Subscriptions that wait until it is read back."""
        self.wanted = False
        """It is to be read back, or being read."""
        self.pins = 0
        """Subscriptions that are about to be sent of it: it stays in memory so long."""

    def takes(self, piece: SharedFrame, now: float) -> bool:
        """Whether a piece can be appended."""
        return (
            self.open
            and self.cost + piece.batch.cost <= block_bytes_max
            and len(self.pieces) < block_pieces_max
            and now < self.since + block_seconds_max
        )

    def close(self) -> None:
        """Nothing more is appended: its pieces become one."""
        self.open = False
        if len(self.pieces) > 1:
            self.put(SharedFrame(detach(merge([piece.batch for piece in self.pieces]))))


class Backlog(InterestGroup["TransientFeed"]):
    """Subscriptions with the same interest, and what some of them wait for: each for all from its position
    on."""

    def __init__(self, interest: Interest) -> None:
        super().__init__(interest)
        self.head: BacklogBlock | None = None
        self.tail: BacklogBlock | None = None
        self.to_write: BacklogBlock | None = None
        """No block before it is still to be written to disk."""
        self.offline = 0
        """Subscriptions waiting in it whose connections' backlogs are written to disk."""
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
        """Remove its first block."""
        block = self.head
        assert block is not None
        self.head = block.next
        if self.head is None:
            self.tail = None
        if self.to_write is block:
            self.to_write = block.next
        return block

    def next_to_write(self) -> BacklogBlock | None:
        """The first block that is not on disk nor on its way there."""
        block = self.to_write
        while block is not None and block.place is not NOWHERE:
            block = block.next
        self.to_write = block
        return block


class TransientFeed(Feed):
    """A subscription to topics that are not recorded."""

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
        """Number of the first publish that is for it."""
        self.line = [self]
        """Those that took the place of each other, the earliest first, from the first that is not done: what
        waits for it goes first, and nothing waits for the others while something may still come for it."""
        self.over = False
        """Nothing more comes for it."""
        self.conflating = conflating
        """Its messages are conflated: then its interest has no select list."""
        self.backlog = Backlog(interest)
        """Its own if it conflates; else that of all with its interest, once it is added."""
        self.block: BacklogBlock | None = None
        """Its position: the next message is this one of this block. None while nothing waits for it."""
        self.message = 0
        self.left = 0
        """Messages that wait for it."""
        self.backlog_bytes = 0
        """Their cost."""
        self.waits_since = 0.0
        """Since when something waits for it without a break, monotonic seconds."""

    @property
    def owed(self) -> bool:
        """Whether something waits for it, or for one whose place it took."""
        return bool(self.line and self.line[0].left)

    def leave_line(self) -> None:
        """Let those that are done go from the front of the line."""
        while self.line and self.line[0].over and not self.line[0].left:
            del self.line[0]
