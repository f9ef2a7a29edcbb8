"""Queue checkpoint file (`queues.bin`), read and replaced as a whole.

The engine encodes its contents (docs/formats/queue-checkpoint.md). The log can be read without this file.
"""

from __future__ import annotations

import contextlib
from typing import Final

from tickertape.base.checksum import crc32c
from tickertape.base.interfaces import Disk
from tickertape.journal.format.files import open_file, replace_file

QUEUES_FILE: Final = "queues.bin"
_MAGIC: Final = b"TKTQUE\x00\x00"
_HEAD_BYTES: Final = len(_MAGIC) + 16 + 8 + 4


def write_queues(disk: Disk, journal_id: bytes, body: bytes) -> None:
    """Replace the file atomically and durably. On `OSError` the previous file is kept."""
    head = _MAGIC + journal_id + len(body).to_bytes(8, "little")
    checksum = crc32c(body, crc32c(head)).to_bytes(4, "little")
    replace_file(disk, QUEUES_FILE, [head, checksum, body])


def remove_queues(disk: Disk) -> None:
    """Remove the checkpoint. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(QUEUES_FILE)
        disk.sync_directory(".")


def read_queues(disk: Disk, journal_id: bytes) -> bytes | None:
    """Return the contents, or None without a file.

    Raises:
        ValueError: The file is damaged or belongs to another journal.
        OSError: The disk cannot be read."""
    if QUEUES_FILE not in disk.names("."):
        return None
    with open_file(disk, QUEUES_FILE) as handle:
        head = bytes(disk.read(handle, 0, _HEAD_BYTES))
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise ValueError(f"{QUEUES_FILE} is not a queue checkpoint")
        size = int.from_bytes(head[24:32], "little")
        if size != disk.size(handle) - _HEAD_BYTES:
            raise ValueError(f"{QUEUES_FILE} does not have the length given in its header")
        body = bytes(disk.read(handle, _HEAD_BYTES, size))
    if crc32c(body, crc32c(head[:32])) != int.from_bytes(head[32:], "little"):
        raise ValueError(f"{QUEUES_FILE} does not match its checksum")
    if head[8:24] != journal_id:
        raise ValueError(f"{QUEUES_FILE} belongs to another journal")
    return body
