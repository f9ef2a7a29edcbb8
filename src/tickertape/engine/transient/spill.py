"""Spill: files of backlogs on disk, and the order in which blocks are written.

Invariants:
- At most `disk_bytes_max` are on disk.
- A file is removed when no block in it is needed and no read or write of it is under way.
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
        """Blocks in it that are needed, and reads and writes under way."""


class Spill:
    """Files of spilled blocks. Every `SpillWrite` and `SpillRead` is answered."""

    def __init__(self, outbox: Outbox, disk_bytes_max: int) -> None:
        self.disk_bytes_max = disk_bytes_max
        """What all files may take together; 0: nothing is written."""
        self.disk_bytes = 0
        self.writing_bytes = 0
        self.reading_bytes = 0
        self.written_bytes = 0
        """Since the start, as the next two."""
        self.read_bytes = 0
        self.failures = 0
        """Writes and reads that failed, or gave something else than was written."""
        self._outbox = outbox
        self._files: dict[int, _File] = {}
        self._file = 0
        """Number of the file that is appended to."""
        self._jobs: dict[int, BacklogBlock] = {}
        """Blocks whose write or read is under way."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be written."""
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
        """Read a block back that is on disk."""
        number, offset, size, _ = block.place
        self.reading_bytes += size
        self._outbox.put(SpillRead(self._begin(block, self._files[number]), number, offset, size))

    def _begin(self, block: BacklogBlock, file: _File) -> int:
        file.users += 1
        token = self._outbox.next_token()
        self._jobs[token] = block
        return token

    def done(self, token: int, data: Buffer | OSError | None) -> BacklogBlock:
        """Return the block whose write or read was answered; without a place it could not be written."""
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
        """Return what was read, or why it is not what was written."""
        piece = _piece(block.place, data)
        if isinstance(piece, str):
            self.failures += 1
        else:
            self.read_bytes += block.place.size
        return piece

    def release(self, block: BacklogBlock) -> None:
        """A block is no longer needed on disk, or what was under way there is over."""
        number = block.place.file
        file = self._files[number]
        file.users -= 1
        if not file.users:
            del self._files[number]
            self.disk_bytes -= file.end
            self._outbox.put(SpillTrim(number))


def _piece(place: BacklogPosition, data: Buffer | OSError) -> SharedFrame | str:
    if isinstance(data, OSError):
        return f"what waited on disk cannot be read: {data}"
    if len(data) != place.size:
        return f"what waited on disk is shorter than it was: {len(data)} of {place.size} bytes"
    try:
        piece = SharedFrame(MessageBatch.parse(data))
    except BadBatch as error:
        return f"what waited on disk cannot be understood: {error}"
    return piece if piece.crc() == place.crc else "what waited on disk does not match its checksum"


class SpillOrder:
    """Backlogs with blocks to write, first come first served."""

    def __init__(self) -> None:
        self._closed: dict[Backlog, None] = {}
        """Those that may have blocks that grow no more."""
        self._tails: dict[Backlog, None] = {}
        """Those of which only the block that still grows is not written."""

    def put(self, backlog: Backlog) -> None:
        """It has a new block, or one to write again, or somebody offline waits in it now."""
        if backlog.offline:
            self._closed[backlog] = None

    def forget(self, backlog: Backlog) -> None:
        """Nothing of it is to be written any more."""
        self._closed.pop(backlog, None)
        self._tails.pop(backlog, None)

    def next(self, *, tails: bool) -> BacklogBlock | None:
        """The next block to be written; one that still grows only with `tails`."""
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
