"""Acknowledgements that wait for synchronous destinations, on whole engines."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.linked import client_of, join, levels_of, links_of, publish_next, run
from tests.simulation.linked_engine import LinkedEngine, PipeEnd, body_of
from tests.simulation.linked_engines import link_to
from tickertape.engine.runtime.effects import Effect, PauseReading, ResumeReading, Send, SendLink
from tickertape.engine.sessions import sync_ack_tracker
from tickertape.engine.sessions.ack_tracker import AckTracker
from tickertape.engine.sessions.sync_ack_tracker import SyncAckTracker
from tickertape.wire.commands import Ack, Flush, Persisted
from tickertape.wire.link import LinkRuns

SYNC = "orders"
ASYNC = "trades"


def _pair(sync: str = SYNC) -> tuple[LinkedEngine, LinkedEngine]:
    """Return two engines with synchronous links in both directions."""
    counts: Counter[str] = Counter()
    first, second = (LinkedEngine(n, n, (link_to(1 - n, sync=sync),), counts) for n in (0, 1))
    return first, second


def _cut(end: PipeEnd, *engines: LinkedEngine) -> None:
    """End a connection at both ends."""
    end.closing = end.peer.closing = True
    run(*engines)


def _tracker(engine: LinkedEngine) -> SyncAckTracker:
    tracker = engine.broker._acks
    assert isinstance(tracker, SyncAckTracker)
    return tracker


def test_server_without_synchronous_rules_waits_for_one_log_only() -> None:
    first, _ = _pair(sync="")
    assert type(first.broker._acks) is AckTracker
    peer = client_of(first)
    publish_next(peer)
    assert (peer.acked_sequence, levels_of(peer)) == (1, ["local"])


def test_acknowledgement_waits_for_the_disk_of_the_destination() -> None:
    first, second = _pair()
    end = join(first, second)
    peer = client_of(first)
    publish_next(peer, count=3)
    while end.peer.deliver():
        pass
    while second.broker.has_work:
        second.work()
    while end.deliver():
        pass
    assert second.broker.journal.commits.accepted_end > second.broker.journal.commits.persisted_end
    assert peer.acked_sequence == 0
    run(first, second)
    assert (peer.acked_sequence, levels_of(peer)) == (3, ["replicated(1)"])


def test_acknowledgement_waits_while_the_link_is_down() -> None:
    first, second = _pair()
    peer = client_of(first)
    publish_next(peer)
    assert len(first.persisted) == 1
    assert peer.acked_frame == 0
    join(first, second)
    assert peer.acked_frame == 1
    assert len(second.persisted) == 1


def test_waiting_acknowledgement_does_not_hold_up_another_connection() -> None:
    first, _ = _pair()
    waiting, other = client_of(first), client_of(first, "q")
    publish_next(waiting)
    publish_next(other, ASYNC, 2)
    assert (waiting.acked_sequence, other.acked_sequence) == (0, 2)
    assert levels_of(other) == ["local"]


def test_acknowledgements_of_one_connection_keep_the_order() -> None:
    first, second = _pair()
    peer = client_of(first)
    publish_next(peer, ASYNC)
    assert peer.acked_sequence == 1
    publish_next(peer, SYNC)
    publish_next(peer, ASYNC)
    peer.send(Flush(id=9))
    first.settle()
    assert (peer.acked_sequence, peer.answers) == (1, {})
    join(first, second)
    assert (peer.acked_frame, peer.acked_sequence, [*peer.answers]) == (3, 3, [9])
    kinds = [type(command) for command, _ in peer.received]
    assert kinds.index(Ack) > max(at for at, kind in enumerate(kinds) if kind is Persisted)


def test_flush_without_synchronous_messages_does_not_wait() -> None:
    first, _ = _pair()
    publish_next(client_of(first))
    other = client_of(first, "q")
    publish_next(other, ASYNC)
    other.send(Flush(id=4))
    first.settle()
    assert [*other.answers] == [4]


def test_duplicate_waits_for_the_destination_as_the_first_message() -> None:
    first, second = _pair()
    publish_next(client_of(first))
    again = client_of(first)  # takes over the name
    again.next_sequence = 1
    publish_next(again)
    assert len(first.persisted) == 1
    assert again.acked_sequence == 0
    join(first, second)
    assert again.acked_sequence == 1


def test_duplicate_of_another_server_waits_until_that_server_reports() -> None:
    first, second = _pair()
    back = join(second, first)
    publish_next(client_of(second))
    run(first, second)
    assert {*first.persisted.values()} == {*second.persisted.values()}
    _cut(back, first, second)
    again = client_of(first)
    again.next_sequence = 1
    publish_next(again)
    assert again.acked_sequence == 0  # the second server can have lost it
    join(first, second)
    assert (again.acked_sequence, len(first.persisted)) == (1, 1)


def test_lost_connection_keeps_the_position_of_the_destination() -> None:
    first, second = _pair()
    end = join(first, second)
    publish_next(client_of(first))
    run(first, second)
    _cut(end, first, second)
    again = client_of(first)
    again.next_sequence = 1
    publish_next(again)
    assert again.acked_sequence == 1
    publish_next(again)
    assert again.acked_sequence == 1


def test_old_copy_of_the_destination_holds_up_acknowledgements_after_the_handshake() -> None:
    first, second = _pair()
    join(first, second)
    copy = second.copy()
    publish_next(client_of(first))
    run(first, second)
    second.restore(copy)
    run(first, second)
    end = first.link_to(second)
    while not links_of(first).rows()[0].log or links_of(first).rows()[0].state == "opening":
        assert end.peer.deliver() or end.deliver() or second.broker.has_work or second.jobs
        second.settle()
    again = client_of(first)
    again.next_sequence = 1
    publish_next(again)
    assert len(second.persisted) == 0
    assert again.acked_sequence == 0
    run(first, second)
    assert again.acked_sequence == 1


def test_first_of_several_destinations_is_enough_for_any_one() -> None:
    counts: Counter[str] = Counter()
    links = (link_to(1, "replicate", sync=SYNC), link_to(2, "replicate", sync=SYNC))
    first = LinkedEngine(1, 0, links, counts, acknowledge=1)
    second, third = LinkedEngine(2, 1, (), counts), LinkedEngine(3, 2, (), counts)
    peer = client_of(first)
    publish_next(peer)
    assert peer.acked_sequence == 0
    join(first, third)
    assert (peer.acked_sequence, levels_of(peer)) == (1, ["replicated(1)"])
    join(first, second)
    publish_next(peer)
    run(first, second, third)
    assert peer.acked_sequence == 2


def test_all_destinations_are_needed_without_any() -> None:
    counts: Counter[str] = Counter()
    links = (link_to(1, "replicate", sync=SYNC), link_to(2, "replicate", sync=SYNC))
    first = LinkedEngine(1, 0, links, counts)
    second, third = LinkedEngine(2, 1, (), counts), LinkedEngine(3, 2, (), counts)
    peer = client_of(first)
    publish_next(peer)
    join(first, third)
    assert peer.acked_sequence == 0
    join(first, second)
    assert (peer.acked_sequence, levels_of(peer)) == (1, ["replicated(2)"])


def test_rows_are_sent_to_synchronous_links_before_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _pair()
    join(first, second)
    peer, other = client_of(first), client_of(first, "q")
    assert peer.logged_on is not None
    assert other.logged_on is not None
    seen: list[Effect] = []
    perform = first.perform

    def recorded(effect: Effect) -> None:
        seen.append(effect)
        perform(effect)

    monkeypatch.setattr(first, "perform", recorded)
    other.publish(ASYNC, [body_of(other.logged_on.publisher, 1)])
    peer.publish(SYNC, [body_of(peer.logged_on.publisher, 1)])
    while other.acked_sequence == 0:
        first.run_job()
    sent = [
        at
        for at, one in enumerate(seen)
        if isinstance(one, SendLink) and isinstance(one.command, LinkRuns) and one.batch is not None
    ]
    acknowledged = [at for at, one in enumerate(seen) if isinstance(one, Send) and one.conn == other.conn]
    assert sent
    assert max(sent) < min(acknowledged)


# -- bounds ---------------------------------------------------------------------------------------------


def test_publisher_with_too_many_waiting_answers_is_paused_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_ack_tracker, "owed_max", 5)
    first, second = _pair()
    peer, other = client_of(first), client_of(first, "q")
    paused: list[int] = []
    resumed: list[int] = []
    perform = first.perform

    def recorded(effect: Effect) -> None:
        if isinstance(effect, PauseReading | ResumeReading) and effect.why == "links":
            (paused if isinstance(effect, PauseReading) else resumed).append(effect.conn)
        perform(effect)

    monkeypatch.setattr(first, "perform", recorded)
    for number in range(1, 9):
        publish_next(peer)
        assert paused == ([peer.conn] if number > 5 else [])
        publish_next(other, ASYNC)
    assert (paused, resumed, other.acked_sequence) == ([peer.conn], [], 8)
    join(first, second)
    assert peer.acked_sequence == 8
    assert resumed == [peer.conn]


def test_answers_of_closed_connections_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_ack_tracker, "_CLOSED_MIN", 2)
    first, second = _pair()
    tracker = _tracker(first)
    for number in range(20):
        peer = client_of(first, f"p{number}")
        publish_next(peer)
        assert tracker._owed_count == len(tracker._held) == 1
        peer.publish(SYNC, [body_of(peer.logged_on.publisher if peer.logged_on else 0, 2)])
        first.broker.disconnected(peer.conn)
        first.peers.pop(peer.conn)
        first.collect()
        first.settle()
        assert (tracker._owed_count, tracker._owed, tracker._held) == (0, {}, {})
        assert sum(map(len, tracker._fronts.values())) <= 5
    join(first, second)
    assert tracker._fronts == {}
    assert len(second.persisted) == 40


def test_answered_publisher_owes_nothing() -> None:
    first, second = _pair()
    join(first, second)
    peer = client_of(first)
    for topic in (SYNC, ASYNC, SYNC):
        publish_next(peer, topic, 2)
    run(first, second)
    tracker = _tracker(first)
    assert (tracker._owed_count, tracker._owed, tracker._held, tracker._fronts) == (0, {}, {}, {})
    assert peer.acked_sequence == 6
