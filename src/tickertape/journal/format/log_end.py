"""Markers for the end of the log: last clean stop (`end.json`) and last segment (`begun.bin`).

Without them, a log that lost its end looks like a shorter log, and its positions would be assigned again.
They are lower bounds and stay true later.

Invariants:
- `end.json` is written only after the seal is durable.
- `begun.bin` contains the header of the newest segment. It is written only after that header is durable, and
  needs no more disk space once it exists.
- The log can be read without them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tickertape.base.interfaces import Disk
from tickertape.journal.format.files import open_file, replace_file
from tickertape.journal.format.segment import (
    FormatError,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from tickertape.journal.limits import segment_header_bytes

CLEAN_SHUTDOWN_FILE: Final = "end.json"
_BYTES_MAX: Final = 4096


class CleanShutdown(msgspec.Struct, frozen=True, kw_only=True):
    """End of the log at a clean stop."""

    segment: int
    """The segment that was sealed."""
    commit: int
    """Number of its seal."""
    position: int
    """Position after its last message."""


def write_clean_shutdown(disk: Disk, shutdown: CleanShutdown) -> None:
    """Write the marker atomically and durably. On `OSError` the previous marker is kept."""
    replace_file(disk, CLEAN_SHUTDOWN_FILE, [msgspec.json.encode(shutdown) + b"\n"])


def read_clean_shutdown(disk: Disk) -> CleanShutdown | None:
    """Return the marker, or None without a file. Raises `ValueError` if the file is invalid."""
    if CLEAN_SHUTDOWN_FILE not in disk.names("."):
        return None
    try:
        with open_file(disk, CLEAN_SHUTDOWN_FILE) as handle:
            return msgspec.json.decode(disk.read(handle, 0, _BYTES_MAX), type=CleanShutdown)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{CLEAN_SHUTDOWN_FILE} cannot be read: {error}") from None


# -- the last segment ---------------------------------------------------------------------------------


LAST_SEGMENT_FILE: Final = "begun.bin"
LAST_SEGMENT_NEW_FILE: Final = "begun.bin.new"
_NONE: Final = encode_segment_header(SegmentHeader(bytes(16), 0, 0, 0, 0, 0, 0, 0, 0))[0]
"""Contents before the first segment. They are not zeros, because a lost file may read as zeros."""


def reserve_last_segment(disk: Disk) -> int | None:
    """Create the file under a temporary name for `write_last_segment`. Return its handle, or None if it
    exists.

    Raises `OSError`, after which the call may be repeated."""
    names = disk.names(".")
    if LAST_SEGMENT_FILE in names:
        return None
    handle = disk.open(LAST_SEGMENT_NEW_FILE, create=LAST_SEGMENT_NEW_FILE not in names)
    try:
        disk.preallocate(handle, len(_NONE))
        disk.write(handle, 0, [_NONE])
    except BaseException:
        disk.close(handle)
        raise
    return handle


def write_last_segment(disk: Disk, handle: int) -> None:
    """Sync the reserved file and rename it to its final name. Raises `OSError`."""
    try:
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(LAST_SEGMENT_NEW_FILE, LAST_SEGMENT_FILE)
    disk.sync_directory(".")


def read_last_segment(disk: Disk, journal_id: bytes) -> int:
    """Return the number of the newest segment on record, or 0 without a record.

    Raises:
        ValueError: The file is unreadable or belongs to another journal.
        OSError: The disk cannot be read."""
    if LAST_SEGMENT_FILE not in disk.names("."):
        return 0
    try:
        with open_file(disk, LAST_SEGMENT_FILE) as handle:
            header, _ = decode_segment_header(disk.read(handle, 0, segment_header_bytes))
    except FormatError as error:
        raise ValueError(f"{LAST_SEGMENT_FILE} cannot be read: {error}") from None
    if header.number and header.journal_id != journal_id:
        raise ValueError(f"{LAST_SEGMENT_FILE} belongs to another journal")
    return header.number
