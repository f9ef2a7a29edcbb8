"""Backlog: messages that slow subscriptions with the same interest wait for, once for all of them.

It is a chain of blocks, in memory or on disk. A position in it is a block and the number of a message.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from tickertape.batch import merge
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.limits import block_bytes_max, block_pieces_max, block_seconds_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.subscriptions.subscription import FeedService, Subscription
from tickertape.engine.transient.shared_frames import SharedFrame, SharedFrames, detach


class BacklogPosition(NamedTuple):
    """Position of a block on disk. `crc` is the CRC32C of its bytes."""

    file: int
    offset: int
    size: int
    crc: int


class BacklogBlock:
    """Consecutive messages of a backlog: in memory, on disk, or both."""

    __slots__ = (
        "_starts", "backlog", "cost", "count", "cursors", "freed", "next", "open", "pieces", "pins", "place",
        "readers", "since", "wanted", "writing",
    )  # fmt: skip

    def __init__(self, backlog: Backlog, since: float) -> None:
        self.backlog = backlog
        self.since = since
        """When its first message came, monotonic seconds."""
        self.open = True
        """More may be appended."""
        self.pieces: list[SharedFrame] = []
        """Its messages; none when they are on disk only. One piece once it is closed."""
        self._starts: list[int] = []
        self.count = 0
        """Messages."""
        self.cost = 0
        self.cursors = 0
        """Subscriptions that stand in it, and one while what it begins with is handed on."""
        self.next: BacklogBlock | None = None
        self.place: BacklogPosition | None = None
        self.writing = False
        self.freed = False
        """Nobody needs it any more."""
        self.readers: dict[TransientFeed, None] = {}
        """Who waits until it is read back."""
        self.wanted = False
        """It is to be read back, or being read."""
        self.pins = 0
        """Who is about to be sent of it: it stays in memory so long."""

    @property
    def data_bytes(self) -> int:
        """What its messages take in memory."""
        return sum([piece.memory_bytes for piece in self.pieces])

    def takes(self, piece: SharedFrame, now: float) -> bool:
        """Whether a piece can be appended."""
        return (
            self.open
            and self.cost + piece.batch.cost <= block_bytes_max
            and len(self.pieces) < block_pieces_max
            and now < self.since + block_seconds_max
        )

    def append(self, piece: SharedFrame) -> None:
        """A piece comes behind what is there."""
        self.pieces.append(piece)
        self._starts.append(self.count)
        self.count += piece.batch.count
        self.cost += piece.batch.cost

    def close(self) -> None:
        """Nothing more is appended: its pieces become one."""
        self.open = False
        if len(self.pieces) > 1:
            self.put(SharedFrame(detach(merge([piece.batch for piece in self.pieces]))))

    def put(self, piece: SharedFrame) -> None:
        """All of its messages are in this piece."""
        self.pieces = [piece]
        self._starts = [0]

    def piece_at(self, message: int) -> tuple[SharedFrame, int]:
        """The piece of a message, and the number of its first message. It is in memory."""
        at = bisect_right(self._starts, message) - 1
        return self.pieces[at], self._starts[at]


class Backlog:
    """Blocks of one interest group; each subscription waits for all from its position on."""

    __slots__ = ("dirty_bytes", "head", "newest", "offline", "places", "subs", "tail", "to_write")

    def __init__(self) -> None:
        self.head: BacklogBlock | None = None
        self.tail: BacklogBlock | None = None
        self.to_write: BacklogBlock | None = None
        """No block before it is still to be written to disk."""
        self.subs: dict[TransientFeed, None] = {}
        """Who waits for something of it."""
        self.offline = 0
        """How many of them belong to connections whose backlogs are written to disk."""
        self.dirty_bytes = 0
        """Memory of blocks that are not on disk."""
        self.newest: SharedFrames | None = None
        """What is being handed on, once somebody waits for it, and where each of its pieces is."""
        self.places: list[tuple[BacklogBlock, int]] = []

    def grow(self, now: float) -> BacklogBlock:
        """A new block at its end."""
        block = BacklogBlock(self, now)
        if self.tail is None:
            self.head = block
        else:
            self.tail.next = block
        self.tail = block
        if self.to_write is None:
            self.to_write = block
        return block

    def shrink(self) -> BacklogBlock:
        """Its first block leaves it."""
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
        while block is not None and (block.writing or block.place is not None):
            block = block.next
        self.to_write = block
        return block


class TransientFeed:
    """A subscription to topics that are not recorded."""

    def __init__(
        self, subscription: Subscription, interest: Interest, service: FeedService[TransientFeed]
    ) -> None:
        self.session = subscription.session
        self.sub_id = subscription.sub_id
        self.allowance = subscription.allowance
        self.interest = interest
        self._service = service
        self.since = 0
        """Number of the first publish that is for it."""
        self.until: int | None = None
        """Number of the first one that is not, once another took its place."""
        self.earlier: TransientFeed | None = None
        """Whose place it took: what waits for that one goes first."""
        self.later: TransientFeed | None = None
        """What took its place."""
        self.over = False
        self.conflating: ConflationBuffer | None = None
        """Its messages are conflated: then its interest has no select list."""
        self.backlog = Backlog()
        """Where it waits; shared with those that are given the same, unless it conflates."""
        self.block: BacklogBlock | None = None
        """Where it stands: the next message is this one of this block. None while nothing waits for it."""
        self.message = 0
        self.left = 0
        """Messages that wait for it."""
        self.backlog_bytes = 0
        """Their cost."""
        self.waits_since = 0.0
        """Since when something waits for it without a break, monotonic seconds."""

    @property
    def waiting(self) -> bool:
        """Whether something waits for it."""
        return self.left > 0

    @property
    def topic(self) -> str:
        """The topic or pattern of its interest."""
        return self.interest.topic

    owed = waiting

    def credit_granted(self) -> None:
        """Go on."""
        self._service.credit(self)

    def close(self) -> None:
        """End it, and those whose place it took."""
        self._service.remove(self)

    @property
    def oldest(self) -> float:
        """When the first message that waits for it came, or a little before."""
        return self.waits_since if self.block is None else max(self.waits_since, self.block.since)
