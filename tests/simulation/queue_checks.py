"""Invariants of queues in an idle engine: no disk job is pending, and no work is left.

Must never run earlier: decisions that the engine has not shown yet cannot be known from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from tests.simulation.queue_entries import NEVER, SLACK, Consumer, Entry, Key, QueueState
from tests.simulation.queue_model import EXPIRIES, QueueModel


class ComparableSnapshot(Protocol):
    """The part of a queue snapshot that the oracle can check."""

    name: str
    ready: int
    leased: int
    inactive: int
    dooming: int
    entered: int
    acknowledged: int
    taken: int
    expired: Mapping[str, int]
    returned: Mapping[str, int]
    consumers: int
    backlog: int


def adds_up(look: Any) -> None:
    """Check that no message is lost: each is waiting, leased or has left. Holds after every step."""
    left = look.acknowledged + look.taken + sum(look.expired.values())
    there = look.ready + look.leased + look.inactive
    assert there + left == look.entered, f"{look}: {there} there, {left} left"
    assert min(look.ready, look.leased, look.inactive, look.dooming, look.backlog) >= 0, look
    assert set(look.expired) <= set(EXPIRIES), look
    assert set(look.returned) <= {"cancelled", "lease_expired", "holder_gone"}, look


def check_idle(model: QueueModel, looks: Iterable[Any], now: int) -> None:
    """Bring the oracle up to `now` (microseconds since 1970 UTC), and hold the engine against it."""
    by_name = {look.name: look for look in looks}
    assert set(by_name) == set(model.queues)
    for name, state in model.queues.items():
        _expire_due(model, state, now)
        assert not state.of("leaving", "returning"), f"{name}: a settlement was never persisted"
        _in_order(model, state, now)
        _fairly(model, state, now)
        _compare(model, state, by_name[name], now)
    for consumer in model.consumers.values():
        consumer.maybe = {held for held in consumer.maybe if _may_hold(model, consumer, held)}
    for state in model.queues.values():
        _nothing_waits(model, state, now)
        _letters(state)
        state.open_before = state.open_now()
        state.recent.clear()
        state.letters_now.clear()
        state.letters_twice.clear()
    for entry in (entry for state in model.queues.values() for entry in state.entries.values()):
        entry.soft = 0
    for consumer in model.consumers.values():
        consumer.earlier.clear()
        consumer.before.clear()
        consumer.wider = 0
        consumer.fresh = False
    model.interval += 1
    model.moved = False


def _may_hold(model: QueueModel, consumer: Consumer, held: tuple[str, Key]) -> bool:
    entry = model.queues[held[0]].entries[held[1]]
    return entry.state == "leased" and entry.holder is consumer and held not in consumer.held


def _expire_due(model: QueueModel, state: QueueState, now: int) -> None:
    """End the leases and lifetimes that expired a while ago. Those that expire now may have ended."""
    for entry in state.of("leased"):
        if now >= entry.ends[0]:
            model.lapse(state, entry)
        if now >= entry.ends[1] + SLACK:
            model.counts["returned: lease ended"] += 1
            model._return(state, entry)
    depth = state.definition.target_queue_depth
    for place, entry in enumerate(state.of("ready")):
        if now < entry.expires:
            continue
        if depth is not None and place >= depth:
            entry.unsure = True  # unspecified: whether an inactive message is checked for expiry
        elif now >= entry.expires + SLACK:
            model.end(state, entry, "not sure" if entry.unsure else "expiration")
        else:
            entry.unsure = True


def _may_be_passed_over(model: QueueModel, state: QueueState, consumer: Consumer, now: int) -> bool:
    """Return whether other consumers may be preferred to a consumer whose lease expired."""
    others = sum(state.name in other.queues for other in model.consumers.values()) > 1
    return others and now < consumer.passed_over.get(state.name, 0)


# -- order --------------------------------------------------------------------------------------------


def _in_order(model: QueueModel, state: QueueState, now: int) -> None:
    """Check that no available message was passed over for a later one or one of lower priority."""
    waiting = [
        entry
        for entry in state.of("ready")
        if entry.here and entry.since < model.interval and entry.key in state.open_before
    ]
    for consumer, entry in state.recent:
        if _may_be_passed_over(model, state, consumer, now):
            continue
        searched = [condition for condition in (consumer.condition, *consumer.earlier) if condition]
        if consumer.fresh and searched and state.definition.priority is not None:
            continue  # the search for matches of its filter still runs: the consumer gets the best one found
        for other in waiting:
            if other.rank < entry.rank and consumer.surely_takes(other.body):
                raise AssertionError(f"{entry} was delivered, {other} was passed over")
        model.counts["judged for order"] += bool(waiting)


def _fairly(model: QueueModel, state: QueueState, now: int) -> None:
    """Check who got a message that arrived alone, with no other waiting, against the one-by-one rule.

    Skip the check if a lease may have ended meanwhile: then the number of leases of a consumer is unknown.
    """
    held = [entry for other in model.queues.values() for entry in other.of("leased")]
    sure = not model.disturbed and all(now < entry.ends[0] for entry in held)
    sure = sure and not any(_may_be_passed_over(model, state, c, now) for c in model.consumers.values())
    if len(state.recent) == 1 and sure and not state.of("ready"):
        consumer, entry = state.recent[0]
        others = [
            other
            for other in model.consumers.values()
            if state.name in other.queues and other.surely_takes(entry.body) and not other.earlier
        ]
        if consumer in others and len(others) > 1:
            _check_turn(model, state, consumer, others)
    if state.recent:
        last = state.recent[-1][0].orders.get(state.name, -1)
        state.last_served = last if len(state.recent) == 1 else -1


def _check_turn(model: QueueModel, state: QueueState, chosen: Consumer, others: list[Consumer]) -> None:
    def held(consumer: Consumer) -> int:
        return len(consumer.held) - (consumer is chosen)

    able = [c for c in others if held(c) < c.backlog]
    assert chosen in able
    sharing = state.definition.sharing
    if sharing == "fast":
        model.counts["judged: fast"] += 1
    elif sharing == "proportional":
        least = min(held(c) / c.backlog for c in able)
        assert held(chosen) / chosen.backlog == least, f"{chosen} was not the least busy of {able}"
        model.counts["judged: proportional"] += 1
    elif state.last_served > 0:
        able.sort(key=lambda c: c.orders[state.name])
        after = [c for c in able if c.orders[state.name] > state.last_served] or able
        assert chosen is after[0], f"{chosen} had no turn after {state.last_served} in {able}"
        model.counts["judged: round-robin"] += 1


def _nothing_waits(model: QueueModel, state: QueueState, now: int) -> None:
    """Check that no consumer with free backlog waits while a message matches it."""
    most = state.definition.max_backlog
    held = (key for c in model.consumers.values() for key in c.held | c.maybe)
    if most is not None and sum(queue == state.name for queue, _ in held) >= most:
        return
    open_now = state.open_now()
    for consumer in model.consumers.values():
        if state.name not in consumer.queues or len(consumer.held | consumer.maybe) >= consumer.backlog:
            continue
        if _may_be_passed_over(model, state, consumer, now):
            continue
        for entry in state.of("ready"):
            if entry.key in open_now and now < entry.expires and consumer.surely_takes(entry.body):
                raise AssertionError(f"{entry} waits, and {consumer} has free backlog")


def _letters(state: QueueState) -> None:
    """Check that each expired message has its dead letter."""
    if state.definition.dead_letter is None:
        assert not state.letters
        return
    for entry in state.of("done"):
        count = state.letters.get(entry.key, 0)
        if entry.why != "not sure":
            assert (count > 0) == (entry.why in EXPIRIES), f"{entry} has {count} dead letters"


# -- numbers ------------------------------------------------------------------------------------------


def _compare(model: QueueModel, state: QueueState, look: Any, now: int) -> None:
    """Compare the engine's counters with the oracle. They decide unsure entries where possible."""
    adds_up(look)
    assert look.dooming == 0, look
    ready, unsure = _surely(state, "ready")
    leased, unsure_leased = _surely(state, "leased")
    ending = sum(now >= entry.ends[0] for entry in state.of("leased") if not entry.unsure)
    loose = len(unsure) + len(unsure_leased) + ending
    waiting = look.ready + look.inactive
    label = f"{look}: {len(ready)} ready, {len(leased)} leased, {loose} of them unsure"
    assert len(ready) <= waiting <= len(ready) + loose, label
    assert len(leased) - ending <= look.leased <= len(leased) + len(unsure_leased), label
    assert look.consumers == sum(state.name in c.queues for c in model.consumers.values()), label
    if not unsure_leased and not ending and unsure:
        if waiting == len(ready):
            for entry in unsure:
                model.end(state, entry, "not sure")
        elif waiting == len(ready) + len(unsure):
            for entry in unsure:
                entry.unsure = False
    if unsure_leased and not ending:
        _decide_leased(model, state, unsure_leased, look.leased - len(leased), now)
    if model.first_life and not loose and not state.left["not sure"]:
        expired = sum(state.left[why] for why in EXPIRIES)
        found = look.entered, look.acknowledged, look.taken, sum(look.expired.values())
        expected = len(state.entries), state.left["acknowledged"], state.left["taken"], expired
        assert found == expected, f"{look}: {state.left}"
    if not loose:
        held = sum(h[0] == state.name for c in model.consumers.values() for h in c.held)
        assert look.backlog == held, f"{look}: {held} held"
    model.counts["compared exactly"] += not loose
    model.counts["compared"] += 1


def _decide_leased(model: QueueModel, state: QueueState, unsure: list[Entry], there: int, now: int) -> None:
    """Decide unsure leases: none exists if the snapshot counts none, each if it counts all."""
    for entry in unsure:
        if there == 0:
            if now < entry.ends[0]:
                model.end(state, entry, "not sure")
            else:  # it may have returned instead
                model._free_backlog(state, entry)
                entry.state, entry.holder, entry.ends = "ready", None, (NEVER, NEVER)
        elif there == len(unsure) and entry.holder is not None:
            entry.unsure = False
            entry.holder.held.add((state.name, entry.key))


def _surely(state: QueueState, name: str) -> tuple[list[Entry], list[Entry]]:
    found = state.of(name)
    return [e for e in found if not e.unsure], [e for e in found if e.unsure]
