"""Queue checkpoint file (`queues.bin`): read, written and removed as a whole.

The engine encodes its contents (docs/formats/queue-checkpoint.md). The log can be read without it.
"""

from __future__ import annotations

import contextlib
from typing import Final

from crc32c import crc32c

from tickertape.base.interfaces import Disk

QUEUES_FILE: Final = "queues.bin"
_TEMPORARY: Final = "queues.bin.new"
_MAGIC: Final = b"TKTQUE\x00\x00"
_HEAD_BYTES: Final = len(_MAGIC) + 16 + 8 + 4


def write_queues(disk: Disk, journal_id: bytes, body: bytes) -> None:
    """Replace the file, durably and at once, or not at all. Raises `OSError`; the earlier one stays then."""
    head = _MAGIC + journal_id + len(body).to_bytes(8, "little")
    checksum = crc32c(body, crc32c(head)).to_bytes(4, "little")
    handle = disk.open(_TEMPORARY, create=_TEMPORARY not in disk.names("."))
    try:
        disk.truncate(handle, 0)
        disk.write(handle, 0, [head, checksum, body])
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(_TEMPORARY, QUEUES_FILE)
    disk.sync_directory(".")


def remove_queues(disk: Disk) -> None:
    """Remove the checkpoint. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(QUEUES_FILE)
        disk.sync_directory(".")


def read_queues(disk: Disk, journal_id: bytes) -> bytes | None:
    """Return the contents; None without a file. Raises `ValueError` if it is damaged or of another journal,
    `OSError`."""
    if QUEUES_FILE not in disk.names("."):
        return None
    handle = disk.open(QUEUES_FILE, write=False)
    try:
        head = bytes(disk.read(handle, 0, _HEAD_BYTES))
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise ValueError(f"{QUEUES_FILE} is no checkpoint of queues")
        size = int.from_bytes(head[24:32], "little")
        if size != disk.size(handle) - _HEAD_BYTES:
            raise ValueError(f"{QUEUES_FILE} has not the length that it says")
        body = bytes(disk.read(handle, _HEAD_BYTES, size))
    finally:
        disk.close(handle)
    if crc32c(body, crc32c(head[:32])) != int.from_bytes(head[32:], "little"):
        raise ValueError(f"{QUEUES_FILE} does not match its checksum")
    if head[8:24] != journal_id:
        raise ValueError(f"{QUEUES_FILE} is of another journal")
    return body
