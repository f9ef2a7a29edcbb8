"""The worlds of the machines alone: what goes wrong in them, and what is counted of it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.world.machines import CRASHES, MACHINE_FAULTS, MachineShape


@pytest.mark.parametrize(
    "kinds",
    [("connection cut", "server killed"), ("disk full", "half open", "power lost"), ("connection cut",), ()],
    ids=str,
)
def test_only_what_a_shape_names_goes_wrong(kinds: tuple[str, ...]) -> None:
    counts: Counter[str] = Counter()
    shape = MachineShape(faults=4, kinds=kinds)
    for seed in range(10):
        shape.begin(seed, counts).live()
    assert {name for name in MACHINE_FAULTS if counts[name]} == set(kinds)
    assert sum(counts[name] for name in CRASHES) == (10 if set(kinds) & set(CRASHES) else 0)


def test_a_fault_that_cannot_strike_does_not_count() -> None:
    """Nobody publishes behind a disk that is full, nor on a line that is half open."""
    counts: Counter[str] = Counter()
    for seed in range(20):
        life = MachineShape(messages=0, kinds=()).begin(seed, counts)
        life.live()
        for client in life.clients:
            client.move(everything=True)
        assert not any(life._faults[name]() for name in ("disk full", "half open"))
