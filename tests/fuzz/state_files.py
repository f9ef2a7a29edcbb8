"""Fuzz targets of checkpoint files of SOW topics.

Must never catch more than the allowed errors.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.target import Target, taken
from tests.helpers.state_files import (
    DIRECTORY,
    JOURNAL_ID,
    checkpoint,
    keys_of,
    matching,
    mended_manifest,
    mended_state_file,
    rows_of,
    state_file,
    written,
)
from tickertape.base.errors import JournalCorrupt, JournalVersion
from tickertape.journal.format.sow_blocks import RecordBlock
from tickertape.journal.format.sow_checkpoint import decode_manifest, encode_manifest, read_file

_DELTA_KIND: Final = 2


def state_manifest(data: bytes) -> str:
    """Decode a manifest: refused, or a value that can be written and read."""
    manifest = decode_manifest(data, DIRECTORY, JOURNAL_ID)
    with taken():
        assert decode_manifest(encode_manifest(manifest), DIRECTORY, JOURNAL_ID) == manifest
    return "taken"


def state_blocks(data: bytes) -> str:
    """Read a base or delta file: refused, or rows that can be written to the same blocks."""
    small = checkpoint()
    delta = data[20:24] == _DELTA_KIND.to_bytes(4, "little")
    entry = matching(small.manifest.files[delta], data)
    blocks = list(read_file(data, small.manifest, entry))
    with taken():
        for block in blocks:
            rows = rows_of(block) if isinstance(block, RecordBlock) else keys_of(block)
            assert len(rows) == block.rows
        assert written(state_file(delta=delta), blocks)
    return "taken"


STATE_TARGETS: Final[dict[str, Target]] = {
    "state_manifest": Target(
        state_manifest,
        lambda: [encode_manifest(checkpoint().manifest)],
        mended_manifest,
        allowed=(JournalCorrupt, JournalVersion),
    ),
    "state_file": Target(
        state_blocks,
        lambda: [data for _, data in checkpoint().files],
        mended_state_file,
        cost=4,
        allowed=(JournalCorrupt, JournalVersion),
    ),
}
