"""Links between simulated processes: bytes in flight, their latency, and their loss.

Must never look into the bytes, reorder those of one direction, or deliver one that was cut off.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple
from zlib import crc32

from tests.world.process import Process, running

SLICED: Final = (0, 0, 1, 3)
"""Maximum number of cuts that split a write into pieces, one value per connection. Tests of frames cover
byte-by-byte arrival.
"""
LATENCIES: Final = (0.0001, 0.002, 0.05)
"""Maximum latency of a piece in seconds, one value per connection."""
WINDOWS: Final = (1 << 20, 65_536, 4_096)
"""Bytes on the way or unread in one direction."""
SILENCE_SECONDS: Final = 1.0
"""Two of the shortest heartbeats."""
NOTICED_SECONDS: Final = 15.0
"""Seconds in which both ends notice a half-open connection: two of the longest heartbeats and the effect of
a stall, or the logon timeout of a server.
"""
FORGOTTEN_SECONDS: Final = 120.0
"""Seconds after which the system ends a silent connection."""

Factory = Callable[[], asyncio.BaseProtocol]


class _Socket(NamedTuple):
    """The socket of a transport, which has no file descriptor."""

    def fileno(self) -> int:
        return -1


class End(asyncio.Transport):
    """One end of a connection, and the way from here to the other."""

    def __init__(self, link: Link, owner: Process, name: str) -> None:
        super().__init__()
        self.link = link
        self.owner = owner
        self.name = name
        self.protocol: Any = None
        self.other: End = self
        self.vanishes = False
        """Data sent from here is lost."""
        self._unsent = bytearray()
        self._flying: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._on_the_way = 0
        self._arrives_at = 0.0
        self._inbox = bytearray()
        self._reading = True
        self._full = False
        self._high, self._low = 65_536, 16_384
        self._closing = False
        self._eof_sent = self._eof_wanted = self._eof_came = False
        self.lost = False
        """The connection is reported to its protocol as lost, or its process has ended."""
        owner.holds[self] = None

    # -- interface of a transport ---------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return _Socket()
        return (self.other.owner.name, self.link.number) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: Any) -> None:
        if self._closing and self.lost:
            return
        self._unsent += data
        self._pump()
        if not self._full and len(self._unsent) > self._high:
            self._full = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_wanted = True
        self._pump()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._soon(self._read)

    def is_reading(self) -> bool:
        return self._reading

    def close(self) -> None:
        """Send the written data, then close."""
        if self._closing:
            return
        self._closing = True
        self.link.given_up()
        self._eof_wanted = True
        if self._inbox:
            self.other._lose_later(ConnectionResetError(104, "Connection reset by peer"))
        self._pump()
        if not self._unsent:
            self._soon(self._end, None)

    def abort(self) -> None:
        """Close at once, and notify the other end."""
        self._closing = True
        self.link.given_up()
        self._unsent.clear()
        self._soon(self._end, None)
        self.other._lose_later(ConnectionResetError(104, "Connection reset by peer"))

    # -- events ---------------------------------------------------------------------------------------

    def process_ended(self) -> None:
        """End with the process: the system notifies the other end unless it is gone too."""
        self.lost = self._closing = True
        self.link.counts["connections of a process that ended"] += 1
        if not self.link.silent_end:
            self.other._lose_later(ConnectionResetError(104, "Connection reset by peer"))
        else:
            self.vanishes = self.other.vanishes = True
            self.link.forget()

    def cut(self) -> None:
        """Cut the connection: data in flight is lost, and this end is notified."""
        self.vanishes = True
        self._lose_later(ConnectionResetError(104, "Connection reset by peer"))

    # -- inside ---------------------------------------------------------------------------------------

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        if self.owner.alive:
            self.owner.run(self.link.loop.call_soon, function, *arguments)

    def _pump(self) -> None:
        """Send written data as far as the window allows."""
        link = self.link
        cuts = link.rng.randint(0, link.sliced) if link.sliced else 0
        while self._unsent and self._on_the_way < link.window:
            size = min(len(self._unsent), link.window - self._on_the_way)
            if cuts:
                cuts -= 1
                size = link.rng.randint(1, size)
            piece = bytes(self._unsent[:size])
            del self._unsent[:size]
            self._on_the_way += size
            if self.vanishes:
                link.took_effect("half open")
            else:
                self._travel(self.other._arrived, piece)
        if self._full and len(self._unsent) <= self._low:
            self._full = False
            self._soon(self.protocol.resume_writing)
        if self._eof_wanted and not self._unsent and not self._eof_sent:
            self._eof_sent = True
            if not self.vanishes:
                self._travel(self.other._eof)
            if self._closing:
                self._soon(self._end, None)

    def _travel(self, arrive: Callable[..., None], *what: Any) -> None:
        link = self.link
        if link.delay:
            link.took_effect("stalled")
        moment = link.loop.time() + link.rng.random() * link.latency + link.delay
        self._arrives_at = max(self._arrives_at, moment)
        # Timers of equal times fire in any order, but data is not reordered.
        self._flying.append((arrive, what))
        link.world_at(self._arrives_at, self._deliver)

    def _deliver(self) -> None:
        """Deliver the next piece, unless the connection was cut meanwhile."""
        arrive, what = self._flying.popleft()
        if not self.vanishes and self.other.owner.alive and not self.other.lost:
            arrive(*what)
        elif not self.vanishes and self.other.lost:
            self._lose_later(ConnectionResetError(104, "Connection reset by peer"))

    def _arrived(self, piece: bytes) -> None:
        self.link.note(self.link.number, self.name, crc32(piece))
        self._inbox += piece
        self.owner.run(self._read)

    def _eof(self) -> None:
        self._eof_came = True
        self.owner.run(self._read)

    def _read(self) -> None:
        """Deliver arrived data."""
        while self._inbox and self._reading and not self.lost:
            buffer = self.protocol.get_buffer(-1)
            size = min(len(buffer), len(self._inbox))
            buffer[:size] = self._inbox[:size]
            del self._inbox[:size]
            self.other._taken(size)
            self.protocol.buffer_updated(size)
        if self._eof_came and not self._inbox and not self.lost and not self._closing:
            self._eof_came = False
            if not self.protocol.eof_received():
                self.close()

    def _taken(self, size: int) -> None:
        self._on_the_way -= size
        if self._unsent and not self.lost:
            self._pump()

    def _lose_later(self, error: Exception) -> None:
        link = self.link
        link.world_at(link.loop.time() + link.rng.random() * link.latency, self._lose, error)

    def _lose(self, error: Exception) -> None:
        if not self.lost and self.owner.alive:
            self._closing = True
            self._soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self._closing = True
            self.owner.holds.pop(self, None)
            self.protocol.connection_lost(error)


class Link:
    """A connection. Chance decides once how it is."""

    def __init__(self, network: Network, number: int, client: Process, server: Process) -> None:
        self.loop = network.loop
        self.rng = network.rng
        self.counts = network.counts
        self.world_at = network.at
        self.note = network.note
        self.wrong = network.wrong
        self.number = number
        self.sliced = self.rng.choice(SLICED)
        self.latency = self.rng.choice(LATENCIES)
        self.window = self.rng.choice(WINDOWS)
        self.delay = 0.0
        """Seconds that everything takes longer just now."""
        self.half_open_since: float | None = None
        self._awaited: set[str] = set()
        """Faults of this link without an effect until now."""
        self.silent_end = False
        """Whether an end stays unaware that the other process is gone, because its machine is gone too."""
        self.client = End(self, client, "client")
        self.server = End(self, server, "server")
        self.client.other, self.server.other = self.server, self.client
        self.counts["connections sliced"] += self.sliced > 0

    @property
    def over(self) -> bool:
        """Return whether both ends are gone."""
        return self.client.lost and self.server.lost

    @property
    def stands(self) -> bool:
        """Return whether data is delivered, if late, and neither end is about to close."""
        return not any(end.lost or end.vanishes or end.is_closing() for end in (self.client, self.server))

    def took_effect(self, what: str) -> None:
        """Count a fault of this link when it takes effect."""
        if what in self._awaited:
            self._awaited.remove(what)
            self.counts[what] += 1

    def _look(self) -> None:
        """Check that both ends have noticed a half-open connection in time."""
        for end in (self.client, self.server):
            if not end.lost and end.owner.alive:
                self.wrong.append(
                    f"{end.owner.name} has not noticed that connection {self.number} is half-open"
                )

    def given_up(self) -> None:
        """Count a close after a long silence, which is its cause."""
        since = self.half_open_since
        if since is not None and self.loop.time() - since > SILENCE_SECONDS:
            self.counts["silence noticed"] += 1

    def stall(self, seconds: float) -> None:
        """From now on everything takes longer."""
        self.delay = seconds
        self._awaited.add("stalled")

    def cut(self) -> None:
        """Notify both ends of the loss, each at a time of its own."""
        self.client.cut()
        self.server.cut()

    def half_open(self, *, to_server: bool, to_client: bool) -> None:
        """Lose all data in these directions from now on, without a notification until it is forgotten."""
        self.client.vanishes |= to_server
        self.server.vanishes |= to_client
        self.half_open_since = self.loop.time()
        self._awaited.add("half open")
        self.forget()
        self.world_at(self.loop.time() + NOTICED_SECONDS, self._look)

    def forget(self) -> None:
        """Let the system notice the loss in the end."""
        self.world_at(self.loop.time() + FORGOTTEN_SECONDS, self.cut)


class Network:
    """All links of a simulation.

    `at(time, function, ...)` schedules a call of the simulation itself, `note(...)` receives each arrival,
    and violations are added to `wrong`.
    """

    def __init__(
        self,
        loop: asyncio.BaseEventLoop,
        rng: Random,
        counts: Counter[str],
        at: Callable[..., None],
        note: Callable[..., None],
        wrong: list[str],
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.counts = counts
        self.at = at
        self.note = note
        self.wrong = wrong
        self.links: list[Link] = []
        self._made = 0
        self._listening: dict[tuple[str, int], tuple[Process, Factory]] = {}
        self.unreachable: set[tuple[str, int]] = set()
        """Addresses without any answer to a connection attempt."""

    def listen(self, host: str, port: int, owner: Process, factory: Factory) -> None:
        """Accept connections at an address while `owner` runs."""
        self._listening[host, port] = owner, factory

    def close(self, host: str, port: int) -> None:
        """Take no more connections there."""
        self._listening.pop((host, port), None)

    async def connect(self, factory: Factory, host: str, port: int) -> tuple[End, Any]:
        """Connect, as `create_connection` does."""
        client = running()
        assert client is not None, "only processes connect"
        await asyncio.sleep(self.rng.random() * 0.002)
        while (host, port) in self.unreachable:
            self.counts["unreachable"] += 1
            await asyncio.sleep(FORGOTTEN_SECONDS)
        owner, accept = self._listening.get((host, port), (None, None))
        if owner is None or accept is None or not owner.alive:
            self.counts["connection refused"] += 1
            raise ConnectionRefusedError(111, "Connection refused")
        self._made += 1
        link = Link(self, self._made, client, owner)
        self.links = [other for other in self.links if not other.over]
        self.links.append(link)
        for end, make in ((link.server, accept), (link.client, factory)):
            end.protocol = end.owner.run(make)
            end.owner.run(end.protocol.connection_made, end)
        return link.client, link.client.protocol
