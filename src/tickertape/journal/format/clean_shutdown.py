"""Clean shutdown record (`end.json`): the end of the log when a clean stop last sealed it.

Without it a log whose end was cut off or removed looks like a shorter one, and its positions would be given
again. It is a lower bound, which stays true whatever happens later.

Invariants:
- It is written only after the seal is durable.
- The log can be read without it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tickertape.base.interfaces import Disk
from tickertape.journal.format.files import open_file, replace_file

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
