"""Queries with columns in random programs: results equal those that read all bodies at the same position.

Filters and values are odd, and records are updated, deleted and expired during the searches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from tests.helpers.index_filters import index_filter, odd_body
from tests.helpers.small_columns import make_columns_small
from tests.helpers.sow_queries import Answer, QueryWorld, encode_key
from tickertape.base.errors import BadFilter
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.query import record_copy
from tickertape.engine.sow.query.query import StateQuery
from tickertape.engine.sow.state import change
from tickertape.engine.sow.state.delete import DeleteKind
from tickertape.filter.index.columns import ColumnReading, ValueColumns

KEYS = 40
PATTERN = SowDefinition("orders", pattern="^t/")
TYPES = {"t/json": "json", "t/nvfix": "nvfix", "t/binary": "binary"}


class Running(NamedTuple):
    """A query, and the answer that it must have."""

    query: StateQuery
    expected: Answer
    text: str


class Program:
    """Random actions on the records of one message type, or of several with `pattern`."""

    def __init__(self, seed: int, kind: str, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self.kind = kind
        if kind == "pattern":
            self.world = QueryWorld(PATTERN, **TYPES)
        else:
            self.world = QueryWorld(SowDefinition("orders"), orders=kind)
        self.running: list[Running] = []
        self.filters = [*self._filters()]

    def _filters(self) -> Iterator[str]:
        for _ in range(3):
            text = index_filter(self.rng, flat=self.kind in ("nvfix", "pattern"))
            try:
                self.world.content(text)
            except BadFilter:
                continue
            yield text
        yield "/a >= 5 AND /b = 'x'"

    def act(self) -> None:
        """Take one random action."""
        rng = self.rng
        actions = self._publish, self._remove, self._ask, self._step, self._care, self._time, self._memory
        rng.choices(actions, (6, 2, 6, 12, 2, 1, 1))[0]()

    def finish(self) -> None:
        """Compare all queries with their answers."""
        for query, expected, text in self.running:
            answer = self.world.answer(query)
            assert answer.bodies == expected.bodies, text
            assert (answer.marks, answer.keys) == (expected.marks, expected.keys), text
            assert answer[2:] == expected[2:], text
            self.counts["some records"] += 0 < answer.matches < answer.topic_matches
        self.running.clear()

    def _publish(self) -> None:
        rng = self.rng
        chosen = rng.sample(range(KEYS), rng.choice((1, 5, 33)))
        topics = [rng.choice([*TYPES]) for _ in chosen]
        kinds = [TYPES[topic] if self.kind == "pattern" else self.kind for topic in topics]
        bodies = [odd_body(rng, "json" if kind == "binary" else kind) for kind in kinds]
        names = topics if self.kind == "pattern" else None
        self.world.publish([(str(key), body) for key, body in zip(chosen, bodies, strict=True)], topics=names)

    def _remove(self) -> None:
        kind = self.rng.choice([DeleteKind.DELETED, DeleteKind.EXPIRED])
        self.world.delete(self._keys(self.rng.randrange(1, 9)), kind=kind)

    def _step(self) -> None:
        for running in self.running:
            running.query.step()

    def _care(self) -> None:
        if self.world.fold.has_care:
            self.world.fold.care()

    def _time(self) -> None:
        self.world.clock.mono += self.rng.choice((1, 59, 61, 601))
        self.world.column_memory.wake()

    def _memory(self) -> None:
        self.world.column_memory.fit(self.rng.choice((0, 200, 1 << 20, 1 << 20, 1 << 20)))

    def _keys(self, count: int) -> list[bytes]:
        chosen = [str(key) for key in self.rng.sample(range(KEYS), count)]
        if self.kind != "pattern":
            return [encode_key(key) for key in chosen]
        return [encode_key([topic, key]) for key in chosen for topic in TYPES]

    def _ask(self) -> None:
        text = self.rng.choice(self.filters)
        exact = self.world.start(self.world.terms(text, columns=False))
        expected = self.world.answer(exact)
        terms = self.world.terms(text)
        self.counts["searches"] += terms.source.search is not None
        self.running.append(Running(self.world.start(terms), expected, text))
        if len(self.running) > 4:
            self.finish()


def run(seed: int, kind: str, counts: Counter[str]) -> None:
    program = Program(seed, kind, counts)
    for _ in range(80):
        program.act()
    program.finish()


@pytest.fixture(scope="module", autouse=True)
def _small_steps() -> Iterator[None]:
    """Let segments and steps be small, so that records change during each search."""
    with pytest.MonkeyPatch.context() as patches:
        make_columns_small(patches)
        patches.setattr(record_copy, "query_step_keys_max", 4)
        patches.setattr(change, "sow_changes_piece_rows", 7)
        yield


@pytest.mark.parametrize("kind", ["json", "messagepack", "nvfix", "pattern"])
def test_columns_change_no_result_of_many_programs(kind: str, full: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in range(500 if full else 40):
        run(seed, kind, counts)
    assert counts["searches"] > 100
    assert counts["some records"] > 100


def test_body_is_read_once_by_all_queries_after_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueryWorld(SowDefinition("orders"))
    world.publish([(str(key), msgspec.json.encode({"a": key})) for key in range(KEYS)])
    read: list[int] = []
    reading = ColumnReading.read

    def counted(self: ColumnReading, bodies: list[bytes]) -> ValueColumns:
        read.append(len(bodies))
        return reading(self, bodies)

    monkeypatch.setattr(ColumnReading, "read", counted)
    for expected in (0, KEYS, KEYS):
        assert world.query("/a > 37").matches == 2
        assert sum(read) == expected
    world.publish([("7", msgspec.json.encode({"a": 39}))])
    assert world.query("/a > 37").matches == 3
    assert sum(read) == KEYS + 1
