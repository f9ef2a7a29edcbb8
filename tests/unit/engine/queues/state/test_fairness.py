"""Fair dispatch in bulk against a dispatch message by message."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tickertape.engine.queues.state import fairness
from tickertape.engine.queues.state.fairness import Load, distribute, next_consumer
from tickertape.engine.runtime.queue_definition import FAIRNESS, Fairness

INKY, BLINKY, CLYDE = Load(1, 2), Load(3, 4), Load(4, 10)


def one_by_one(model: Fairness, loads: list[Load], eligible: list[int], turn: int) -> tuple[int | None, int]:
    roomy = [i for i in eligible if loads[i].unacknowledged < loads[i].limit]
    if not roomy:
        return None, turn
    if model == "fast":
        return roomy[0], turn
    if model == "proportional":
        return min(roomy, key=lambda i: (Fraction(loads[i].unacknowledged, loads[i].limit), i)), turn
    size = len(loads)
    chosen = min(roomy, key=lambda i: (i - turn) % size)
    return chosen, (chosen + 1) % size


def all_of(model: Fairness, loads: list[Load], count: int, turn: int) -> tuple[list[int], int]:
    given_out, now = [0] * len(loads), list(loads)
    for _ in range(count):
        chosen, turn = one_by_one(model, now, list(range(len(now))), turn)
        if chosen is None:
            break
        given_out[chosen] += 1
        now[chosen] = Load(now[chosen].unacknowledged + 1, now[chosen].limit)
    return given_out, turn


LOADS = st.lists(
    st.builds(Load, st.integers(0, 12) | st.integers(0, 10**6), st.integers(0, 12) | st.integers(0, 10**6)),
    max_size=9,
)


def test_proportional_fairness_selects_the_lowest_share_of_the_backlog() -> None:
    assert next_consumer("proportional", [INKY, BLINKY, CLYDE], [0, 1, 2], 0) == (2, 0)
    assert distribute("proportional", [INKY, BLINKY, CLYDE], 1, 0) == ([0, 0, 1], 0)
    assert next_consumer("proportional", [Load(4, 4), Load(2, 4), Load(1, 2)], [0, 1, 2], 0) == (1, 0)
    # 5/10 and 1/2 are equal: the first of them.
    assert distribute("proportional", [INKY, BLINKY, CLYDE], 2, 0) == ([1, 0, 1], 0)


def test_fast_fairness_fills_the_first_consumer_with_capacity_first() -> None:
    assert distribute("fast", [Load(2, 2), BLINKY, CLYDE], 3, 7) == ([0, 1, 2], 7)
    assert next_consumer("fast", [Load(2, 2), BLINKY, CLYDE], [0, 1, 2], 7) == (1, 7)


def test_round_robin_fairness_skips_full_consumers() -> None:
    assert distribute("round-robin", [INKY, BLINKY, CLYDE], 4, 1) == ([1, 1, 2], 0)
    assert distribute("round-robin", [INKY, Load(4, 4), CLYDE], 2, 1) == ([1, 0, 1], 1)


@pytest.mark.parametrize("model", FAIRNESS)
def test_fairness_without_consumers_or_capacity_dispatches_nothing(model: Fairness) -> None:
    assert distribute(model, [], 5, 3) == ([], 3)
    assert distribute(model, [Load(7, 5), Load(0, 0)], 5, 1) == ([0, 0], 1)
    assert next_consumer(model, [], [], 3) == (None, 3)
    assert next_consumer(model, [Load(7, 5), Load(0, 0)], [0, 1], 1) == (None, 1)


@example("proportional", [Load(333_332, 999_999), Load(333_333, 10**6), Load(1, 3)], 3, 0)
@example("proportional", [Load(1, 3), Load(333_333, 999_999)], 9, 0)
@given(st.sampled_from(FAIRNESS), LOADS, st.integers(0, 200), st.integers(0, 12))
def test_bulk_dispatch_equals_dispatch_one_by_one(
    model: Fairness, loads: list[Load], count: int, turn: int
) -> None:
    assert distribute(model, loads, count, turn) == all_of(model, loads, count, turn)


@given(st.sampled_from(FAIRNESS), LOADS, st.data(), st.integers(0, 12))
def test_next_eligible_consumer_equals_dispatch_one_by_one(
    model: Fairness, loads: list[Load], data: st.DataObject, turn: int
) -> None:
    eligible = sorted(data.draw(st.sets(st.sampled_from(range(len(loads)))))) if loads else []
    assert next_consumer(model, loads, eligible, turn) == one_by_one(model, loads, eligible, turn)


@pytest.mark.parametrize("model", FAIRNESS)
def test_bulk_dispatch_with_many_consumers_equals_dispatch_one_by_one(model: Fairness) -> None:
    rng = Random(3)
    for _ in range(3):
        loads = [Load(rng.randrange(60), rng.randrange(60)) for _ in range(80)]
        assert distribute(model, loads, 700, 5) == all_of(model, loads, 700, 5)


def test_bulk_level_is_never_too_high_and_leaves_at_most_two_messages_a_consumer() -> None:
    """The bulk step leaves less than two messages a consumer for single dispatch."""
    rng = Random(4)
    for _ in range(200):
        loads = [Load(rng.randrange(1000), rng.randrange(1, 2000)) for _ in range(20)]
        if sum(max(0, limit - held) for held, limit in loads) > 4096:
            bits = 2 * max(limit for _, limit in loads).bit_length()
            assert 4096 - 2 * 20 <= sum(fairness._below_level(loads, 4096, bits)) <= 4096
