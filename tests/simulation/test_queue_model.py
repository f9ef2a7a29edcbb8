"""The oracle of queues itself: what it must object to, and what it must not."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.queue_checks import adds_up, at_rest
from tests.simulation.queue_entries import MICROS, SLACK, make_body
from tests.simulation.queue_model import Arrived, QueueModel
from tickertape.engine.runtime.queue_definition import QueueDefinition

NOON = 1_760_000_000 * MICROS
PUBLISHER, ACKNOWLEDGER = 7, 8


class Told:
    """An oracle with one queue `q`, told by hand."""

    def __init__(self, **told: Any) -> None:
        self.model = QueueModel([QueueDefinition("q", **told)], Counter())
        self.state = self.model.queues["q"]
        self.now = NOON
        self.sequence = 0
        self.settlements = 0

    def enter(self, count: int = 1, *, life_ms: int = 0, **body: Any) -> list[tuple[int, int]]:
        keys = []
        for _ in range(count):
            self.sequence += 1
            key = PUBLISHER, self.sequence
            raw = make_body(self.sequence, **body)
            self.model.persisted(Arrived(self.sequence, key, "q", raw, self.now, life_ms))
            keys.append(key)
        return keys

    def consume(self, sub_id: str = "s", backlog: int = 10, condition: str | None = None) -> None:
        self.model.subscribed(1, sub_id, ["q"], backlog, condition)

    def deliver(self, *keys: tuple[int, int], sub_id: str = "s") -> None:
        told = self.state.definition
        lease = 0
        if told.lease_period is not None and not told.at_most_once:
            lease = self.now + int(told.lease_period * MICROS)
        self.model.delivered(1, sub_id, "q", lease, told.at_most_once, keys, self.now)

    def settle(self, action: str, *keys: tuple[int, int], durable: bool = True, conn: int = 1) -> None:
        self.settlements += 1
        by = ACKNOWLEDGER, self.settlements
        self.model.settle(conn, "q", action, by, self.now, keys=keys)
        if durable:
            self.model.settled(by)

    def rest(self) -> None:
        """At rest, with an engine that agrees."""
        at_rest(self.model, [self.look()], self.now)

    def look(self, **other: int) -> Any:
        state = self.state
        gone = sum(e.why in ("acknowledged", "not sure") for e in state.of("done"))
        numbers = {
            "ready": len(state.of("ready")),
            "leased": len(state.of("leased")),
            "inactive": 0,
            "dooming": len(state.of("leaving", "returning")),
            "entered": len(state.entries),
            "acknowledged": gone,
            "taken": sum(e.why == "taken" for e in state.of("done")),
            "backlog": sum(len(consumer.held) for consumer in self.model.consumers.values()),
            "consumers": len(self.model.consumers),
        }
        done = len(state.of("done")) - gone - numbers["taken"]
        return SimpleNamespace(name="q", expired={"expiration": done}, returned={}, **{**numbers, **other})


def objects(told: Told, *keys: tuple[int, int], sub_id: str = "s", why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        told.deliver(*keys, sub_id=sub_id)


def test_a_message_has_one_lease_until_it_ends() -> None:
    told = Told(lease_period=10)
    told.consume()
    (key,) = told.enter()
    told.deliver(key)
    objects(told, key, why="two leases")
    told.now += 10 * MICROS
    told.deliver(key)
    assert told.state.entries[key].deliveries == (1, 1)


def test_what_is_acknowledged_never_comes_back() -> None:
    told = Told()
    told.consume()
    (key,) = told.enter()
    told.deliver(key)
    told.settle("ack", key, durable=False)
    objects(told, key, why="what has left")
    told.model.settled((ACKNOWLEDGER, 1))
    objects(told, key, why="what has left")
    told.model.restarted({(ACKNOWLEDGER, 1)}, [], now=told.now)
    told.consume()
    objects(told, key, why="what has left")


def test_what_was_acknowledged_and_not_durable_comes_again() -> None:
    told = Told()
    told.consume()
    (key,) = told.enter()
    told.deliver(key)
    told.settle("ack", key, durable=False)
    told.model.restarted(set(), [], now=told.now)
    told.consume()
    told.deliver(key)
    assert told.state.entries[key].deliveries == (0, 0), "a lease lost in a crash is not counted"


def test_a_return_that_is_not_durable_yet_may_be_lost_in_a_crash() -> None:
    told = Told(max_deliveries=2)
    told.consume()
    (key,) = told.enter()
    told.deliver(key)
    told.model.unsubscribed(1, "s")
    assert told.state.entries[key].deliveries == (1, 1)
    told.model.restarted(set(), [], now=told.now)
    assert told.state.entries[key].deliveries == (0, 1)


@pytest.mark.parametrize(("cancels", "left"), [(2, False), (3, True)])
def test_the_cancel_after_max_cancels_expires(cancels: int, left: bool) -> None:
    told = Told(max_cancels=2)
    told.consume()
    (key,) = told.enter()
    for _ in range(cancels):
        told.deliver(key)
        told.settle("cancel", key)
    assert (told.state.entries[key].why == "max_cancels") == left


@pytest.mark.parametrize(("times", "left"), [(1, False), (2, True)])
def test_the_last_unsuccessful_delivery_expires(times: int, left: bool) -> None:
    told = Told(max_deliveries=2)
    (key,) = told.enter()
    for _ in range(times):
        told.consume()
        told.deliver(key)
        told.model.unsubscribed(1, "s")
        told.rest()
    assert (told.state.entries[key].why == "max_deliveries") == left


def test_nobody_gets_more_than_its_backlog() -> None:
    told = Told()
    told.consume(backlog=2)
    keys = told.enter(3)
    told.deliver(*keys[:2])
    objects(told, keys[2], why="beyond its backlog")
    told.settle("ack", keys[0])
    told.deliver(keys[2])


def test_all_consumers_of_a_queue_share_its_backlog() -> None:
    told = Told(max_backlog=1)
    told.consume("s")
    told.consume("t")
    keys = told.enter(2)
    told.deliver(keys[0])
    objects(told, keys[1], sub_id="t", why="backlog of the queue")


def test_a_filter_is_kept() -> None:
    told = Told()
    told.consume(condition="/g = 'b'")
    (key,) = told.enter(group="a")
    objects(told, key, why="does not pass")


def test_a_barrier_waits_for_all_before_it_and_holds_all_behind_it() -> None:
    told = Told(barrier_expression="/b = 1")
    told.consume()
    (first,), (barrier,), (behind,) = told.enter(), told.enter(barrier=1), told.enter()
    objects(told, behind, why="barrier")
    told.deliver(first)
    objects(told, barrier, why="barrier")
    told.settle("ack", first)
    objects(told, behind, why="barrier")
    told.deliver(barrier)
    told.deliver(behind)


def test_at_most_once_never_comes_again_after_a_crash() -> None:
    told = Told(semantics="at-most-once")
    told.consume()
    keys = told.enter(2)
    told.deliver(keys[0])
    told.model.restarted(set(), [], now=told.now)
    told.consume()
    objects(told, keys[0], why="what has left")
    told.deliver(keys[1])


def told_of_two(priority: str | None) -> tuple[Told, list[tuple[int, int]], list[tuple[int, int]]]:
    """Two messages, of which the second has the higher priority, and a consumer with room for one."""
    told = Told(priority=priority)
    low, high = told.enter(priority=1), told.enter(priority=2)
    told.rest()
    told.consume(backlog=1)
    return told, low, high


@pytest.mark.parametrize("priority", [None, "/p"])
def test_nothing_is_passed_over(priority: str | None) -> None:
    told, low, high = told_of_two(priority)
    told.deliver(*(low if priority else high))
    with pytest.raises(AssertionError, match="passed over"):
        told.rest()


@pytest.mark.parametrize("priority", [None, "/p"])
def test_the_first_is_the_first(priority: str | None) -> None:
    told, low, high = told_of_two(priority)
    told.deliver(*(high if priority else low))
    told.rest()


def test_who_has_room_does_not_wait() -> None:
    told = Told()
    told.enter()
    told.consume()
    with pytest.raises(AssertionError, match="has room"):
        told.rest()


def test_what_is_too_old_is_gone() -> None:
    told = Told(expiration=5)
    (key,) = told.enter()
    told.rest()
    told.now += 5 * MICROS + SLACK
    with pytest.raises(AssertionError, match="0 ready"):
        told.rest()  # an engine that still has it
    assert told.state.entries[key].why == "expiration"
    told.consume()
    objects(told, key, why="what has left")


def test_what_is_leased_is_not_too_old() -> None:
    told = Told(expiration=5)
    told.consume()
    (key,) = told.enter()
    told.deliver(key)
    told.now += 50 * MICROS
    told.rest()
    told.settle("ack", key)
    assert told.state.entries[key].why == "acknowledged"


@pytest.mark.parametrize("model", ["minimum", "message", "queue"])
def test_which_life_counts(model: str) -> None:
    told = Told(expiration=5, expiration_model=model)
    (shorter,), (longer,), (none,) = told.enter(life_ms=2000), told.enter(life_ms=9000), told.enter()
    lives = [(told.state.entries[key].expires - NOON) // MICROS for key in (shorter, longer, none)]
    assert lives == {"minimum": [2, 5, 5], "message": [2, 9, 5], "queue": [5, 5, 5]}[model]


@pytest.mark.parametrize(
    ("leasing", "conn", "held_by", "why"),
    [
        ("strict", 1, 1, "acknowledged"),
        ("strict", 2, 1, ""),
        ("strict", 2, None, ""),
        ("lenient", 1, 1, "acknowledged"),
        ("lenient", 2, 1, ""),
        ("lenient", 2, None, "acknowledged"),
    ],
)
def test_the_table_of_leasing(leasing: str, conn: int, held_by: int | None, why: str) -> None:
    told = Told(leasing=leasing)
    (key,) = told.enter()
    if held_by:
        told.consume()
        told.deliver(key)
        told.rest()
    else:
        told.rest()
    told.settle("ack", key, conn=conn)
    assert told.state.entries[key].why == why


def test_an_engine_that_loses_a_message_is_noticed() -> None:
    told = Told()
    told.enter(2)
    with pytest.raises(AssertionError):
        at_rest(told.model, [told.look(ready=1, acknowledged=1)], told.now)
    with pytest.raises(AssertionError):
        adds_up(told.look(ready=1))


def test_the_least_busy_is_served() -> None:
    told = Told()
    told.consume("inky", backlog=2)
    told.consume("blinky", backlog=4)
    told.consume("clyde", backlog=10)
    keys = told.enter(9)
    told.deliver(keys[0], sub_id="inky")
    told.deliver(*keys[1:4], sub_id="blinky")
    told.deliver(*keys[4:8], sub_id="clyde")
    told.settle("ack", keys[8])
    told.rest()
    told.model.disturbed = False
    told.deliver(*told.enter(), sub_id="clyde")
    told.rest()
    told.model.disturbed = False
    told.deliver(*told.enter(), sub_id="blinky")
    with pytest.raises(AssertionError, match="least busy"):
        told.rest()
