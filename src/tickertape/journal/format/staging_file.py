"""Staging files: format of staged transaction parts, file tasks, and the recovery of prepared parts.

The format is in docs/formats/staging.md. Staged parts are not part of the log.

Invariants:
- A part counts as prepared only after its file and name are synced.
- Blocks are returned only after their checksum is verified.
"""

from __future__ import annotations

import contextlib
import re
import struct
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tickertape.base.checksum import crc32c
from tickertape.base.interfaces import Buffer, Disk
from tickertape.journal.format.files import open_file, set_aside
from tickertape.journal.limits import staged_memory_bytes_max, staging_files_open_max

STAGING_DIRECTORY: Final = "transactions"
_MAGIC: Final = b"TKTSTG\x00\x00"
_END_MAGIC: Final = b"TKTPREP\x00"
_BLOCK_MAGIC: Final = 0x42545354
_VERSION: Final = 0
_HEAD: Final = struct.Struct("<8sIIII")
"""Magic, version, bytes of the label, checksum of the label. Last: checksum of these fields."""
_BLOCK: Final = struct.Struct("<IIII")
"""Magic, messages, bytes and checksum of the encoded batch that follows."""
_FOOT: Final = struct.Struct("<8sQQII")
"""Magic, own offset, messages, blocks. Last: checksum of these fields."""
_LABEL_BYTES_MAX: Final = 4096
_NAME: Final = re.compile(r"[0-9]{20}\.(part|prepared)")
_PREPARED: Final = ".prepared"


_Read = Callable[[int, int], Buffer]
"""Reads bytes by offset and size. Returns fewer bytes only at the end of the file."""


class StagedPartLabel(msgspec.Struct, frozen=True, kw_only=True):
    """Label of a staging file: its transaction and its part."""

    journal: bytes
    publisher: str
    space: str
    name: str
    part: str


class PreparedPart(NamedTuple):
    """A complete part found at server start."""

    file: int
    label: StagedPartLabel
    messages: int
    bytes: int
    blocks: int


class StageWrite(NamedTuple):
    """Write a block to a file. A new file gets its label first."""

    file: int
    offset: int
    label: StagedPartLabel | None
    messages: int
    buffers: list[Buffer]
    """An encoded batch."""


class StagePrepare(NamedTuple):
    """Finish a file and make it durable. No more blocks follow."""

    file: int
    offset: int
    messages: int
    blocks: int


class StageOpen(NamedTuple):
    """Return the blocks of a prepared file."""

    file: int


class StageDrop(NamedTuple):
    """Drop a file that is no longer needed. No other task uses it."""

    file: int


class StageForget(NamedTuple):
    """Drop files that are no longer needed, so that a power loss cannot restore them."""

    files: tuple[int, ...]


StagingTask = StageWrite | StagePrepare | StageOpen | StageDrop | StageForget


class StagedFileDamaged(ValueError):
    """An invalid staging file. The text gives the reason."""


def label_bytes(label: StagedPartLabel) -> int:
    """Return the size of the label of a new file."""
    return len(encode_label(label))


def block_bytes(size: int) -> int:
    """Return the size of a block with an encoded batch of `size` bytes."""
    return _BLOCK.size + size


def encode_label(label: StagedPartLabel) -> bytes:
    """Return the start of a file."""
    body = msgspec.msgpack.encode(label)
    head = _HEAD.pack(_MAGIC, _VERSION, len(body), crc32c(body), 0)
    head = head[:-4] + crc32c(head[:-4]).to_bytes(4, "little")
    return head + body + bytes(-(len(head) + len(body)) % 8)


def encode_foot(offset: int, messages: int, blocks: int) -> bytes:
    """Return the end of a prepared file."""
    foot = _FOOT.pack(_END_MAGIC, offset, messages, blocks, 0)[:-4]
    return foot + crc32c(foot).to_bytes(4, "little")


