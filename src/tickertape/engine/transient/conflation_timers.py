"""Transient conflation: intervals of subscriptions to topics that are not recorded.

The interval is on the clock, from the time of the publish.

Invariants:
- At most a bounded piece is examined at a time.
- An interval ends after all messages that were published in it were considered.
"""

from __future__ import annotations

from typing import Final

from tickertape.batch import MessageBatch
from tickertape.engine.conflation.buffer import ConflationBuffer
from tickertape.engine.limits import conflation_piece_messages_max, step_delivery_bytes
from tickertape.engine.runtime.scheduling import DeadlineQueue
from tickertape.engine.transient.backlog import TransientFeed
from tickertape.engine.transient.shared_frames import SharedFrames

_MICROS: Final = 1_000_000
_MESSAGE_BYTES: Final = step_delivery_bytes // 4
"""What one message counts in a step that conflates it."""


class TransientConflation:
    """Deadlines of intervals, microseconds of the monotonic clock."""

    def __init__(self) -> None:
        self._agenda: DeadlineQueue[TransientFeed] = DeadlineQueue()
        self._due: dict[TransientFeed, None] = {}

    def __bool__(self) -> bool:
        """Whether somebody's interval is over."""
        return bool(self._due)

    def next_deadline(self) -> float | None:
        """When `clock` is wanted, monotonic seconds."""
        first = self._agenda.first()
        return None if first is None else (first + 1) / _MICROS

    def clock(self, now: float) -> None:
        """It is `now`, monotonic seconds."""
        self._due.update(dict.fromkeys(self._agenda.due(micros(now))))

    def consider(self, sub: TransientFeed, frames: SharedFrames, message: int, time: int) -> tuple[int, int]:
        """`frames` came at `time`: look at a stretch of them, from a message on. Returns what is next, and
        what this counts in a step."""
        conflating = sub.conflating
        assert conflating is not None
        if not conflating.settle_live(time):
            return message, conflation_piece_messages_max * _MESSAGE_BYTES
        piece, first = frames.piece_at(message)
        low = message - first
        high = min(piece.batch.count, low + conflation_piece_messages_max)
        conflating.consider_live(piece.batch, low, high, time)
        self._put(sub, conflating)
        return first + high, (high - low) * _MESSAGE_BYTES

    def release(self, time: int) -> tuple[TransientFeed, list[MessageBatch], int]:
        """The next whose interval is over, a stretch of what it is given now, and what this counts in a step;
        before `time` everything was considered."""
        sub = next(iter(self._due))
        del self._due[sub]
        conflating = sub.conflating
        if conflating is None:
            return sub, [], step_delivery_bytes
        if conflating.settle_live(time):
            self._put(sub, conflating)
        else:
            self._due[sub] = None
        batches = conflating.take()
        return sub, batches, step_delivery_bytes + sum(batch.count for batch in batches) * _MESSAGE_BYTES

    def flush(self, sub: TransientFeed) -> list[MessageBatch]:
        """A stretch of what is held back for it; nothing once nothing is."""
        if sub.conflating is None:
            return []
        sub.conflating.flush(conflation_piece_messages_max)
        return sub.conflating.take()

    def drop(self, sub: TransientFeed) -> None:
        """It does not conflate any more, and what is held back for it is not wanted."""
        if sub.conflating is not None:
            sub.conflating.forget()
            sub.conflating = None
            self._agenda.drop(sub)
            self._due.pop(sub, None)

    def holders(self) -> list[TransientFeed]:
        """Those for whom something is held back."""
        self._due.update(dict.fromkeys(self._agenda.due(_NEVER)))
        return list(self._due)

    def _put(self, sub: TransientFeed, conflating: ConflationBuffer) -> None:
        at = conflating.next_time()
        if at is not None and sub not in self._due:
            self._agenda.put(sub, at)


_NEVER: Final = 1 << 63


def micros(mono: float) -> int:
    """Monotonic seconds, as the clock of this module."""
    return int(mono * _MICROS)
