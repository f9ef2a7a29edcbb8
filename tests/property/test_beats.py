"""Heartbeats in virtual time: a client and a server that know nothing of each other but what arrives.

Whatever they say, however busy they are and however long bytes travel: nobody alive is given up, and a
connection that goes half-open is noticed by both in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import TickertapeError
from tickertape.client.beats import Beats as ClientBeats
from tickertape.engine.answers import Answers
from tickertape.engine.beats import Beats
from tickertape.engine.effects import Effect, Look, Send
from tickertape.engine.statistics import Statistics
from tickertape.wire.pulse import Sight

CONN = 7
WORD_BYTES = 32


class Side:
    """One end: what arrived, what was read of it, and whether it is too busy to read."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.heard_at = self.said_at = 0.0
        self.unread = 0
        self.busy = False
        self.ended_at: float | None = None
        self.beats = 0
        self.gaps = 0.0
        self.other = self

    def say(self) -> None:
        self.gaps = max(self.gaps, self._life.now - self.said_at)
        self.said_at = self._life.now
        self._life.send(self.other.arrive)

    def beat(self) -> None:
        self.beats += 1
        self.say()

    def arrive(self) -> None:
        self.unread += WORD_BYTES
        if not self.busy:
            self.read()

    def read(self) -> None:
        if self.unread:
            self.unread = 0
            self.heard_at = self._life.now

    def sight(self) -> Sight:
        return Sight(self.heard_at, self.said_at, unread_bytes=self.unread)

    def work(self, seconds: float) -> None:
        """Read nothing for so long."""
        if not self.busy:
            self.busy = True
            self._life.at(self._life.now + seconds, self.rest)

    def rest(self) -> None:
        self.busy = False
        self.read()


class Life:
    """A connection from 0 to `end`, half-open from `cut` on (None: never)."""

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
        self._arrivals = 0.0
        self.client, self.server = Side(self), Side(self)
        self.client.other, self.server.other = self.server, self.client
        self._effects: list[Effect] = []
        self.engine = Beats(self._effects, Answers(self._effects, Statistics()), self._ended)
        self.machine = ClientBeats()
        self.machine.choose(interval, None)
        self.machine.begin(0.0)
        self.engine.begin(CONN, self.interval_ms, 0.0)

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment, next(self._tickets), act))

    def send(self, arrive: Callable[[], None]) -> None:
        if self.cut is None or self.now < self.cut:
            self.at(self.now + self.random.uniform(0, self.latency), arrive)

    def _ended(self, _conn: int, _error: TickertapeError) -> None:
        self.engine.drop(CONN)
        self.server.ended_at = self.now

    def look_of_the_client(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is None or deadline > self.now:
            return
        verdict = self.machine.look(self.client.sight(), self.now)
        if verdict == "beat":
            self.client.beat()
        elif verdict == "silent":
            self.machine.end()
            self.client.ended_at = self.now

    def look_of_the_server(self) -> None:
        if self.server.busy:
            return  # one thread: it looks when the step is over
        deadline = self.engine.next_deadline()
        if deadline is None or deadline > self.now:
            return
        self.engine.wake(self.now)
        for effect in self._effects[:]:
            if isinstance(effect, Look):
                self.engine.looked(CONN, self.server.sight(), self.now)
        for effect in self._effects:
            if isinstance(effect, Send):
                self.server.beat()
        self._effects.clear()

    def run(self, *, chatty: float, busy: float) -> None:
        """`chatty`: how often the sides say something by themselves, `busy`: for how long they may read
        nothing, both in intervals."""
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
            if (deadline := self.machine.next_deadline()) is not None:
                deadlines.append(deadline)
            if not self.server.busy and (deadline := self.engine.next_deadline()) is not None:
                deadlines.append(deadline)
            if not deadlines or min(deadlines) > self.end:
                return
            self.now = max(self.now, min(deadlines))
            looks = [self.look_of_the_client, self.look_of_the_server]
            if self._agenda and self._agenda[0][0] <= self.now:
                looks.append(heapq.heappop(self._agenda)[2])
            self.random.shuffle(looks)  # what falls on one moment comes in any order
            for look in looks:
                look()


@given(st.integers(0, 2**32))
def test_nobody_who_lives_is_given_up(seed: int) -> None:
    life = Life(seed, cut=False)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=life.random.choice((0, 0.5)))
    assert life.client.ended_at is life.server.ended_at is None


@given(st.integers(0, 2**32))
def test_silence_never_lasts_longer_than_an_interval(seed: int) -> None:
    life = Life(seed, cut=False)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0)
    for side in (life.client, life.server):
        assert side.gaps <= life.interval * 1.000_01
        assert life.end - side.said_at <= life.interval * 1.000_01
        assert side.beats <= life.end / life.interval + 1


@given(st.integers(0, 2**32))
def test_a_half_open_connection_is_noticed_by_both_within_two_intervals(seed: int) -> None:
    life = Life(seed, cut=True)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0)
    assert life.cut is not None
    for side in (life.client, life.server):
        assert side.ended_at is not None
        assert side.ended_at <= life.cut + 2 * life.interval + life.latency + 1e-5


@given(st.integers(0, 2**32))
def test_it_is_noticed_though_they_are_busy(seed: int) -> None:
    life = Life(seed, cut=True)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0.5)
    assert life.cut is not None
    for side in (life.client, life.server):
        assert side.ended_at is not None
        # what arrived before the end may have been seen by a look that came up to an interval later
        assert side.ended_at <= life.cut + 3.5 * life.interval + life.latency + 1e-5


@pytest.mark.parametrize("busy", [0, 3.0])
def test_an_end_is_possible_at_all(busy: float) -> None:
    """The oracle's own check: a client whose bytes take three intervals is given up."""
    life = Life(1, cut=False)
    life.latency = 0
    life.client.say = lambda: None  # type: ignore[method-assign]
    life.run(chatty=0, busy=busy)
    assert life.server.ended_at is not None
