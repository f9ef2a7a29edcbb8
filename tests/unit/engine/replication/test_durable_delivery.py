"""Deliveries to `fully_durable` subscriptions, on whole engines."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.linked import client_of, join, publish_next, run
from tests.simulation.engine_peer import Peer
from tests.simulation.linked_engine import LinkedEngine, PipeEnd
from tests.simulation.linked_engines import link_to
from tickertape.wire.commands import Completed, Ended

SYNC, ASYNC = "orders", "trades"
OTHER = "server-1"


def _pair(sync: str = SYNC) -> tuple[LinkedEngine, LinkedEngine]:
    """Return two engines with synchronous links in both directions."""
    counts: Counter[str] = Counter()
    first, second = (LinkedEngine(n, n, (link_to(1 - n, sync=sync),), counts) for n in (0, 1))
    return first, second


def _subscribe(
    engine: LinkedEngine, topic: str = SYNC, options: str = "fully_durable", bookmark: str = "0"
) -> Peer:
    """Return a subscriber, after its engine has done all its work."""
    peer = client_of(engine, f"subscriber {engine._conn}")
    peer.subscribe("s", topic, bookmark=bookmark, options=options)
    engine.settle()
    return peer


def _got(peer: Peer) -> list[int]:
    """Return the sequences of the delivered messages."""
    return [message.sequence for message in peer.heard.get("s", [])]


def _downgrade(engine: LinkedEngine) -> None:
    engine.broker.change_level(OTHER, engine.now(), downgraded=True)
    engine.collect()
    engine.settle()


def _lose(end: PipeEnd, *engines: LinkedEngine) -> None:
    """End a connection at both ends."""
    end.closing = end.peer.closing = True
    run(*engines)


@pytest.mark.parametrize("topic", [SYNC, "^or", ".*"])
def test_messages_are_delivered_when_the_destination_has_the_same(topic: str) -> None:
    first, second = _pair()
    durable, plain = _subscribe(first, topic), _subscribe(first, topic, "")
    publish_next(client_of(first), count=3)
    assert (_got(durable), _got(plain)) == ([], [1, 2, 3])
    join(first, second)
    assert _got(durable) == [1, 2, 3]


def test_messages_before_the_subscription_wait_too() -> None:
    first, second = _pair()
    publish_next(client_of(first), count=3)
    durable = _subscribe(first)
    assert (_got(durable), [c for c, _ in durable.received if isinstance(c, Completed)]) == ([], [])
    join(first, second)
    assert _got(durable) == [1, 2, 3]
    assert [c.sub_id for c, _ in durable.received if isinstance(c, Completed)] == ["s"]


def test_messages_wait_while_the_link_is_down_and_follow_in_order() -> None:
    first, second = _pair()
    end = join(first, second)
    durable, publisher = _subscribe(first, bookmark="0|1|"), client_of(first)
    for _ in range(5):
        publish_next(publisher)
        run(first, second)
    assert _got(durable) == [1, 2, 3, 4, 5]
    _lose(end, first, second)
    for _ in range(5):
        publish_next(publisher)
        run(first, second)
    assert _got(durable) == [1, 2, 3, 4, 5]
    join(first, second)
    assert _got(durable) == [*range(1, 11)]


def test_downgrade_releases_messages_at_once() -> None:
    first, _ = _pair()
    durable, publisher = _subscribe(first), client_of(first)
    publish_next(publisher, count=2)
    assert _got(durable) == []
    _downgrade(first)
    assert _got(durable) == [1, 2]
    publish_next(publisher)
    assert _got(durable) == [1, 2, 3]


def test_other_topics_wait_for_no_link() -> None:
    first, _ = _pair()
    durable = _subscribe(first, ASYNC)
    publish_next(client_of(first), ASYNC, 2)
    assert _got(durable) == [1, 2]


def test_pattern_waits_for_the_links_of_all_topics() -> None:
    first, second = _pair()
    durable, publisher = _subscribe(first, ".*"), client_of(first)
    publish_next(publisher, ASYNC)
    publish_next(publisher, SYNC)
    assert _got(durable) == []
    join(first, second)
    assert _got(durable) == [1, 2]


def test_subscriber_at_the_destination_waits_for_the_source() -> None:
    first, second = _pair()
    end = join(first, second)
    durable = _subscribe(second)
    publish_next(client_of(first), count=3)
    run(first, second)
    assert _got(durable) == []  # the link back is down
    back = join(second, first)
    assert _got(durable) == [1, 2, 3]
    assert end.open
    assert back.open


@pytest.mark.parametrize("options", ["rate=1000", "conflation=50ms,conflation_key=[/k]", "rate=1000x"])
def test_other_options_deliver_nothing_early(options: str) -> None:
    first, second = _pair()
    durable = _subscribe(first, options=f"fully_durable,{options}")
    publisher = client_of(first)
    publish_next(publisher, count=3)
    for _ in range(3):
        first.wake(1.0)
        first.settle()
    assert _got(durable) == []
    join(first, second)
    for _ in range(4):
        first.wake(1.0)
        run(first, second)
    assert _got(durable)[-1:] == [3]


def test_paused_subscription_waits_after_the_resume() -> None:
    first, second = _pair()
    durable = _subscribe(first, options="fully_durable,pause")
    publish_next(client_of(first), count=3)
    durable.resume("s")
    first.settle()
    assert _got(durable) == []
    join(first, second)
    assert _got(durable) == [1, 2, 3]


def test_bounded_replay_ends_when_the_destination_has_the_range() -> None:
    first, second = _pair()
    publisher = client_of(first)
    assert publisher.logged_on is not None
    publish_next(publisher, count=4)
    name = publisher.logged_on.publisher
    durable = _subscribe(first, bookmark=f"[{name}|1|:{name}|3|]")
    assert _got(durable) == []
    join(first, second)
    assert _got(durable) == [1, 2, 3]
    assert any(isinstance(command, Ended) for command, _ in durable.received)


def test_destination_that_lost_rows_holds_up_new_messages_only() -> None:
    first, second = _pair()
    end = join(first, second)
    durable, publisher = _subscribe(first), client_of(first)
    publish_next(publisher, count=2)
    run(first, second)
    _lose(end, first, second)
    second.restart(power=True)
    publish_next(publisher)
    assert _got(durable) == [1, 2]
    join(first, second)
    assert _got(durable) == [1, 2, 3]


def test_plain_subscription_in_place_of_a_waiting_one_waits_no_longer() -> None:
    first, _ = _pair()
    durable, publisher = _subscribe(first), client_of(first)
    publish_next(publisher, count=2)
    durable.subscribe("s", SYNC, options="replace")
    first.settle()
    publish_next(publisher)
    assert _got(durable)[-1:] == [3]


def test_subscription_of_a_server_without_synchronous_topics_shares_delivery() -> None:
    first, _ = _pair(sync="")
    durable = _subscribe(first)
    publish_next(client_of(first), count=2)
    assert _got(durable) == [1, 2]
    assert len(first.broker._delivery.fanout) == 1


def test_waiting_subscription_does_not_delay_a_clean_stop() -> None:
    first, _ = _pair()
    durable = _subscribe(first)
    publish_next(client_of(first), count=2)
    feeds = [*first.broker._delivery.cursors.feeds()]
    assert [feed.owed for feed in feeds] == [False]
    _downgrade(first)
    assert _got(durable) == [1, 2]
    assert [feed.owed for feed in feeds] == [False]
