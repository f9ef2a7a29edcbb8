"""Fairness: distributes messages among consumers; docs/reference/queues.md has the three rules.

Invariants:
- No message goes to a consumer without room.
- The result is exactly that of giving the messages out one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from tickertape.engine.runtime.queue_definition import Fairness


class Load(NamedTuple):
    """How full one consumer is; `unacknowledged` may be above `limit` after the limit was lowered."""

    unacknowledged: int
    limit: int
    """Messages that may be unacknowledged, 0 or more."""


def distribute(model: Fairness, loads: Sequence[Load], count: int, turn: int) -> tuple[list[int], int]:
    """Return how many of the next `count` messages each consumer gets, and the turn after them. The counts
    come to less than `count` when no consumer has room any more. `turn` is the index at which round-robin
    starts; the other models leave it as it is."""
    rooms = [limit - held if held < limit else 0 for held, limit in loads]
    if count <= 0 or not any(rooms):
        return [0] * len(rooms), turn
    if model == "round-robin":
        return _in_turn(rooms, count, turn)
    if sum(rooms) <= count:
        return rooms, turn
    if model == "fast":
        return _first_first(rooms, count), turn
    return _by_ratio(loads, count), turn


def next_consumer(
    model: Fairness, loads: Sequence[Load], eligible: Sequence[int], turn: int
) -> tuple[int | None, int]:
    """Return the consumer of `eligible` (indices of `loads`, rising) that gets the next message, or None when
    none has room, and the turn after it."""
    if model == "round-robin":
        middle = bisect_left(eligible, turn % len(loads)) if loads else 0
        for part in (eligible[middle:], eligible[:middle]):
            for i in part:
                if loads[i].unacknowledged < loads[i].limit:
                    return i, (i + 1) % len(loads)
        return None, turn
    best: int | None = None
    least, of = 1, 1
    for i in eligible:
        held, limit = loads[i]
        # The first of equal ones: only a lower ratio takes its place. A ratio of 1 is no room.
        if held < limit and held * of < least * limit:
            best, least, of = i, held, limit
            if model == "fast":
                break
    return best, turn


def _first_first(rooms: list[int], count: int) -> list[int]:
    given = []
    for room in rooms:
        given.append(min(room, count))
        count -= given[-1]
    return given


def _in_turn(rooms: list[int], count: int, turn: int) -> tuple[list[int], int]:
    """Give whole rounds at once, as many as the least room of consumers with room allows."""
    given = [0] * len(rooms)
    turn %= len(rooms)
    order = [i for i in (*range(turn, len(rooms)), *range(turn)) if rooms[i]]
    last = turn - 1
    done = 0  # rounds, which is what each of the order has got
    while order and count:
        rounds = min(min([rooms[i] for i in order]) - done, count // len(order))
        if not rounds:  # less than a round is left
            for i in order[:count]:
                given[i] += 1
            return _with_rounds(given, order, done), (order[count - 1] + 1) % len(rooms)
        count -= rounds * len(order)
        done += rounds
        last = order[-1]
        for i in order:
            if rooms[i] == done:
                given[i] = done
        order = [i for i in order if rooms[i] > done]
    return _with_rounds(given, order, done), (last + 1) % len(rooms)


def _with_rounds(given: list[int], order: list[int], done: int) -> list[int]:
    for i in order:
        given[i] += done
    return given


def _by_ratio(loads: Sequence[Load], count: int) -> list[int]:
    """Give to the lowest ratio first, to the first of equal ones; there is room for more than `count`."""
    size = len(loads)
    # Two different ratios lie at least 1 / limit**2 apart, so that so many bits tell them apart, and equal
    # ones are equal: a ratio is a whole number, and stands before the index in another.
    bits = 2 * max(limit for _, limit in loads).bit_length()
    given = [0] * size
    held_now = [held for held, _ in loads]
    if count > 2 * size:
        given = _below_level(loads, count, bits)
        if (left := count - sum(given)) < 0:  # an estimate that was too high: nothing is lost but time
            given, left = [0] * size, count
        count = left
        held_now = [held + more for held, more in zip(held_now, given, strict=True)]
    heap = [
        (held << bits) // limit * size + i
        for i, (held, (_, limit)) in enumerate(zip(held_now, loads, strict=True))
        if held < limit
    ]
    heapify(heap)
    limits = [limit for _, limit in loads]
    full = 1 << bits  # the ratio of who has no room: behind all others
    for _ in range(count):
        i = heap[0] % size
        held_now[i] = held = held_now[i] + 1
        given[i] += 1
        heapreplace(heap, (held << bits) // limits[i] * size + i if held < limits[i] else full * size + i)
    return given


def _below_level(loads: Sequence[Load], count: int, bits: int) -> list[int]:
    """What is given until all stand at a level: a ratio a little below the one that `count` leads to.

    Each gets what lies below the level, as one by one would do, whatever the level is; when that is more than
    `count`, the level was too high."""
    ranked = sorted(((held << bits) // limit, held, limit) for held, limit in loads if held < limit)
    held_sum = limit_sum = 0
    level, of = 0, 1
    for taken, (ratio, held, limit) in enumerate(ranked, 1):
        if taken > 1 and level << bits <= ratio * of:
            break
        held_sum += held
        limit_sum += limit
        # Rounding up gives each of them less than one more than its share.
        level, of = count - taken + held_sum, limit_sum
    return [max(0, min(limit, -(-level * limit // of)) - held) for held, limit in loads]
