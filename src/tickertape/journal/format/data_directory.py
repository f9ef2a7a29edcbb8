"""Data directory: the names that a server gives to its files and directories.

Invariant: the list is complete, because operators delete what `journal verify` reports as foreign.
"""

from __future__ import annotations

from typing import Final

from tickertape.journal.format.clean_shutdown import CLEAN_SHUTDOWN_FILE
from tickertape.journal.format.identity import CREATED_NAMES
from tickertape.journal.format.last_segment import LAST_SEGMENT_FILE
from tickertape.journal.format.queue_checkpoint import QUEUES_FILE
from tickertape.journal.format.retired_state import RETIRED_FILE
from tickertape.journal.format.segment import QUARANTINE_DIRECTORY, SPILL_DIRECTORY
from tickertape.journal.format.staging_file import STAGING_DIRECTORY

_REPLACED: Final = (LAST_SEGMENT_FILE, CLEAN_SHUTDOWN_FILE, RETIRED_FILE, QUEUES_FILE)
"""Written under a name of their own first, and renamed."""

DATA_NAMES: Final = CREATED_NAMES.union(
    _REPLACED,
    (f"{name}.new" for name in _REPLACED),
    (QUARANTINE_DIRECTORY, SPILL_DIRECTORY, STAGING_DIRECTORY),
)
"""Everything in a data directory that is not foreign, `lost+found` of the file system included."""