def decode_label(data: Buffer) -> tuple[StagedPartLabel, int]:
    """Return the label and the offset of the first block. Raises `StagedFileDamaged`."""
    if len(data) < _HEAD.size:
        raise StagedFileDamaged("it is too short")
    if not _begins(data):
        raise StagedFileDamaged("it does not start like a staging file")
    _, version, size, checksum, _ = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise StagedFileDamaged(f"it has the format version {version}")
    body = bytes(data[_HEAD.size : _HEAD.size + size])
    if size > _LABEL_BYTES_MAX or len(body) < size or crc32c(body) != checksum:
        raise StagedFileDamaged("its label does not match its checksum")
    try:
        label = msgspec.msgpack.decode(body, type=StagedPartLabel)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StagedFileDamaged(f"its label cannot be read: {error}") from None
    end = _HEAD.size + size
    begin = end + -end % 8
    if any(data[end:begin]):
        raise StagedFileDamaged("the padding of its label is not zero")
    return label, begin


def _begins(data: Buffer) -> bool:
    """Return whether the data starts like a staging file of any version."""
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        return False
    return crc32c(bytes(data[: _HEAD.size - 4])) == int.from_bytes(
        data[_HEAD.size - 4 : _HEAD.size], "little"
    )


def decode_foot(data: Buffer, size: int) -> tuple[int, int] | None:
    """Return messages and blocks from the last bytes of a file of `size`. None if it was not prepared."""
    if len(data) != _FOOT.size:
        return None
    magic, offset, messages, blocks, own = _FOOT.unpack(data)
    if magic != _END_MAGIC or offset + _FOOT.size != size or crc32c(bytes(data[:-4])) != own:
        return None
    return messages, blocks


def blocks_of(data: memoryview) -> list[memoryview]:
    """Return the encoded batches of a prepared file after checking them. Raises `StagedFileDamaged`."""
    return [
        data[begin : begin + len(block)] for begin, block in _whole(lambda o, n: data[o : o + n], len(data))
    ]


def _whole(read: _Read, size: int) -> Iterator[tuple[int, Buffer]]:
    """Yield offset and bytes of each encoded batch of a prepared file of `size`, verified by checksum.

    Raises `StagedFileDamaged`, and the errors of `read`."""
    counts = decode_foot(read(max(size - _FOOT.size, 0), _FOOT.size), size)
    if counts is None:
        raise StagedFileDamaged("it does not end like a prepared file")
    messages = number = 0
    for begin, count, block in _blocks(read, size - _FOOT.size):
        messages, number = messages + count, number + 1
        yield begin, block
    if (messages, number) != counts:
        raise StagedFileDamaged(f"it does not hold {counts[0]} messages in {counts[1]} blocks")


def _blocks(read: _Read, end: int) -> Iterator[tuple[int, int, Buffer]]:
    _, at = decode_label(read(0, min(_HEAD.size + _LABEL_BYTES_MAX + 8, end)))
    while at < end:
        if at + _BLOCK.size > end:
            raise StagedFileDamaged(f"it has no block at offset {at}")
        magic, messages, size, checksum = _BLOCK.unpack(read(at, _BLOCK.size))
        begin = at + _BLOCK.size
        block = read(begin, size) if magic == _BLOCK_MAGIC and begin + size <= end else b""
        if magic != _BLOCK_MAGIC or len(block) != size or crc32c(block) != checksum:
            raise StagedFileDamaged(f"the block at offset {at} does not match its checksum")
        yield begin, messages, block
        at = begin + size


def path_of(file: int) -> str:
    """Return the path of a file in the data directory while it is written."""
    return f"{STAGING_DIRECTORY}/{file:020d}.part"


def prepared_path_of(file: int) -> str:
    """Return the path of a prepared file, which a client was notified of."""
    return f"{STAGING_DIRECTORY}/{file:020d}{_PREPARED}"


