"""File publish store: messages that `publish` accepted survive the end of the process.

Invariants: a message is acknowledged only when it is whole in a mapped segment, and a segment that is needed
is not removed. An exception that a signal handler raises may come between any two steps: a record counts once
the mark is behind it, and where the mark was not moved the next record is written over it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

from crc32c import crc32c

from tickertape.base.errors import BadOption, Closed, StoreCorrupt, StoreFailed, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.names import publisher_id
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.closing import ClosesItself
from tickertape.client.limits import (
    publish_segment_bytes,
    publish_store_file_bytes_default,
    topics_remembered_max,
)
from tickertape.client.publish_store import format as records
from tickertape.client.publish_store.protocol import Stored, StoreOptions, WhenFull, another
from tickertape.client.publish_store.segments import SegmentDirectory
from tickertape.client.publish_store.unpersisted import UnpersistedEntry, UnpersistedIndex, UnpersistedView

Sync = Literal["never", "always"]

_NOBODY_YET: Final = "a client that has not connected yet"
_NOTE_BYTES: Final = 4 * records.RECORD_BYTES
_head: Final = records.BEHIND_CRC.pack
_put_crc: Final = records.CRC.pack_into
_MARK_BASE: Final = records.marked(0)
_MARK_STEP: Final = records.marked(0) - records.marked(1)


class _Segment:
    """The segment that is written."""

    __slots__ = ("at", "end", "header", "mark", "memory", "seed")

    def __init__(self, memory: mmap.mmap, header: records.Header, at: int) -> None:
        self.memory = memory
        self.mark = _mark(memory)
        self.header = header
        self.seed = header.seed
        self.at = at
        self.end = header.size - _NOTE_BYTES
        """Where records end but for the note that lets segments go: a full disk must not prevent it."""


class FilePublishStore(StoreOptions, ClosesItself):
    """Keeps what was published in small mapped files until the server says that it is persisted.

    A message is there when `publish` returns: it survives the end of the process at any moment, and with
    `sync="always"` power loss too. Opened again, the store sends what is left and goes on with the numbers.

    `path`: a directory of its own, made when missing. It belongs to the client name that uses it first.
    `bytes_max`: int (bytes) or str such as `"2GB"` (powers of 1024), default 1 GB, of encoded batches.
    `when_full`: `"block"` (default) lets a publish wait for acknowledgements, as long as the client's
    `timeout`; `"raise"` raises `StoreFull` at once.
    `sync`: `"never"` (default) or `"always"`.

    Raises `BadOption`, `StoreLocked`, `NotAStore`, `StoreVersion`, `StoreCorrupt`, `StoreFailed`. As a
    context manager it closes itself; the client does not close it.
    """

    def __init__(
        self,
        path: str | Path,
        bytes_max: int | str = publish_store_file_bytes_default,
        when_full: WhenFull = "block",
        sync: Sync = "never",
    ) -> None:
        super().__init__(bytes_max, when_full)
        if sync not in ("never", "always"):
            raise BadOption(f"sync={sync!r}: use 'never' or 'always'")
        self.path = Path(path)
        self._sync = sync == "always"
        self._refusal: TickertapeError = Closed("the publish store was closed")
        self._ledger = UnpersistedIndex(self._read)
        self._name = ""
        self.never_logged_on = True
        """Whether no server ever accepted a logon with this store, in an earlier process either."""
        self._publisher = 0
        self._used = self._settled = self._noted = 0
        self._last = self._put = 0
        self._current: _Segment | None = None
        self._oldest = 1
        self._topics: dict[str, bytes] = {}
        self._gathered: tuple[int, int, int] | None = None
        """Sequence, segment and place of the first message that was appended since the last batch."""
        self._again = False
        """A number was given again since: the batch has to be written."""
        self._looked: tuple[int, mmap.mmap] | None = None
        """The segment that was read last, as long as it is not the one that is written."""
        self._directory: SegmentDirectory | None = SegmentDirectory(path)
        try:
            self._open(self._directory)
        except BaseException:
            self._let_go()
            raise
        forks.register(self)

    def _open(self, directory: SegmentDirectory) -> None:
        numbers = directory.numbers()
        if not numbers:
            if directory.last_client not in ("", _NOBODY_YET):
                raise StoreCorrupt(
                    f"Cannot open the publish store {directory.path}: client {directory.last_client!r} used "
                    "it, and all of its segments are gone. Restore them from a copy, or remove the directory "
                    "to start with an empty store",
                    file=directory.file(1),
                )
            directory.say(_NOBODY_YET)
            return
        images = [records.Image(n, directory.file(n), partial(self._view, n)) for n in numbers]
        found = records.recover_store(images, self._read)
        directory.say(found.name)
        for segment in found.segments:
            memory = self._look(segment.header.number)
            _mark(memory)[0] = records.marked(segment.end)  # power loss may have left an older one
        rest = bytes(len(memory) - segment.end)
        if memory[segment.end :] != rest:
            memory[segment.end :] = rest
        self._current = _Segment(memory, segment.header, segment.end)
        self._name, self._publisher = found.name, publisher_id(found.name)
        self._ledger = found.ledger
        self.never_logged_on = found.never_logged_on
        self._last = self._put = self._used = found.used
        self._settled = self._noted = found.settled
        if self._sync:
            # What was found may be in the memory of the system only.
            for number in numbers:
                memory = self._look(number)
                directory.flush(memory, 0, len(memory))
            directory.sync()
        for number in found.remove:
            directory.remove(number)
        self._oldest = min(set(numbers) - set(found.remove))

    def attach(self, name: str) -> None:
        """The client `name` uses it. Raises `StoreOfAnother`, `StoreFailed`, `Closed`."""
        directory = self._directory
        if directory is None:
            raise self._refusal
        if self._name and name != self._name:
            raise another(f"the publish store {directory.path}", self._name, name)
        if self._current is None:
            size, never = publish_segment_bytes, self.never_logged_on
            header = records.Header(directory.chance(), 1, 0, 0, 1, 0, size, name, never)
            memory = directory.create(1, header.size, records.encode_header(header), durable=self._sync)
            self._name, self._publisher = name, publisher_id(name)
            self._current = _Segment(memory, header, records.HEADER_BYTES)
        directory.say(name)

    def close(self) -> None:
        """Let go of files and lock; what is held stays on disk. Afterwards its calls raise `Closed`."""
        if self._settled > self._noted and self._current is not None and self._directory is not None:
            self._note(last=True)
        self._let_go()

    def _let_go(self) -> None:
        directory, self._directory = self._directory, None
        self._current = self._looked = None
        if directory is not None:
            directory.close()

    def forked(self) -> None:
        """Internal: this is a forked child; the parent goes on."""
        self._refusal = forks.forked_error()
        self._let_go()

    @property
    def size_bytes(self) -> int:
        """Encoded bytes held now."""
        return self._ledger.nbytes

    @property
    def last_sequence(self) -> int:
        """The highest sequence ever put, by an earlier process too; 0 for a fresh store."""
        entries = self._ledger.entries
        return max(self._last, entries[-1].last) if entries else self._last

    @property
    def last_put(self) -> int:
        """The highest sequence put here, where others were noted as used."""
        entries = self._ledger.entries
        return max(self._put, entries[-1].last) if entries else self._put

    def append(
        self,
        sequence: int,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
    ) -> None:
        """Keep one message of the next batch."""
        name = self._topics.get(topic) or self._encoded(topic)
        if expiration_ms or correlation_id or key:
            record = records.encode_message(name, body, sequence, expiration_ms, correlation_id, key)
        else:
            size = len(name)
            record = _head(size + len(body), sequence, sequence, records.MESSAGE, size, 0, 0) + name + body
        segment = self._current
        if segment is None or segment.at + 4 + len(record) > segment.end:
            segment = self._next(4 + len(record))
        if sequence <= self._used:
            self._again = True
        self._used = (
            sequence  # before anything is written: an interrupted append is known when it comes again
        )
        at = segment.at
        stop = at + 4 + len(record)
        if self._gathered is None:
            self._gathered = sequence, segment.header.number, at
        memory = segment.memory
        memory[at + 4 : stop] = record
        _put_crc(memory, at, crc32c(record, segment.seed))
        if self._sync:
            self._flush(segment, at, stop)
        segment.at = end = (stop + 7) & ~7
        segment.mark[0] = _MARK_BASE - end * _MARK_STEP

    def writer(self, topic: str) -> Callable[[int, bytes], bool] | None:
        """A faster `append` of more messages of `topic`, into the segment that is written."""
        segment = self._current
        if segment is None or self._sync:
            return None
        name = self._topics.get(topic) or self._encoded(topic)
        size, memory, mark, seed, end = len(name), segment.memory, segment.mark, segment.seed, segment.end

        def write(sequence: int, body: bytes) -> bool:
            record = _head(size + len(body), sequence, sequence, records.MESSAGE, size, 0, 0) + name + body
            at = segment.at
            stop = at + 4 + len(record)
            if stop > end or sequence <= self._used or self._current is not segment:
                return False
            self._used = sequence
            memory[at + 4 : stop] = record
            _put_crc(memory, at, crc32c(record, seed))
            segment.at = stop = (stop + 7) & ~7
            mark[0] = _MARK_BASE - stop * _MARK_STEP
            return True

        return write

    def seal(self, stored: Stored) -> None:
        """What was appended since the last batch is this batch."""
        first, last, batch = stored
        gathered = self._gathered
        count = batch.count
        whole = gathered is not None and gathered[0] == first and self._used == last == first + count - 1
        if gathered is None or not whole or self._again:
            self.put(stored)  # an exception came in between: the batch takes the place of what there is of it
        else:
            entry = UnpersistedEntry(first, last, count, batch.nbytes, gathered[1], gathered[2])
            entry.batch = batch
            self._ledger.add(entry)
            self._last = self._put = last
        self._gathered = None
        self._again = False

    def put(self, stored: Stored) -> None:
        """Keep one batch; its sequences are above all others put before."""
        first, last, batch = stored
        assert first > self.last_put, "sequences rise"
        number, at = self._write(records.BATCH, first, last, batch.buffers())
        entry = UnpersistedEntry(first, last, batch.count, batch.nbytes, number, at)
        entry.batch = batch
        self._ledger.add(entry)
        self._last = self._put = last
        self._used = max(last, self._used)

    def discard(self, sequence: int) -> None:
        """Let go of what is persisted: every message up to and including `sequence`."""
        self._ledger.settle(sequence)
        # Never above what was given: a later message must not count as settled.
        self._settled = max(self._settled, min(sequence, self.last_sequence))
        self._note()

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Let go of the messages `first` to `last`, but keep `rest` of them."""
        if not self._ledger.holds(first, last):
            return
        entry: UnpersistedEntry | None = None
        if rest is not None:
            low, high = int(rest.sequences[0]), int(rest.sequences[-1])
            first, last = min(first, low), max(last, high)
        # Where it cannot be noted the messages are sent again after a restart, and refused again.
        number = at = 0
        with suppress(StoreFailed):
            number, at = self._write(records.REPLACED, first, last, [] if rest is None else rest.buffers())
        if rest is not None:
            if not number:
                return
            entry = UnpersistedEntry(low, high, rest.count, rest.nbytes, number, at)
            entry.batch = rest
        self._ledger.replace(first, last, entry)
        self._note()

    def note_used(self, sequence: int) -> None:
        """Note that sequences up to `sequence` may be used, by messages that are not kept here."""
        self._write(records.USED, sequence, sequence, ())
        self._used = max(self._used, sequence)

    def note_logon(self) -> None:
        """Note on disk that a server accepted a logon. Raises `StoreFailed`, `Closed`."""
        if self.never_logged_on:
            self._write(records.USED, 0, self._used, (), reserve=_NOTE_BYTES)
            self.never_logged_on = False

    def held(self) -> Sequence[Stored]:
        """What is held, in the order of sequences; each batch is read when it is asked for."""
        entries = tuple(self._ledger.entries)

        def stored(at: int) -> Stored:
            entry = entries[at]
            return Stored(entry.first, entry.last, self._read(entry))

        return UnpersistedView(stored, range(len(entries)))

    def unpersisted_count(self) -> int:
        """Messages held."""
        return self._ledger.count

    # -- inside -----------------------------------------------------------------------------------------

    def _encoded(self, topic: str) -> bytes:
        if len(self._topics) >= topics_remembered_max:
            self._topics.clear()
        name = self._topics[topic] = topic.encode()
        return name

    def _note(self, *, last: bool = False) -> None:
        """Note what is settled, and remove the segments that are not needed. `last`: it is about to close."""
        segment, directory = self._current, self._directory
        if segment is None or directory is None:
            raise self._refusal
        oldest = self._ledger.oldest(segment.header.number)
        if self._gathered is not None:
            oldest = min(oldest, self._gathered[1])
        frees = oldest > self._oldest
        if not frees and (self._settled <= self._noted or (self._sync and not last)):
            return  # after power loss more is sent again, and dropped: that is cheaper than a sync each time
        # Where the disk refuses it is tried again: more is kept than needed meanwhile, never less.
        with suppress(StoreFailed):
            reserve = _NOTE_BYTES if frees or last else 0
            self._write(records.SETTLED, oldest, self._settled, (), reserve=reserve)
            self._noted = self._settled
            while self._oldest < oldest:
                directory.remove(self._oldest)
                self._oldest += 1
        if self._looked is not None and self._looked[0] < self._oldest:
            self._looked = None  # a mapping keeps the space of a file that was removed

    def _write(
        self,
        kind: int,
        first: int,
        last: int,
        payload: Sequence[Buffer],
        *,
        reserve: int = 0,
    ) -> tuple[int, int]:
        """Append one record; number of its segment, and its place. It may take `reserve` of what is kept
        free at the end. Raises `StoreFailed`, `Closed`."""
        length = sum([memoryview(part).nbytes for part in payload])
        segment = self._current
        if segment is None or segment.at + records.RECORD_BYTES + length > segment.end + reserve:
            segment = self._next(records.RECORD_BYTES + length)
        memory, at = segment.memory, segment.at
        head = records.BEHIND_CRC.pack(length, first, last, kind, 0, 0, 0)
        crc = crc32c(head, segment.seed)
        place = at + records.RECORD_BYTES
        memory[at + records.CRC.size : place] = head
        for part in payload:
            size = memoryview(part).nbytes
            memory[place : place + size] = bytes(part) if isinstance(part, memoryview) else part
            crc = crc32c(part, crc)
            place += size
        records.CRC.pack_into(memory, at, crc)
        if self._sync:
            self._flush(segment, at, place)
        segment.at = end = (place + 7) & ~7
        segment.mark[0] = records.marked(end)
        return segment.header.number, at

    def _flush(self, segment: _Segment, begin: int, end: int) -> None:
        """Make a record durable. There is never more than one that is not: of several, power loss could leave
        any, and that would look like damage."""
        if self._directory is not None:
            self._directory.flush(segment.memory, begin, end)

    def _next(self, size: int) -> _Segment:
        """Go on with a new segment that has room for a record of `size` bytes."""
        before, directory = self._current, self._directory
        if directory is None or before is None:
            raise (
                self._refusal
                if directory is None
                else Closed("no client uses the publish store yet: attach()")
            )
        before.mark[0] = records.marked(before.at)
        last = before.header
        header = last._replace(
            number=last.number + 1,
            used=self._used,
            settled=self._settled,
            oldest=self._oldest,
            previous_end=before.at,
            never_logged_on=self.never_logged_on,
            size=max(publish_segment_bytes, records.HEADER_BYTES + ((size + 7) & ~7) + _NOTE_BYTES),
        )
        memory = directory.create(
            header.number, header.size, records.encode_header(header), durable=self._sync
        )
        segment = self._current = _Segment(memory, header, records.HEADER_BYTES)
        records.WORD.pack_into(before.memory, records.NEXT_AT, records.marked(1))
        if self._sync:
            directory.flush(before.memory, 0, records.HEADER_BYTES)
        return segment

    def _look(self, number: int) -> mmap.mmap:
        current, directory = self._current, self._directory
        if directory is None:
            raise self._refusal
        if current is not None and number == current.header.number:
            return current.memory
        if self._looked is None or self._looked[0] != number:
            self._looked = number, directory.open(number)
        return self._looked[1]

    def _segment(self, number: int) -> tuple[Buffer, int]:
        view = self._view(number)
        return view, records.read_mark(view, records.MARK_AT) or 0

    def _view(self, number: int) -> Buffer:
        return memoryview(self._look(number))

    def _read(self, entry: UnpersistedEntry) -> MessageBatch:
        batch = entry.batch
        if batch is None:
            batch = entry.batch = records.read_entry(entry, self._segment, self._publisher)
        return batch


def _mark(memory: mmap.mmap) -> memoryview:
    """Where the mark stands. Set by one move of 8 bytes, so that no end of the process leaves half of it;
    `pack_into` would write zeros first."""
    return memoryview(memory)[records.MARK_AT : records.MARK_AT + 8].cast("Q")
