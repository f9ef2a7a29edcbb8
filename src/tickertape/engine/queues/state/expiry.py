"""Expiry: the times at which messages of a queue are too old to be delivered.

The expiration of the queue is kept once for each commit. Messages with an expiration of their own are kept
together by the time at which it ends, so there is no number for each message.
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
"""Milliseconds; a longer life is this long, 70,000 years."""
_SWEEP_MIN: Final = 64
_END: Final = (1 << 63) - 1


class _Step(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Messages of one log time: positions `[first, end)`, of which those between need not be in the queue."""

    first: int
    end: int
    timestamp: int


class _StoredExpiry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What `ExpirySnapshot.encode` writes, sets of positions as position_set_format.py does."""

    seconds: float | None
    model: ExpirationModel
    past: int
    steps: list[_Step]
    lives: dict[int, bytes]
    gone: bytes


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(_StoredExpiry).decode


class ExpirySnapshot(NamedTuple):
    """An `Expiry` at one time, in sets that never change: any thread may encode it."""

    seconds: float | None
    model: ExpirationModel
    past: int
    steps: list[_Step]
    lives: dict[int, BitMap64]
    """Some of these messages may have left the queue: `pending` has those that have not."""
    pending: BitMap64
    ended: BitMap64
    ended_at: int | None
    """When the last of `ended` ended."""
    gone: BitMap64

    def encode(self) -> bytes:
        """Encode all of it, for `Expiry.of`."""
        left = {at: group & self.pending for at, group in self.lives.items()}
        if self.ended_at is not None:
            left[self.ended_at] = left.get(self.ended_at, BitMap64()) | (self.ended & self.pending)
        lives = {at: encode_set(left[at]) for at in sorted(left) if left[at]}
        gone = encode_set(self.gone)
        return _ENCODE(_StoredExpiry(self.seconds, self.model, self.past, self.steps, lives, gone))


class Expiry:
    """When the messages of one queue expire. Times are microseconds since 1970 UTC and `wall` never falls."""

    active: bool
    """Whether anything can expire; if not, `enter` need not be called."""

    def __init__(self, seconds: float | None, model: ExpirationModel) -> None:
        """`seconds` is how long a message may be in the queue; None: the queue sets no end.

        Messages may have a life of their own: with "minimum" the shorter one counts, with "message" their own
        where they have one, with "queue" that of the queue only."""
        self.active = seconds is not None or model != "queue"
        self._seconds = seconds
        self._model: ExpirationModel = model
        self._period = None if seconds is None else round(seconds * _SECOND)
        self._steps: deque[_Step] = deque()
        """Those whose time has not come, by rising position and time."""
        self._past = 0
        """Below it the period of the queue is over."""
        self._lives: dict[int, BitMap64] = {}
        """Positions by the time at which a life of their own ends; some may not be in `_pending` any more. A
        snapshot shares these sets: they are replaced, and never changed."""
        self._times: list[int] = []
        """A heap of those times."""
        self._held = 0
        """Positions in `_lives`."""
        self._pending = BitMap64()
        """Whose own life has not ended."""
        self._gone = BitMap64()
        """Whose own life has ended, from `_past` on."""
        self._over: deque[_Step] = deque()
        """Steps that are over, before those of `_steps`, which `due` did not take yet."""
        self._ended = BitMap64()
        """As `_over`, lives that have ended: still in `_pending`."""
        self._ended_at: list[int] = []
        """When the first of them ended and the last; nothing when there are none."""

    # -- coming and going -------------------------------------------------------------------------------

    def enter(self, positions: Int64s, timestamps: Int64s, expirations: Int64s | None) -> None:
        """Messages enter the queue: at rising positions above all before, with times of the log, which do not
        fall, and milliseconds of life (0: none; None: none of them has any)."""
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
            has &= lives < self._period  # the queue is first with the others
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
        """Nothing below `position` is in the queue any more."""
        for steps in (self._over, self._steps):
            while steps and steps[0].end <= position:
                steps.popleft()
        _cut(self._gone, position)
        _cut(self._pending, position)
        self._sweep()

    def keep(self, queued: BitMap64) -> None:
        """Nothing but `queued` is in the queue any more. It looks at everything: for now and then, where the
        oldest message stays for long."""
        self._steps = deque([step for step in self._steps if queued.range_cardinality(step.first, step.end)])
        self._gone &= queued
        self._pending &= queued
        self._sweep()

    def _sweep(self) -> None:
        """Those that went are swept out before they are as many as those that are there."""
        if self._held <= 2 * len(self._pending) + _SWEEP_MIN:
            return
        left = {at: group & self._pending for at, group in self._lives.items()}
        self._lives = {at: group for at, group in left.items() if group}
        self._times = list(self._lives)
        heapify(self._times)
        self._ended &= self._pending
        self._held = sum(map(len, self._lives.values())) + len(self._ended)

    # -- what is too old ----------------------------------------------------------------------------------

    def due(self, wall: int) -> BitMap64:
        """Positions that became too old since it was asked before; each that is in the queue is given once.

        Among them may be ones that have left the queue, or never entered it: the period of the queue counts
        for whole stretches of the log."""
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
        """Which of `positions`, all in the queue, are too old, whether `due` gave them or not."""
        self._come_to(wall)
        old = below(positions, self._over[-1].end if self._over else self._past)
        if self._model == "message":
            old = old - self._pending
        return old | (positions & self._gone) | (positions & self._ended & self._pending)

    def _come_to(self, wall: int) -> None:
        """Set apart what is over: gone through once, however often is asked."""
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
        """When `due` has to be asked next, or None: it may find nothing then, but not before."""
        times = [*self._times[:1], *self._ended_at[:1]]
        step = next(iter(self._over or self._steps), None)
        if step is not None and self._period is not None:
            times.append(step.timestamp + self._period)
        return min(times, default=None)

    def _is_over(self, step: _Step, wall: int) -> bool:
        return self._period is not None and step.timestamp + self._period <= wall

    # -- kept ----------------------------------------------------------------------------------------------

    def snapshot(self) -> ExpirySnapshot:
        """Return all of it as it is now."""
        # All of them are over by now, so that `due` must not be asked later than for the first.
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
        """Encode all of it as it is now, for `of`."""
        return self.snapshot().encode()

    @staticmethod
    def of(
        seconds: float | None,
        model: ExpirationModel,
        data: bytes,
        read: Callable[[bytes, int], BitMap64] = decode_set,
        end: int = _END,
    ) -> Expiry:
        """What `stored` gave, with sets that `read` reads, of positions below `end`. Raises `ValueError` for
        anything else, and for that of another `seconds` or `model`: not all that these need was kept then."""
        try:
            stored = _DECODE(data)
            groups = {at: read(group, end) for at, group in stored.lives.items()}
            gone = read(stored.gone, end)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"no stored expirations: {error}") from None
        if (stored.seconds, stored.model) != (seconds, model):
            raise ValueError(f"expirations of a queue with {stored.seconds} s, {stored.model}")
        if not _rising(stored.past, stored.steps, end):
            raise ValueError("stored expirations that do not rise")
        expiry = Expiry(seconds, model)
        expiry._past, expiry._steps, expiry._gone = stored.past, deque(stored.steps), gone
        expiry._lives, expiry._times = groups, list(groups)
        heapify(expiry._times)
        for group in groups.values():
            expiry._held += len(group)
            expiry._pending |= group
        if expiry._held != len(expiry._pending) or gone & expiry._pending:
            raise ValueError("stored expirations of one message twice")
        return expiry


def _rising(past: int, steps: Iterable[_Step], end: int) -> bool:
    time = None
    for step in steps:
        if not 0 <= past <= step.first < step.end <= end or (time is not None and step.timestamp <= time):
            return False
        past, time = step.end, step.timestamp
    return 0 <= past <= end


def _cut(numbers: BitMap64, below: int) -> None:
    """Takes out what is below `below`."""
    if numbers and numbers.min() < below:
        numbers.remove_range(numbers.min(), below)


def _set_of(rising: list[int]) -> BitMap64:
    if rising[-1] - rising[0] + 1 == len(rising):
        return BitMap64(range(rising[0], rising[-1] + 1))
    return BitMap64(rising)
