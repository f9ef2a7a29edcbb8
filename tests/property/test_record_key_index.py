"""Queries by generated keys with an index of record keys equal those that examine all records."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.sow_queries import Answer, QueryWorld, encode_key
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query.query import StateQuery
from tickertape.engine.sow.state import record_key_index
from tickertape.payload.canonical import generated_key

KEYS = 60
NUMBERS = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=20, unique=True)


def name_of(number: int) -> str:
    return generated_key("orders", encode_key(number))


class RecordKeyMachine(RuleBasedStateMachine):
    """Commits, steps of the index, and queries. Few hashes are distinct."""

    @initialize(hashes=st.sampled_from([2, 7, 1 << 40]), scalar=st.sampled_from([0, 64]))
    def start(self, hashes: int, scalar: int) -> None:
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(record_key_index, "hash", lambda name: hash(name) % hashes, raising=False)
        self.patches.setattr(record_key_index, "record_key_step_max", 7)
        self.patches.setattr(record_key_index, "record_key_scalar_max", scalar)
        self.world = QueryWorld(SowDefinition("orders", key=("/id",)))
        self.running: list[tuple[StateQuery, Answer]] = []
        self.version = 0

    def teardown(self) -> None:
        if hasattr(self, "patches"):
            self.patches.undo()

    def slots(self) -> int:
        return self.world.fold.records.slot_end

    @rule(numbers=NUMBERS)
    def publish(self, numbers: list[int]) -> None:
        self.version += 1
        self.world.publish([(number, b'{"v":%d}' % self.version) for number in numbers])

    @rule(numbers=NUMBERS)
    def delete(self, numbers: list[int]) -> None:
        self.world.delete([encode_key(number) for number in numbers])

    @rule()
    def care(self) -> None:
        while self.world.fold.has_care:
            self.world.fold.care()

    @rule()
    def begin_index(self) -> None:
        if not self.world.record_keys.active:
            self.world.record_keys.begin(self.world.fold.records)

    @rule(steps=st.integers(1, 9))
    def step_index(self, steps: int) -> None:
        for _ in range(steps):
            self.world.record_keys.step(self.world.fold.keys, self.world.fold.records)

    @rule()
    def give_up_index(self) -> None:
        self.world.record_keys.give_up()

    @rule(numbers=NUMBERS, top=st.sampled_from([None, 3]))
    def open(self, numbers: list[int], top: int | None) -> None:
        names = [*map(name_of, numbers), "no key of a record"]
        terms = self.world.terms(names=names, top_n=top)
        scan = terms._replace(source=terms.source._replace(slots=None))
        self.running.append((self.world.start(terms), self.world.answer(self.world.start(scan))))

    @precondition(lambda self: self.running)
    @rule()
    def finish(self) -> None:
        query, expected = self.running.pop(0)
        answer = self.world.answer(query)
        assert (answer.bodies, answer.marks) == (expected.bodies, expected.marks)
        assert answer.matches == expected.matches

    @invariant()
    def index_has_no_other_slots(self) -> None:
        if hasattr(self, "world") and self.world.record_keys.ready:
            found = self.world.record_keys.candidates([name_of(number) for number in range(KEYS)])
            assert found is not None
            assert found.tolist() == self.world.fold.records.live_slots(0, self.slots()).tolist()


TestRecordKeyIndex = RecordKeyMachine.TestCase
