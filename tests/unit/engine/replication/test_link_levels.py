"""Downgrades, upgrades and pauses of links, on whole engines."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.linked import client_of, events, join, levels_of, links_of, publish_next, row_of, run
from tests.simulation.linked_engine import LinkedEngine, PipeEnd
from tests.simulation.linked_engines import link_to
from tickertape.base.errors import BadOption, JournalFull, NotReady
from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.engine.replication.links.replication import NO_DOWNGRADES
from tickertape.journal.commit.group_commit import GroupCommit
from tickertape.journal.format.replication_records import DowngradedRecord

SYNC, ASYNC = "orders", "trades"
POLICY = DowngradePolicy(after=10.0, grace=3.0, upgrade_below=5.0)
OTHER = "server-1"


def _pair(policy: DowngradePolicy | None = POLICY, sync: str = SYNC) -> tuple[LinkedEngine, LinkedEngine]:
    """Return two engines with synchronous links in both directions."""
    counts: Counter[str] = Counter()
    policies = NO_DOWNGRADES if policy is None else {OTHER: policy}
    first = LinkedEngine(1, 0, (link_to(1, sync=sync),), counts, downgrades=policies)
    return first, LinkedEngine(2, 1, (link_to(0, sync=sync),), counts)


def _wait(engine: LinkedEngine, seconds: float) -> None:
    """Let time pass in steps of a second."""
    for _ in range(round(seconds)):
        engine.wake(1.0)
        engine.settle()


def _change(engine: LinkedEngine, *, downgraded: bool, destination: str = OTHER) -> None:
    """Change a level by a command of an operator."""
    engine.broker.change_level(destination, engine.now(), downgraded=downgraded)
    engine.collect()
    engine.settle()


def _stop(engine: LinkedEngine, *, stopped: bool) -> None:
    engine.broker.set_link_stopped(OTHER, engine.now(), stopped=stopped)
    engine.collect()
    engine.settle()


def _lose(end: PipeEnd, *engines: LinkedEngine) -> None:
    """End a connection at both ends."""
    end.closing = end.peer.closing = True
    run(*engines)


def test_policy_downgrades_a_link_with_a_message_that_waits_too_long() -> None:
    first, _ = _pair()
    peer = client_of(first)
    publish_next(peer)
    _wait(first, 9)
    assert (peer.acked_sequence, row_of(first).level) == (0, "sync")
    assert 8.0 < row_of(first).behind_seconds < 10.0
    _wait(first, 3)
    assert (peer.acked_sequence, levels_of(peer)) == (1, ["local"])
    assert (row_of(first).level, row_of(first).downgrades) == ("downgraded", 1)
    (event,) = events(first, "link_downgraded")
    assert (event["destination"], event["cause"], event["covered"]) == (OTHER, "policy", 0)
    publish_next(peer)
    assert levels_of(peer) == ["local", "local"]


def test_policy_does_not_downgrade_without_a_waiting_message() -> None:
    first, _ = _pair()
    peer = client_of(first)
    publish_next(peer, ASYNC)
    _wait(first, 60)
    assert row_of(first).level == "sync"
    assert row_of(first).behind_seconds > 50.0  # the destination lacks asynchronous messages


def test_policy_downgrades_nothing_within_the_grace_after_a_start() -> None:
    first, _ = _pair(DowngradePolicy(after=2.0, grace=20.0, upgrade_below=1.0))
    publish_next(client_of(first))
    _wait(first, 18)
    assert row_of(first).level == "sync"
    _wait(first, 4)
    assert row_of(first).level == "downgraded"


def test_link_without_a_policy_waits_for_an_operator() -> None:
    first, _ = _pair(None)
    peer = client_of(first)
    publish_next(peer)
    _wait(first, 600)
    assert (peer.acked_sequence, row_of(first).level) == (0, "sync")
    _change(first, downgraded=True)
    assert (peer.acked_sequence, row_of(first).level) == (1, "downgraded")


def test_downgrade_takes_effect_when_the_record_is_persisted() -> None:
    first, _ = _pair(None)
    peer = client_of(first)
    publish_next(peer)
    first.broker.change_level(OTHER, first.now(), downgraded=True)
    first.collect()
    assert (peer.acked_sequence, row_of(first).level) == (0, "sync")
    first.settle()
    assert (peer.acked_sequence, row_of(first).level) == (1, "downgraded")


@pytest.mark.parametrize("power", [False, True])
def test_downgrade_survives_a_restart(power: bool) -> None:
    first, _ = _pair(None)
    _change(first, downgraded=True)
    first.restart(power=power)
    first.settle()
    assert row_of(first).level == "downgraded"
    peer = client_of(first)
    publish_next(peer)
    assert levels_of(peer) == ["local"]


def test_policy_upgrades_when_the_destination_has_passed_the_downgrade() -> None:
    first, second = _pair()
    peer = client_of(first)
    publish_next(peer)
    _wait(first, 13)
    assert row_of(first).level == "downgraded"
    join(first, second)
    assert row_of(first).level == "downgraded"  # until the next check
    _wait(first, 2)
    assert row_of(first).level == "sync"
    (event,) = events(first, "link_upgraded")
    assert int(event["covered"]) >= int(events(first, "link_downgraded")[0]["position"])
    run(first, second)
    publish_next(peer)
    run(first, second)
    assert levels_of(peer) == ["local", "replicated(1)"]


def test_policy_does_not_upgrade_a_destination_that_lacks_rows_before_the_downgrade() -> None:
    first, second = _pair()
    publish_next(client_of(first))
    _wait(first, 13)
    _stop(first, stopped=True)
    join(first, second)
    _wait(first, 30)
    assert row_of(first).level == "downgraded"
    _stop(first, stopped=False)
    run(first, second)
    _wait(first, 2)
    assert row_of(first).level == "sync"


def test_upgrade_is_refused_while_the_destination_lacks_rows_before_the_downgrade() -> None:
    first, second = _pair(None)
    publish_next(client_of(first))
    _change(first, downgraded=True)
    with pytest.raises(NotReady, match="the destination lacks messages from before the downgrade"):
        _change(first, downgraded=False)
    join(first, second)
    _change(first, downgraded=False)
    assert row_of(first).level == "sync"
    assert events(first, "link_upgraded")[0]["cause"] == "operator"


def test_upgraded_link_holds_acknowledgements() -> None:
    first, second = _pair(None)
    end = join(first, second)
    _change(first, downgraded=True)
    run(first, second)
    _change(first, downgraded=False)
    run(first, second)
    _lose(end, first, second)
    peer = client_of(first)
    publish_next(peer)
    assert peer.acked_sequence == 0


def test_downgrade_of_an_operator_stays_until_an_upgrade() -> None:
    first, second = _pair()
    join(first, second)
    _change(first, downgraded=True)
    run(first, second)
    _wait(first, 60)
    run(first, second)
    assert row_of(first).level == "downgraded"


def test_operator_takes_over_a_downgrade_of_the_policy() -> None:
    first, second = _pair()
    publish_next(client_of(first))
    _wait(first, 13)
    position = events(first, "link_downgraded")[0]["position"]
    _change(first, downgraded=True)
    _change(first, downgraded=True)  # changes nothing
    assert [event["cause"] for event in events(first, "link_downgraded")] == ["policy", "operator"]
    assert events(first, "link_downgraded")[1]["position"] == position
    join(first, second)
    _wait(first, 20)
    assert row_of(first).level == "downgraded"


def test_upgrade_of_a_synchronous_link_changes_nothing() -> None:
    first, _ = _pair(None)
    end = first.broker.journal.commits.accepted_end
    _change(first, downgraded=False)
    assert first.broker.journal.commits.accepted_end == end


def test_record_of_a_downgrade_has_no_effect_at_the_other_server() -> None:
    first, second = _pair(None)
    join(first, second)
    _change(first, downgraded=True)
    run(first, second)
    facts = second.broker._replication
    assert facts is not None
    assert facts.facts.levels == {}
    assert row_of(second).level == "sync"
    assert isinstance(first.broker._replication, type(facts))
    assert isinstance(first.broker._replication.facts.levels[OTHER], DowngradedRecord)


def test_changes_of_unknown_or_asynchronous_links_are_refused() -> None:
    first, _ = _pair(None)
    with pytest.raises(BadOption, match="Unknown destination 'server-9'"):
        _change(first, downgraded=True, destination="server-9")
    with pytest.raises(BadOption, match="Unknown destination 'server-9'"):
        first.broker.set_link_stopped("server-9", first.now(), stopped=True)
    asynchronous, _ = _pair(None, sync="")
    with pytest.raises(BadOption, match="no topic of this server is synchronous"):
        _change(asynchronous, downgraded=True)


def test_change_of_a_level_during_a_stop_is_refused() -> None:
    first, _ = _pair(None)
    first.broker.close(first.now())
    with pytest.raises(NotReady, match="the server is stopping"):
        first.broker.change_level(OTHER, first.now(), downgraded=True)


def test_full_disk_postpones_a_downgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = _pair()
    publish_next(client_of(first))
    monkeypatch.setattr(GroupCommit, "can_accept", lambda self, nbytes: False)  # noqa: ARG005
    _wait(first, 20)  # each wake checks that no deadline stays in the past
    assert row_of(first).level == "sync"
    with pytest.raises(JournalFull, match="Cannot record the downgrade of a link"):
        _change(first, downgraded=True)
    monkeypatch.undo()
    _wait(first, 2)
    assert row_of(first).level == "downgraded"


def test_destination_that_lost_rows_is_downgraded() -> None:
    first, second = _pair()
    end = join(first, second)
    copy = second.copy()
    publish_next(client_of(first), count=3)
    run(first, second)
    _lose(end, first, second)
    second.restore(copy)
    _stop(first, stopped=True)
    join(first, second)
    _wait(first, 13)
    assert row_of(first).level == "downgraded"
    _stop(first, stopped=False)
    run(first, second)
    _wait(first, 2)
    assert (row_of(first).level, len(second.persisted)) == ("sync", 3)


def test_paused_link_sends_nothing_until_resumed() -> None:
    first, second = _pair(None, sync="")
    join(first, second)
    _stop(first, stopped=True)
    _stop(first, stopped=True)  # changes nothing
    peer = client_of(first)
    publish_next(peer, count=3)
    run(first, second)
    assert (len(second.persisted), row_of(first).stopped, row_of(first).state) == (0, True, "live")
    _stop(first, stopped=False)
    run(first, second)
    assert (len(second.persisted), row_of(first).stopped) == (3, False)
    assert (len(events(first, "link_paused")), len(events(first, "link_resumed"))) == (1, 1)


def test_paused_link_holds_acknowledgements_and_retention() -> None:
    first, second = _pair(None)
    join(first, second)
    _stop(first, stopped=True)
    needed = links_of(first).oldest_needed()
    peer = client_of(first)
    publish_next(peer, count=3)
    run(first, second)
    assert peer.acked_sequence == 0
    assert links_of(first).oldest_needed() == needed
    _stop(first, stopped=False)
    run(first, second)
    assert peer.acked_sequence == 3


def test_check_of_a_policy_is_due_as_soon_as_a_message_waits_for_the_destination() -> None:
    first, second = _pair()
    join(first, second)
    peer = client_of(first)
    publish_next(peer)
    run(first, second)
    _wait(first, 3)
    levels = links_of(first)._levels
    assert levels is not None
    assert levels.next_deadline() is None
    _stop(first, stopped=True)
    publish_next(peer)
    at, due = first.broker.next_deadline(), levels.next_deadline()
    assert due is not None
    assert at is not None
    assert at <= due
