"""Expiry: the times at which messages of a queue become too old for delivery.

The expiration of the queue is stored once per commit. Messages with their own expiration are grouped by its
end, so no number is stored per message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import msgspec
import numpy as np
from pyroaring import BitMap64

from tickertape.batch.format import Int64s
from tickertape.engine.queues.state.bit_sliced_index import below
from tickertape.engine.queues.state.position_set_format import decode_set, encode_set
from tickertape.engine.runtime.queue_definition import ExpirationModel

_MILLISECOND: Final = 1_000
_SECOND: Final = 1_000_000
_LIFE_MAX: Final = (1 << 61) // _MILLISECOND
"""Maximum lifetime in milliseconds, 70,000 years. A longer lifetime is reduced to it."""
_SWEEP_MIN: Final = 64
_END: Final = (1 << 63) - 1


class _Step(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Messages of one log time: positions `[first, end)`. Not all of these positions must be in the queue."""

    first: int
    end: int
    timestamp: int


class _StoredExpiry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Content of `ExpirySnapshot.encode`. Sets of positions are encoded by position_set_format.py."""

    seconds: float | None
    model: ExpirationModel
    past: int
    steps: list[_Step]
    lives: dict[int, bytes]
    gone: bytes


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(_StoredExpiry).decode


class ExpirySnapshot(NamedTuple):
    """A snapshot of an `Expiry`, in sets that never change. Any thread may encode it."""

    seconds: float | None
    model: ExpirationModel
    past: int
    steps: list[_Step]
    lives: dict[int, BitMap64]
    """Messages by end of life. Some may have left the queue: `pending` contains those that have not."""
    pending: BitMap64
    ended: BitMap64
    ended_at: int | None
    """End of life of the last message in `ended`."""
    gone: BitMap64

    def encode(self) -> bytes:
        """Encode the snapshot for `Expiry.of`."""
        left = {at: group & self.pending for at, group in self.lives.items()}
        if self.ended_at is not None:
            left[self.ended_at] = left.get(self.ended_at, BitMap64()) | (self.ended & self.pending)
        lives = {at: encode_set(left[at]) for at in sorted(left) if left[at]}
        gone = encode_set(self.gone)
        return _ENCODE(_StoredExpiry(self.seconds, self.model, self.past, self.steps, lives, gone))


class Expiry:
    """Expiration of the messages of one queue. Times are microseconds since 1970 UTC. `wall` never
    decreases."""

    active: bool
    """Whether messages can expire. If not, `enter` need not be called."""

    def __init__(self, seconds: float | None, model: ExpirationModel) -> None:
        """`seconds` is the maximum time that a message may be in the queue. None: the queue has no limit.

        Messages may have their own lifetime. `model` selects the limit: "minimum" uses the shorter one,
        "message" prefers the message's own lifetime, and "queue" ignores it."""
        self.active = seconds is not None or model != "queue"
        self._seconds = seconds
        self._model: ExpirationModel = model
        self._period = None if seconds is None else round(seconds * _SECOND)
        self._steps: deque[_Step] = deque()
        """Steps that are not over, by ascending position and time."""
        self._past = 0
        """Position below which the period of the queue has ended."""
        self._lives: dict[int, BitMap64] = {}
        """Positions by end of life. Some may no longer be in `_pending`. Snapshots share these sets: they are
        replaced, never changed."""
        self._times: list[int] = []
        """Heap of the keys of `_lives`."""
        self._held = 0
        """Number of positions in `_lives` and `_ended`."""
        self._pending = BitMap64()
        """Messages whose own life has not ended, or that `due` has not returned yet."""
        self._gone = BitMap64()
        """Messages whose own life has ended, at positions from `_past` on."""
        self._over: deque[_Step] = deque()
        """Steps that are over but not yet returned by `due`. They precede `_steps`."""
        self._ended = BitMap64()
        """Messages whose own life has ended but that `due` has not returned. They are still in `_pending`."""
        self._ended_at: list[int] = []
        """First and last end of life in `_ended`. Empty if `_ended` is."""

    # -- entering and leaving ---------------------------------------------------------------------------

    def enter(self, positions: Int64s, timestamps: Int64s, expirations: Int64s | None) -> None:
        """Add messages to the queue.

        Positions ascend and are above all earlier ones. Log times do not decrease. `expirations` are
        lifetimes in milliseconds (0: none). None: no message has one."""
        if not len(positions):
            return
        if self._period is not None:
            self._step(positions, timestamps)
        if expirations is not None and self._model != "queue":
            self._live(positions, timestamps, expirations)

    def _step(self, positions: Int64s, timestamps: Int64s) -> None:
        end = int(positions[-1]) + 1
        if timestamps[0] == timestamps[-1]:
            self._add_step(int(positions[0]), end, int(timestamps[0]))
            return
        starts = np.flatnonzero(timestamps[1:] != timestamps[:-1]) + 1
        first = 0
        for start in (*starts.tolist(), len(positions)):
            self._add_step(int(positions[first]), int(positions[start - 1]) + 1, int(timestamps[first]))
            first = start

    def _add_step(self, first: int, end: int, timestamp: int) -> None:
        if self._steps and self._steps[-1].timestamp >= timestamp:
            last = self._steps.pop()
            self._steps.append(_Step(last.first, end, last.timestamp))
        else:
            self._steps.append(_Step(first, end, timestamp))

    def _live(self, positions: Int64s, timestamps: Int64s, expirations: Int64s) -> None:
        lives = np.minimum(expirations, _LIFE_MAX) * _MILLISECOND
        has = lives > 0
        if self._model == "minimum" and self._period is not None:
            has &= lives < self._period  # for the others, the period of the queue ends first
        if not has.any():
            return
        ends = timestamps[has] + lives[has]
        mine = positions[has]
        if (ends == ends[0]).all():
            self._add_life(int(ends[0]), mine.tolist())
            return
        order = np.argsort(ends, kind="stable")
        ends, mine = ends[order], mine[order]
        starts = np.flatnonzero(np.diff(ends, prepend=ends[0] - 1))
        numbers = mine.tolist()
        stops = (*starts[1:].tolist(), len(numbers))
        for at, start, stop in zip(ends[starts].tolist(), starts.tolist(), stops, strict=True):
            self._add_life(at, numbers[start:stop])

    def _add_life(self, at: int, positions: list[int]) -> None:
        added = _set_of(positions)
        group = self._lives.get(at)
        if group is None:
            heappush(self._times, at)
        self._lives[at] = added if group is None else group | added
        self._pending |= added
        self._held += len(positions)

    def forget_below(self, position: int) -> None:
        """Remove positions below `position`, which have left the queue."""
        for steps in (self._over, self._steps):
            while steps and steps[0].end <= position:
                steps.popleft()
        _cut(self._gone, position)
        _cut(self._pending, position)
        self._sweep()

    def keep(self, queued: BitMap64) -> None:
        """Remove all positions outside of `queued`.

        This examines everything. It is intended for occasional calls, when the oldest message remains
        long."""
        self._steps = deque([step for step in self._steps if queued.range_cardinality(step.first, step.end)])
        self._gone &= queued
        self._pending &= queued
        self._sweep()

    def _sweep(self) -> None:
        """Purge removed positions before they outnumber the remaining ones."""
        if self._held <= 2 * len(self._pending) + _SWEEP_MIN:
            return
        left = {at: group & self._pending for at, group in self._lives.items()}
        self._lives = {at: group for at, group in left.items() if group}
        self._times = list(self._lives)
        heapify(self._times)
        self._ended &= self._pending
        self._held = sum(map(len, self._lives.values())) + len(self._ended)

    # -- expired messages -------------------------------------------------------------------------------

    def due(self, wall: int) -> BitMap64:
        """Return the positions that became too old since the last call. Each queued position is returned
        once.

        The period of the queue applies to whole ranges of the log. The result may therefore contain positions
        that have left or never entered the queue."""
        self._come_to(wall)
        found = BitMap64()
        for step in self._over:
            found.add_range(step.first, step.end)
            self._past = step.end
        if found:
            found -= self._gone
            if self._model == "message":
                found -= self._pending
        self._over.clear()
        ended, self._ended, self._ended_at = self._ended & self._pending, BitMap64(), []
        self._held -= len(ended)
        self._pending -= ended
        self._gone |= ended
        found |= ended
        _cut(self._gone, self._past)
        return found

    def overdue(self, positions: BitMap64, wall: int) -> BitMap64:
        """Return the members of `positions`, all queued, that are too old, whether `due` returned them or
        not."""
        self._come_to(wall)
        old = below(positions, self._over[-1].end if self._over else self._past)
        if self._model == "message":
            old = old - self._pending
        return old | (positions & self._gone) | (positions & self._ended & self._pending)

    def _come_to(self, wall: int) -> None:
        """Move ended steps and lives to `_over` and `_ended`. Each is moved once."""
        while self._steps and self._is_over(self._steps[0], wall):
            self._over.append(self._steps.popleft())
        while self._times and self._times[0] <= wall:
            at = heappop(self._times)
            group = self._lives.pop(at)
            self._held -= len(group)
            group = group & self._pending
            self._held += len(group)
            self._ended |= group
            self._ended_at = [min([at, *self._ended_at]), max([at, *self._ended_at])]

    def next_due(self) -> int | None:
        """Return the time of the next call of `due`, or None. That call may find nothing, but no earlier call
        can."""
        times = [*self._times[:1], *self._ended_at[:1]]
        step = next(iter(self._over or self._steps), None)
        if step is not None and self._period is not None:
            times.append(step.timestamp + self._period)
        return min(times, default=None)

    def _is_over(self, step: _Step, wall: int) -> bool:
        return self._period is not None and step.timestamp + self._period <= wall

    # -- storage ----------------------------------------------------------------------------------------

    def snapshot(self) -> ExpirySnapshot:
        """Return a snapshot of the current state."""
        # All of `_ended` is over, so the earliest time ensures that `due` is not called too late.
        ended_at = self._ended_at[0] if self._ended_at else None
        return ExpirySnapshot(
            self._seconds,
            self._model,
            self._past,
            [*self._over, *self._steps],
            dict(self._lives),
            self._pending.copy(),
            self._ended.copy(),
            ended_at,
            self._gone.copy(),
        )

    def stored(self) -> bytes:
        """Encode the current state for `of`."""
        return self.snapshot().encode()

    @staticmethod
    def of(
        seconds: float | None,
        model: ExpirationModel,
        data: bytes,
        read: Callable[[bytes, int], BitMap64] = decode_set,
        end: int = _END,
    ) -> Expiry:
        """Restore the result of `stored`, with positions below `end`. `read` decodes its sets.

        Raises `ValueError` for invalid data and for another `seconds` or `model`, because the stored data may
        then be incomplete."""
        try:
            stored = _DECODE(data)
            groups = {at: read(group, end) for at, group in stored.lives.items()}
            gone = read(stored.gone, end)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"invalid stored expirations: {error}") from None
        if (stored.seconds, stored.model) != (seconds, model):
            raise ValueError(f"stored expirations have {stored.seconds} s and model {stored.model}")
        if not _rising(stored.past, stored.steps, end):
            raise ValueError("stored expirations are not ascending")
        expiry = Expiry(seconds, model)
        expiry._past, expiry._steps, expiry._gone = stored.past, deque(stored.steps), gone
        expiry._lives, expiry._times = groups, list(groups)
        heapify(expiry._times)
        for group in groups.values():
            expiry._held += len(group)
            expiry._pending |= group
        if expiry._held != len(expiry._pending) or gone & expiry._pending:
            raise ValueError("a stored message has two expirations")
        return expiry


def _rising(past: int, steps: Iterable[_Step], end: int) -> bool:
    time = None
    for step in steps:
        if not 0 <= past <= step.first < step.end <= end or (time is not None and step.timestamp <= time):
            return False
        past, time = step.end, step.timestamp
    return 0 <= past <= end


def _cut(numbers: BitMap64, below: int) -> None:
    """Remove numbers below `below`."""
    if numbers and numbers.min() < below:
        numbers.remove_range(numbers.min(), below)


def _set_of(rising: list[int]) -> BitMap64:
    if rising[-1] - rising[0] + 1 == len(rising):
        return BitMap64(range(rising[0], rising[-1] + 1))
    return BitMap64(rising)
