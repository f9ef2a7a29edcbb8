"""The session of an HA client, step by step: what is done in which order, and what ends it."""

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
    """As a list, but effects without fields are equal only to others of their kind."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, list)
            and list(map(type, self)) == list(map(type, other))
            and super().__eq__(other)
        )

    __hash__ = None


class Life:
    """A session in virtual time, with everything that it asks for answered by the test."""

    def __init__(self) -> None:
        self.session = ReconnectMachine()
        self.mono = 100.0

    def now(self) -> Now:
        return Now(self.mono, 0)

    def tell(self, happened: machine.Event) -> Effects:
        self.session.receive(happened, self.now())
        return Effects(self.session.effects())

    def later(self, seconds: float) -> Effects:
        self.mono += seconds
        self.session.wake(self.now())
        return Effects(self.session.effects())

    def connecting(self) -> int:
        """As far as the first attempt; its number."""
        assert self.tell(machine.Start()) == AT_FIRST
        (connect,) = self.tell(machine.ServerChosen(A))
        assert isinstance(connect, machine.Connect)
        return connect.attempt

    def again(self) -> int:
        """As far as the next attempt, from where the chooser was asked."""
        self.tell(machine.ServerChosen(A))
        (connect,) = self.tell(machine.DelayChosen(0.0)) or self.later(reconnect_seconds_min)
        assert isinstance(connect, machine.Connect)
        return connect.attempt

    def ready(self) -> int:
        """As far as everything may be called."""
        attempt = self.connecting()
        self.tell(machine.LogonSucceeded(attempt))
        self.tell(machine.Resubscribed(attempt))
        assert self.session.ready
        return attempt

    def dropped(self, error: TickertapeError = BROKEN) -> Effects:
        return self.tell(machine.ConnectionLost(error))


@pytest.mark.behaviour(21)
def test_the_first_connection_step_by_step() -> None:
    life = Life()
    assert life.tell(machine.Start()) == AT_FIRST
    assert life.tell(machine.ServerChosen(A)) == [machine.Connect(1, A)]
    assert life.tell(machine.LogonSucceeded(1)) == [
        machine.ReportSuccess(A),
        machine.ResumePublishing(),
        machine.Resubscribe(1),
    ]
    assert life.session.step is ReconnectStep.RESUBSCRIBING
    assert life.tell(machine.Resubscribed(1)) == [State(ConnectionState.RESUBSCRIBED), machine.Established()]
    assert life.session.ready
    assert life.tell(machine.Start()) == []


def test_server_that_cannot_take_the_publish_store_is_reported_as_failed() -> None:
    unfit = TopicNotRecorded("it does not record 'orders'")
    life = Life()
    attempt = life.connecting()
    life.tell(machine.LogonSucceeded(attempt))
    assert life.dropped(unfit) == [machine.ReportFailure(unfit, A), machine.AskChooser()]
    life = Life()
    life.ready()
    assert life.dropped(unfit) == [machine.ReportFailure(unfit, A), machine.AskChooser()]
    life = Life()
    attempt = life.connecting()
    assert life.dropped(unfit) == []
    assert life.tell(machine.LogonSucceeded(attempt)) == [
        machine.ReportSuccess(A),
        machine.ReportFailure(unfit, A),
        machine.AskChooser(),
    ]


@pytest.mark.behaviour(21)
def test_a_later_drop_starts_the_same_again_with_a_wait() -> None:
    life = Life()
    life.ready()
    assert life.dropped() == [machine.AskChooser()]
    assert life.tell(machine.ServerChosen(B)) == [machine.AskDelay(B)]
    assert life.tell(machine.DelayChosen(0.5)) == []
    assert life.session.next_deadline() == life.mono + 0.5
    assert life.later(0.4) == []
    assert life.later(0.2) == [machine.Connect(2, B)]
    assert life.session.next_deadline() is None


@pytest.mark.behaviour(21)
def test_a_failure_is_reported_and_goes_back_to_the_chooser() -> None:
    life = Life()
    attempt = life.connecting()
    assert life.tell(machine.AttemptFailed(attempt, BROKEN)) == [
        machine.ReportFailure(BROKEN, A),
        machine.AskChooser(),
    ]
    assert life.tell(machine.ServerChosen(B)) == [machine.AskDelay(B)]
    assert life.tell(machine.DelayChosen(0.0)) == [machine.Connect(2, B)]


def failed_delay(life: Life, uri: str) -> Effects:
    """The last attempt failed, the chooser says `uri` and the delay strategy 0: what comes of it."""
    life.tell(machine.AttemptFailed(life.session.attempt, BROKEN))
    life.tell(machine.ServerChosen(uri))
    return life.tell(machine.DelayChosen(0.0))


def test_a_server_that_failed_is_not_tried_again_at_once_others_are() -> None:
    life = Life()
    life.connecting()
    assert failed_delay(life, B) == [machine.Connect(2, B)]
    assert failed_delay(life, A) == []
    assert life.session.next_deadline() == life.mono + reconnect_seconds_min
    assert life.later(reconnect_seconds_min) == [machine.Connect(3, A)]
    assert failed_delay(life, B) == []
    assert life.later(reconnect_seconds_min) == [machine.Connect(4, B)]


def test_after_a_loss_every_server_is_tried_at_once_again() -> None:
    life = Life()
    life.connecting()
    assert failed_delay(life, B) == [machine.Connect(2, B)]
    life.tell(machine.LogonSucceeded(2))
    life.tell(machine.Resubscribed(2))
    life.mono += connection_settled_seconds
    life.dropped()
    life.tell(machine.ServerChosen(B))
    assert life.tell(machine.DelayChosen(0.0)) == [machine.Connect(3, B)]
    assert failed_delay(life, A) == [machine.Connect(4, A)]
    assert failed_delay(life, B) == []


def test_a_chooser_that_never_repeats_itself_is_not_followed_without_end() -> None:
    life = Life()
    life.connecting()
    for attempt in range(1, servers_hurried_max):
        assert failed_delay(life, f"{A}{attempt}")
    assert failed_delay(life, f"{A}0") == []
    assert life.session.next_deadline() == life.mono + reconnect_seconds_min


@pytest.mark.behaviour(22)
def test_no_server_ends_it_with_the_text_of_the_chooser() -> None:
    life = Life()
    life.connecting()
    life.tell(machine.AttemptFailed(1, BROKEN))
    tell, stopped = life.tell(machine.ServerChosen(None, "all are down"))
    assert tell == GONE
    assert isinstance(stopped, machine.Stopped)
    assert (stopped.begun, stopped.known) == (1, False)
    assert "all are down. Last attempt: broken." in str(stopped.error)
    assert isinstance(stopped.error, Disconnected)
    assert life.session.stopped is stopped.error
    assert not life.session.trying
    assert life.later(1e6) == []
    assert life.tell(machine.Start()) == AT_FIRST
    assert life.session.stopped is None


@pytest.mark.behaviour(24)
def test_a_strategy_that_gives_up_acts_as_no_server() -> None:
    life = Life()
    life.ready()
    life.dropped()
    life.tell(machine.ServerChosen(A))
    tell, stopped = life.tell(machine.DelayChosen(None))
    assert tell == GONE
    assert isinstance(stopped, machine.Stopped)
    assert "gives up. Last attempt: broken." in str(stopped.error)
    assert life.session.step is ReconnectStep.IDLE


def test_a_connection_lost_before_its_logon_was_told_of_is_reported_as_a_success_and_replaced() -> None:
    life = Life()
    attempt = life.connecting()
    assert life.dropped() == []
    assert life.tell(machine.LogonSucceeded(attempt)) == [machine.ReportSuccess(A), machine.AskChooser()]


def test_a_connection_lost_while_resubscribing_is_replaced_and_the_late_answer_ignored() -> None:
    life = Life()
    attempt = life.connecting()
    life.tell(machine.LogonSucceeded(attempt))
    assert life.dropped() == [machine.AskChooser()]
    assert life.tell(machine.Resubscribed(attempt, BROKEN)) == []
    assert life.again() == 2
    life.tell(machine.LogonSucceeded(2))
    assert life.tell(machine.Resubscribed(attempt)) == []
    assert not life.session.ready


def test_resubscribing_that_fails_ends_the_connection() -> None:
    life = Life()
    attempt = life.connecting()
    life.tell(machine.LogonSucceeded(attempt))
    (hang_up,) = life.tell(machine.Resubscribed(attempt, TimedOut("no answer")))
    assert isinstance(hang_up, machine.Disconnect)
    assert "no answer" in str(hang_up.error)
    assert life.dropped() == [machine.AskChooser()]


@pytest.mark.parametrize("steps", range(7))
def test_close_in_any_step_ends_it_and_what_comes_later_is_ignored(steps: int) -> None:
    life = Life()
    happened: list[machine.Event] = [
        machine.Start(),
        machine.ServerChosen(A),
        machine.AttemptFailed(1, BROKEN),
        machine.ServerChosen(A),
        machine.DelayChosen(1.0),
    ]
    for event in happened[:steps]:
        life.session.receive(event, life.now())
    if steps > 5:
        life.later(2.0)
        life.session.receive(machine.LogonSucceeded(2), life.now())
    (stopped,) = life.tell(machine.CloseRequested())
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
        assert life.tell(event) == [], event
    assert life.later(10.0) == []
    assert life.session.step is ReconnectStep.CLOSED


def test_a_logon_that_nobody_waits_for_any_more_is_hung_up() -> None:
    life = Life()
    attempt = life.connecting()
    late = TimedOut("too late")
    assert life.tell(machine.Cancelled(late)) == [GONE, machine.Stopped(late, known=True, begun=1)]
    (hang_up,) = life.tell(machine.LogonSucceeded(attempt))
    assert isinstance(hang_up, machine.Disconnect)
    assert life.tell(machine.Start()) == AT_FIRST


def test_who_stops_waiting_ends_the_first_connecting_only() -> None:
    life = Life()
    attempt = life.connecting()
    life.tell(machine.LogonSucceeded(attempt))
    tell, stopped, hang_up = life.tell(machine.Cancelled(BROKEN))
    assert (tell, stopped) == (GONE, machine.Stopped(BROKEN, known=True, begun=1))
    assert isinstance(hang_up, machine.Disconnect)
    other = Life()
    other.ready()
    other.dropped()
    assert other.tell(machine.Cancelled(BROKEN)) == []
    assert other.session.trying


def test_reports_are_made_though_it_was_stopped_meanwhile() -> None:
    life = Life()
    attempt = life.connecting()
    life.session.receive(machine.AttemptFailed(attempt, BROKEN), life.now())
    assert life.tell(machine.Cancelled(BROKEN))[0] == machine.ReportFailure(BROKEN, A)


def test_a_client_comes_back_once_when_its_name_was_taken_over() -> None:
    life = Life()
    life.ready()
    assert life.dropped(TAKEN) == [machine.AskChooser()]
    attempt = life.again()
    life.tell(machine.LogonSucceeded(attempt))
    life.tell(machine.Resubscribed(attempt))
    life.mono += name_settled_seconds - 1
    assert life.dropped(TAKEN) == [GONE, machine.Stopped(TAKEN, known=False, begun=1)]
    assert life.tell(machine.Start()) == AT_FIRST


def test_a_client_that_held_its_name_for_long_comes_back_again() -> None:
    life = Life()
    life.ready()
    for _ in range(3):
        life.mono += name_settled_seconds
        assert life.dropped(TAKEN) == [machine.AskChooser()]
        attempt = life.again()
        life.tell(machine.LogonSucceeded(attempt))
        life.tell(machine.Resubscribed(attempt))


def test_a_name_taken_over_during_the_logon_counts_too() -> None:
    life = Life()
    life.ready()
    life.dropped(TAKEN)
    life.again()
    assert life.dropped(TAKEN) == [GONE, machine.Stopped(TAKEN, known=False, begun=1)]


def test_a_driver_that_cannot_go_on_stops_it() -> None:
    life = Life()
    life.connecting()
    assert life.tell(machine.DriverFailed(BROKEN)) == [GONE, machine.Stopped(BROKEN, known=False, begun=1)]


def test_a_publish_store_that_cannot_be_read_stops_it() -> None:
    life = Life()
    attempt = life.connecting()
    life.tell(machine.LogonSucceeded(attempt))
    corrupt = StoreCorrupt("a segment is gone")
    assert life.dropped(corrupt) == [GONE, machine.Stopped(corrupt, known=False, begun=1)]
    assert life.tell(machine.Resubscribed(attempt, BROKEN)) == []
    assert life.tell(machine.Start()) == AT_FIRST


@pytest.mark.parametrize("steps", ["connecting", "resubscribing", "ready"])
def test_after_a_connection_that_did_not_last_the_next_one_waits_a_little(steps: str) -> None:
    life = Life()
    attempt = life.connecting()
    if steps == "connecting":
        life.dropped()
    life.tell(machine.LogonSucceeded(attempt))
    if steps == "ready":
        life.tell(machine.Resubscribed(attempt))
        life.mono += connection_settled_seconds * 0.9
    if steps != "connecting":
        life.dropped()
    for _ in range(2):
        life.tell(machine.ServerChosen(A))
        assert life.tell(machine.DelayChosen(0.0)) == []
        assert life.session.next_deadline() == life.mono + reconnect_seconds_min
        (connect,) = life.later(reconnect_seconds_min)
        assert isinstance(connect, machine.Connect)
        life.tell(machine.LogonSucceeded(connect.attempt))
        life.dropped()


def test_after_one_that_lasted_it_waits_as_the_strategy_says() -> None:
    life = Life()
    life.ready()
    life.mono += connection_settled_seconds
    life.dropped()
    life.tell(machine.ServerChosen(A))
    assert life.tell(machine.DelayChosen(0.0)) == [machine.Connect(2, A)]
