"""Spill: files of spilled backlogs, and the order in which blocks are written.

Invariants:
- At most `disk_bytes_max` are on disk.
- A file is deleted when no block in it is needed and it has no read or write in progress.
"""

from __future__ import annotations

from tickertape.base.errors import BadBatch
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.engine.limits import spill_file_bytes_max
from tickertape.engine.runtime.effects import SpillRead, SpillTrim, SpillWrite
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.transient.backlog import NOWHERE, Backlog, BacklogBlock, BacklogPosition
from tickertape.engine.transient.shared_frames import SharedFrame


class _File:
    __slots__ = ("end", "users")

    def __init__(self) -> None:
        self.end = 0
        self.users = 0
        """Number of needed blocks in the file, and of reads and writes in progress."""


class Spill:
    """Files of spilled blocks. The driver answers every `SpillWrite` and `SpillRead`."""

    def __init__(self, outbox: Outbox, disk_bytes_max: int) -> None:
        self.disk_bytes_max = disk_bytes_max
        """Maximum size of all files together. 0 disables spilling."""
        self.disk_bytes = 0
        self.writing_bytes = 0
        self.reading_bytes = 0
        self.written_bytes = 0
        """Bytes written since the start. The next two counters also start then."""
        self.read_bytes = 0
        self.failures = 0
        """Failed writes and reads, including reads of corrupt data."""
        self._outbox = outbox
        self._files: dict[int, _File] = {}
        self._file = 0
        """Number of the current file."""
        self._jobs: dict[int, BacklogBlock] = {}
        """Blocks with a write or read in progress."""

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be written."""
        return self.disk_bytes + size <= self.disk_bytes_max

    def write(self, block: BacklogBlock) -> None:
        """Write a closed block that is in memory."""
        (piece,) = block.pieces
        size = piece.batch.nbytes
        file = self._files.get(self._file)
        if file is None or file.end + size > spill_file_bytes_max:
            self._file += 1
            file = self._files[self._file] = _File()
        block.place = BacklogPosition(self._file, file.end, size, piece.crc())
        file.end += size
        self.disk_bytes += size
        self.writing_bytes += size
        token = self._begin(block, file)
        self._outbox.put(SpillWrite(token, self._file, block.place.offset, piece.batch.buffers()))

    def read(self, block: BacklogBlock) -> None:
        """Read a block back from disk."""
        number, offset, size, _ = block.place
        self.reading_bytes += size
        self._outbox.put(SpillRead(self._begin(block, self._files[number]), number, offset, size))

    def _begin(self, block: BacklogBlock, file: _File) -> int:
        file.users += 1
        token = self._outbox.next_token()
        self._jobs[token] = block
        return token

    def done(self, token: int, data: Buffer | OSError | None) -> BacklogBlock:
        """Return the block whose write or read was answered. After a failed write it has no location."""
        block = self._jobs.pop(token)
        failed = isinstance(data, OSError)
        if block.on_disk:
            self.reading_bytes -= block.place.size
            self.release(block)
            return block
        self.writing_bytes -= block.place.size
        if failed:
            self.failures += 1
        else:
            self.written_bytes += block.place.size
        if failed or block.freed:
            self.release(block)
        if failed:
            block.place = NOWHERE
        return block

    def piece(self, block: BacklogBlock, data: Buffer | OSError) -> SharedFrame | str:
        """Return the block that was read, or the reason if it is corrupt."""
        piece = _piece(block.place, data)
        if isinstance(piece, str):
            self.failures += 1
        else:
            self.read_bytes += block.place.size
        return piece

    def release(self, block: BacklogBlock) -> None:
        """Release a reference to a file: a block on disk, or a finished read or write."""
        number = block.place.file
        file = self._files[number]
        file.users -= 1
        if not file.users:
            del self._files[number]
            self.disk_bytes -= file.end
            self._outbox.put(SpillTrim(number))


def _piece(place: BacklogPosition, data: Buffer | OSError) -> SharedFrame | str:
    if isinstance(data, OSError):
        return f"its spilled backlog cannot be read: {data}"
    if len(data) != place.size:
        return f"its spilled backlog is truncated: {len(data)} of {place.size} bytes"
    try:
        piece = SharedFrame(MessageBatch.parse(data))
    except BadBatch as error:
        return f"its spilled backlog cannot be decoded: {str(error).rstrip('.')}"
    return piece if piece.crc() == place.crc else "its spilled backlog does not match its checksum"


class SpillOrder:
    """Backlogs with blocks to write, in FIFO order."""

    def __init__(self) -> None:
        self._closed: dict[Backlog, None] = {}
        """Backlogs that may have closed blocks to write."""
        self._tails: dict[Backlog, None] = {}
        """Backlogs whose only unwritten block is still open."""

    def put(self, backlog: Backlog) -> None:
        """Add a backlog that has a block to write, or whose first subscription went offline."""
        if backlog.offline:
            self._closed[backlog] = None

    def forget(self, backlog: Backlog) -> None:
        """Remove a backlog without blocks to write."""
        self._closed.pop(backlog, None)
        self._tails.pop(backlog, None)

    def next(self, *, tails: bool) -> BacklogBlock | None:
        """Return the next block to write, or None. Open blocks only with `tails`."""
        for line in (self._closed, self._tails)[: 1 + tails]:
            while line:
                backlog = next(iter(line))
                block = backlog.next_to_write()
                if block is not None and not block.open:
                    return block
                del line[backlog]
                if block is not None and line is self._tails:
                    return block
                if block is not None:
                    self._tails[backlog] = None
        return None
