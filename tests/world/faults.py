"""Random faults of a simulation: power, processes, disks, links and clocks.

Must never judge, nor leave anything broken after `heal`.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.world.network import Link
from tests.world.servers import STOP_SECONDS_MAX, SimServer

if TYPE_CHECKING:
    from tests.world.world import World

FAULTS: Final = (
    "power lost", "power lost in a disk operation", "server killed", "server stopped", "sync failed",
    "write failed", "disk full", "disk slow", "connection cut", "half open", "stalled", "unreachable",
    "wall clock jumped",
)  # fmt: skip
"""A fault is counted when it takes effect: a sync that fails, or a connection that lost data."""
AT_ONCE: Final = frozenset(
    {"power lost", "server killed", "server stopped", "connection cut", "wall clock jumped"}
)
"""Faults that take effect at once. Others are counted when they do."""
OF_DISKS: Final = {
    "sync failed": "fault_sync", "write failed": "fault_write", "disk full": "no_space",
    "file empty": "read_as_empty", "file of zeros": "read_as_zeros", "directory renamed": "directory_moved",
    "lock removed": "lock_lost",
}  # fmt: skip
"""Their names in the counters of a strict disk."""
CRASHES: Final = FAULTS[:3]
"""Faults that always end a server."""
DISK_HARMS: Final = (
    "file empty", "file of zeros", "sector unreadable", "part unreadable", "directory renamed",
    "lock removed",
)  # fmt: skip
"""Damage of a data directory from outside, counted when a start meets it. These faults have simulations of
their own, because starts may be refused.
"""
CLIENT_FAULTS: Final = ("client killed", "client lost power")
"""Further faults of simulations whose applications may end and restart."""


class Faults:
    """Random faults. `run` causes them, then `heal` repairs. `each_seconds`: mean time between two."""

    def __init__(self, world: World, *, each_seconds: float, kinds: tuple[str, ...] = FAULTS) -> None:
        self.world = world
        self.rng = world.rng
        self._each = each_seconds
        self._healed = False
        self._kinds: dict[str, Callable[[SimServer], bool]] = {
            "power lost": self._power_lost,
            "power lost in a disk operation": self._power_lost_in_write,
            "server killed": self._killed,
            "server stopped": self._stopped,
            "sync failed": lambda server: self._disk_fails(server, "sync"),
            "write failed": lambda server: self._disk_fails(server, "write"),
            "disk full": self._full,
            "disk slow": self._slow,
            "connection cut": lambda _: self._cut(),
            "half open": lambda _: self._half_open(),
            "stalled": lambda _: self._stalled(),
            "unreachable": self._unreachable,
            "wall clock jumped": lambda _: self._jumped(),
            "file empty": lambda server: server.harmed("empty"),
            "file of zeros": lambda server: server.harmed("zeros"),
            "sector unreadable": lambda server: server.harmed("unreadable"),
            "part unreadable": self._part_unreadable,
            "directory renamed": lambda server: server.renamed(),
            "lock removed": lambda server: server.lock_removed(),
            "client killed": lambda _: self._client_killed(),
            "client lost power": lambda _: self._client_lost_power(),
        }
        self._kinds = {name: self._kinds[name] for name in kinds}

    async def run(self, number: int, crashes: int = 0) -> None:
        """Cause `number` faults one after the other, then `crashes` that end a server.

        The kind of the first fault depends on the seed, so that consecutive simulations have all kinds.
        """
        kinds = list(self._kinds)
        for n in range(number):
            await asyncio.sleep(self.rng.expovariate(1 / self._each))
            self._happens(self.rng.choice(kinds) if n else kinds[self.world.seed % len(kinds)])
        for _ in range(crashes):
            await asyncio.sleep(self.rng.expovariate(1 / self._each))
            while not self._happens(self.rng.choice(CRASHES)):
                await asyncio.sleep(self.rng.expovariate(1 / self._each))

    def _happens(self, name: str) -> bool:
        server = self.rng.choice(self.world.servers)
        happened = self._kinds[name](server)
        if happened:
            self.world.counts[name] += name in AT_ONCE or name in CLIENT_FAULTS
            self.world.note("fault", name, server.name)
        return happened

    async def supervise(self) -> None:
        """Restart stopped servers and applications after a while, as a supervisor does."""
        while True:
            await asyncio.sleep(self.rng.random() * 0.2)
            for server in self.world.servers:
                if server.process is None:
                    server.start()
            for app in self.world.apps:
                if app.down and self.rng.random() < 0.5:
                    app.start()

    def heal(self) -> None:
        """End all faults, and start all servers."""
        world = self.world
        self._healed = True
        world.network.unreachable.clear()
        for link in world.network.links:
            link.delay = 0.0  # half-open ones stay so: both ends are to notice
        for server in world.servers:
            server.disk.left = None
            server.disk.disk.space_bytes = None
            server.disk.disk.forget_faults()
            server.disk.disk.mend()
            server.slow_until = 0.0

    # -- machines -------------------------------------------------------------------------------------

    def _power_lost(self, server: SimServer) -> bool:
        if server.process is None:
            return False
        server.power_lost()
        return True

    def _power_lost_in_write(self, server: SimServer) -> bool:
        if server.disk.left is not None:
            return False
        server.disk.left = self.rng.randrange(6)
        return True

    def _killed(self, server: SimServer) -> bool:
        if server.process is None:
            return False
        server.sigkill()
        return True

    def _stopped(self, server: SimServer) -> bool:
        if not server.up:
            return False
        impatient = self.rng.random() < 0.3
        server.stop(self.rng.random() * 0.02 if impatient else STOP_SECONDS_MAX)
        return True

    def _client_killed(self) -> bool:
        apps = [app for app in self.world.apps if app.restartable]
        if apps:
            self.rng.choice(apps).killed()
        return bool(apps)

    def _client_lost_power(self) -> bool:
        apps = [app for app in self.world.apps if app.may_lose_power]
        if apps:
            self.rng.choice(apps).power_lost()
        return bool(apps)

    # -- disks ----------------------------------------------------------------------------------------

    def _disk_fails(self, server: SimServer, operation: str) -> bool:
        error = self.rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
        server.disk.disk.fail(operation, self.rng.randint(1, 2), error)
        return True

    def _part_unreadable(self, server: SimServer, looks: int = 200) -> bool:
        """Make a staged part of a transaction, now or the next one, unreadable for some time."""
        disk = server.disk.disk
        parts = [path for path in disk.contents() if path.endswith(".prepared")]
        for path in parts:
            disk.harm(path, "unreadable")
        now = self.world.loop.time()
        if parts:
            self.world.at(now + self.rng.random() * 2.0, self._make_readable, server)
        elif looks:
            self.world.at(now + 0.002, self._find_parts, server, looks - 1)
        return True

    def _find_parts(self, server: SimServer, looks: int) -> None:
        if not self._healed:
            self._part_unreadable(server, looks)

    @staticmethod
    def _make_readable(server: SimServer) -> None:
        server.disk.disk.mend()

    def _full(self, server: SimServer) -> bool:
        disk = server.disk.disk
        disk.space_bytes = disk.used_bytes + self.rng.choice((0, 500))
        self.world.at(self.world.loop.time() + self.rng.random() * 2.0, self._free_space, server)
        return True

    @staticmethod
    def _free_space(server: SimServer) -> None:
        server.disk.disk.space_bytes = None

    def _slow(self, server: SimServer) -> bool:
        server.slow_until = self.world.loop.time() + self.rng.random() * 3.0
        server.slow_awaited = True
        return True

    # -- links and clocks -----------------------------------------------------------------------------

    def _link(self) -> Link | None:
        """Return a link with both its ends."""
        links = [link for link in self.world.network.links if link.stands]
        return self.rng.choice(links) if links else None

    def _cut(self) -> bool:
        link = self._link()
        if link is not None:
            link.cut()
        return link is not None

    def _half_open(self) -> bool:
        link = self._link()
        if link is not None:
            way = self.rng.randrange(3)
            link.half_open(to_server=way != 0, to_client=way != 1)
        return link is not None

    def _stalled(self) -> bool:
        link = self._link()
        if link is not None:
            link.stall(self.rng.random() * 2.0)
        return link is not None

    def _unreachable(self, server: SimServer) -> bool:
        """Make the address of a server unreachable for some time, and cut a connection."""
        place = server.place
        self.world.network.unreachable.add(place)
        self._cut()
        self.world.at(
            self.world.loop.time() + self.rng.random() * 2.0, self.world.network.unreachable.discard, place
        )
        return True

    def _jumped(self) -> bool:
        self.world.clock.jump(self.rng.choice((-3600.0, -5.0, 5.0, 3600.0)))
        return True
