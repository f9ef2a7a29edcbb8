"""Queries of a state under random commits: they equal a sorted copy of the records at their position.

The oracle is a dict of decoded messages, `sorted`, and plain Python conditions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.record_rows import open_scans
from tests.helpers.sow_model import Published
from tests.helpers.sow_model import query as model_query
from tests.helpers.sow_queries import QueryWorld, encode_key, sorted_by
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query import query as query_module
from tickertape.engine.sow.query import record_copy
from tickertape.engine.sow.query.few_records import FewRecords, few_records
from tickertape.engine.sow.query.query import StateQuery

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [2**53, 2**53 + 1, float(2**53), -1.5, 0.5, 2**64, "", "a", "b", "\uffff", "\U00010000", "10", "9"]
    ),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.just({"x": 1}))
SIMPLE = st.one_of(st.none(), st.integers(-2, 2), st.sampled_from(["a", "b", "é"]))
FIELDS = st.lists(st.tuples(st.sampled_from("vw"), st.booleans(), st.booleans()), max_size=3)
FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "/g = 1": lambda document: document["g"] == 1,
    "/g IN (0, 2) AND /id != 3": lambda document: document["g"] in (0, 2) and document["id"] != 3,
    "/g = '2' AND /id IN (1, 4, 9)": lambda document: document["g"] == 2 and document["id"] in (1, 4, 9),
    "CORRELATION_ID() = 'ä1'": lambda document: document["label"] == "ä1",
    "CORRELATION_ID() IS NULL AND /g = 1": lambda document: not document["label"] and document["g"] == 1,
    "CORRELATION_ID() LIKE '^b' OR /id = 3": lambda document: document["label"] == "b" or document["id"] == 3,
}


class Record(NamedTuple):
    """A record of the oracle."""

    position: int
    rank: tuple[int, int, int]
    """Order stamp, publisher, sequence."""
    body: bytes
    """It has the label as a field."""
    label: str
    """Correlation id, or empty."""


class Running(NamedTuple):
    """A query and the result that it must have."""

    query: StateQuery | FewRecords
    expected: list[Record]
    matches: int
    total: int
    select: bool
    batch_size: int


class QueryMachine(RuleBasedStateMachine):
    """Commits while queries run, in steps of few slots and rows."""

    @initialize(index=st.sampled_from([(), (("/g",),), (("/id", "/g"), ("/g",))]))
    def start(self, index: tuple[tuple[str, ...], ...]) -> None:
        self.world = QueryWorld(SowDefinition("orders", key=("/id",), index=index))
        self.records: dict[int, Record] = {}
        self.running: list[Running] = []
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(record_copy, "query_step_slots_max", 5)
        self.patches.setattr(record_copy, "query_step_keys_max", 4)
        self.patches.setattr(query_module, "query_piece_rows_max", 3)

    def teardown(self) -> None:
        if hasattr(self, "patches"):
            self.patches.undo()

    @rule(
        rows=st.lists(
            st.tuples(st.integers(0, 24), VALUES, SIMPLE, st.integers(0, 2)), min_size=1, max_size=12
        ),
        labels=st.one_of(
            st.just([""]), st.lists(st.sampled_from(["", "ä1", "b", "c" * 40]), min_size=1, max_size=5)
        ),
        publisher=st.sampled_from([3, 9, 2**63 + 5]),
        long=st.booleans(),
    )
    def publish(
        self, rows: list[tuple[int, Any, Any, int]], labels: list[str], publisher: int, long: bool
    ) -> None:
        first = self.world.sequences.get(publisher, 0) + 1
        messages = []
        for at, (number, v, w, group) in enumerate(rows):
            label = labels[at % len(labels)]
            document = {"id": number, "v": v, "w": w, "g": group, "long": "x" * 60 * long, "label": label}
            body = json.dumps(document, ensure_ascii=False).encode()
            rank = self.world.stamp + 1, publisher, first + at
            self.records[number] = Record(self.world.position + at, rank, body, label)
            messages.append((number, body))
        labels = [labels[at % len(labels)] for at in range(len(rows))]
        self.world.publish(messages, publisher, labels=labels)

    @rule(numbers=st.lists(st.integers(0, 24), min_size=1, max_size=8))
    def delete(self, numbers: list[int]) -> None:
        self.world.delete([encode_key(number) for number in numbers])
        for number in numbers:
            self.records.pop(number, None)

    @rule()
    def care(self) -> None:
        if self.world.fold.has_care:
            self.world.fold.care()

    @rule(
        fields=FIELDS,
        filter=st.one_of(st.none(), st.sampled_from([*FILTERS])),
        top=st.one_of(st.none(), st.tuples(st.integers(0, 8), st.integers(0, 8))),
        keys=st.one_of(st.none(), st.lists(st.integers(0, 30), max_size=12)),
        select=st.booleans(),
        batch_size=st.sampled_from([0, 1, 4]),
        few=st.booleans(),
    )
    def open(
        self,
        fields: list[tuple[str, bool, bool]],
        filter: str | None,
        top: tuple[int, int] | None,
        keys: list[int] | None,
        select: bool,
        batch_size: int,
        few: bool,
    ) -> None:
        order_by = ",".join(f"/{name}{' DESC' * down}{' TEXT' * text}" for name, down, text in fields)
        top_n, skip_n = top or (None, 0)
        canonical = None if keys is None else [encode_key(key) for key in keys]
        terms = self.world.terms(filter, order_by, keys=canonical, top_n=top_n, skip_n=skip_n)
        passes = FILTERS[filter] if filter else lambda _: True
        wanted = self.records.keys() if keys is None else self.records.keys() & set(keys)
        found = [self.records[number] for number in wanted]
        found = [record for record in found if passes(json.loads(record.body))]
        documents = [json.loads(record.body) for record in found]
        ranks = [record.rank if fields else record.position for record in found]
        expected = [found[at] for at in sorted_by(documents, fields, ranks)]
        part = expected[skip_n:] if top_n is None else expected[skip_n : skip_n + top_n]
        query: StateQuery | FewRecords | None = None
        if few:
            query = few_records(terms.source, self.world.position, top_n, skip_n)
        query = query or self.world.start(terms)
        self.running.append(Running(query, part, len(found), len(self.records), select, batch_size))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0), steps=st.integers(1, 3))
    def step(self, which: int, steps: int) -> None:
        query = self.running[which % len(self.running)].query
        for _ in range(steps):
            query.step()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0))
    def finish(self, which: int) -> None:
        running = self.running.pop(which % len(self.running))
        answer = self.world.answer(running.query, "+/id" if running.select else None, running.batch_size)
        bodies = [record.body for record in running.expected]
        if running.select:
            bodies = [b'{"id":%d}' % json.loads(body)["id"] for body in bodies]
        assert answer.bodies == bodies
        assert answer.labels == [record.label or None for record in running.expected]
        assert answer.marks == [
            (publisher - 2**64 * (publisher >= 2**63), sequence, stamp)
            for stamp, publisher, sequence in [record.rank for record in running.expected]
        ]
        assert (answer.matches, answer.topic_matches) == (running.matches, running.total)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0))
    def close(self, which: int) -> None:
        self.running.pop(which % len(self.running)).query.close()

    @precondition(lambda self: not self.records)
    @rule(values=st.lists(SIMPLE, min_size=1, max_size=30), descending=st.booleans())
    def compare_with_the_model(self, values: list[Any], descending: bool) -> None:
        self.publish(
            [(number, None, value, 0) for number, value in enumerate(values[:25])], [""], 3, long=False
        )
        model = {
            encode_key(number): Published(
                encode_key(number), r.rank[1], r.rank[2], r.rank[0], b"", json.loads(r.body)
            )
            for number, r in self.records.items()
        }
        expected = model_query(model, order_by=[("w", descending)], top_n=7, skip_n=2)
        answer = self.world.query(order_by=f"/w{' DESC' * descending}", top_n=7, skip_n=2)
        assert [json.loads(body) for body in answer.bodies] == [message.body for message in expected]

    @invariant()
    def closed_queries_hold_nothing(self) -> None:
        if not hasattr(self, "running"):
            return
        if not self.running:
            assert not open_scans(self.world.fold.changes)
            assert self.world.fold.records.blocks.held_bytes == 0


TestQueryMachine = QueryMachine.TestCase
