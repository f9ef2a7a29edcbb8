"""Progress of one subscription: messages delivered, in order, and which of them are discarded.

Messages are numbered as they are delivered; `head` of them are discarded without a gap. Where a batch is as
expected, its messages are not handled one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BookmarkStoreFull
from tickertape.client.limits import (
    bookmark_block_messages,
    bookmark_publishers_max,
    bookmark_window_messages_max,
    recovery_bookmarks_max,
)

DELIVERED: Final = 0
"""Handed to the application since the subscription was last resumed."""
DISCARDED: Final = 1
EXPECTED: Final = 2
"""Handed to the application before; it comes again."""

MIXED: Final = -1
"""In the place of a publisher: they alternate."""

Numbers = range | array  # type: ignore[type-arg]  # array[int] exists for type checkers only
_AGAIN: Final = bytes([EXPECTED, DISCARDED, EXPECTED]) + bytes(range(3, 256))


@dataclass(eq=False, repr=False, slots=True)
class ProgressBlock:
    """`count` messages from the ordinal `base` on. `left` of them are not discarded."""

    base: int
    publisher: int
    publishers: Numbers | None
    sequences: Numbers
    connection: int
    count: int = field(init=False)
    left: int = field(init=False)
    states: bytearray = field(init=False)
    _rows: dict[int, list[int]] | None = None

    def __post_init__(self) -> None:
        self.count = self.left = len(self.sequences)
        self.states = bytearray(self.count)

    def extend(self, publisher: int, publishers: Numbers | None, sequences: Numbers) -> None:
        """Add what came next."""
        count = len(sequences)
        if publishers is not None or publisher != self.publisher:
            own = self.publishers
            if own is None:
                own = array("Q", [self.publisher]) * self.count
            if publishers is None:
                publishers = array("Q", [publisher]) * count
            own.extend(publishers)  # type: ignore[union-attr]
            self.publisher, self.publishers = MIXED, own
            if self._rows is not None:
                self._index(publishers, self.count)
        mine = self.sequences
        if isinstance(mine, range):
            if isinstance(sequences, range) and mine.stop == sequences.start:
                self.sequences = range(mine.start, sequences.stop)
            else:
                self.sequences = array("Q", mine)
                self.sequences.extend(sequences)
        else:
            mine.extend(sequences)
        self.states += bytes(count)
        self.count += count
        self.left += count

    def find(self, publisher: int, sequence: int) -> int:
        """The row of a message; -1 when it is not here."""
        sequences = self.sequences
        if self.publishers is None:
            if publisher != self.publisher:
                return -1
            if isinstance(sequences, range):
                return sequence - sequences.start if sequence in sequences else -1
            row = bisect_left(sequences, sequence)
            return row if row < self.count and sequences[row] == sequence else -1
        if self._rows is None:
            self._rows = {}
            self._index(self.publishers, 0)
        rows = self._rows.get(publisher, [])
        place = bisect_left(rows, sequence, key=sequences.__getitem__)
        return rows[place] if place < len(rows) and sequences[rows[place]] == sequence else -1

    def _index(self, publishers: Numbers, row: int) -> None:
        rows = self._rows
        assert rows is not None
        for publisher in publishers:
            rows.setdefault(publisher, []).append(row)
            row += 1

    def expect(self, connection: int) -> None:
        """What is not discarded comes again, once, on this connection."""
        if self.connection != connection:
            self.states = self.states.translate(_AGAIN)
            self.connection = connection

    def awaits(self, connection: int) -> bool:
        """Whether messages are still to come again on this connection."""
        return self.left > 0 and (self.connection != connection or EXPECTED in self.states)

    def last_of_each(self, low: int, high: int) -> dict[int, int]:
        """Of each publisher with messages in the rows `[low, high)` the last row."""
        if self.publishers is None:
            return {self.publisher: high - 1}
        return dict(zip(self.publishers[low:high], range(low, high), strict=True))

    def first_of_each(self) -> dict[int, int]:
        """Of each publisher the first sequence."""
        if self.publishers is None:
            return {self.publisher: self.sequences[0]}
        return dict(zip(reversed(self.publishers), reversed(self.sequences), strict=True))


UInt64s = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Publishers = int | UInt64s
"""The publisher of all messages, or one for each."""
Ranges = list[tuple[int, int]]
"""Half-open ranges of ordinals."""


class Accepted(NamedTuple):
    """What to do with a batch: which rows go to the application, and which were never seen; None = all."""

    keep: Mask | None
    new: Mask | None


ALL_NEW: Final = Accepted(None, None)
_NO_ROW: Final = -1


Moved = tuple[int, int, int]
"""Of a publisher: the ordinal of its last message in the discarded prefix, the publisher, the sequence."""
Pending = tuple[int, Bookmark]
"""A notice, and how many messages had been delivered when it came."""


@dataclass(eq=False, repr=False, slots=True)
class RecoveryPoint:
    """Where a subscription resumes, as MOST_RECENT sends it. Ordinals count its delivered messages; `head` of
    them are a discarded prefix.

    Invariant: no bookmark lies past a message that is not discarded. The server resumes after the earliest of
    them in its log, so one for each publisher is safe where servers order publishers differently, but a
    publisher that fell silent would pull the start back for ever. Hence notices: what was discarded before
    the last notice but one is left out."""

    base: tuple[Bookmark, ...] = ()
    """The start, or the last notice that counts."""
    at: int = 0
    """Delivered messages before `base`."""
    floor: int = 0
    """Delivered messages before the notice before it."""
    pending: Pending | None = None
    """A notice that counts once everything delivered before it is discarded."""
    newest: Pending | None = None

    def start(self, bookmarks: Iterable[Bookmark]) -> None:
        """The subscription begins after these."""
        self.base = tuple(bookmarks)

    def notice(self, bookmark: Bookmark, delivered: int, head: int) -> None:
        """Everything up to `bookmark` was delivered."""
        if self.pending is None:
            self.pending = (delivered, bookmark)
        else:
            self.newest = (delivered, bookmark)
        self.reached(head)

    def reached(self, head: int) -> None:
        """`head` messages are a discarded prefix now."""
        while self.pending is not None and self.pending[0] <= head:
            self.floor = self.at
            self.at = self.pending[0]
            self.base = (self.pending[1],)
            self.pending, self.newest = self.newest, None

    def again(self, head: int) -> None:
        """All behind the prefix comes again: what notices said of it is no longer so."""
        self.pending = self.newest = None
        self.at = min(self.at, head)

    def bookmarks(self, head: int, moved: Iterable[Moved]) -> list[Bookmark]:
        """The bookmarks to resume from, at most `recovery_bookmarks_max`, one for each publisher; none for
        the beginning of the log."""
        self.reached(head)
        floor = self.floor
        recent = sorted(entry for entry in moved if entry[0] >= floor)[-recovery_bookmarks_max:]
        found = {publisher: sequence for _, publisher, sequence in recent}
        if head == self.at or not found:
            for publisher, sequence in self.base:
                found[publisher] = max(sequence, found.pop(publisher, 0))
        return [Bookmark(*entry) for entry in list(found.items())[-recovery_bookmarks_max:]]


def one_for_each(bookmarks: Sequence[Bookmark]) -> list[Bookmark]:
    """The highest of each publisher."""
    highest: dict[int, int] = {}
    for publisher, sequence in bookmarks:
        highest[publisher] = max(sequence, highest.get(publisher, 0))
    return [Bookmark(*entry) for entry in highest.items()]


@dataclass(eq=False, repr=False, slots=True)
class Known:
    """What is known of one publisher."""

    watermark: int = -1
    """Highest sequence in the discarded prefix."""
    moved: int = -1
    """Its ordinal."""
    seen: int = -1
    """Highest sequence delivered."""
    firsts: list[int] = field(default_factory=list)
    blocks: list[ProgressBlock] = field(default_factory=list)


class Progress:
    """Messages of one subscription, by publisher and sequence. Sequences of a publisher rise."""

    def __init__(self, head: int = 0) -> None:
        self.head = self._settled = head
        """Messages of the discarded prefix, ever."""
        self.point = RecoveryPoint()
        self.number = 0
        """What a file calls it."""
        self.connection = 0
        """How often it was resumed."""
        self.publishers: dict[int, Known] = {}
        self.changed: dict[int, Known] = {}
        """Whose watermark has moved, since somebody cleared this."""
        self.blocks: list[ProgressBlock] = []
        self._bases: list[int] = []
        self.delivered = head
        """Ordinal of the next message."""
        self._hint = ProgressBlock(0, 0, None, range(0), 0)
        self._hint_at = 0

    @property
    def window(self) -> int:
        """Messages remembered one by one: all since the first that is not discarded."""
        return self.delivered - self.head

    @property
    def undiscarded(self) -> int:
        """Messages delivered and not discarded."""
        return sum(block.left for block in self.blocks)

    # -- delivery ---------------------------------------------------------------------------------------

    def accept(self, publishers: Publishers, sequences: UInt64s) -> Accepted:
        """A batch is about to be delivered. Raises `BookmarkStoreFull`: it must not be, and comes again
        after the next `resume`."""
        count = len(sequences)
        if not count:
            return ALL_NEW
        if isinstance(publishers, int):
            publisher, firsts = publishers, {publishers: int(sequences[0])}
            rising = bool(count == 1 or (sequences[1:] > sequences[:-1]).all())
        else:
            publisher, firsts, rising = _groups(publishers, sequences)
        known = self.publishers
        if rising and all(p not in known or known[p].seen < first for p, first in firsts.items()):
            self.append(publisher, None if publisher != MIXED else publishers, sequences)
            return ALL_NEW
        return self._sift(publishers, sequences)

    def append(self, publisher: int, publishers: Publishers | None, sequences: UInt64s) -> None:
        """Take messages of which none was seen. `publishers` for `MIXED` ones. Raises `BookmarkStoreFull`."""
        if self.window + len(sequences) > bookmark_window_messages_max:
            raise BookmarkStoreFull(
                f"{self.window:,} messages since the first one that is not discarded, and {len(sequences):,} "
                f"more: a store remembers {bookmark_window_messages_max:,}; discard what was processed"
            )
        numbers = _numbers(sequences)
        mixed = None if publishers is None else array("Q", np.asarray(publishers, np.uint64).tobytes())
        tail = self.blocks[-1] if self.blocks else None
        if (
            tail is not None
            and tail.count + len(numbers) <= bookmark_block_messages
            and tail.connection == self.connection
        ):
            low = tail.count
            tail.extend(publisher, mixed, numbers)
            self._register(tail, low)
        else:
            block = ProgressBlock(self.delivered, publisher, mixed, numbers, self.connection)
            self.blocks.append(block)
            self._bases.append(block.base)
            self._register(block, 0)
        self.delivered += len(numbers)
        if len(self.publishers) > bookmark_publishers_max:
            self._forget_publishers()

    def _register(self, block: ProgressBlock, low: int) -> None:
        for publisher, row in block.last_of_each(low, block.count).items():
            known = self.publishers.get(publisher)
            if known is None:
                known = self.publishers[publisher] = Known()
            if not known.blocks or known.blocks[-1] is not block:
                known.blocks.append(block)
                known.firsts.append(known.seen + 1)
            known.seen = block.sequences[row]

    def _sift(self, publishers: Publishers, sequences: UInt64s) -> Accepted:
        """Row by row: there are messages that came before."""
        self.settle()
        count = len(sequences)
        ids = [publishers] * count if isinstance(publishers, int) else publishers.tolist()
        keep, new = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        seen: dict[int, int] = {}
        for row, (publisher, sequence) in enumerate(zip(ids, sequences.tolist(), strict=True)):
            known = self.publishers.get(publisher)
            highest = seen.get(publisher, -1 if known is None else known.seen)
            if sequence > highest:
                seen[publisher] = sequence
                keep[row] = new[row] = True
            elif known is not None and sequence > known.watermark:
                block, at = self._find(known, publisher, sequence)
                if block is not None:
                    block.expect(self.connection)
                    if block.states[at] == EXPECTED:
                        block.states[at] = DELIVERED
                        keep[row] = True
        if new.any():
            if isinstance(publishers, int):
                self.append(publishers, None, sequences[new])
            else:
                self.append(MIXED, publishers[new], sequences[new])
        return Accepted(keep, new)

    def resume(self, forget: bool = False) -> None:
        """The subscription was placed again: what is not discarded comes again. With `forget` so does all
        that was discarded behind the first such message."""
        self.connection += 1
        if forget:
            self.settle()
            self.blocks.clear()
            self._bases.clear()
            self.delivered = self.head
            self._hint_at = self._hint.count
            for known in self.publishers.values():
                known.seen = known.watermark
                known.firsts.clear()
                known.blocks.clear()
            self.point.again(self.head)

    # -- discarding -------------------------------------------------------------------------------------

    def is_discarded(self, publisher: int, sequence: int) -> bool:
        """Whether a message was discarded, or comes too late to be delivered in its order."""
        self.settle()
        known = self.publishers.get(publisher)
        if known is None or sequence > known.seen:
            return False
        if sequence <= known.watermark:
            return True
        block, at = self._find(known, publisher, sequence)
        return block is None or block.states[at] == DISCARDED

    def discard(self, publisher: int, sequence: int) -> int:
        """The ordinal of the message that is discarded now; -1 when it was before, or never came."""
        block, at = self._hint, self._hint_at
        if (
            at >= block.count
            or block.sequences[at] != sequence
            or (
                block.publisher != publisher
                and (block.publishers is None or block.publishers[at] != publisher)
            )
        ):
            known = self.publishers.get(publisher)
            if known is None:
                return -1
            found, at = self._find(known, publisher, sequence)
            if found is None:
                return -1
            block = self._hint = found
        states = block.states
        self._hint_at = at + 1
        if states[at] == DISCARDED:
            return -1
        states[at] = DISCARDED
        block.left -= 1
        ordinal = block.base + at
        if ordinal == self.head:
            self.head = ordinal + 1
            if not block.left or states[at + 1] == DISCARDED:
                self._advance()
        return ordinal

    def discard_rows(self, publishers: Publishers, sequences: UInt64s) -> Ranges:
        """Discard many. What was discarded before, or never came, is not in the result."""
        done: Ranges = []
        at, count = 0, len(sequences)
        while at < count:
            publisher = publishers if isinstance(publishers, int) else int(publishers[at])
            ordinal = self.discard(publisher, int(sequences[at]))
            at += 1
            if ordinal < 0:
                continue
            end = ordinal + 1
            taken = self._discard_alike(publishers, sequences, at)
            at += taken
            end += taken
            if done and done[-1][1] == ordinal:
                done[-1] = (done[-1][0], end)
            else:
                done.append((ordinal, end))
        return done

    def _discard_alike(self, publishers: Publishers, sequences: UInt64s, at: int) -> int:
        """Discard what follows in the block just as it follows in these arrays from `at` on; how many."""
        block, row = self._hint, self._hint_at
        count = min(block.count - row, len(sequences) - at)
        if count <= 0:
            return 0
        alike = _view(block.sequences[row : row + count]) == sequences[at : at + count]
        if block.publishers is not None:
            wanted = publishers if isinstance(publishers, int) else publishers[at : at + count]
            alike &= _view(block.publishers[row : row + count]) == wanted
        elif isinstance(publishers, int):
            alike &= publishers == block.publisher
        else:
            alike &= publishers[at : at + count] == block.publisher
        alike &= np.frombuffer(bytes(block.states[row : row + count]), np.uint8) != DISCARDED
        if not alike.all():
            count = int(alike.argmin())
        self._mark(block, row, row + count)
        self._hint_at = row + count
        return count

    def discard_ordinals(self, low: int, high: int) -> None:
        """Discard messages by their ordinals `[low, high)`; those that are not remembered count as done."""
        place = max(0, bisect_right(self._bases, low) - 1)
        for block in list(self.blocks[place:]):
            if block.base >= high:
                return
            begin, end = max(low - block.base, 0), min(high - block.base, block.count)
            while begin < end and (row := block.states.find(DISCARDED, begin, end)) >= 0:
                self._mark(block, begin, row)
                begin = row + 1
            self._mark(block, begin, end)

    def _mark(self, block: ProgressBlock, low: int, high: int) -> None:
        if low >= high:
            return
        block.states[low:high] = bytes([DISCARDED]) * (high - low)
        block.left -= high - low
        if block.base + low <= self.head < block.base + high:
            self._advance()

    def _advance(self) -> None:
        blocks = self.blocks
        while blocks:
            block = blocks[0]
            if block.left:
                at, states = max(0, self.head - block.base), block.states
                while states[at] == DISCARDED:
                    at += 1
                self.head = block.base + at
                return
            self.head = block.base + block.count
            self._retire(block)
        self.head = self.delivered

    # -- the prefix -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring the watermarks of publishers up to `head`. Cheap when it stands."""
        if self._settled < self.head and self.blocks:
            block = self.blocks[0]
            self._settle(block, self.head - block.base)

    def _settle(self, block: ProgressBlock, high: int) -> None:
        low = max(0, self._settled - block.base)
        if low < high:
            for publisher, row in block.last_of_each(low, high).items():
                known = self.publishers[publisher]
                known.watermark, known.moved = block.sequences[row], block.base + row
                self.changed[publisher] = known
            self._settled = block.base + high

    def _retire(self, block: ProgressBlock) -> None:
        self._settle(block, block.count)
        del self.blocks[0], self._bases[0]
        for publisher in block.first_of_each():
            known = self.publishers[publisher]
            del known.blocks[0], known.firsts[0]

    def moved(self) -> Iterator[Moved]:
        """What the prefix holds of each publisher."""
        self.settle()
        for publisher, known in self.publishers.items():
            if known.moved >= 0:
                yield known.moved, publisher, known.watermark

    def is_past(self, bookmark: Bookmark) -> bool:
        """Whether more was delivered once than what a notice up to `bookmark` tells of: messages that were
        placed again come again, and such a notice would move the recovery point back. Where nobody can say,
        it counts as past: a notice that is left out costs nothing but a later one."""
        known = self.publishers.get(bookmark.publisher)
        if known is None or bookmark.sequence > known.seen:
            return any(block.awaits(self.connection) for block in self.blocks)
        self.settle()
        if bookmark.sequence < known.seen:
            return True
        ordinal = known.moved
        if known.watermark < known.seen:
            block, at = self._find(known, bookmark.publisher, bookmark.sequence)
            ordinal = self.delivered if block is None else block.base + at
        return ordinal < self.delivered - 1

    def most_recent(self) -> list[Bookmark]:
        """The bookmarks to resume from; none: the beginning of the log."""
        return self.point.bookmarks(self.head, self.moved())

    def restore(self, publisher: int, watermark: int, moved: int) -> None:
        """What a file knew of a publisher. For a progress to which nothing was delivered yet."""
        known = self.publishers[publisher] = Known()
        known.watermark = known.seen = watermark
        known.moved = moved
        self.changed[publisher] = known

    # -- inside -----------------------------------------------------------------------------------------

    def _find(self, known: Known, publisher: int, sequence: int) -> tuple[ProgressBlock | None, int]:
        place = bisect_right(known.firsts, sequence) - 1
        if place < 0:
            return None, _NO_ROW
        block = known.blocks[place]
        row = block.find(publisher, sequence)
        return (None, _NO_ROW) if row < 0 else (block, row)

    def _forget_publishers(self) -> None:
        """Let go of half of those of whom nothing is remembered but that they were long ago."""
        old = sorted((known.moved, p) for p, known in self.publishers.items() if not known.blocks)
        for _, publisher in old[: len(old) // 2 + 1]:
            del self.publishers[publisher]
            self.changed.pop(publisher, None)


def _groups(publishers: UInt64s, sequences: UInt64s) -> tuple[int, dict[int, int], bool]:
    """The publisher of all, or `MIXED`; the first sequence of each; whether those of each rise."""
    order = publishers.argsort(kind="stable")
    ids, numbers = publishers[order], sequences[order]
    same = ids[1:] == ids[:-1]
    rising = bool(((numbers[1:] > numbers[:-1]) | ~same).all())
    begins = np.concatenate(([0], np.flatnonzero(~same) + 1))
    firsts = dict(zip(ids[begins].tolist(), numbers[begins].tolist(), strict=True))
    return (next(iter(firsts)) if len(firsts) == 1 else MIXED), firsts, rising


def _numbers(sequences: UInt64s) -> Numbers:
    first, count = int(sequences[0]), len(sequences)
    if int(sequences[-1]) - first == count - 1 and bool((np.diff(sequences) == 1).all()):
        return range(first, first + count)
    return array("Q", np.ascontiguousarray(sequences, np.uint64).tobytes())


def _view(numbers: Numbers) -> UInt64s:
    if isinstance(numbers, range):
        return np.arange(len(numbers), dtype=np.uint64) + np.uint64(numbers.start)
    return np.frombuffer(numbers, np.uint64)
