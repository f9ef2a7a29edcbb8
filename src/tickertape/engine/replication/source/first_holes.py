"""First holes: the start of a stream, with the publishers of removed messages.

Control records of this log have another publisher id at the destination. Its own records are never missing
there.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.limits import link_rows_max
from tickertape.batch.format import U8
from tickertape.engine.replication.source.link_frames import CutFrame, LinkFrame
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.journal.format.retired_state import HighestSequences
from tickertape.wire.link import LinkHoles, link_place_bytes
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_rows import encode_pairs


class FirstHoles:
    """The frames that start a stream at a position."""

    def __init__(self, position: int, removed: HighestSequences | None) -> None:
        """`removed`: highest sequences of removed messages that the destination lacks. None: it lacks
        none."""
        self._position = position
        self._removed = removed
        self._at = 0
        self.over = False
        """Whether the last frame was cut."""

    def cut(self, credit: int, *, alone: bool) -> CutFrame | None:
        """Return the next frame. None if its first row exceeds the credit. `alone`: nothing is outstanding,
        so one row may exceed it."""
        removed = self._removed
        left = 0 if removed is None else len(removed) - self._at
        count = min(left, link_rows_max, max(credit // link_place_bytes, int(alone)))
        if left and count < 1:
            return None
        rows = b""
        if removed is not None and count:
            part = slice(self._at, self._at + count)
            rows = encode_pairs(removed.publishers[part], removed.sequences[part])
        self._at += count
        self.over = count == left
        command = LinkHoles(
            position=self._position, behind=removed is not None, rows=rows, more=not self.over
        )
        return CutFrame(LinkFrame(command), len(rows))


def missing_at(destination: bytes, log: bytes, highest: HighestSequences) -> HighestSequences:
    """Return the highest removed sequences of the log `log`, by the publishers of the log `destination`."""
    own = np.array([CONTROL_PUBLISHER, control_publisher(destination)], U8)
    kept = (highest.sequences != np.uint64(0)) & ~np.isin(highest.publishers, own)
    control = highest.of(CONTROL_PUBLISHER)
    renamed = [control_publisher(log)] if control else []
    return HighestSequences(highest.publishers[kept], highest.sequences[kept]).with_later(
        np.array(renamed, U8), np.array([control] * len(renamed), U8)
    )
