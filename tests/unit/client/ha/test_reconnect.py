"""The reconnect state machine of an HA client: order of steps, and reasons to stop."""

from __future__ import annotations

import pytest

from tickertape.base.errors import (
    Closed,
    Disconnected,
    NameInUse,
    StoreCorrupt,
    TickertapeError,
    TimedOut,
    TopicNotRecorded,
)
from tickertape.base.interfaces import Now
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import State
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.reconnect import Action, ReconnectMachine, ReconnectStep
from tickertape.client.limits import (
    connection_settled_seconds,
    name_settled_seconds,
    reconnect_seconds_min,
    servers_hurried_max,
)

A, B = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
BROKEN = Disconnected("broken")
TAKEN = NameInUse("taken over")
GONE = State(ConnectionState.DISCONNECTED)


AT_FIRST = [machine.ResetDelay(), machine.AskChooser()]


class Effects(list[Action]):
    """A list of effects. Effects without fields are equal only to effects of the same type."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, list)
            and list(map(type, self)) == list(map(type, other))
            and super().__eq__(other)
        )

    __hash__ = None


class Harness:
    """A reconnect machine in virtual time. The test gives all answers."""

    def __init__(self) -> None:
        self.session = ReconnectMachine()
        self.mono = 100.0

    def now(self) -> Now:
        return Now(self.mono, 0)

    def feed(self, happened: machine.Event) -> Effects:
        self.session.receive(happened, self.now())
        return Effects(self.session.effects())

    def later(self, seconds: float) -> Effects:
        self.mono += seconds
        self.session.wake(self.now())
        return Effects(self.session.effects())

    def connecting(self) -> int:
        """Run to the first attempt and return its number."""
        assert self.feed(machine.Start()) == AT_FIRST
        (connect,) = self.feed(machine.ServerChosen(A))
        assert isinstance(connect, machine.Connect)
        return connect.attempt

    def next_attempt(self) -> int:
        """Run from the chooser to the next attempt and return its number."""
        self.feed(machine.ServerChosen(A))
        (connect,) = self.feed(machine.DelayChosen(0.0)) or self.later(reconnect_seconds_min)
        assert isinstance(connect, machine.Connect)
        return connect.attempt

    def ready(self) -> int:
        """Run until the client is ready and return the attempt number."""
        attempt = self.connecting()
        self.feed(machine.LogonSucceeded(attempt))
        self.feed(machine.Resubscribed(attempt))
        assert self.session.ready
        return attempt

    def dropped(self, error: TickertapeError = BROKEN) -> Effects:
        return self.feed(machine.ConnectionLost(error))


@pytest.mark.behaviour(21)
def test_first_connection_runs_each_step_in_order() -> None:
    harness = Harness()
    assert harness.feed(machine.Start()) == AT_FIRST
    assert harness.feed(machine.ServerChosen(A)) == [machine.Connect(1, A)]
    assert harness.feed(machine.LogonSucceeded(1)) == [
        machine.ReportSuccess(A),
        machine.ResumePublishing(),
        machine.Resubscribe(1),
    ]
    assert harness.session.step is ReconnectStep.RESUBSCRIBING
    assert harness.feed(machine.Resubscribed(1)) == [
        State(ConnectionState.RESUBSCRIBED),
        machine.Established(),
    ]
    assert harness.session.ready
    assert harness.feed(machine.Start()) == []


def test_server_unfit_for_the_publish_store_is_reported_as_failed() -> None:
    unfit = TopicNotRecorded("it does not record 'orders'")
    harness = Harness()
    attempt = harness.connecting()
    harness.feed(machine.LogonSucceeded(attempt))
    assert harness.dropped(unfit) == [machine.ReportFailure(unfit, A), machine.AskChooser()]
    harness = Harness()
    harness.ready()
    assert harness.dropped(unfit) == [machine.ReportFailure(unfit, A), machine.AskChooser()]
    harness = Harness()
    attempt = harness.connecting()
    assert harness.dropped(unfit) == []
    assert harness.feed(machine.LogonSucceeded(attempt)) == [
        machine.ReportSuccess(A),
        machine.ReportFailure(unfit, A),
        machine.AskChooser(),
    ]


@pytest.mark.behaviour(21)
def test_lost_connection_starts_an_attempt_after_a_delay() -> None:
    harness = Harness()
    harness.ready()
    assert harness.dropped() == [machine.AskChooser()]
    assert harness.feed(machine.ServerChosen(B)) == [machine.AskDelay(B)]
    assert harness.feed(machine.DelayChosen(0.5)) == []
    assert harness.session.next_deadline() == harness.mono + 0.5
    assert harness.later(0.4) == []
    assert harness.later(0.2) == [machine.Connect(2, B)]
    assert harness.session.next_deadline() is None


@pytest.mark.behaviour(21)
def test_failed_attempt_is_reported_before_the_next_choice() -> None:
    harness = Harness()
    attempt = harness.connecting()
    assert harness.feed(machine.AttemptFailed(attempt, BROKEN)) == [
        machine.ReportFailure(BROKEN, A),
        machine.AskChooser(),
    ]
    assert harness.feed(machine.ServerChosen(B)) == [machine.AskDelay(B)]
    assert harness.feed(machine.DelayChosen(0.0)) == [machine.Connect(2, B)]


def failed_delay(harness: Harness, uri: str) -> Effects:
    """Fail the last attempt, choose `uri` and delay 0, and return the effects."""
    harness.feed(machine.AttemptFailed(harness.session.attempt, BROKEN))
    harness.feed(machine.ServerChosen(uri))
    return harness.feed(machine.DelayChosen(0.0))


def test_failed_server_is_retried_after_a_minimum_delay_and_others_at_once() -> None:
    harness = Harness()
    harness.connecting()
    assert failed_delay(harness, B) == [machine.Connect(2, B)]
    assert failed_delay(harness, A) == []
    assert harness.session.next_deadline() == harness.mono + reconnect_seconds_min
    assert harness.later(reconnect_seconds_min) == [machine.Connect(3, A)]
    assert failed_delay(harness, B) == []
    assert harness.later(reconnect_seconds_min) == [machine.Connect(4, B)]


def test_every_server_is_tried_at_once_after_a_settled_connection() -> None:
    harness = Harness()
    harness.connecting()
    assert failed_delay(harness, B) == [machine.Connect(2, B)]
    harness.feed(machine.LogonSucceeded(2))
    harness.feed(machine.Resubscribed(2))
    harness.mono += connection_settled_seconds
    harness.dropped()
    harness.feed(machine.ServerChosen(B))
    assert harness.feed(machine.DelayChosen(0.0)) == [machine.Connect(3, B)]
    assert failed_delay(harness, A) == [machine.Connect(4, A)]
    assert failed_delay(harness, B) == []


def test_attempts_without_delay_are_limited_when_the_chooser_never_repeats() -> None:
    harness = Harness()
    harness.connecting()
    for attempt in range(1, servers_hurried_max):
        assert failed_delay(harness, f"{A}{attempt}")
    assert failed_delay(harness, f"{A}0") == []
    assert harness.session.next_deadline() == harness.mono + reconnect_seconds_min


@pytest.mark.behaviour(22)
def test_missing_server_stops_with_the_text_of_the_chooser() -> None:
    harness = Harness()
    harness.connecting()
    harness.feed(machine.AttemptFailed(1, BROKEN))
    state, stopped = harness.feed(machine.ServerChosen(None, "all are down"))
    assert state == GONE
    assert isinstance(stopped, machine.Stopped)
    assert (stopped.begun, stopped.known) == (1, False)
    assert "all are down. Last attempt: broken." in str(stopped.error)
    assert isinstance(stopped.error, Disconnected)
    assert harness.session.stopped is stopped.error
    assert not harness.session.trying
    assert harness.later(1e6) == []
    assert harness.feed(machine.Start()) == AT_FIRST
    assert harness.session.stopped is None


@pytest.mark.behaviour(24)
def test_delay_strategy_that_gives_up_stops_connecting() -> None:
    harness = Harness()
    harness.ready()
    harness.dropped()
    harness.feed(machine.ServerChosen(A))
    state, stopped = harness.feed(machine.DelayChosen(None))
    assert state == GONE
    assert isinstance(stopped, machine.Stopped)
    assert "gives up. Last attempt: broken." in str(stopped.error)
    assert harness.session.step is ReconnectStep.IDLE


def test_connection_lost_before_logon_report_is_reported_as_success_and_replaced() -> None:
    harness = Harness()
    attempt = harness.connecting()
    assert harness.dropped() == []
    assert harness.feed(machine.LogonSucceeded(attempt)) == [machine.ReportSuccess(A), machine.AskChooser()]


def test_connection_lost_while_resubscribing_is_replaced_and_late_answer_ignored() -> None:
    harness = Harness()
    attempt = harness.connecting()
    harness.feed(machine.LogonSucceeded(attempt))
    assert harness.dropped() == [machine.AskChooser()]
    assert harness.feed(machine.Resubscribed(attempt, BROKEN)) == []
    assert harness.next_attempt() == 2
    harness.feed(machine.LogonSucceeded(2))
    assert harness.feed(machine.Resubscribed(attempt)) == []
    assert not harness.session.ready


def test_failed_resubscription_ends_the_connection() -> None:
    harness = Harness()
    attempt = harness.connecting()
    harness.feed(machine.LogonSucceeded(attempt))
    (hang_up,) = harness.feed(machine.Resubscribed(attempt, TimedOut("no answer")))
    assert isinstance(hang_up, machine.Disconnect)
    assert "no answer" in str(hang_up.error)
    assert harness.dropped() == [machine.AskChooser()]


@pytest.mark.parametrize("steps", range(7))
def test_close_in_any_step_stops_and_later_events_are_ignored(steps: int) -> None:
    harness = Harness()
    happened: list[machine.Event] = [
        machine.Start(),
        machine.ServerChosen(A),
        machine.AttemptFailed(1, BROKEN),
        machine.ServerChosen(A),
        machine.DelayChosen(1.0),
    ]
    for event in happened[:steps]:
        harness.session.receive(event, harness.now())
    if steps > 5:
        harness.later(2.0)
        harness.session.receive(machine.LogonSucceeded(2), harness.now())
    (stopped,) = harness.feed(machine.CloseRequested())
    assert isinstance(stopped, machine.Stopped)
    assert isinstance(stopped.error, Closed)
    assert stopped.known
    late: tuple[machine.Event, ...] = (
        machine.ServerChosen(A),
        machine.DelayChosen(0.0),
        machine.Resubscribed(2),
        machine.Start(),
    )
    for event in (
        *late,
        machine.AttemptFailed(2, BROKEN),
        machine.ConnectionLost(BROKEN),
        machine.Cancelled(BROKEN),
    ):
        assert harness.feed(event) == [], event
    assert harness.later(10.0) == []
    assert harness.session.step is ReconnectStep.CLOSED


def test_logon_after_cancelled_attempt_is_disconnected() -> None:
    harness = Harness()
    attempt = harness.connecting()
    late = TimedOut("too late")
    assert harness.feed(machine.Cancelled(late)) == [GONE, machine.Stopped(late, known=True, begun=1)]
    (hang_up,) = harness.feed(machine.LogonSucceeded(attempt))
    assert isinstance(hang_up, machine.Disconnect)
    assert harness.feed(machine.Start()) == AT_FIRST


def test_cancel_stops_the_first_connection_and_not_a_reconnect() -> None:
    harness = Harness()
    attempt = harness.connecting()
    harness.feed(machine.LogonSucceeded(attempt))
    state, stopped, hang_up = harness.feed(machine.Cancelled(BROKEN))
    assert (state, stopped) == (GONE, machine.Stopped(BROKEN, known=True, begun=1))
    assert isinstance(hang_up, machine.Disconnect)
    other = Harness()
    other.ready()
    other.dropped()
    assert other.feed(machine.Cancelled(BROKEN)) == []
    assert other.session.trying


def test_failure_is_reported_although_connecting_was_cancelled() -> None:
    harness = Harness()
    attempt = harness.connecting()
    harness.session.receive(machine.AttemptFailed(attempt, BROKEN), harness.now())
    assert harness.feed(machine.Cancelled(BROKEN))[0] == machine.ReportFailure(BROKEN, A)


def test_name_takeover_leads_to_one_reconnect_and_then_stops() -> None:
    harness = Harness()
    harness.ready()
    assert harness.dropped(TAKEN) == [machine.AskChooser()]
    attempt = harness.next_attempt()
    harness.feed(machine.LogonSucceeded(attempt))
    harness.feed(machine.Resubscribed(attempt))
    harness.mono += name_settled_seconds - 1
    assert harness.dropped(TAKEN) == [GONE, machine.Stopped(TAKEN, known=False, begun=1)]
    assert harness.feed(machine.Start()) == AT_FIRST


def test_name_takeover_after_settled_time_leads_to_reconnect_each_time() -> None:
    harness = Harness()
    harness.ready()
    for _ in range(3):
        harness.mono += name_settled_seconds
        assert harness.dropped(TAKEN) == [machine.AskChooser()]
        attempt = harness.next_attempt()
        harness.feed(machine.LogonSucceeded(attempt))
        harness.feed(machine.Resubscribed(attempt))


def test_name_takeover_during_logon_counts_as_takeover() -> None:
    harness = Harness()
    harness.ready()
    harness.dropped(TAKEN)
    harness.next_attempt()
    assert harness.dropped(TAKEN) == [GONE, machine.Stopped(TAKEN, known=False, begun=1)]


def test_driver_failure_stops_connecting() -> None:
    harness = Harness()
    harness.connecting()
    assert harness.feed(machine.DriverFailed(BROKEN)) == [GONE, machine.Stopped(BROKEN, known=False, begun=1)]


def test_unreadable_publish_store_stops_connecting() -> None:
    harness = Harness()
    attempt = harness.connecting()
    harness.feed(machine.LogonSucceeded(attempt))
    corrupt = StoreCorrupt("a segment is gone")
    assert harness.dropped(corrupt) == [GONE, machine.Stopped(corrupt, known=False, begun=1)]
    assert harness.feed(machine.Resubscribed(attempt, BROKEN)) == []
    assert harness.feed(machine.Start()) == AT_FIRST


@pytest.mark.parametrize("steps", ["connecting", "resubscribing", "ready"])
def test_attempt_after_short_connection_waits_the_minimum_delay(steps: str) -> None:
    harness = Harness()
    attempt = harness.connecting()
    if steps == "connecting":
        harness.dropped()
    harness.feed(machine.LogonSucceeded(attempt))
    if steps == "ready":
        harness.feed(machine.Resubscribed(attempt))
        harness.mono += connection_settled_seconds * 0.9
    if steps != "connecting":
        harness.dropped()
    for _ in range(2):
        harness.feed(machine.ServerChosen(A))
        assert harness.feed(machine.DelayChosen(0.0)) == []
        assert harness.session.next_deadline() == harness.mono + reconnect_seconds_min
        (connect,) = harness.later(reconnect_seconds_min)
        assert isinstance(connect, machine.Connect)
        harness.feed(machine.LogonSucceeded(connect.attempt))
        harness.dropped()


def test_attempt_after_settled_connection_follows_the_delay_strategy() -> None:
    harness = Harness()
    harness.ready()
    harness.mono += connection_settled_seconds
    harness.dropped()
    harness.feed(machine.ServerChosen(A))
    assert harness.feed(machine.DelayChosen(0.0)) == [machine.Connect(2, A)]
