"""SOW snapshots: the state of each SOW topic as plain numbers, for monitoring."""

from __future__ import annotations

import msgspec

from tickertape.engine.sow.checkpoints import CheckpointLook
from tickertape.engine.sow.topic import StateTopic


class SowCheckpointSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of a SOW topic."""

    position: int | None
    """End of the log that the newest checkpoint includes. None before the first checkpoint."""
    log_position: int | None
    """The next start reads the log from this position on. None before the first checkpoint."""
    files: int
    bytes: int
    """Size of the files."""
    seconds: float
    """Time since the newest checkpoint, or since the server last found nothing to write. Before both, time
    since the start of the server."""
    interval_seconds: float
    """Configured `checkpoint_interval`."""
    failures: int
    """Failed checkpoints since the server started. Each is tried again."""


class SowSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a SOW topic, as `/stats` encodes it. It takes constant time to make."""

    name: str
    pattern: str | None
    """Pattern of further topics."""
    key: list[str]
    """Paths of the key fields. Empty: explicit keys."""
    records: int
    position: int
    """The records include the messages of the log below this position."""
    memory_bytes: int
    """Memory of records, bodies, keys, columns and kept changes."""
    live_bytes: int
    """Bytes of bodies in blocks that belong to a record. Bodies of at most 12 bytes need no block."""
    block_bytes: int
    """Used bytes of blocks, with replaced bodies that are not compacted yet."""
    blocks: int
    garbage_ratio: float
    """Part of `block_bytes` that no record needs, 0 to 1."""
    held_bytes: int
    """Size of freed blocks that query results still need."""
    index_bytes: int
    """Memory of the key index with the keys."""
    column_bytes: int
    """Memory of the columns of fields that filters compare repeatedly."""
    changes_bytes: int
    """Memory of changes that are kept for running queries and checkpoints."""
    deleted: int
    """Records deleted since the server started."""
    expired: int
    """Records that expired since the server started."""
    refused: int
    """Messages refused since the server started, because they had no valid key."""
    unkeyed: int
    """Messages without a valid key that the server read from the log. They have no record."""
    complete: bool
    """Whether the records include all messages of its topics."""
    incomplete_because: str | None
    checkpoint: SowCheckpointSnapshot


def snapshot(topic: StateTopic, look: CheckpointLook, folded: int, mono: float) -> SowSnapshot:
    """Return the state of a SOW topic at the folded position. `mono`: current monotonic time in seconds."""
    fold, definition = topic.fold, topic.definition
    blocks = fold.records.blocks
    live, used = blocks.live_bytes, blocks.used_bytes
    return SowSnapshot(
        name=topic.name,
        pattern=definition.pattern,
        key=list(definition.key),
        records=fold.records.record_count,
        position=folded,
        memory_bytes=fold.nbytes + topic.columns.nbytes,
        live_bytes=live,
        block_bytes=used,
        blocks=blocks.block_count,
        garbage_ratio=round(1 - live / used, 4) if used else 0.0,
        held_bytes=blocks.held_bytes,
        index_bytes=fold.keys.nbytes + fold.index_bytes,
        column_bytes=topic.columns.nbytes,
        changes_bytes=fold.changes.nbytes,
        deleted=fold.deleted,
        expired=fold.expired,
        refused=topic.refused,
        unkeyed=fold.unkeyed,
        complete=not topic.incomplete_because,
        incomplete_because=topic.incomplete_because or None,
        checkpoint=_checkpoint(look, definition.checkpoint_interval, mono),
    )


def _checkpoint(look: CheckpointLook, interval: float, mono: float) -> SowCheckpointSnapshot:
    manifest = look.manifest
    files = () if manifest is None else manifest.files
    return SowCheckpointSnapshot(
        position=None if manifest is None else manifest.end,
        log_position=None if manifest is None else manifest.start,
        files=len(files),
        bytes=sum([entry.size for entry in files]),
        seconds=round(max(mono - look.saved_at, 0.0), 3),
        interval_seconds=interval,
        failures=look.failures,
    )
