"""Lists of places and bookmarks with which subscriptions resume: the work of one step is bounded."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.linked import publish, run
from tests.simulation.linked_engine import LinkedEngine
from tickertape.base.bookmarks import AtBookmarks, Bookmark, place_at
from tickertape.base.names import place_id
from tickertape.engine.replication.subscribers import persisted_places
from tickertape.engine.replication.subscribers.persisted_facts import PersistedFacts
from tickertape.engine.subscriptions.start_position import resolve


def started() -> tuple[LinkedEngine, PersistedFacts]:
    """Return an engine that has restarted, and its facts."""
    engine = LinkedEngine(1, 0, (), Counter())
    publish(engine, 20)
    for _ in range(3):
        engine.restart()
    run(engine)
    facts = engine.broker._persisted_facts
    assert facts is not None
    return engine, facts


def test_places_of_unknown_logs_hash_the_starts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, facts = started()
    hashed: Counter[int] = Counter()

    def counting(log: bytes, start: int) -> int:
        hashed[start] += 1
        return place_id(log, start)

    monkeypatch.setattr(persisted_places, "place_id", counting)
    assert [facts.position(place_at(unknown, 5)) for unknown in range(1, 50)] == [None] * 49
    assert len(hashed) > 1
    assert set(hashed.values()) == {1}


def test_search_for_many_holes_of_one_publisher_lets_other_work_run() -> None:
    engine, facts = started()
    own = place_at(1, 0)
    holes = [Bookmark(7, 10 * number) for number in range(1, 201)]
    search = resolve(
        engine.broker.journal, AtBookmarks((*holes, own)), 0, "epoch", 0, topic="orders", places=facts
    )
    pauses = [*search]
    assert pauses == [None] * len(pauses)
    assert len(pauses) >= 6
