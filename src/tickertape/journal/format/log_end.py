"""Records of the end of the log: its clean stop (`end.json`) and its last segment (`begun.bin`).

Without them a log whose end was cut off, removed or lost looks like a shorter one, and its positions would be
given again. They are lower bounds, which stay true whatever happens later.

Invariants:
- `end.json` is written only after the seal is durable.
- `begun.bin` has the header of the segment that was begun last. It is written only after that header is
  durable, and needs no more room once it exists.
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
    """Record it, durably and at once, or not at all. Raises `OSError`; the earlier record is kept then."""
    replace_file(disk, CLEAN_SHUTDOWN_FILE, [msgspec.json.encode(shutdown) + b"\n"])


def read_clean_shutdown(disk: Disk) -> CleanShutdown | None:
    """Return the record; None if there is none. Raises `ValueError` if it is invalid."""
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
"""Contents before the first segment; a disk that lost the file might show zeros."""


def reserve_last_segment(disk: Disk) -> int | None:
    """A handle of the file while it is made, for `write_last_segment`; None when it is there. Raises
    `OSError`, after which it may be tried again."""
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
    """Sync the reserved file and give it its name. Raises `OSError`."""
    try:
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(LAST_SEGMENT_NEW_FILE, LAST_SEGMENT_FILE)
    disk.sync_directory(".")


def read_last_segment(disk: Disk, journal_id: bytes) -> int:
    """The number of the last segment that is known to have been begun; 0: of none it is known. Raises
    `ValueError` when that cannot be read, or is of another journal, `OSError`."""
    if LAST_SEGMENT_FILE not in disk.names("."):
        return 0
    try:
        with open_file(disk, LAST_SEGMENT_FILE) as handle:
            header, _ = decode_segment_header(disk.read(handle, 0, segment_header_bytes))
    except FormatError as error:
        raise ValueError(f"{LAST_SEGMENT_FILE} cannot be read: {error}") from None
    if header.number and header.journal_id != journal_id:
        raise ValueError(f"{LAST_SEGMENT_FILE} is of another journal")
    return header.number
