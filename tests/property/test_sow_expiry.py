"""Life queue against a dict of ends: each record expires once, in time, and never early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tickertape.engine.sow.state.expiry import NEVER, LifeQueue

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
SLOTS = st.integers(0, 6) | st.integers(65_534, 65_540)
LIVES = (
    st.sampled_from([0, -1, 1, SECOND, 2 * SECOND, 64 * SECOND, 4_096 * SECOND])
    | st.integers(-100 * SECOND, 100 * SECOND)
    | st.integers(0, 10**16)
)
ENDS = st.sampled_from([0, NEVER]) | LIVES
SETS = st.tuples(st.just("set"), st.lists(st.tuples(SLOTS, ENDS), max_size=8))
STEPS = st.one_of(
    SETS,
    st.tuples(st.just("set each"), st.lists(st.tuples(SLOTS, ENDS), max_size=8)),
    st.tuples(st.just("delete"), st.lists(st.tuples(SLOTS, st.just(0)), max_size=3)),
    st.tuples(st.just("clock"), st.lists(st.tuples(st.just(0), LIVES), min_size=1, max_size=1)),
    st.tuples(st.just("expire"), st.lists(st.tuples(st.integers(1, 5), st.just(0)), min_size=1, max_size=1)),
)


class Model:
    """Ends of the records by slot, the queue, and the clock."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.queue = LifeQueue()
        self.now = START

    def absolute(self, end: int) -> int:
        return end if end in (0, NEVER) else max(self.now + end, 1)

    def set(self, rows: Sequence[tuple[int, int]], *, each: bool) -> None:
        rows = [(slot, self.absolute(end)) for slot, end in rows]
        if each:
            for slot, end in rows:
                self.queue.add_one(slot, end)
        else:
            columns = np.array(rows, np.int64).reshape(-1, 2)
            self.queue.add(columns[:, 0], columns[:, 1])
        self.ends |= dict(rows)

    def expire(self, limit: int) -> None:
        for _ in range(1_000):
            at = self.queue.next_due()
            if at is None or at > self.now:
                break
            slots = self.queue.due(self.now, limit)
            assert len(slots) <= limit
            ends = np.array([self.ends.get(slot, 0) for slot in slots.tolist()], np.int64)
            over = self.queue.confirm(slots, ends, self.now).tolist()
            assert over == [slot for slot in slots.tolist() if 0 < self.ends.get(slot, 0) <= self.now]
            for slot in over:
                del self.ends[slot]
        else:
            raise AssertionError("the queue remains due")
        whole = self.now // SECOND * SECOND
        assert not [slot for slot, end in self.ends.items() if 0 < end <= whole]

    def check_next(self) -> None:
        ends = [end for end in self.ends.values() if 0 < end < NEVER]
        at = self.queue.next_due()
        assert not ends or (at is not None and at <= -(-min(ends) // SECOND) * SECOND)


@given(st.lists(STEPS, max_size=25))
def test_life_queue_equals_a_dict_of_ends(steps: list[tuple[str, list[tuple[int, int]]]]) -> None:
    model = Model()
    for step, rows in steps:
        if step == "set" or step == "set each":
            model.set(rows, each=step == "set each")
        elif step == "delete":
            for slot, _ in rows:
                model.ends.pop(slot, None)
        elif step == "clock":
            model.now = max(model.now + rows[0][1], SECOND)
        else:
            model.expire(rows[0][0])
        model.check_next()
    model.expire(5)
