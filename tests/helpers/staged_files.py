"""Staging files of tests: a prepared part of two blocks, which is the golden file.

Must never be run just to make a failing test pass. `python -m tests.helpers.staged_files` writes the file.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.journal.format.staging_file import (
    StagedFiles,
    StagedPartLabel,
    StagePrepare,
    StageWrite,
    block_bytes,
    label_bytes,
    prepared_path_of,
)
from tickertape.testing.disk import StrictDisk

GOLDEN_PART: Final = Path(__file__).parent.parent / "golden" / "staging-part.bin"
JOURNAL_ID: Final = bytes(range(16))
LABEL: Final = StagedPartLabel(journal=JOURNAL_ID, publisher="billing", space="nightly", name="7", part="0")


def batches() -> list[MessageBatch]:
    """Return the contents of the golden part."""
    return [
        batch_from_bodies("orders", [b'{"id":1}', b'{"id":2}']),
        batch_from_bodies("fills", [b'{"of":1}']),
    ]


def stage(
    staging: StagedFiles,
    file: int,
    label: StagedPartLabel,
    parts: list[MessageBatch],
    *,
    prepare: bool = True,
) -> int:
    """Write a part, and return the end of its blocks."""
    offset = 0
    for number, batch in enumerate(parts):
        first = label if number == 0 else None
        staging.run(StageWrite(file, offset, first, batch.count, list(batch.buffers())))
        offset += block_bytes(batch.nbytes) + (label_bytes(label) if first else 0)
    if prepare:
        staging.run(StagePrepare(file, offset, sum([batch.count for batch in parts]), len(parts)))
    return offset


def golden_disk() -> StrictDisk:
    """Return a disk with the golden part as file 1."""
    disk = StrictDisk(Random(1))
    stage(StagedFiles(disk), 1, LABEL, batches())
    return disk


def golden_bytes() -> bytes:
    """Return the bytes of the golden part."""
    return golden_disk().contents()[prepared_path_of(1)]


if __name__ == "__main__":
    GOLDEN_PART.write_bytes(golden_bytes())
