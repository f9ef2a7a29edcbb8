"""The session of an HA client in virtual time, with the default chooser and an exponential delay, against the
order of reconnecting: seeded networks fail to connect, refuse logons and lose connections in every step.
"""

from __future__ import annotations

from random import Random

import pytest

from tickertape.base.errors import Disconnected, Refused, TickertapeError
from tickertape.base.interfaces import Now
from tickertape.client.common.effects import State
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.delay_strategy import ExponentialDelayStrategy
from tickertape.client.ha.reconnect import Action, ReconnectMachine
from tickertape.client.ha.server_chooser import ConnectionInfo, DefaultServerChooser

RUNS = 300
STEPS = 200
SERVERS = [f"tcp://127.0.0.1:{port}" for port in (1, 2, 3)]
INITIAL, FACTOR, MAXIMUM, LIMIT = 0.2, 2.0, 3.0, 9.0

# Allowed successors. C: the chooser is asked, D: the strategy is asked, X: an attempt, F: a reported failure,
# S: a reported success, G: discard and republish, R: resubscribe, Y: ready, L: lost, P: stopped.
MAY_FOLLOW = {
    "": "C",
    "C": "DX",
    "D": "XP",
    "X": "FSL",
    "F": "C",
    "S": "GC",
    "G": "R",
    "R": "YL",
    "Y": "L",
    "L": "CS",
    "P": "C",
}


class World:
    """Carries out a session's effects as a driver does, and notes them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.mono = 0.0
        self.session = ReconnectMachine()
        self.chooser = DefaultServerChooser(SERVERS)
        self.delays = ExponentialDelayStrategy(INITIAL, FACTOR, MAXIMUM, 0.0, give_up_after=LIMIT)
        self.trace = ""
        self.attempts: list[tuple[float, str]] = []
        self.waits: list[float] = []
        self.asked = 0
        self.expected_uri = SERVERS[0]
        self.due: list[Action] = []
        self.up = False

    def feed(self, happened: machine.Event) -> None:
        self.session.receive(happened, Now(self.mono, 0))
        self.due += self.session.effects()

    def step(self) -> None:
        """Take one random step."""
        if self.up and self.random.random() < 0.15:
            self.lose()
        elif self.due:
            self.carry(self.due.pop(0))
        elif (deadline := self.session.next_deadline()) is not None:
            self.mono = deadline
            self.session.wake(Now(self.mono, 0))
            self.due += self.session.effects()
        elif not self.session.trying:
            self.expected_uri = self.chooser.current_uri() or ""
            self.feed(machine.Start())
        else:
            self.mono += self.random.expovariate(0.5)

    def lose(self) -> None:
        self.up = False
        self.trace += "L"
        self.feed(machine.ConnectionLost(Disconnected("lost")))

    def carry(self, effect: Action) -> None:
        if isinstance(effect, machine.AskChooser):
            self.trace += "C"
            uri = self.chooser.current_uri()
            assert uri == self.expected_uri, "23: stays on a working server, moves on at a failure"
            self.feed(machine.ServerChosen(uri))
        elif isinstance(effect, machine.ResetDelay):
            self.asked = 0
            self.delays.reset()
        elif isinstance(effect, machine.AskDelay):
            self.trace += "D"
            wait = self.delays.next_delay(effect.uri, self.mono, self.random.random())
            if wait is not None and self.asked < 4:
                assert wait == pytest.approx(INITIAL * FACTOR**self.asked), "24: afresh after a logon"
            self.asked += 1
            self.waits.append(-1.0 if wait is None else self.mono + wait)
            self.feed(machine.DelayChosen(wait))
        elif isinstance(effect, machine.Connect):
            self.trace += "X"
            if self.trace.endswith("DX"):
                assert self.mono == pytest.approx(self.waits[-1]), "the delay is not the requested one"
            self.connect(effect)
        elif isinstance(effect, machine.ReportFailure):
            self.trace += "F"
            self.expected_uri = SERVERS[(SERVERS.index(effect.uri) + 1) % len(SERVERS)]
            self.chooser.report_failure(effect.error, ConnectionInfo("c", effect.uri))
        elif isinstance(effect, machine.ReportSuccess):
            self.trace += "S"
            self.asked = 0
            self.chooser.report_success(ConnectionInfo("c", effect.uri))
            self.delays.reset()
        else:
            self.carry_connected(effect)

    def connect(self, effect: machine.Connect) -> None:
        assert not self.up, "one connection at a time"
        self.mono += self.random.random() * 0.1
        if self.random.random() < 0.4:
            errors: list[TickertapeError] = [Disconnected("no server"), Refused("no")]
            self.feed(machine.AttemptFailed(effect.attempt, self.random.choice(errors)))
            return
        self.up = True
        if self.random.random() < 0.2:
            self.lose()
        self.feed(machine.LogonSucceeded(effect.attempt))

    def carry_connected(self, effect: Action) -> None:
        if isinstance(effect, machine.ResumePublishing):
            self.trace += "G" if self.up else ""
        elif isinstance(effect, machine.Resubscribe):
            self.trace += "R" if self.up else ""
            error = None if self.up else Disconnected("lost")
            self.feed(machine.Resubscribed(effect.attempt, error))
        elif isinstance(effect, machine.Established):
            self.trace += "Y" if self.up else ""
        elif isinstance(effect, machine.Stopped):
            self.trace += "P"
            assert "gives up" in str(effect.error)
            assert not self.up
        else:
            assert isinstance(effect, State), effect


@pytest.mark.behaviour(21, 23, 24)
@pytest.mark.parametrize("seed", range(RUNS))
def test_reconnecting_client_follows_the_documented_order(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
    before = ""
    for at, what in enumerate(world.trace):
        may = MAY_FOLLOW[before]
        if what == "L" and before in "SGRY":
            may += "L"  # a connection lost before the next step
        assert what in may, (world.trace[max(0, at - 20) : at + 1], seed)
        before = what
    assert world.trace.count("Y") > 0 or world.trace.count("F") > 3


def test_reconnect_order_excludes_steps_out_of_order() -> None:
    assert "R" not in MAY_FOLLOW["S"]
    assert "X" not in MAY_FOLLOW["F"]
