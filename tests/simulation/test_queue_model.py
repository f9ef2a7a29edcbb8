"""Tests of the queue oracle: it objects to violations, and only to violations."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.queue_checks import adds_up, check_idle
from tests.simulation.queue_entries import MICROS, SLACK, make_body
from tests.simulation.queue_model import Arrived, QueueModel
from tickertape.engine.runtime.queue_definition import QueueDefinition

NOON = 1_760_000_000 * MICROS
PUBLISHER, ACKNOWLEDGER = 7, 8


class Oracle:
    """An oracle with one queue `q`, controlled by the test."""

    def __init__(self, **oracle: Any) -> None:
        self.model = QueueModel([QueueDefinition("q", **oracle)], Counter())
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
        oracle = self.state.definition
        lease = 0
        if oracle.lease_period is not None and not oracle.at_most_once:
            lease = self.now + int(oracle.lease_period * MICROS)
        self.model.delivered(1, sub_id, "q", lease, oracle.at_most_once, keys, self.now)

    def settle(self, action: str, *keys: tuple[int, int], durable: bool = True, conn: int = 1) -> None:
        self.settlements += 1
        by = ACKNOWLEDGER, self.settlements
        self.model.settle(conn, "q", action, by, self.now, keys=keys)
        if durable:
            self.model.settled(by)

    def rest(self) -> None:
        """Check the idle state with an engine that agrees."""
        check_idle(self.model, [self.look()], self.now)

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


def objects(oracle: Oracle, *keys: tuple[int, int], sub_id: str = "s", why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        oracle.deliver(*keys, sub_id=sub_id)


def test_oracle_given_a_second_lease_before_the_first_ends_objects() -> None:
    oracle = Oracle(lease_period=10)
    oracle.consume()
    (key,) = oracle.enter()
    oracle.deliver(key)
    objects(oracle, key, why="two leases")
    oracle.now += 10 * MICROS
    oracle.deliver(key)
    assert oracle.state.entries[key].deliveries == (1, 1)


def test_oracle_given_a_redelivered_acknowledged_message_objects() -> None:
    oracle = Oracle()
    oracle.consume()
    (key,) = oracle.enter()
    oracle.deliver(key)
    oracle.settle("ack", key, durable=False)
    objects(oracle, key, why="redelivered after it left")
    oracle.model.settled((ACKNOWLEDGER, 1))
    objects(oracle, key, why="redelivered after it left")
    oracle.model.restarted({(ACKNOWLEDGER, 1)}, [], now=oracle.now)
    oracle.consume()
    objects(oracle, key, why="redelivered after it left")


def test_oracle_after_a_crash_accepts_redelivery_of_a_non_durable_acknowledgement() -> None:
    oracle = Oracle()
    oracle.consume()
    (key,) = oracle.enter()
    oracle.deliver(key)
    oracle.settle("ack", key, durable=False)
    oracle.model.restarted(set(), [], now=oracle.now)
    oracle.consume()
    oracle.deliver(key)
    assert oracle.state.entries[key].deliveries == (0, 0), "a lease lost in a crash is not counted"


def test_oracle_after_a_crash_allows_the_loss_of_a_non_durable_return() -> None:
    oracle = Oracle(max_deliveries=2)
    oracle.consume()
    (key,) = oracle.enter()
    oracle.deliver(key)
    oracle.model.unsubscribed(1, "s")
    assert oracle.state.entries[key].deliveries == (1, 1)
    oracle.model.restarted(set(), [], now=oracle.now)
    assert oracle.state.entries[key].deliveries == (0, 1)


@pytest.mark.parametrize(("cancels", "left"), [(2, False), (3, True)])
def test_oracle_expires_a_message_at_the_cancel_after_max_cancels(cancels: int, left: bool) -> None:
    oracle = Oracle(max_cancels=2)
    oracle.consume()
    (key,) = oracle.enter()
    for _ in range(cancels):
        oracle.deliver(key)
        oracle.settle("cancel", key)
    assert (oracle.state.entries[key].why == "max_cancels") == left


@pytest.mark.parametrize(("times", "left"), [(1, False), (2, True)])
def test_oracle_expires_a_message_at_the_last_unsuccessful_delivery(times: int, left: bool) -> None:
    oracle = Oracle(max_deliveries=2)
    (key,) = oracle.enter()
    for _ in range(times):
        oracle.consume()
        oracle.deliver(key)
        oracle.model.unsubscribed(1, "s")
        oracle.rest()
    assert (oracle.state.entries[key].why == "max_deliveries") == left


def test_oracle_given_a_delivery_beyond_the_consumer_backlog_objects() -> None:
    oracle = Oracle()
    oracle.consume(backlog=2)
    keys = oracle.enter(3)
    oracle.deliver(*keys[:2])
    objects(oracle, keys[2], why="beyond its backlog")
    oracle.settle("ack", keys[0])
    oracle.deliver(keys[2])


def test_oracle_given_a_delivery_beyond_the_shared_queue_backlog_objects() -> None:
    oracle = Oracle(max_backlog=1)
    oracle.consume("s")
    oracle.consume("t")
    keys = oracle.enter(2)
    oracle.deliver(keys[0])
    objects(oracle, keys[1], sub_id="t", why="backlog of the queue")


def test_oracle_given_a_message_that_does_not_pass_the_filter_objects() -> None:
    oracle = Oracle()
    oracle.consume(condition="/g = 'b'")
    (key,) = oracle.enter(group="a")
    objects(oracle, key, why="does not pass")


def test_oracle_given_a_delivery_across_a_barrier_objects() -> None:
    oracle = Oracle(barrier_expression="/b = 1")
    oracle.consume()
    (first,), (barrier,), (behind,) = oracle.enter(), oracle.enter(barrier=1), oracle.enter()
    objects(oracle, behind, why="barrier")
    oracle.deliver(first)
    objects(oracle, barrier, why="barrier")
    oracle.settle("ack", first)
    objects(oracle, behind, why="barrier")
    oracle.deliver(barrier)
    oracle.deliver(behind)


def test_oracle_given_an_at_most_once_redelivery_after_a_crash_objects() -> None:
    oracle = Oracle(semantics="at-most-once")
    oracle.consume()
    keys = oracle.enter(2)
    oracle.deliver(keys[0])
    oracle.model.restarted(set(), [], now=oracle.now)
    oracle.consume()
    objects(oracle, keys[0], why="redelivered after it left")
    oracle.deliver(keys[1])


def oracle_of_two(priority: str | None) -> tuple[Oracle, list[tuple[int, int]], list[tuple[int, int]]]:
    """Two messages, the second with the higher priority, and a consumer with a backlog of one."""
    oracle = Oracle(priority=priority)
    low, high = oracle.enter(priority=1), oracle.enter(priority=2)
    oracle.rest()
    oracle.consume(backlog=1)
    return oracle, low, high


@pytest.mark.parametrize("priority", [None, "/p"])
def test_oracle_given_a_message_passed_over_objects(priority: str | None) -> None:
    oracle, low, high = oracle_of_two(priority)
    oracle.deliver(*(low if priority else high))
    with pytest.raises(AssertionError, match="passed over"):
        oracle.rest()


@pytest.mark.parametrize("priority", [None, "/p"])
def test_oracle_given_the_first_message_in_order_accepts(priority: str | None) -> None:
    oracle, low, high = oracle_of_two(priority)
    oracle.deliver(*(high if priority else low))
    oracle.rest()


def test_oracle_given_a_waiting_consumer_with_free_backlog_objects() -> None:
    oracle = Oracle()
    oracle.enter()
    oracle.consume()
    with pytest.raises(AssertionError, match="has free backlog"):
        oracle.rest()


def test_oracle_given_a_message_past_expiration_objects() -> None:
    oracle = Oracle(expiration=5)
    (key,) = oracle.enter()
    oracle.rest()
    oracle.now += 5 * MICROS + SLACK
    with pytest.raises(AssertionError, match="0 ready"):
        oracle.rest()  # an engine that still has it
    assert oracle.state.entries[key].why == "expiration"
    oracle.consume()
    objects(oracle, key, why="redelivered after it left")


def test_oracle_given_a_leased_message_past_expiration_accepts_the_acknowledgement() -> None:
    oracle = Oracle(expiration=5)
    oracle.consume()
    (key,) = oracle.enter()
    oracle.deliver(key)
    oracle.now += 50 * MICROS
    oracle.rest()
    oracle.settle("ack", key)
    assert oracle.state.entries[key].why == "acknowledged"


@pytest.mark.parametrize("model", ["minimum", "message", "queue"])
def test_oracle_expiration_model_selects_the_lifetime_of_queue_or_message(model: str) -> None:
    oracle = Oracle(expiration=5, expiration_model=model)
    (shorter,), (longer,), (none,) = oracle.enter(life_ms=2000), oracle.enter(life_ms=9000), oracle.enter()
    lives = [(oracle.state.entries[key].expires - NOON) // MICROS for key in (shorter, longer, none)]
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
def test_oracle_leasing_mode_decides_which_client_may_acknowledge(
    leasing: str, conn: int, held_by: int | None, why: str
) -> None:
    oracle = Oracle(leasing=leasing)
    (key,) = oracle.enter()
    if held_by:
        oracle.consume()
        oracle.deliver(key)
        oracle.rest()
    else:
        oracle.rest()
    oracle.settle("ack", key, conn=conn)
    assert oracle.state.entries[key].why == why


def test_oracle_given_an_engine_that_lost_a_message_objects() -> None:
    oracle = Oracle()
    oracle.enter(2)
    with pytest.raises(AssertionError):
        check_idle(oracle.model, [oracle.look(ready=1, acknowledged=1)], oracle.now)
    with pytest.raises(AssertionError):
        adds_up(oracle.look(ready=1))


def test_oracle_given_a_delivery_to_a_busier_consumer_objects() -> None:
    oracle = Oracle()
    oracle.consume("inky", backlog=2)
    oracle.consume("blinky", backlog=4)
    oracle.consume("clyde", backlog=10)
    keys = oracle.enter(9)
    oracle.deliver(keys[0], sub_id="inky")
    oracle.deliver(*keys[1:4], sub_id="blinky")
    oracle.deliver(*keys[4:8], sub_id="clyde")
    oracle.settle("ack", keys[8])
    oracle.rest()
    oracle.model.disturbed = False
    oracle.deliver(*oracle.enter(), sub_id="clyde")
    oracle.rest()
    oracle.model.disturbed = False
    oracle.deliver(*oracle.enter(), sub_id="blinky")
    with pytest.raises(AssertionError, match="least busy"):
        oracle.rest()
