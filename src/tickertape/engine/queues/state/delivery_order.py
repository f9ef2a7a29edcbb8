"""Delivery order: orders ready messages by priority, then by age, up to the next barrier.

Priorities are computed when messages enter. Consumers are chosen elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Final

import numpy as np
from pyroaring import BitMap64

from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import priorities_max
from tickertape.engine.queues.state.bit_sliced_index import BitSlices, below, first_places
from tickertape.engine.queues.state.messages import QueueMessages

_SWEEP_MIN: Final = 65_536
_WALK_MAX: Final = 64
"""Maximum number of levels without a deliverable message, before the remaining levels are searched
together."""


class DeliveryOrder:
    """Delivery order of the messages in `state`. `prioritised`: they have priorities."""

    def __init__(self, state: QueueMessages, *, prioritised: bool) -> None:
        self._state = state
        self._prioritised = prioritised
        if prioritised:
            state.watch_woken()
        self._levels: dict[int, BitMap64] = {}
        """Messages by priority. Some of them may have left the queue."""
        self._known: list[int] = []
        """Priorities in `_levels`, ascending."""
        self._rising: list[int] = []
        """Priorities that may have a ready message, ascending. Others are skipped until one becomes ready."""
        self._priorities = BitSlices()
        """Priority of each message in `_levels`."""
        self._shared: set[int] = set()
        """Priorities whose set is shared with a snapshot. A shared set is copied before it changes."""
        self._held = 0
        self._unswept = 0
        """Messages added since the last sweep."""
        self.barriers = BitMap64()
        """Barriers that are not delivered yet."""

    # -- inputs -----------------------------------------------------------------------------------------

    def enter(self, positions: Int64s, priorities: Iterable[int] | None, barriers: BitMap64 | None) -> None:
        """Add messages, with a priority for each, and the barriers among them."""
        if barriers:
            self.barriers |= barriers
        if priorities is None:
            return
        grouped: dict[int, list[int]] = {}
        for position, priority in zip(positions.tolist(), priorities, strict=True):
            grouped.setdefault(priority, []).append(position)
        held = {priority: self._put(priority, BitMap64(chosen)) for priority, chosen in grouped.items()}
        self._priorities.put_each(positions, np.array([held[at] for at in priorities], np.uint64))

    def _put(self, priority: int, positions: BitMap64) -> int:
        """Add messages of one priority. Return the priority that they are assigned."""
        level = self._levels.get(priority)
        if level is None:
            # At least as many messages enter between two sweeps, because a sweep may find nothing to remove.
            if len(self._levels) >= priorities_max and self._unswept >= priorities_max:
                self._sweep()
            if len(self._levels) >= priorities_max:
                priority = self._known[max(bisect_right(self._known, priority) - 1, 0)]
                level = self._levels[priority]
            else:
                level = self._levels[priority] = BitMap64()
                insort(self._known, priority)
        if priority in self._shared:
            self._shared.discard(priority)
            level = self._levels[priority] = level.copy()
        level |= positions
        self._activate(priority)
        self._held += len(positions)
        self._unswept += len(positions)
        if self._held > 2 * (self._state.depth + _SWEEP_MIN):
            self._sweep()
        return priority

    def delivered(self, positions: BitMap64) -> None:
        """Remove delivered messages from the barriers. Later messages no longer wait for them."""
        if self.barriers:
            self.barriers -= positions

    def left(self, positions: BitMap64) -> None:
        """Remove messages that have left the queue."""
        self.delivered(positions)

    # -- outputs ----------------------------------------------------------------------------------------

    def next(self, count: int, among: BitMap64 | None = None, judged: int | None = None) -> Int64s:
        """Return the positions of the next `count` messages at most, in delivery order.

        `among` restricts the ready messages. Messages at or above `judged` are not returned."""
        limit = self.limit()
        if judged is not None:
            limit = judged if limit is None else min(limit, judged)
        if self._prioritised:
            return self._foremost(count, among, limit)
        ready = self._state.ready
        found = first_places(ready if among is None else ready & among, count)
        return found if limit is None else found[: found.searchsorted(limit)]

    def limit(self) -> int | None:
        """Return the position at or above which nothing may be delivered now, or None."""
        if not self.barriers:
            return None
        barrier = int(self.barriers.min())
        oldest = self._state.oldest_unsettled()
        # A barrier is next when it is the oldest message. Later messages wait until it is delivered.
        return barrier + 1 if oldest == barrier else barrier

    def snapshot(self) -> tuple[BitMap64, dict[int, BitMap64]]:
        """Return the barriers and the messages by priority. Some of these may have left the queue.

        The returned sets never change. Sets of priorities are shared and copied on the next write, because
        they may be numerous."""
        self._shared = set(self._levels)
        return self.barriers.copy(), dict(self._levels)

    def restore(self, barriers: BitMap64, levels: Iterable[tuple[int, BitMap64]]) -> None:
        """Restore a stored order. Raises `ValueError` for an invalid one."""
        self.barriers = barriers
        seen = BitMap64()
        for priority, positions in levels:
            if not 0 <= priority < 1 << 64 or seen & positions:
                raise ValueError("a stored priority is invalid, or a message has two priorities")
            seen |= positions
            self._priorities.put(positions, self._put(priority, positions))
        if self._prioritised and (self._state.ready | self._state.inactive) - seen:
            raise ValueError("a stored message has no priority")

    # -- internals --------------------------------------------------------------------------------------

    def _foremost(self, count: int, among: BitMap64 | None, limit: int | None) -> Int64s:
        """Select by priority, from the highest level down.

        After `_WALK_MAX` levels without a match, the remaining levels are searched together."""
        self._wake()
        ready, rising = self._state.ready, self._rising
        found: list[Int64s] = []
        asleep: list[int] = []
        left, fruitless, at = count, 0, len(rising)
        while left > 0 and at and fruitless < _WALK_MAX:
            at -= 1
            waiting = self._levels[rising[at]] & ready
            if not waiting:
                asleep.append(rising[at])
                continue
            fits = self._fitting(waiting, among, limit)
            if fits:
                found.append(first_places(fits, left))
                left -= len(found[-1])
            else:
                fruitless += 1
        if left > 0 and at:
            others = self._fitting(ready if among is None else ready & among, None, limit)
            if found:
                others = others - BitMap64(np.concatenate(found).astype(np.uint64))
            found.append(self._priorities.highest_first(self._priorities.highest(others, left)))
        for priority in asleep:
            self._put_to_sleep(priority)
        return np.concatenate(found) if found else np.empty(0, I8)

    @staticmethod
    def _fitting(positions: BitMap64, among: BitMap64 | None, limit: int | None) -> BitMap64:
        if among is not None:
            positions = positions & among
        return positions if limit is None else below(positions, limit)

    def _activate(self, priority: int) -> None:
        """Record that a message of this priority may be ready."""
        at = bisect_left(self._rising, priority)
        if at == len(self._rising) or self._rising[at] != priority:
            self._rising.insert(at, priority)

    def _wake(self) -> None:
        """Activate the priorities of messages that became ready again."""
        woken = self._state.take_woken()
        if woken:
            for priority in np.unique(self._priorities.numbers(woken)).tolist():
                if priority in self._levels:
                    self._activate(priority)

    def _put_to_sleep(self, priority: int) -> None:
        """Deactivate a priority without ready messages, so that deliveries skip it."""
        del self._rising[bisect_left(self._rising, priority)]
        if not self._state.has(self._levels[priority]):
            gone = self._levels.pop(priority)
            del self._known[bisect_left(self._known, priority)]
            self._held -= len(gone)
            self._priorities.forget(gone)

    def _sweep(self) -> None:
        """Remove messages that have left the queue."""
        self._held = self._unswept = 0
        kept = BitMap64()
        for priority in list(self._levels):
            level = self._state.has(self._levels[priority])
            if level:
                self._levels[priority] = level
                self._held += len(level)
                kept |= level
            else:
                del self._levels[priority]
        self._priorities.keep(kept)
        self._known = sorted(self._levels)
        self._rising = [priority for priority in self._rising if priority in self._levels]
