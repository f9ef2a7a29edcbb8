"""Progress of one subscription: delivered messages in order, with their discarded state.

Messages are numbered in the order of delivery (ordinals). The first `head` of them are discarded without a
gap (the discarded prefix). A batch in the expected order is not processed message by message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tickertape.base.bookmarks import Bookmark, is_place
from tickertape.base.errors import BookmarkStoreFull
from tickertape.client.limits import (
    bookmark_block_messages,
    bookmark_publishers_max,
    bookmark_window_messages_max,
    recovery_bookmarks_max,
    recovery_places_max,
)

if TYPE_CHECKING:
    from tickertape.client.bookmark_store.missing import MissingSequences
    from tickertape.wire.link_rows import OpenHoles

DELIVERED: Final = 0
"""Delivered to the application since the last resume of the subscription."""
DISCARDED: Final = 1
EXPECTED: Final = 2
"""Delivered to the application before the last resume. Redelivery is expected."""

MIXED: Final = -1
"""Placeholder publisher of a block with several publishers."""

Numbers = range | array  # type: ignore[type-arg]  # array[int] exists for type checkers only
_AGAIN: Final = bytes([EXPECTED, DISCARDED, EXPECTED]) + bytes(range(3, 256))


@dataclass(eq=False, repr=False, slots=True)
class ProgressBlock:
    """Block of `count` messages from ordinal `base`. `left` of them are not discarded."""

    base: int
    publisher: int
    publishers: Numbers | None
    sequences: Numbers
    connection: int
    late: bool = False
    """Whether its messages are late: below earlier ones of their publishers."""
    count: int = field(init=False)
    left: int = field(init=False)
    states: bytearray = field(init=False)
    _rows: dict[int, list[int]] | None = None

    def __post_init__(self) -> None:
        self.count = self.left = len(self.sequences)
        self.states = bytearray(self.count)

    def extend(self, publisher: int, publishers: Numbers | None, sequences: Numbers) -> None:
        """Append messages."""
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
        """Return the row of a message, or -1."""
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
        """Expect one redelivery of the undiscarded messages on this connection."""
        if self.connection != connection:
            self.states = self.states.translate(_AGAIN)
            self.connection = connection

    def awaits(self, connection: int) -> bool:
        """Return whether redeliveries are still expected on this connection."""
        return self.left > 0 and (self.connection != connection or EXPECTED in self.states)

    def last_of_each(self, low: int, high: int) -> dict[int, int]:
        """Return the last row of each publisher in the rows `[low, high)`."""
        if self.publishers is None:
            return {self.publisher: high - 1}
        return dict(zip(self.publishers[low:high], range(low, high), strict=True))

    def first_of_each(self) -> dict[int, int]:
        """Return the first sequence of each publisher."""
        if self.publishers is None:
            return {self.publisher: self.sequences[0]}
        return dict(zip(reversed(self.publishers), reversed(self.sequences), strict=True))


UInt64s = NDArray[np.uint64]
Mask = NDArray[np.bool_]
Publishers = int | UInt64s
"""The publisher of all messages, or an array with one publisher per message."""
Ranges = list[tuple[int, int]]
"""Half-open ranges of ordinals."""


class Accepted(NamedTuple):
    """Rows of a batch to deliver (`keep`), and rows delivered for the first time (`new`). None means all."""

    keep: Mask | None
    new: Mask | None
    late: tuple[UInt64s, UInt64s] | None = None
    """Publishers and sequences of the late messages among `keep`, which are not in `new`."""


ALL_NEW: Final = Accepted(None, None)
_NO_ROW: Final = -1


Moved = tuple[int, int, int]
"""Ordinal of the last message of a publisher in the discarded prefix, the publisher, and the sequence."""


class Pending(NamedTuple):
    """A notice, and the number of messages that were delivered before it."""

    delivered: int
    bookmark: Bookmark
    places: tuple[Bookmark, ...] = ()
    """Places of servers that replicate (`is_place`)."""


@dataclass(eq=False, repr=False, slots=True)
class RecoveryPoint:
    """Recovery point of a subscription: the bookmarks that MOST_RECENT sends.

    The first `head` delivered messages are the discarded prefix.

    Invariant: no bookmark is past an undiscarded message. The server resumes after the earliest bookmark in
    its log. One bookmark per publisher is therefore safe if servers order publishers differently. A silent
    publisher would keep the start back forever. Therefore publishers whose last discarded message precedes
    the second to last notice are omitted.
    """

    base: tuple[Bookmark, ...] = ()
    """Start of the subscription, or the last effective notice."""
    places: dict[int, Bookmark] = field(default_factory=dict)
    """Places of servers that replicate, by their publisher ids, the last moved one last: all messages before
    them are before `base`."""
    at: int = 0
    """Number of messages delivered before `base`."""
    floor: int = 0
    """Number of messages delivered before the previous notice."""
    pending: Pending | None = None
    """A notice that takes effect once all messages delivered before it are discarded."""
    newest: Pending | None = None
    """The last notice after `pending`."""

    def start(self, bookmarks: Iterable[Bookmark]) -> None:
        """Set the start: right after these bookmarks."""
        found = tuple(bookmarks)
        self.base = tuple(one for one in found if not is_place(one))
        self._move(found)

    def notice(self, bookmark: Bookmark, delivered: int, head: int, places: Sequence[Bookmark] = ()) -> None:
        """Record a notice: all messages up to `bookmark`, and before `places`, were delivered."""
        made = Pending(delivered, bookmark, tuple(places))
        if self.pending is None:
            self.pending = made
        else:
            self.newest = made
        self.reached(head)

    def reached(self, head: int) -> None:
        """Apply the notices that are covered by a discarded prefix of `head` messages."""
        while self.pending is not None and self.pending.delivered <= head:
            self.floor = self.at
            self.at = self.pending.delivered
            self.base = (self.pending.bookmark,)
            self._move(self.pending.places)
            self.pending, self.newest = self.newest, None

    def _move(self, bookmarks: Iterable[Bookmark]) -> None:
        """Note places. A place of a server start never moves back."""
        for place in filter(is_place, bookmarks):
            known = self.places.pop(place.publisher, place)
            self.places[place.publisher] = max(known, place)
        while len(self.places) > recovery_places_max:
            del self.places[next(iter(self.places))]

    def again(self, head: int) -> None:
        """Drop notices behind the discarded prefix, because all later messages are redelivered."""
        self.pending = self.newest = None
        self.at = min(self.at, head)

    def bookmarks(
        self,
        head: int,
        moved: Iterable[Moved],
        missing: MissingSequences | None = None,
        late: Mapping[int, list[tuple[int, int]]] | None = None,
    ) -> list[Bookmark]:
        """Return the bookmarks to resume from: one per publisher, at most `recovery_bookmarks_max`.

        An empty list means the start of the log. With places, those of `MissingSequences.certain` of each
        publisher and the places: the server starts at its place. `late`: late messages without
        discard.
        """
        self.reached(head)
        if missing is not None and self.places:
            return self._with_places(head, moved, missing, late or {})
        floor = self.floor
        recent = sorted(entry for entry in moved if entry[0] >= floor)[-recovery_bookmarks_max:]
        found = {publisher: sequence for _, publisher, sequence in recent}
        if head == self.at or not found:
            for publisher, sequence in self.base:
                found[publisher] = max(sequence, found.pop(publisher, 0))
        return [Bookmark(*entry) for entry in list(found.items())[-recovery_bookmarks_max:]]

    def _with_places(
        self,
        head: int,
        moved: Iterable[Moved],
        missing: MissingSequences,
        late: Mapping[int, list[tuple[int, int]]],
    ) -> list[Bookmark]:
        """Return the bookmarks of a recovery point with places, which are last."""
        recent = [
            entry
            for entry in moved
            if entry[0] >= self.floor or entry[1] in missing.holes or entry[1] in late
        ]
        found = {publisher: sequence for _, publisher, sequence in sorted(recent)}
        if head == self.at or not found:
            for publisher, sequence in self.base:
                found.setdefault(publisher, sequence)
        bookmarks: list[Bookmark] = []
        for publisher, sequence in reversed(found.items()):
            members = missing.certain(publisher, sequence, late.get(publisher))
            if len(bookmarks) + len(members) <= recovery_bookmarks_max:
                bookmarks = members + bookmarks
            elif members and len(bookmarks) < recovery_bookmarks_max:
                bookmarks = members[:1] + bookmarks  # before its first hole
        return [*bookmarks, *self.places.values()]


def one_for_each(bookmarks: Sequence[Bookmark]) -> list[Bookmark]:
    """Return the highest bookmark of each publisher."""
    highest: dict[int, int] = {}
    for publisher, sequence in bookmarks:
        highest[publisher] = max(sequence, highest.get(publisher, 0))
    return [Bookmark(*entry) for entry in highest.items()]


@dataclass(eq=False, repr=False, slots=True)
class Known:
    """State of one publisher."""

    watermark: int = -1
    """Highest sequence in the discarded prefix."""
    moved: int = -1
    """Ordinal of that message."""
    seen: int = -1
    """Highest delivered sequence."""
    firsts: list[int] = field(default_factory=list)
    blocks: list[ProgressBlock] = field(default_factory=list)
    late: list[ProgressBlock] = field(default_factory=list)
    """Blocks with its late messages, in the order of delivery."""


class Progress:
    """Messages of one subscription, by publisher and sequence.

    Sequences of a publisher increase, except those of late messages: they are in blocks of their own."""

    def __init__(self, head: int = 0) -> None:
        self.head = self._settled = head
        """Length of the discarded prefix."""
        self.point = RecoveryPoint()
        self._missing: MissingSequences | None = None
        self.number = 0
        """Number of the subscription in a store file."""
        self.connection = 0
        """Number of resumes."""
        self.notices = 0
        """Notices of persisted messages since the last update of the recovery point adapter."""
        self.publishers: dict[int, Known] = {}
        self.changed: dict[int, Known] = {}
        """Publishers whose watermark has changed since the store last cleared this."""
        self.blocks: list[ProgressBlock] = []
        self._bases: list[int] = []
        self.delivered = head
        """Ordinal of the next message."""
        self._hint = ProgressBlock(0, 0, None, range(0), 0)
        self._hint_at = 0

    @property
    def missing(self) -> MissingSequences:
        """Missing sequences below the highest ones, for servers that replicate."""
        if self._missing is None:
            from tickertape.client.bookmark_store.missing import MissingSequences

            self._missing = MissingSequences()
        return self._missing

    @property
    def has_places(self) -> bool:
        """Whether it has state of servers that replicate."""
        return self._missing is not None and (self._missing.exact or bool(self._missing.holes))

    @property
    def window(self) -> int:
        """Number of messages that are tracked one by one: all since the first undiscarded one."""
        return self.delivered - self.head

    @property
    def undiscarded(self) -> int:
        """Number of delivered messages that are not discarded."""
        return sum(block.left for block in self.blocks)

    # -- delivery ---------------------------------------------------------------------------------------

    def accept(self, publishers: Publishers, sequences: UInt64s) -> Accepted:
        """Record a batch before its delivery.

        Raises `BookmarkStoreFull`. The batch must then not be delivered, and is redelivered after the next
        `resume`.
        """
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
        """Append new messages. `publishers` is for `MIXED` ones. Raises `BookmarkStoreFull`."""
        self._check_window(len(sequences))
        numbers = numbers_of(sequences)
        mixed = None if publishers is None else array("Q", np.asarray(publishers, np.uint64).tobytes())
        tail = self.blocks[-1] if self.blocks else None
        if self.has_places:
            self._note_delivered(publisher, publishers, sequences, numbers)
        if (
            tail is not None
            and not tail.late
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

    def _note_delivered(
        self, publisher: int, publishers: Publishers | None, sequences: UInt64s, numbers: Numbers
    ) -> None:
        """Record new messages as delivered."""
        if publishers is None:
            self.missing.delivered(publisher, self._seen(publisher), numbers)
            return
        ids = np.asarray(publishers, np.uint64)
        for one in dict.fromkeys(ids.tolist()):
            own = numbers_of(sequences[ids == np.uint64(one)])
            self.missing.delivered(one, self._seen(one), own)

    def _seen(self, publisher: int) -> int:
        known = self.publishers.get(publisher)
        return -1 if known is None else known.seen

    def append_late(self, publishers: UInt64s, sequences: UInt64s) -> None:
        """Append late messages, which are missing. Sequences do not fall. Raises `BookmarkStoreFull`."""
        self._check_window(len(sequences))
        for publisher, sequence in zip(publishers.tolist(), sequences.tolist(), strict=True):
            self.missing.delivered(publisher, self._seen(publisher), range(sequence, sequence + 1))
        mixed = array("Q", np.asarray(publishers, np.uint64).tobytes())
        block = ProgressBlock(self.delivered, MIXED, mixed, numbers_of(sequences), self.connection, late=True)
        self.blocks.append(block)
        self._bases.append(block.base)
        for publisher in dict.fromkeys(mixed):
            self.publishers.setdefault(publisher, Known()).late.append(block)
        self.delivered += block.count

    def _check_window(self, count: int) -> None:
        """Raise `BookmarkStoreFull` if that many more messages cannot be tracked."""
        if self.window + count > bookmark_window_messages_max:
            raise BookmarkStoreFull(
                f"Cannot track {count:,} more messages: the store tracks {self.window:,} since the "
                f"first undiscarded message, and its limit is {bookmark_window_messages_max:,}. Discard "
                "processed messages."
            )

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
        """Record a batch with redelivered messages, row by row."""
        self.settle()
        count = len(sequences)
        ids = [publishers] * count if isinstance(publishers, int) else publishers.tolist()
        keep, new, late = (np.zeros(count, np.bool_) for _ in range(3))
        seen: dict[int, int] = {}
        taken: set[tuple[int, int]] = set()
        """Late messages of this batch."""
        for row, (publisher, sequence) in enumerate(zip(ids, sequences.tolist(), strict=True)):
            known = self.publishers.get(publisher)
            highest = seen.get(publisher, -1 if known is None else known.seen)
            if sequence > highest:
                seen[publisher] = sequence
                keep[row] = new[row] = True
                if self.has_places:
                    taken.add((publisher, sequence))
            elif self._is_missing(publisher, sequence) and (publisher, sequence) not in taken:
                keep[row] = late[row] = True
                taken.add((publisher, sequence))
            elif known is not None and (sequence > known.watermark or known.late):
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
        if not late.any():
            return Accepted(keep, new)
        ids_late, numbers = np.array(ids, np.uint64)[late], sequences[late]
        order = np.argsort(numbers, kind="stable")
        ids_late, numbers = ids_late[order], numbers[order]
        self.append_late(ids_late, numbers)
        return Accepted(keep, new, (ids_late, numbers))

    def _is_missing(self, publisher: int, sequence: int) -> bool:
        """Return whether a sequence at or below the highest one of its publisher was not delivered."""
        missing = self._missing
        return missing is not None and missing.is_missing(publisher, sequence, self._seen(publisher))

    def resume(self, forget: bool = False) -> None:
        """Expect redelivery of the undiscarded messages after a resume.

        With `forget`, discarded messages behind the first undiscarded one are redelivered too.
        """
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
                known.late.clear()
            if self._missing is not None:
                self._missing.forget_recent()
            self.point.again(self.head)

    # -- discarding -------------------------------------------------------------------------------------

    def is_discarded(self, publisher: int, sequence: int) -> bool:
        """Return whether a message was discarded, or is too late to be delivered in order."""
        self.settle()
        known = self.publishers.get(publisher)
        if known is None or sequence > known.seen:
            return False
        if known.late:
            block, at = self._find(known, publisher, sequence)
            if block is not None:
                return block.states[at] == DISCARDED
        if sequence <= known.watermark:
            return not self._is_missing(publisher, sequence)
        block, at = self._find(known, publisher, sequence)
        if block is None:
            return not self._is_missing(publisher, sequence)
        return block.states[at] == DISCARDED

    def discard(self, publisher: int, sequence: int) -> int:
        """Discard a message and return its ordinal, or -1 if it was already discarded or never delivered."""
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
        """Discard messages. Return the ranges of those that were delivered and not yet discarded."""
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
        """Discard the messages in which the arrays from `at` and the block agree. Return their number."""
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
        """Discard messages by their ordinals `[low, high)`. Untracked ones count as discarded."""
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
        """Update the watermarks of publishers up to `head`. Cheap if `head` has not moved."""
        if self._settled < self.head and self.blocks:
            block = self.blocks[0]
            self._settle(block, self.head - block.base)

    def _settle(self, block: ProgressBlock, high: int) -> None:
        low = max(0, self._settled - block.base)
        if low < high:
            for publisher, row in block.last_of_each(low, high).items():
                known = self.publishers[publisher]
                known.moved = block.base + row
                known.watermark = max(known.watermark, block.sequences[row])
                self.changed[publisher] = known
            self._settled = block.base + high

    def _retire(self, block: ProgressBlock) -> None:
        self._settle(block, block.count)
        del self.blocks[0], self._bases[0]
        for publisher in block.first_of_each():
            known = self.publishers[publisher]
            if block.late:
                known.late.remove(block)
            else:
                del known.blocks[0], known.firsts[0]

    def moved(self) -> Iterator[Moved]:
        """Yield the last message of each publisher in the discarded prefix."""
        self.settle()
        for publisher, known in self.publishers.items():
            if known.moved >= 0:
                yield known.moved, publisher, known.watermark

    def is_past(self, bookmark: Bookmark) -> bool:
        """Return whether messages after `bookmark` were delivered before.

        A notice for a redelivered message would move the recovery point back. Doubtful cases return True: a
        skipped notice only delays the next one.
        """
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
        """Return the bookmarks to resume from. An empty list means the start of the log."""
        late = None
        if self._missing is not None:
            late = {one: left for one, known in self.publishers.items() if (left := late_left(one, known))}
        return self.point.bookmarks(self.head, self.moved(), self._missing, late)

    def start(self, bookmarks: Sequence[Bookmark]) -> None:
        """Record the start of the subscription, with the places of a server that replicates."""
        self.point.start(one_for_each(bookmarks))
        self.mark_exact(bookmarks)

    def mark_exact(self, bookmarks: Iterable[Bookmark]) -> None:
        """Record deliveries exactly from now on, if places are among the bookmarks."""
        if any(map(is_place, bookmarks)):
            self.missing.begin()

    def notice(
        self, bookmark: Bookmark, places: Sequence[Bookmark] = (), holes: Sequence[OpenHoles] | None = None
    ) -> bool:
        """Record a notice of a server. Return whether the recovery point may move.

        `holes`: changed holes of its log. None: the client made the notice itself, and the holes are
        unknown."""
        may_move = not self.is_past(bookmark)
        self.take_notice(bookmark if may_move else None, places, holes)
        return may_move

    def take_notice(
        self,
        bookmark: Bookmark | None,
        places: Sequence[Bookmark],
        holes: Sequence[OpenHoles] | None,
    ) -> None:
        """Record a notice. `bookmark` None: the recovery point does not move."""
        if bookmark is not None:
            self.point.notice(bookmark, self.delivered, self.head, places)
        self.mark_exact(places)
        if holes is not None:
            self.missing.noticed(holes, self._seen)

    def restore(self, publisher: int, watermark: int, moved: int) -> None:
        """Restore a publisher from a file, before the first delivery."""
        known = self.publishers[publisher] = Known()
        known.watermark = known.seen = watermark
        known.moved = moved
        self.changed[publisher] = known

    # -- inside -----------------------------------------------------------------------------------------

    def _find(self, known: Known, publisher: int, sequence: int) -> tuple[ProgressBlock | None, int]:
        for block in known.late:
            row = block.find(publisher, sequence)
            if row >= 0:
                return block, row
        place = bisect_right(known.firsts, sequence) - 1
        if place < 0:
            return None, _NO_ROW
        block = known.blocks[place]
        row = block.find(publisher, sequence)
        return (None, _NO_ROW) if row < 0 else (block, row)

    def _forget_publishers(self) -> None:
        """Remove the older half of the publishers without tracked messages."""
        old = sorted(
            (known.moved, p) for p, known in self.publishers.items() if not (known.blocks or known.late)
        )
        for _, publisher in old[: len(old) // 2 + 1]:
            del self.publishers[publisher]
            self.changed.pop(publisher, None)


def late_left(publisher: int, known: Known) -> list[tuple[int, int]]:
    """Return the late messages of a publisher that were delivered and not discarded, as ranges.

    A recovery point has them as holes, because a restart forgets that they were delivered."""
    return [
        (sequence, sequence)
        for block in known.late
        for row, (of, sequence) in enumerate(zip(block.publishers or (), block.sequences, strict=True))
        if of == publisher and block.states[row] != DISCARDED
    ]


def _groups(publishers: UInt64s, sequences: UInt64s) -> tuple[int, dict[int, int], bool]:
    """Return the common publisher or `MIXED`, the first sequences, and whether all sequences increase."""
    order = publishers.argsort(kind="stable")
    ids, numbers = publishers[order], sequences[order]
    same = ids[1:] == ids[:-1]
    rising = bool(((numbers[1:] > numbers[:-1]) | ~same).all())
    begins = np.concatenate(([0], np.flatnonzero(~same) + 1))
    firsts = dict(zip(ids[begins].tolist(), numbers[begins].tolist(), strict=True))
    return (next(iter(firsts)) if len(firsts) == 1 else MIXED), firsts, rising


def numbers_of(sequences: UInt64s) -> Numbers:
    """Return rising sequences as a range if they have no gap, else as an array."""
    first, count = int(sequences[0]), len(sequences)
    if int(sequences[-1]) - first == count - 1 and bool((np.diff(sequences) == 1).all()):
        return range(first, first + count)
    return array("Q", np.ascontiguousarray(sequences, np.uint64).tobytes())


def _view(numbers: Numbers) -> UInt64s:
    if isinstance(numbers, range):
        return np.arange(len(numbers), dtype=np.uint64) + np.uint64(numbers.start)
    return np.frombuffer(numbers, np.uint64)
