"""Rows of records with bodies in blocks, for tests of the state of the world."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.batch.format import I8, Int64s
from tickertape.engine.sow.state.blocks import BodyBlocks, Views
from tickertape.engine.sow.state.change import ChangeLog
from tickertape.engine.sow.state.records import RecordRows, SlotRange


def int64s(numbers: Sequence[int]) -> Int64s:
    """Return a column of integers."""
    return np.array(numbers, I8)


def joined(bodies: Sequence[bytes]) -> tuple[bytes, Int64s]:
    """Return bodies as one buffer with offsets."""
    offsets = np.zeros(len(bodies) + 1, I8)
    offsets[1:] = np.cumsum([len(body) for body in bodies])
    return b"".join(bodies), offsets


def appended(blocks: BodyBlocks, bodies: Sequence[bytes]) -> Views:
    """Store bodies and return their views."""
    return blocks.append(*joined(bodies))


def record_rows(
    blocks: BodyBlocks,
    bodies: Sequence[bytes],
    *,
    position: int = 0,
    publisher: int = 0,
    expires: bool = False,
) -> RecordRows:
    """Return rows with consecutive positions, whose other values follow from the position."""
    positions = np.arange(position, position + len(bodies), dtype=I8)
    return RecordRows(
        appended(blocks, bodies),
        positions,
        1_000 * positions,
        np.full(len(bodies), publisher, np.uint32),
        (positions + 7).astype(np.uint64),
        positions + 1_000_000 if expires else None,
    )


def undo(changes: ChangeLog, scan: int, piece: SlotRange) -> None:
    """Change a copy of slots to the records at the position of a scan."""
    for number in reversed(changes.needed_by(scan)):
        earlier = changes.earlier(number)
        at = earlier.slots - piece.low
        hits = ((at >= 0) & (at < len(piece.live))).nonzero()[0]
        piece.live[at[hits]] = earlier.live[hits]
        piece.rows.assign(at[hits], earlier.rows.select(hits))


def open_scans(changes: ChangeLog) -> list[int]:
    """Return the scans that are open."""
    latest = changes.open_scan(changes.end)
    changes.close_scan(latest)
    return [scan for scan in range(latest) if changes.is_open(scan)]
