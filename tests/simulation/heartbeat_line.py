"""Simulated connection between a client and a server in virtual time, for heartbeat tests.

The sides know only arrived data. The simulation decides about traffic, latency, busy sides and the cut. Must
never decide when a heartbeat is due or which side is dead: the state machines of the product do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Final

from tests.helpers.engine_parts import make_outbox
from tickertape.base.interfaces import Now
from tickertape.client.protocol.heartbeat import ClientHeartbeat as ClientBeats
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import ProbeConnection, Send
from tickertape.engine.sessions.heartbeat import HeartbeatMonitor
from tickertape.wire.heartbeat import Liveness

CONN: Final = 7
WORD_BYTES: Final = 32


class Side:
    """One end of the connection: arrived data, read data, and whether the end is too busy to read."""

    def __init__(self, life: HeartbeatRun) -> None:
        self._life = life
        self.heard_at = self.said_at = 0.0
        self.unread = self.taken = 0
        self.busy = False
        self.suspended = False
        self.ended_at: float | None = None
        self.beats = 0
        self.gaps = 0.0
        self.other = self

    def say(self) -> None:
        if self.suspended or self.ended_at is not None:
            return
        self.gaps = max(self.gaps, self._life.now - self.said_at)
        self.said_at = self._life.now
        self._life.send(self, self.other.arrive)

    def beat(self) -> None:
        self.beats += 1
        self.say()

    def arrive(self) -> None:
        self.unread += WORD_BYTES
        if not self.busy and not self.suspended:
            self.read()

    def read(self) -> None:
        if self.unread:
            self.taken += self.unread
            self.unread = 0
            self.heard_at = self._life.now

    def sight(self) -> Liveness:
        return Liveness(self.heard_at, self.taken, self.said_at, unread_bytes=self.unread)

    def work(self, seconds: float) -> None:
        """Read nothing for `seconds`."""
        if not self.busy:
            self.busy = True
            self._life.at(self._life.now + seconds, self.rest)

    def rest(self) -> None:
        self.busy = False
        if not self.suspended:
            self.read()

    def suspend(self) -> None:
        """Suspend the process: it neither reads, sends nor runs timers."""
        self.suspended = True

    def go_on(self) -> None:
        self.suspended = False
        if not self.busy:
            self.read()

    def end(self) -> None:
        """End the connection, or learn that the other side did."""
        if self.ended_at is None:
            self.ended_at = self._life.now
            self._life.send(self, self.other.end)


class HeartbeatRun:
    """A connection from 0 to `end`. From `cut` on (None: never), data from the sides in `mute` is lost."""

    def __init__(self, seed: int, *, cut: bool) -> None:
        self.random = Random(seed)
        self.interval_ms = self.random.randint(100, 10_000)
        self.interval = interval = self.interval_ms / 1000
        self.now = 0.0
        self.end = 30 * interval
        self.cut = self.random.uniform(0, 15 * interval) if cut else None
        self.latency = self.random.choice((0.0, 0.05, 0.4)) * interval
        self._tickets = count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self.client, self.server = Side(self), Side(self)
        self.client.other, self.server.other = self.server, self.client
        self.mute = {self.client, self.server}
        self._clock = EngineClock()
        self._outbox = make_outbox(self._clock)
        self.engine = HeartbeatMonitor(self._outbox, self._clock)
        self.machine = ClientBeats()
        self.machine.choose(interval, None)
        self.machine.begin(0.0)
        self.engine.begin(CONN, self.interval_ms)

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._tickets), act))

    def send(self, side: Side, arrive: Callable[[], None]) -> None:
        if self.cut is None or self.now < self.cut or side not in self.mute:
            self.at(self.now + self.random.uniform(0, self.latency), arrive)

    def suspend(self, side: Side, since: float, seconds: float) -> None:
        self.at(since, side.suspend)
        self.at(since + seconds, side.go_on)

    def client_deadline(self) -> float | None:
        idle = self.client.suspended or self.client.ended_at is not None
        return None if idle else self.machine.next_deadline()

    def server_deadline(self) -> float | None:
        # one thread: it checks after the step
        idle = self.server.busy or self.server.suspended or self.server.ended_at is not None
        return None if idle else self.engine.next_deadline()

    def check_client(self) -> None:
        deadline = self.client_deadline()
        if deadline is None or deadline > self.now:
            return
        verdict = self.machine.check(self.client.sight(), self.now)
        if verdict == "beat":
            self.client.beat()
        elif verdict == "silent":
            self.machine.end()
            self.client.end()

    def check_server(self) -> None:
        deadline = self.server_deadline()
        if deadline is None or deadline > self.now:
            return
        self._clock.set(Now(self.now, 0))
        self.engine.wake()
        for effect in self._outbox.take():
            if isinstance(effect, ProbeConnection) and self.engine.probed(CONN, self.server.sight()):
                self.engine.drop(CONN)
                self.server.end()
        for effect in self._outbox.take():
            if isinstance(effect, Send):
                self.server.beat()

    def run(self, *, chatty: float, busy: float) -> None:
        """Run. `chatty`: mean intervals between messages of a side, `busy`: maximum intervals without a
        read.
        """
        interval = self.interval
        for side in (self.client, self.server):
            moment = 0.0
            while chatty and (moment := moment + self.random.expovariate(chatty / interval)) < self.end:
                self.at(moment, side.say)
            moment = 0.0
            while busy and (moment := moment + self.random.uniform(0, 5 * interval)) < self.end:
                longest = busy * (4 if side is self.client else 1)  # a handler of a client may take any time
                self.at(moment, partial(side.work, self.random.uniform(0, longest * interval)))
        while True:
            deadlines = [self._agenda[0][0]] if self._agenda else []
            of_machines = (self.client_deadline(), self.server_deadline())
            deadlines += [deadline for deadline in of_machines if deadline is not None]
            if not deadlines or min(deadlines) > self.end:
                return
            self.now = max(self.now, min(deadlines))
            looks = [self.check_client, self.check_server]
            if self._agenda and self._agenda[0][0] <= self.now:
                looks.append(heapq.heappop(self._agenda)[2])
            self.random.shuffle(looks)  # events at the same time arrive in any order
            for look in looks:
                look()
