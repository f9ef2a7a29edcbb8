"""Fairness: assigns messages to consumers. docs/reference/queues.md describes the three rules.

Invariants:
- No consumer exceeds its limit.
- The result is the same as assigning messages one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from tickertape.engine.runtime.queue_definition import Fairness


class Load(NamedTuple):
    """Load of one consumer. `unacknowledged` may exceed `limit` after the limit was lowered."""

    unacknowledged: int
    limit: int
    """Maximum number of unacknowledged messages, 0 or more."""


def distribute(model: Fairness, loads: Sequence[Load], count: int, turn: int) -> tuple[list[int], int]:
    """Return how many of the next `count` messages each consumer gets, and the next turn.

    The sum is below `count` if the consumers cannot hold more. `turn` is the index at which round-robin
    starts. The other models do not change it."""
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
    """Return the consumer of `eligible` (ascending indices of `loads`) that gets the next message, and the
    next turn.

    The consumer is None if no eligible consumer can hold more."""
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
        # Only a lower ratio replaces the first of equal ratios. A consumer with ratio 1 is full.
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
    """Assign whole rounds at once, limited by the consumer with the smallest remaining capacity."""
    given = [0] * len(rooms)
    turn %= len(rooms)
    order = [i for i in (*range(turn, len(rooms)), *range(turn)) if rooms[i]]
    last = turn - 1
    done = 0  # rounds, which is the number of messages that each consumer in `order` has
    while order and count:
        rounds = min(min([rooms[i] for i in order]) - done, count // len(order))
        if not rounds:  # less than one round is left
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
    """Assign to the lowest ratio first, and to the first of equal ratios. Capacity exceeds `count`."""
    size = len(loads)
    # Two different ratios differ by at least 1 / limit**2, so this number of bits distinguishes them. A ratio
    # is
    # stored as an integer, combined with the index of the consumer.
    bits = 2 * max(limit for _, limit in loads).bit_length()
    given = [0] * size
    held_now = [held for held, _ in loads]
    if count > 2 * size:
        given = _below_level(loads, count, bits)
        if (left := count - sum(given)) < 0:  # the estimate was too high: start from zero
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
    full = 1 << bits  # ratio of a full consumer, after all others
    for _ in range(count):
        i = heap[0] % size
        held_now[i] = held = held_now[i] + 1
        given[i] += 1
        heapreplace(heap, (held << bits) // limits[i] * size + i if held < limits[i] else full * size + i)
    return given


def _below_level(loads: Sequence[Load], count: int, bits: int) -> list[int]:
    """Return the assignments that raise all consumers to a level slightly below the final ratio.

    Each consumer gets the messages below the level, like in one-by-one assignment. If the sum exceeds
    `count`, the level was too high."""
    ranked = sorted(((held << bits) // limit, held, limit) for held, limit in loads if held < limit)
    held_sum = limit_sum = 0
    level, of = 0, 1
    for taken, (ratio, held, limit) in enumerate(ranked, 1):
        if taken > 1 and level << bits <= ratio * of:
            break
        held_sum += held
        limit_sum += limit
        # Rounding up gives each consumer less than one message more than its share.
        level, of = count - taken + held_sum, limit_sum
    return [max(0, min(limit, -(-level * limit // of)) - held) for held, limit in loads]