class StagedFiles:
    """Runs the tasks on the files of one data directory. Each file is used by one thread at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._handles: OrderedDict[int, int] = OrderedDict()
        """Files open for writing, least recently written first. Other files are closed."""
        self._held = 0
        """Bytes of blocks in memory, before subtracting those in `_let_go`."""
        self._let_go: deque[int] = deque()

    def run(self, task: StagingTask) -> list[memoryview]:
        """Run a task. `StageOpen` returns the encoded batches. Raises `OSError`, `StagedFileDamaged`."""
        if isinstance(task, StageWrite):
            self._write(task)
        elif isinstance(task, StagePrepare):
            self._prepare(task)
        elif isinstance(task, StageDrop):
            self._drop(task.file)
        elif isinstance(task, StageForget):
            self._forget(task.files)
        else:
            return self._open(task.file)
        return []

    def close(self) -> None:
        """Close open files. No task may follow."""
        for file in list(self._handles):
            self._close(file)

    def _write(self, task: StageWrite) -> None:
        crc = 0
        for buffer in task.buffers:
            crc = crc32c(buffer, crc)
        size = sum([memoryview(buffer).nbytes for buffer in task.buffers])
        head = _BLOCK.pack(_BLOCK_MAGIC, task.messages, size, crc)
        buffers: list[Buffer] = [head, *task.buffers]
        if task.label is not None:
            self._disk.make_directory(STAGING_DIRECTORY)
            buffers.insert(0, encode_label(task.label))
        self._disk.write(self._handle(task.file, create=task.label is not None), task.offset, buffers)

    def _prepare(self, task: StagePrepare) -> None:
        handle = self._handle(task.file)
        self._disk.write(handle, task.offset, [encode_foot(task.offset, task.messages, task.blocks)])
        self._disk.sync(handle)
        self._disk.rename(path_of(task.file), prepared_path_of(task.file))
        self._disk.sync_directory(STAGING_DIRECTORY)
        self._disk.sync_directory(".")
        self._close(task.file)

    def _open(self, file: int) -> list[memoryview]:
        """Read and verify a whole file before use. In a mapping, unreadable bytes would end the process.

        Up to `staged_memory_bytes_max` bytes of all blocks in use are kept in memory. Further files are
        mapped after they were read."""
        with open_file(self._disk, prepared_path_of(file)) as handle:
            size = self._disk.size(handle)
            whole = _whole(partial(self._disk.read, handle), size)
            while self._let_go:
                self._held -= self._let_go.popleft()
            if self._held + size <= staged_memory_bytes_max:
                return [self._hold(block) for _, block in whole]
            places = [(begin, len(block)) for begin, block in whole]
            mapped = self._disk.map(handle)
            return [mapped[begin : begin + length] for begin, length in places]

    def _hold(self, block: Buffer) -> memoryview:
        held = np.frombuffer(block, np.uint8)
        self._held += held.nbytes
        weakref.finalize(held, self._let_go.append, held.nbytes).atexit = False
        return held.data

    def _drop(self, file: int) -> None:
        self._close(file)
        for path in (prepared_path_of(file), path_of(file)):
            with contextlib.suppress(
                FileNotFoundError
            ):  # only one of the names exists, or none after a failed first write
                self._disk.remove(path)

    def _forget(self, files: tuple[int, ...]) -> None:
        with contextlib.suppress(FileNotFoundError):  # without the directory nothing was ever staged
            for file in files:
                self._close(file)
                for path in (prepared_path_of(file), path_of(file)):
                    self._remove_again(path)
            self._disk.sync_directory(STAGING_DIRECTORY)

    def _remove_again(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            # A sync after an earlier removal may have failed. Later syncs do not repair that: only a new
            # change of the directory makes the removal durable.
            self._disk.close(self._disk.open(path, create=True))
            self._disk.remove(path)

    def _handle(self, file: int, *, create: bool = False) -> int:
        """Return an open handle of the file. Their number is limited, because the log and connections need
        descriptors too."""
        handle = self._handles.get(file)
        if handle is None:
            if len(self._handles) >= staging_files_open_max:
                self._close(next(iter(self._handles)))
            handle = self._handles[file] = self._disk.open(path_of(file), create=create)
        self._handles.move_to_end(file)
        return handle

    def _close(self, file: int) -> None:
        handle = self._handles.pop(file, None)
        if handle is not None:
            self._disk.close(handle)


def find_staged(disk: Disk, journal_id: bytes) -> tuple[list[PreparedPart], list[str]]:
    """Return the prepared parts of a data directory, and a report line for each finding.

    Unprepared parts are removed, because no client was notified of them. Unusable prepared parts are moved to
    quarantine. Raises `OSError`."""
    if STAGING_DIRECTORY not in disk.names("."):
        return [], []
    found: list[PreparedPart] = []
    report: list[str] = []
    for name in disk.names(STAGING_DIRECTORY):
        if not _NAME.fullmatch(name):
            report.append(f"{STAGING_DIRECTORY}/{name}: not a staging file, ignored")
            continue
        try:
            found.append(_found(disk, name, journal_id))
        except StagedFileDamaged as error:
            aside = set_aside(disk, f"{STAGING_DIRECTORY}/{name}", name[:20], ".part")
            report.append(f"{STAGING_DIRECTORY}/{name}: {error}. Moved to {aside}. It cannot be committed.")
        except _Unprepared:
            disk.remove(f"{STAGING_DIRECTORY}/{name}")
    disk.sync_directory(STAGING_DIRECTORY)
    return found, report


class _Unprepared(Exception):
    """A part that was never complete."""


def _found(disk: Disk, name: str, journal_id: bytes) -> PreparedPart:
    file, prepared = int(name[:20]), name.endswith(_PREPARED)
    with open_file(disk, f"{STAGING_DIRECTORY}/{name}", write=True) as handle:
        size = disk.size(handle)
        begin = disk.read(handle, 0, _HEAD.size + _LABEL_BYTES_MAX + 8)
        if _begins(begin) and _HEAD.unpack_from(begin)[1] != _VERSION:
            decode_label(begin)  # raises: in another version, preparation cannot be checked
        counts = decode_foot(disk.read(handle, max(size - _FOOT.size, 0), _FOOT.size), size)
        if counts is None and not prepared:
            raise _Unprepared
        if counts is None:
            raise StagedFileDamaged("it was prepared, but its end is missing")
        label, _ = decode_label(begin)
        if label.journal != journal_id:
            raise StagedFileDamaged("it belongs to another journal")
        # After a killed process the file may be in the page cache only.
        disk.sync(handle)
        if not prepared:  # the new name is not durable, or an older version did not rename
            disk.rename(path_of(file), prepared_path_of(file))
        messages, blocks = counts
        return PreparedPart(file, label, messages, size, blocks)


def prepared_parts(disk: Disk, journal_id: bytes) -> Iterator[tuple[StagedPartLabel, Iterator[Buffer]]]:
    """Yield the prepared parts of a journal with their encoded batches, one batch in memory at a time.

    A part with an unreadable label or foot is skipped. Batches raise `StagedFileDamaged` or `OSError`."""
    if STAGING_DIRECTORY not in disk.names("."):
        return
    for name in filter(_NAME.fullmatch, disk.names(STAGING_DIRECTORY)):
        with contextlib.ExitStack() as stack, contextlib.suppress(StagedFileDamaged, OSError):
            handle = disk.open(f"{STAGING_DIRECTORY}/{name}", write=False)
            stack.callback(disk.close, handle)
            size = disk.size(handle)
            foot = decode_foot(disk.read(handle, max(size - _FOOT.size, 0), _FOOT.size), size)
            label, _ = decode_label(disk.read(handle, 0, _HEAD.size + _LABEL_BYTES_MAX + 8))
            if foot is not None and label.journal == journal_id:
                whole = _whole(partial(disk.read, handle), size)
                yield label, (block for _, block in whole)
