"""Rate limiter: how many messages of a replay may be sent now, and when the next one may.

Every message has a time at which it is due. With a steady rate, it is due after the time for all earlier
messages. With a multiple, it is due at its time on the recorded timeline, with gaps limited to `max_gap`. A
delay of up to `rate_catch_up_seconds` is made up. Longer delays shift the whole timeline, because the rate
must not be exceeded.
"""

from __future__ import annotations

from typing import Final
from weakref import ref

import numpy as np

from tickertape.batch import MessageBatch
from tickertape.batch.format import Int32s, Int64s, lengths_of
from tickertape.engine.limits import rate_catch_up_seconds, rate_tick_seconds
from tickertape.engine.subscriptions.options import Rate, RateUnit

_MICROS: Final = 1_000_000
_GAP_MAX: Final = 1 << 62
"""Microseconds, longer than any recorded gap."""
_BEFORE_ALL: Final = float("-inf")


class RateLimiter:
    """Schedule of one subscription, or of several that replay together.

    Times are monotonic seconds. `allowed` changes no state. `sent` records sent messages in log order.
    `stamps` replaces the timestamps of the batch (for conflated messages): one for each message, not
    decreasing.
    """

    def __init__(self, rate: Rate, max_gap: float | None = None) -> None:
        """`max_gap` is in seconds, for a multiple only."""
        self.rate = rate
        self.max_gap = max_gap
        self._timed = rate.unit is RateUnit.MULTIPLE
        self._per_second = rate.amount * _MICROS if self._timed else rate.amount
        """Units of cost per second: messages, bytes, or microseconds of the recorded timeline."""
        self._gap_max = None if max_gap is None else min(max(round(max_gap * self._per_second), 1), _GAP_MAX)
        """`max_gap` in microseconds of the recorded timeline."""
        self._due: float | None = None
        """Steady rate: when the next message is due. Multiple: when the last one was due. None before the
        first."""
        self._last_stamp = 0
        """Multiple: recorded time of the last message."""
        self._hold = _BEFORE_ALL
        """Time before which nothing is permitted: half a tick after the last delivery that was limited."""
        self._paused_at: float | None = None
        self._cut: tuple[ref[MessageBatch], Int64s] | None = None
        """The last examined batch, and its timeline with limited gaps."""

    def allowed(
        self, batch: MessageBatch, low: int, high: int, now: float, stamps: Int64s | None = None
    ) -> tuple[int, float | None]:
        """Return how many of the first messages of `[low, high)` may be sent at `now`, and when the next one
        may.

        That time is at least `rate_tick_seconds` later. None: all may be sent, or the schedule is paused
        until `resume`.
        """
        if self._paused_at is not None:
            return 0, None
        costs = self._costs(batch, stamps)
        start = self._start(batch, low, now, stamps)
        soonest = now + rate_tick_seconds
        if start > now or self._hold > now:
            return 0, max(start, soonest)
        count = _reach(costs, low, high, int((now - start) * self._per_second))
        if count == high - low:
            return count, None
        return count, max(start + _cost(costs, low, low + count) / self._per_second, soonest)

    def sent(
        self, batch: MessageBatch, low: int, high: int, now: float, stamps: Int64s | None = None
    ) -> None:
        """Record that the messages `[low, high)`, at least one, were sent at `now`."""
        costs = self._costs(batch, stamps)
        start = self._start(batch, low, now, stamps)
        if not self._timed:
            self._due = following = start + _cost(costs, low, high) / self._per_second
        else:
            self._due = following = start + _cost(costs, low, high - 1) / self._per_second
            self._last_stamp = _stamp(batch, high - 1, stamps)
            if high < batch.count:
                following = start + _cost(costs, low, high) / self._per_second
        # A limited subscription gets everything due within a tick at once, regardless of the number of calls.
        # Half a
        # tick, because timers may fire a little early.
        self._hold = now + rate_tick_seconds / 2 if following > now else _BEFORE_ALL

    def pause(self, now: float) -> None:
        """Pause the schedule at `now`, unless it is paused."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        """Resume a paused schedule. All later messages are due later."""
        if self._paused_at is not None and self._due is not None:
            self._due += now - self._paused_at
        self._paused_at = None

    def _start(self, batch: MessageBatch, low: int, now: float, stamps: Int64s | None) -> float:
        """Return when message `low` is due, but not before the time that may be made up."""
        due = self._due
        if due is None:
            return now
        if self._timed:
            gap = max(_stamp(batch, low, stamps) - self._last_stamp, 0)
            if self._gap_max is not None:
                gap = min(gap, self._gap_max)
            due += gap / self._per_second
        return max(due, now - rate_catch_up_seconds)

    def _costs(self, batch: MessageBatch, stamps: Int64s | None) -> Int32s | Int64s | None:
        """Return the cumulative cost before each message, from any base. None: each message costs 1."""
        if not self._timed:
            return batch.offsets if self.rate.unit is RateUnit.BYTES else None
        if self._gap_max is None or (stamps is None and batch.run_count == 1):
            return batch.timestamps if stamps is None else stamps
        if self._cut is not None and self._cut[0]() is batch:
            return self._cut[1]
        timeline = _without_gaps(batch, stamps, self._gap_max)
        self._cut = ref(batch), timeline
        return timeline


def _without_gaps(batch: MessageBatch, stamps: Int64s | None, gap_max: int) -> Int64s:
    """Return the recorded times of a batch, with gaps limited to `gap_max`."""
    times = batch.runs["timestamp"] if stamps is None else stamps
    too_long = np.maximum(lengths_of(times) - gap_max, 0)
    if too_long.any():
        times = times.copy()
        times[1:] -= too_long.cumsum()
    elif stamps is None:
        return batch.timestamps
    return times if stamps is not None else np.repeat(times, batch.runs["count"])


def _stamp(batch: MessageBatch, index: int, stamps: Int64s | None) -> int:
    return int((batch.timestamps if stamps is None else stamps)[index])


def _cost(costs: Int32s | Int64s | None, low: int, high: int) -> int:
    """Return the cost of the messages `[low, high)`."""
    return high - low if costs is None else int(costs[high]) - int(costs[low])


def _reach(costs: Int32s | Int64s | None, low: int, high: int, spent: int) -> int:
    """Return how many of the messages `[low, high)` start within a cost of `spent`, at least one."""
    if costs is None:
        return min(spent + 1, high - low)
    last = int(costs[low]) + spent
    if last >= costs[high - 1]:
        return high - low
    # A number of the dtype of the array, otherwise the whole array is converted.
    return max(int(costs[low:high].searchsorted(costs.dtype.type(last), "right")), 1)
