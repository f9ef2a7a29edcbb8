"""Transactions through power losses, lost connections and failing disks.

Each is in the log once and whole, or not at all, and no subscriber sees a part of one.
"""

from __future__ import annotations

import errno
from collections import Counter, defaultdict

import msgspec
import pytest

from tests.helpers.tiers import parts, seeds_of
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.stores import Store
from tests.simulation.transaction_clients import Planned, Transactor

SEEDS_A_PART = 20
MUST_HAPPEN = (
    "committed",
    "committed before",
    "aborted",
    "power lost inside a job",
    "staging: StageWrite",
    "staging: StagePrepare",
    "staging: StageOpen",
    "staging: StageDrop",
    "connections lost",
    "a transaction was lost as a whole",
    "seen while it was committed",
    "refused: transaction_busy",
    "committed by another connection",
)


class World:
    """One engine, clients that publish, that commit transactions, and that subscribe."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.world = EngineWorld(seed, counts=counts, segment_bytes=16_384)
        self.rng = self.world.rng
        self.counts = counts
        self.store = Store("p")
        self.transactors = [Transactor(f"t{i}", self.rng) for i in range(2)]
        self.begin()

    def begin(self) -> None:
        """After a start."""
        world = self.world
        world.small_tail()
        world.small_bounds()
        self.store.connect(world)
        for transactor in self.transactors:
            transactor.connect(world)
        self.subscribers: list[Peer] = []
        for number, options in enumerate(("", "live", "")):
            peer = world.connect(f"s{number}")
            bookmark = "0" if number != 2 else "0|1|"
            peer.subscribe("x", "^[ab]$", bookmark=bookmark, credit=1 << 20, options=f"bookmark,{options}")
            self.subscribers.append(peer)

    def live(self) -> None:
        """Take random steps for a while."""
        for _ in range(self.rng.randrange(30, 160)):
            chance = self.rng.random()
            transactor = self.rng.choice(self.transactors)
            if chance < 0.1:
                self.store.publish(self.rng.choice("ab"), [self.rng.randbytes(9)])
            elif chance < 0.5:
                if transactor.current is None:
                    transactor.plan()
                transactor.act(self.world)
            elif chance < 0.51:
                transactor.abort(self.world)
            elif chance < 0.53:
                assert transactor.peer is not None
                self.world.broker.disconnected(transactor.peer.conn)
                self.world.collect()
                del self.world.peers[transactor.peer.conn]
                self.counts["connections lost"] += 1
                transactor.connect(self.world)
            else:
                self.world.step()
            self.store.hear()
            self.check_subscribers()

    def crash(self) -> None:
        """Lose power, perhaps during an operation."""
        world = self.world
        if world.jobs and self.rng.random() < 0.7:
            world.disk.fail(self.rng.choice(("sync", "write")), 1, errno.EIO)
            world.run_job()
            self.counts["power lost inside a job"] += world.fatal is not None
        self.store.hear()
        world.disk = world.disk.crash_clone(self.rng) if self.rng.random() < 0.8 else world.disk.kill_clone()
        world.fatal = None
        world.open()
        self.check_log()
        self.begin()

    # -- invariants -----------------------------------------------------------------------------------

    def check_log(self) -> None:
        """Check that each transaction is stored once, whole and in a row, or not at all."""
        places: dict[bytes, list[int]] = defaultdict(list)
        for position, heard in sorted(self.world.positions().items()):
            places[heard.body].append(position)
        for planned in self._all():
            found = [places[body] for body in planned.bodies]
            if not planned.bodies:
                continue
            if not any(found):
                assert not planned.committed, f"{planned.key} was committed and is lost"
                self.counts["a transaction was lost as a whole"] += 1
                continue
            assert all(len(place) == 1 for place in found), f"a part of {planned.key}, or more than once"
            # Parts are committed in the order of their names, frames of a part in their own.
            order = [place[0] for place in found]
            assert max(order) - min(order) == len(order) - 1, f"another message is within {planned.key}"

    def check_subscribers(self) -> None:
        """Check that a subscriber sees only messages of transactions whose end is persisted."""
        seen: dict[tuple[str, int], int] = {}
        for peer in self.subscribers:
            for heard in peer.heard["x"][-40:]:
                if heard.body.startswith(b'{"by"'):
                    message = msgspec.json.decode(heard.body)
                    seen[message["by"], message["tx"]] = 1
        if not seen:
            return
        persisted = {heard.body for heard in self.world.positions().values()}
        for name, number in seen:
            planned = self._planned(name, number)
            assert persisted.issuperset(planned.bodies), f"a part of {planned.key} was seen before its end"
            self.counts["seen while it was committed"] += not planned.committed

    def _planned(self, name: str, number: int) -> Planned:
        return next(t for t in self.transactors if t.name == name).planned[number]

    def _all(self) -> list[Planned]:
        return [planned for transactor in self.transactors for planned in transactor.planned]

    def finish(self) -> None:
        """Commit all outstanding transactions, and check that each subscriber gets all messages once."""
        for _ in range(2_000):
            for transactor in self.transactors:
                if transactor.current is not None:
                    transactor.act(self.world)
            self.world.settle()
            if all(transactor.current is None for transactor in self.transactors):
                break
        assert all(planned.committed or planned.abandoned for planned in self._all())
        self.check_log()
        log = [heard for _, heard in sorted(self.world.positions().items())]
        for peer in self.subscribers[:2]:
            peer.give_credit("x")
            self.world.settle()
            assert peer.heard["x"] == log, "in the order of the log, each once"
        kept = sum(len(transactor.planned) > 0 for transactor in self.transactors)
        assert not self.world.broker.transactions.staging.count or kept


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(80))
def test_transaction_after_crashes_and_losses_is_in_the_log_whole_or_not_at_all(part: int) -> None:
    counts: Counter[str] = Counter()
    seeds = range(part * SEEDS_A_PART, (part + 1) * SEEDS_A_PART)
    for seed in seeds_of(seeds, counts, dict.fromkeys(MUST_HAPPEN, 1)):
        try:
            world = World(seed, counts)
            for _ in range(3):
                world.live()
                world.crash()
            world.finish()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
