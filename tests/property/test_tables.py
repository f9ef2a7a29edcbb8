"""Table state against a dict, with random results, messages and calls of `take_changed`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.table_batches import Row, key, messages, records
from tickertape.client.sow.table import TableKey, TableState

IDS = st.integers(0, 9)
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
RESULT = st.tuples(st.just("result"), st.sets(IDS), CUTS)
"""Ids without a record in the result: their records were removed. And the sizes of its batches."""
ABORTED = st.tuples(st.just("aborted"), st.sets(IDS), CUTS)
MESSAGES = st.tuples(st.just("messages"), st.lists(IDS, min_size=1, max_size=8))
CHANGED = st.tuples(st.just("changed"))
STEPS = st.lists(st.one_of(RESULT, ABORTED, MESSAGES, MESSAGES, CHANGED), max_size=30)


class Model:
    """The records at the server, those of the table, and the changes that the application has not read."""

    def __init__(self) -> None:
        self.sequence = 0
        self.server: dict[int, int] = {}
        self.table: dict[int, int] = {}
        self.touched: set[int] = set()
        self.known: set[int] = set()
        """Ids at the last call of `take_changed`."""

    def publish(self, ids: Sequence[int], *, delivered: bool) -> list[Row]:
        rows = []
        for identifier in ids:
            self.sequence += 1
            self.server[identifier] = self.sequence
            rows.append((identifier, self.sequence))
            if delivered:
                self.table[identifier] = self.sequence
                self.touched.add(identifier)
        return rows

    def complete(self) -> None:
        for identifier in self.server.keys() | self.table.keys():
            if self.server.get(identifier) != self.table.get(identifier):
                self.touched.add(identifier)
        self.table = dict(self.server)

    def take_changed(self) -> set[TableKey]:
        changed: set[TableKey] = {key(one) for one in self.touched if one in self.known or one in self.table}
        self.touched, self.known = set(), set(self.table)
        return changed


def check(state: TableState, model: Model) -> None:
    found = {name: message.sequence for name, message in state.by_key.items()}
    assert found == {key(one): sequence for one, sequence in model.table.items()}
    for name, message in state.by_key.items():
        assert message.json()["n"] == message.sequence
        assert message.batch.body(message.index) == message.data
        assert message.sow_key == name
    batches = {message.batch for message in state.by_key.values()}
    for batch in batches:
        kept = [message.data for message in state.by_key.values() if message.batch is batch]
        assert batch.count == len(kept) or 2 * len(kept) >= batch.count
        assert batch.count == len(kept) or 2 * sum(map(len, kept)) >= batch.body_bytes
    if state.complete:
        assert state.kept_batches == len(batches)


def send_result(state: TableState, model: Model, cuts: Sequence[int]) -> None:
    rows = sorted(model.server.items(), key=lambda row: row[1])
    size = cuts[0]
    for at in range(0, len(rows), size):
        state.take(records(rows[at : at + size]))


@pytest.mark.behaviour(55)
@pytest.mark.behaviour(56)
@given(STEPS)
def test_table_equals_a_dict_of_the_records(steps: list[tuple[object, ...]]) -> None:
    model, state = Model(), TableState("t", 10)
    state.begin(restarted=False)
    state.end("0", 0)
    for step in steps:
        match step:
            case ("messages", list(ids)):
                state.take(messages(model.publish(ids, delivered=True)))
            case ("changed",):
                assert state.take_changed() == model.take_changed()
            case (str(kind), set(removed), list(cuts)):
                # Changes while the client is disconnected.
                model.publish(sorted(removed)[::2], delivered=False)
                for identifier in sorted(removed)[1::2]:
                    model.server.pop(identifier, None)
                state.begin(restarted=True)
                send_result(state, model, cuts)
                if kind == "aborted":
                    check(state, model)
                    state.begin(restarted=True)
                    send_result(state, model, cuts[::-1])
                state.end("0", len(model.server))
                model.complete()
        check(state, model)
    assert state.is_changed == bool(model.take_changed())
