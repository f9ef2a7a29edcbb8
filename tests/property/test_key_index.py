"""Key table against a dict: any program of insertions, removals and releases has exact answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tickertape.batch.format import I8, Labels, offsets_from
from tickertape.engine.sow.state.key_blocks import KeyBlocks
from tickertape.engine.sow.state.key_index import KeyTable

KEYS_MAX = 400
FORMS = ("%d", "%012d", "%013d", "a long key with a common prefix %d", "%x")


def _key(number: int) -> bytes:
    form = FORMS[number % len(FORMS)]
    return (form % number).encode() + (b"h" if form == "%x" else b"")


KEYS = [_key(number) for number in range(KEYS_MAX)]
NUMBERS = {key: number for number, key in enumerate(KEYS)}


class QuadrupletKeys(KeyTable):
    """Table in which four keys at a time have one hash."""

    hash_of = staticmethod(lambda key: NUMBERS[bytes(key)] // 4)


class DistinctKeys(KeyTable):
    """Table whose hashes do not depend on the process."""

    hash_of = staticmethod(lambda key: NUMBERS[bytes(key)] << 21)


class Step(NamedTuple):
    """One call for some of the possible keys."""

    action: str
    start: int
    stride: int
    length: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(("insert", "remove", "release", "replace", "retire")),
        st.integers(0, KEYS_MAX - 1),
        st.sampled_from((1, 3, 7)),
        st.one_of(st.integers(0, 5), st.integers(30, KEYS_MAX)),
    ),
    min_size=3,
    max_size=30,
)


CHURN = list[Step]()
"""A program that compacts long keys, and meanwhile reuses slots of others."""
for _start in range(5):
    CHURN += [
        Step("insert", 0, 1, KEYS_MAX),
        Step("retire", _start, 3, 133),
        Step("retire", _start + 1, 3, 133),
    ]
    CHURN += [Step("insert", 30 * _start, 7, 20), Step("insert", 0, 3, 40), Step("replace", 1, 3, 100)]
    CHURN += [Step("release", 0, 1, KEYS_MAX)]


class Model:
    """The same state in dicts."""

    def __init__(self) -> None:
        self.live: dict[bytes, int] = {}
        self.removed: dict[int, bytes] = {}
        self.free: set[int] = set()

    def perform(self, table: KeyTable, step: Step) -> None:
        chosen = [KEYS[(step.start + step.stride * n) % KEYS_MAX] for n in range(step.length)]
        if step.action == "insert":
            self.insert(table, [key for key in dict.fromkeys(chosen) if key not in self.live])
        elif step.action == "remove":
            self.remove(table, [key for key in dict.fromkeys(chosen) if key in self.live])
        elif step.action == "replace":
            gone = [key for key in dict.fromkeys(chosen) if key in self.live]
            self.remove(table, gone)
            self.insert(table, gone)
        else:
            if step.action == "retire":
                self.remove(table, [key for key in dict.fromkeys(chosen) if key in self.live])
            self.release(table, set(chosen))

    def insert(self, table: KeyTable, keys: list[bytes]) -> None:
        end = table.slots
        slots = table.insert(keys).tolist()
        reused = [slot for slot in slots if slot < end]
        assert set(reused) <= self.free
        assert len(reused) == min(len(keys), len(self.free))
        assert sorted(slot for slot in slots if slot >= end) == list(range(end, table.slots))
        self.free.difference_update(reused)
        self.live |= zip(keys, slots, strict=True)

    def remove(self, table: KeyTable, keys: list[bytes]) -> None:
        slots = [self.live.pop(key) for key in keys]
        table.remove(np.array(slots, I8))
        self.removed |= zip(slots, keys, strict=True)

    def release(self, table: KeyTable, keys: set[bytes]) -> None:
        slots = [slot for slot, key in self.removed.items() if key in keys]
        table.release(np.array(slots, I8))
        for slot in slots:
            del self.removed[slot]
        self.free.update(slots)

    def check(self, table: KeyTable) -> None:
        assert len(table) == len(self.live)
        assert table.slots == len(self.live) + len(self.removed) + len(self.free)
        assert table.find(KEYS).tolist() == [self.live.get(key, -1) for key in KEYS]
        few = KEYS[len(self.live) % KEYS_MAX :: 60]
        assert table.find(few).tolist() == [self.live.get(key, -1) for key in few]
        keys = {slot: key for key, slot in self.live.items()} | self.removed
        assert table.keys_of(np.array([*keys], I8)) == [*keys.values()]
        for slot in [*keys][:3]:
            assert table.keys_of(np.array([slot], I8)) == [keys[slot]]
        assert set(np.flatnonzero(table.live()).tolist()) == set(self.live.values())


@example(CHURN, DistinctKeys, 32, False)
@example(CHURN, QuadrupletKeys, 0, True)
@given(STEPS, st.sampled_from((QuadrupletKeys, DistinctKeys)), st.sampled_from((0, 32, 1_000)), st.booleans())
def test_key_table_equals_a_dict(
    steps: list[Step], kind: type[KeyTable], scalar_max: int, slowly: bool
) -> None:
    step_max = 8 if slowly else 4_096
    table = kind(bytes(16), step_max=step_max, scalar_max=scalar_max, blocks=KeyBlocks(256))
    model = Model()
    for step in steps:
        moved = table.entries_moved
        model.perform(table, step)
        assert table.entries_moved - moved <= step_max * (1 + (step.action == "replace"))
        model.check(table)


def _column(keys: list[bytes]) -> Labels:
    return Labels(offsets_from(np.array([*map(len, keys)], np.int32)), b"".join(keys))


@example([(True, [*range(KEYS_MAX)]), (False, [*range(0, KEYS_MAX, 3)]), (True, [*range(0, KEYS_MAX, 5)])])
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, KEYS_MAX - 1), unique=True, max_size=60)),
        max_size=8,
    )
)
def test_filled_key_table_has_the_last_row_of_each_key(columns: list[tuple[bool, list[int]]]) -> None:
    for kind in (QuadrupletKeys, DistinctKeys):
        table = kind(bytes(16), blocks=KeyBlocks(256))
        keys = [[KEYS[number] for number in numbers] for _, numbers in columns]
        found = table.fill([_column(column) for column in keys], [present for present, _ in columns])
        last = {key: (n, row) for n, column in enumerate(keys) for row, key in enumerate(column)}
        rows = sorted(place for place in last.values() if columns[place[0]][0])
        slots = {place: slot for slot, place in enumerate(rows)}
        wanted = [[slots.get((n, row), -1) for row in range(len(column))] for n, column in enumerate(keys)]
        assert [column.tolist() for column in found] == wanted
        model = Model()
        model.live = {
            keys[n][row]: slot for (n, row), slot in slots.items() if last[keys[n][row]] == (n, row)
        }
        model.check(table)
        model.perform(table, Step("insert", 7, 3, 90))
        model.perform(table, Step("replace", 0, 7, 90))
        model.perform(table, Step("retire", 1, 3, 90))
        model.check(table)
