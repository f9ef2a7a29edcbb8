"""Owns one place in the log at which several subscriptions with filters stand: who they are, what was read
for them, and what of it is handed out next.

Must never read by itself, or change the order of what was read.
"""

from __future__ import annotations

import numpy as np

from tickertape.batch import merge
from tickertape.batch.format import Int64s
from tickertape.engine.delivery.fanout import Fanout
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogPart


class SharedCursor:
    """Those who go on together: all of one topic, or all with patterns."""

    __slots__ = ("dispatcher", "gathered", "literal", "queued", "reader", "reading")

    def __init__(self, dispatcher: Fanout, literal: str | None) -> None:
        self.dispatcher = dispatcher
        self.literal = literal
        self.reader: LogReader | None = None
        self.reading = False
        """An answer to a read is to come."""
        self.queued = False
        """It stands in the run queue."""
        self.gathered: list[LogPart] = []
        """What was read and is not handed out yet."""

    @property
    def position(self) -> int:
        """Everything below was considered by everybody in it."""
        return self.dispatcher.position

    @property
    def is_idle(self) -> bool:
        """Everything that was read is handed out."""
        return not self.dispatcher.has_work

    @property
    def gathered_bytes(self) -> int:
        """Encoded bytes of what was read."""
        return sum([part.batch.nbytes for part in self.gathered])

    def hand_out(self, *, merged: bool) -> None:
        """What was read is handed out in the steps to come: as one part when `merged`, which is a copy."""
        parts, self.gathered = self.gathered, []
        for part in [_merged(parts)] if merged else parts:
            self.dispatcher.take(part)


def _merged(parts: list[LogPart]) -> LogPart:
    first, end = parts[0].first_position, parts[-1].end_position
    batch = merge([part.batch for part in parts])
    if end - first == batch.count:
        return LogPart(first, batch)
    return LogPart(first, batch, np.concatenate([_positions(part) for part in parts]), end)


def _positions(part: LogPart) -> Int64s:
    if part.positions is not None:
        return part.positions
    return np.arange(part.first_position, part.first_position + part.batch.count, dtype=np.int64)
