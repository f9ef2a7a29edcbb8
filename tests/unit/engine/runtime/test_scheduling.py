"""Deadline queue against a plain dictionary, without memory for dropped items."""

from __future__ import annotations

from random import Random

from tickertape.engine.runtime.scheduling import DeadlineQueue


def test_deadline_queue_matches_a_dictionary() -> None:
    rng = Random(1)
    agenda: DeadlineQueue[int] = DeadlineQueue()
    plain: dict[int, int] = {}
    for _ in range(20_000):
        item, at = rng.randrange(200), rng.randrange(1000)
        match rng.randrange(8):
            case 0:
                agenda.drop(item)
                plain.pop(item, None)
            case 1:
                reached = rng.randrange(300)
                due = agenda.due(reached)
                assert sorted(due) == sorted(i for i, a in plain.items() if a <= reached)
                assert [plain[i] for i in due] == sorted(plain[i] for i in due)
                for one in due:
                    del plain[one]
            case _:
                agenda.put(item, at)
                plain[item] = at
        assert agenda.first() == min(plain.values(), default=None)
        assert len(agenda) == len(plain)
        assert len(agenda._heap) <= 2 * len(plain) + 65


def test_dropped_deadlines_take_no_memory() -> None:
    agenda: DeadlineQueue[int] = DeadlineQueue()
    for number in range(10_000):
        agenda.put(number, 10**15 + number)
        agenda.drop(number)
    assert len(agenda._heap) <= 65


def test_items_due_together_keep_the_insertion_order() -> None:
    agenda: DeadlineQueue[str] = DeadlineQueue()
    for name in "cab":
        agenda.put(name, 5)
    assert agenda.due(5) == ["c", "a", "b"]
    assert agenda.due(5) == []
