"""File publish store: accepted messages survive the end of the process.

Invariants: `publish` returns only when the message is complete in a mapped segment. A segment that is still
needed is never removed.

A signal handler may raise an exception between any two steps. A record is valid once the mark is behind it.
If the mark was not moved, the next record overwrites it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal

from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadOption, Closed, StoreCorrupt, StoreFailed, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.base.names import publisher_id
from tickertape.base.text_format import not_one_of
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

_NOT_CONNECTED: Final = "a client that has not connected yet"
_NOTE_BYTES: Final = 4 * records.RECORD_BYTES
_head: Final = records.BEHIND_CRC.pack
_put_crc: Final = records.CRC.pack_into
_MARK_BASE: Final = records.marked(0)
_MARK_STEP: Final = records.marked(0) - records.marked(1)


class _Segment:
    """The active segment, to which records are appended."""

    __slots__ = ("at", "end", "header", "mark", "memory", "seed")

    def __init__(self, memory: mmap.mmap, header: records.Header, at: int) -> None:
        self.memory = memory
        self.mark = _mark(memory)
        self.header = header
        self.seed = header.seed
        self.at = at
        self.end = header.size - _NOTE_BYTES
        """End of the space for records. The rest is reserved for the record that allows the removal of
        segments, which must not fail on a full disk."""


class FilePublishStore(StoreOptions, ClosesItself):
    """Publish store that keeps messages in memory-mapped segment files until the server has persisted them.

    A message is stored when `publish` returns. A stored message survives a crash of the process, and power
    loss with `sync="always"`. A client with a reopened store resends its messages and continues its
    sequences. The store is a context manager that closes itself. A client that gets it does not close it.

    Args:
        path: Directory for this store alone, created if missing. It belongs to the client name that uses it
            first.
        bytes_max: Capacity in bytes of encoded batches: int, or str such as `"2GB"` (powers of 1024). Default
            1 GB.
        when_full: `"block"` (default): a publish waits for acknowledgements, up to the client's `timeout`.
            `"raise"`: a publish raises `StoreFull` at once.
        sync: `"never"` (default) or `"always"` (sync each message before `publish` returns).

    Raises:
        BadOption: For an invalid option.
        StoreLocked: If another process or store uses the directory.
        NotAStore: If the directory contains other files.
        StoreVersion: If the format of the store is newer than this program supports.
        StoreCorrupt: If the store is damaged.
        StoreFailed: If the operating system reports an error.

    Example:
        >>> store = tt.FilePublishStore("desk-store")
        >>> with store, tt.Client("desk", uri, publish_store=store) as client:
        ...     sequence = client.publish("orders", {"id": 1})
        ...     client.publish_flush()
        ...     store.unpersisted_count()
        0
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
            raise BadOption(not_one_of("Invalid sync", sync, ("never", "always")))
        self.path = Path(path)
        self._sync = sync == "always"
        self._refusal: TickertapeError = Closed(
            f"Cannot use the publish store {str(path)!r}: it is closed. Create a new one."
        )
        self._ledger = UnpersistedIndex(self._read)
        self._name = ""
        self.never_logged_on = True
        """Whether no server ever accepted a logon with this store, including earlier processes."""
        self._publisher = 0
        self._used = self._settled = self._noted = self._session = 0
        self._last = self._put = 0
        self._current: _Segment | None = None
        self._oldest = 1
        self._topics: dict[str, bytes] = {}
        self._gathered: tuple[int, int, int] | None = None
        """Sequence, segment and offset of the first message appended since the last batch."""
        self._again = False
        """A sequence was reused since the last batch: the batch must be written as a whole."""
        self._looked: tuple[int, mmap.mmap] | None = None
        """The segment that was read last, unless it is the active one."""
        self._directory: SegmentDirectory | None = SegmentDirectory(path)
        try:
            self._open(self._directory)
        except BaseException:
            self._let_go()
            raise
        forks.register(self, type(self)._refuse_in_child)

    def _open(self, directory: SegmentDirectory) -> None:
        numbers = directory.numbers()
        if not numbers:
            if directory.last_client not in ("", _NOT_CONNECTED):
                raise StoreCorrupt(
                    f"Cannot open the publish store {str(directory.path)!r}: client "
                    f"{directory.last_client!r} used it, and all of its segments are missing. Restore them "
                    "from a copy, or remove the directory to start with an empty store.",
                    file=directory.file(1),
                )
            directory.say(_NOT_CONNECTED)
            return
        images = [records.Image(n, directory.file(n), partial(self._view, n)) for n in numbers]
        found = records.recover_store(images, self._read)
        directory.say(found.name)
        for segment in found.segments:
            memory = self._look(segment.header.number)
            _mark(memory)[0] = records.marked(segment.end)  # power loss may have left an older mark
        rest = bytes(len(memory) - segment.end)
        if memory[segment.end :] != rest:
            memory[segment.end :] = rest
        self._current = _Segment(memory, segment.header, segment.end)
        self._name, self._publisher = found.name, publisher_id(found.name)
        self._ledger = found.ledger
        self.never_logged_on = found.never_logged_on
        self._last = self._put = self._used = found.used
        self._settled = self._noted = found.settled
        self._session = found.session
        if self._sync:
            # The recovered data may be only in the page cache.
            for number in numbers:
                memory = self._look(number)
                directory.flush(memory, 0, len(memory))
            directory.sync()
        for number in found.remove:
            directory.remove(number)
        self._oldest = min(set(numbers) - set(found.remove))

    def attach(self, name: str) -> None:
        """Prepare for use by the client `name`. Raises `StoreOwnerMismatch`, `StoreFailed`, `Closed`."""
        directory = self._directory
        if directory is None:
            raise self._refusal
        if self._name and name != self._name:
            raise another(f"the publish store {str(directory.path)!r}", self._name, name)
        if self._current is None:
            size, never = publish_segment_bytes, self.never_logged_on
            header = records.Header(directory.chance(), 1, 0, 0, 1, 0, size, name, never)
            memory = directory.create(1, header.size, records.encode_header(header), durable=self._sync)
            self._name, self._publisher = name, publisher_id(name)
            self._current = _Segment(memory, header, records.HEADER_BYTES)
        directory.say(name)

    def close(self) -> None:
        """Release files and lock. Stored messages stay on disk. Later reads and writes raise `Closed`."""
        if self._settled > self._noted and self._current is not None and self._directory is not None:
            self._note(last=True)
        self._let_go()

    def _let_go(self) -> None:
        directory, self._directory = self._directory, None
        self._current = self._looked = None
        if directory is not None:
            directory.close()

    def _refuse_in_child(self) -> None:
        """Release the store in a forked child, without effect on the parent."""
        self._refusal = forks.forked_error()
        self._let_go()

    @property
    def size_bytes(self) -> int:
        """Current size in encoded bytes."""
        return self._ledger.nbytes

    @property
    def last_sequence(self) -> int:
        """Highest sequence ever stored, also by earlier processes. 0 for a fresh store."""
        entries = self._ledger.entries
        return max(self._last, entries[-1].last) if entries else self._last

    def append(
        self,
        sequence: int,
        topic: str,
        body: bytes,
        expiration_ms: int = 0,
        correlation_id: str = "",
        key: str = "",
    ) -> None:
        """Store one message of the next batch (see `AppendingPublishStore.append`).

        Raises `StoreFailed`, `Closed`.
        """
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
        self._used = sequence  # set before the write, so that a repeated append is detected
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
        """Return a faster `append` for messages of `topic`, or None (see `AppendingPublishStore.writer`)."""
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
        """Store the batch `stored`, which has all messages appended since the previous `seal`."""
        first, last, batch = stored
        gathered = self._gathered
        count = batch.count
        whole = gathered is not None and gathered[0] == first and self._used == last == first + count - 1
        if gathered is None or not whole or self._again:
            self.put(stored)  # after an exception: the batch replaces its appended messages
        else:
            entry = UnpersistedEntry(first, last, count, batch.nbytes, gathered[1], gathered[2])
            entry.batch = batch
            self._ledger.add(entry)
            self._last = self._put = last
        self._gathered = None
        self._again = False

    def put(self, stored: Stored) -> None:
        """Store one batch with sequences above all earlier ones. Raises `StoreFailed`, `Closed`."""
        first, last, batch = stored
        assert first > self._last_put(), "sequences increase"
        number, at = self._write(records.BATCH, first, last, batch.buffers())
        entry = UnpersistedEntry(first, last, batch.count, batch.nbytes, number, at)
        entry.batch = batch
        self._ledger.add(entry)
        self._last = self._put = last
        self._used = max(last, self._used)

    def discard(self, sequence: int) -> None:
        """Remove all messages up to and including `sequence`. The server has persisted them."""
        self._ledger.settle(sequence)
        # Never above the last stored sequence: a later message must not count as settled.
        self._settled = max(self._settled, min(sequence, self.last_sequence))
        self._note()

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        """Replace the messages `first` to `last` by `rest`. Remove them if `rest` is None."""
        if not self._ledger.holds(first, last):
            return
        entry: UnpersistedEntry | None = None
        if rest is not None:
            low, high = int(rest.sequences[0]), int(rest.sequences[-1])
            first, last = min(first, low), max(last, high)
        # Without this record the messages are resent after a restart, and rejected again.
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

    def note_logon(self) -> None:
        """Record on disk that a server accepted a logon. Raises `StoreFailed`, `Closed`."""
        if self.never_logged_on:
            self._write(records.USED, 0, self._used, (), reserve=_NOTE_BYTES)
            self.never_logged_on = False

    @property
    def persisted_sequence(self) -> int:
        """Highest sequence of a `discard`, at most `last_sequence`. After a crash it may be lower."""
        return self._settled

    def next_session(self, clock: int) -> int:
        """Return the number of the next logon, at least `clock` and above all earlier ones.

        A killed process keeps it. It is not synced: after power loss it follows the clock."""
        self._session = max(clock, self._session + 1)
        if self._current is not None:
            self._put_session(self._current.memory)
        return self._session

    def held(self) -> Sequence[Stored]:
        """Return the stored batches in the order of sequences. Each batch is read on access."""
        entries = tuple(self._ledger.entries)

        def stored(at: int) -> Stored:
            entry = entries[at]
            return Stored(entry.first, entry.last, self._read(entry))

        return UnpersistedView(stored, range(len(entries)))

    def unpersisted_count(self) -> int:
        """Return the number of stored messages."""
        return self._ledger.count

    # -- inside -----------------------------------------------------------------------------------------

    def _last_put(self) -> int:
        """Return the highest sequence stored here, excluding sequences that are only reserved."""
        entries = self._ledger.entries
        return max(self._put, entries[-1].last) if entries else self._put

    def _encoded(self, topic: str) -> bytes:
        if len(self._topics) >= topics_remembered_max:
            self._topics.clear()
        name = self._topics[topic] = topic.encode()
        return name

    def _note(self, *, last: bool = False) -> None:
        """Write a settled record and remove unneeded segments. `last`: the store is about to close."""
        segment, directory = self._current, self._directory
        if segment is None or directory is None:
            raise self._refusal
        oldest = self._ledger.oldest(segment.header.number)
        if self._gathered is not None:
            oldest = min(oldest, self._gathered[1])
        frees = oldest > self._oldest
        if not frees and (self._settled <= self._noted or (self._sync and not last)):
            return  # power loss then causes more duplicates, which is cheaper than a sync per record
        # After an error of the disk the next call tries again. Meanwhile the store keeps more than needed.
        with suppress(StoreFailed):
            reserve = _NOTE_BYTES if frees or last else 0
            self._write(records.SETTLED, oldest, self._settled, (), reserve=reserve)
            self._noted = self._settled
            while self._oldest < oldest:
                directory.remove(self._oldest)
                self._oldest += 1
        if self._looked is not None and self._looked[0] < self._oldest:
            self._looked = None  # a mapping keeps the disk space of a removed file

    def _write(
        self,
        kind: int,
        first: int,
        last: int,
        payload: Sequence[Buffer],
        *,
        reserve: int = 0,
    ) -> tuple[int, int]:
        """Append one record and return the number of its segment and its offset.

        `reserve`: bytes that it may use of the reserved space at the end. Raises `StoreFailed`, `Closed`.
        """
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
        """Sync one record.

        At most one record is unsynced at any time: power loss could keep any of several, which would look
        like corruption.
        """
        if self._directory is not None:
            self._directory.flush(segment.memory, begin, end)

    def _next(self, size: int) -> _Segment:
        """Start a new segment that fits a record of `size` bytes."""
        before, directory = self._current, self._directory
        if directory is None or before is None:
            raise (
                self._refusal
                if directory is None
                else Closed(
                    f"Cannot write to the publish store {str(directory.path)!r}: no client uses it yet. Call "
                    "attach() first."
                )
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
        self._put_session(memory)
        segment = self._current = _Segment(memory, header, records.HEADER_BYTES)
        records.WORD.pack_into(before.memory, records.NEXT_AT, records.marked(1))
        if self._sync:
            directory.flush(before.memory, 0, records.HEADER_BYTES)
        return segment

    def _put_session(self, memory: mmap.mmap) -> None:
        """Write the number of the last logon into the header of a segment."""
        if self._session:
            memory[records.SESSION_AT : records.SESSION_END] = records.encode_session(self._session)

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
    """Return a view of the mark.

    It is set by one store of 8 bytes, so that a killed process cannot leave a half-written mark. `pack_into`
    would write zeros first.
    """
    return memoryview(memory)[records.MARK_AT : records.MARK_AT + 8].cast("Q")
