"""Simulations of the state machines: their faults, and the counts of faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world.machines import CRASHES, MACHINE_FAULTS, MachineShape


@pytest.mark.parametrize(
    "kinds",
    [("connection cut", "server killed"), ("disk full", "half open", "power lost"), ("connection cut",), ()],
    ids=str,
)
def test_machine_simulation_has_exactly_the_faults_of_the_shape(kinds: tuple[str, ...]) -> None:
    counts: Counter[str] = Counter()
    shape = MachineShape(faults=4, kinds=kinds)
    for seed in range(10):
        shape.begin(seed, counts).live()
    assert {name for name in MACHINE_FAULTS if counts[name]} == set(kinds)
    assert sum(counts[name] for name in CRASHES) == (10 if set(kinds) & set(CRASHES) else 0)


def test_machine_fault_without_an_effect_is_not_counted() -> None:
    """No client publishes to a full disk or on a half-open line."""
    counts: Counter[str] = Counter()
    for seed in range(20):
        life = MachineShape(messages=0, kinds=()).begin(seed, counts)
        life.live()
        for client in life.clients:
            client.move(everything=True)
        assert not any(life._faults[name]() for name in ("disk full", "half open"))
