"""Queues under random commands, lost connections, jumps in time and crashes, against the oracle.

After every step each entered message is waiting, leased or has left. In each idle state the engine must match
the oracle (`tests/simulation/queue_checks.py`).
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.simulation.queue_checks import adds_up
from tests.simulation.queue_workload import QueueClients, random_queues
from tests.simulation.queue_world import QueueWorld

EXAMPLES = 50
EXAMPLES_FULL = 2_000
STEPS = 40

COUNTS: Counter[str] = Counter()

chance = st.integers(0, 2**32 - 1).map(Random)


class QueueMachine(RuleBasedStateMachine):
    """Rules for the actions of clients, disk, clock and power."""

    world: QueueWorld
    life: QueueClients

    def __init__(self) -> None:
        super().__init__()
        self.started = False

    @initialize(seed=st.integers(0, 2**32 - 1), random=chance)
    def begin(self, seed: int, random: Random) -> None:
        self.world = QueueWorld(seed, random_queues(random.choice), counts=COUNTS, segment_bytes=16_384)
        self.life = QueueClients(self.world, random.choice)
        self.life.begin()
        self.started = True

    def _with(self, random: Random) -> QueueClients:
        self.life.choose = random.choice
        return self.life

    @rule(random=chance)
    def publish(self, random: Random) -> None:
        self._with(random).publish()

    @rule(random=chance)
    def consume(self, random: Random) -> None:
        self._with(random).consume()

    @rule(random=chance)
    def replace(self, random: Random) -> None:
        self._with(random).replace()

    @rule(random=chance)
    def a_while(self, random: Random) -> None:
        """Take random actions, with steps of the disk and the engine between them."""
        life = self._with(random)
        for _ in range(random.randrange(4, 16)):
            life.act()
            if random.random() < 0.5:
                self.world.rest()

    @rule(random=chance)
    def come_to_a_consumer(self, random: Random) -> None:
        life = self._with(random)
        life.consume()
        life.publish()
        self.world.rest()

    @rule(random=chance)
    def acknowledge(self, random: Random) -> None:
        self._with(random).settle(("ack",))

    @rule(random=chance)
    def give_back(self, random: Random) -> None:
        self._with(random).settle(("cancel",))

    @rule(random=chance)
    def let_expire(self, random: Random) -> None:
        self._with(random).settle(("expire",))

    @rule(random=chance)
    def extend(self, random: Random) -> None:
        self._with(random).settle(("extend",))

    @rule(random=chance)
    def settle_by_filter(self, random: Random) -> None:
        self._with(random).settle_by_filter()

    @rule(random=chance)
    def leave(self, random: Random) -> None:
        self._with(random).leave()

    @rule(random=chance)
    def lose(self, random: Random) -> None:
        self._with(random).lose()

    @rule(random=chance)
    def pass_time(self, random: Random) -> None:
        self._with(random).pass_time()

    @rule(steps=st.integers(1, 8))
    def let_things_happen(self, steps: int) -> None:
        for _ in range(steps):
            self.world.step()

    @rule()
    def rest(self) -> None:
        self.world.rest()

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.life.forget()
        self.world.crash(power=power)
        self.life.begin()
        self.world.counts["crashes of the machine"] += 1

    @precondition(lambda self: self.started)
    @rule()
    def stop(self) -> None:
        self.life.forget()
        self.world.stop()
        self.life.begin()
        self.world.counts["clean stops of the machine"] += 1

    @rule()
    def browse(self) -> None:
        self.life.compare_browsed()

    @invariant()
    def counts_add_up(self) -> None:
        if self.started:
            for look in self.world.broker.queues.snapshots(self.world.moment):
                adds_up(look)

    def teardown(self) -> None:
        if self.started:
            self.world.rest()
            self.life.drain()


@pytest.mark.slow
def test_queues_under_random_commands_match_the_oracle(full: bool) -> None:
    COUNTS.clear()
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            settings.default,
            max_examples=EXAMPLES_FULL if full else EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    for event in MUST_HAPPEN if full else MUST_HAPPEN - RARE:
        assert COUNTS[event], f"{event} did not occur: {COUNTS}"


RARE = {"settled again after a loss", "done: max_cancels", "settled: extend", "replaced", "size_old"}
"""In ordinary runs these depend on the examples. The crash tests of `tests/simulation` cover them too."""
MUST_HAPPEN = {
    "entered",
    "delivered",
    "delivered again",
    "a barrier was delivered",
    "done: acknowledged",
    "done: taken",
    "done: expiration",
    "done: expire",
    "done: max_deliveries",
    "returned: holder gone",
    "returned: lease ended",
    "dead letters",
    "messages browsed",
    "replaced",
    "judged for order",
    "compared exactly",
    "connections lost",
    "crashes of the machine",
    "clean stops of the machine",
    "settled again after a loss",
}
"""A run in which one of these does not happen shows nothing about it."""
