"""Numbered behaviours of queues on one real server. Each test has separate queues."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.queue_engine import QueueEngine
from tests.helpers.queues import SECONDS, nothing, numbers, of, publish, queue, state, take, wait_state
from tickertape.base.errors import ConfigurationError, NotAQueue
from tickertape.cli.support.command_group import cli
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.sessions.session import Session
from tickertape.server.config.config import load_config
from tickertape.testing import RunningServer
from tickertape.wire.commands import Rejected
from tickertape.wire.settlement import Settlement, encode_settlement, runs_of

pytestmark = pytest.mark.slow

WAYS = ("cancel", "lease end", "disconnect", "unsubscribe")
"""Ends of a delivery without an acknowledgement."""
CONFIG = "".join(
    [
        queue("cancels", max_cancels=3, dead_letter="cancels-dead"),
        queue("deliveries", max_deliveries=10, dead_letter="deliveries-dead"),
        *(queue(f"acks{n}") for n in range(5)),
        queue("rx/a", max_per_subscription_backlog=3),
        queue("rx/b", max_per_subscription_backlog=7),
        queue("wide", max_per_subscription_backlog=100),
        queue("ghosts"),
        queue("by-default"),
        queue("in-turn-by-default", semantics="at-most-once"),
        queue("once", semantics="at-most-once"),
        *(
            queue(f"barrier-{word}", semantics=word, barrier_expression="/barrier = TRUE")
            for word in ("at-least-once", "at-most-once")
        ),
        queue("expiring", expiration="300ms", dead_letter="expiring-dead"),
        queue("expiring-late", expiration="100ms", dead_letter="expiring-late-dead"),
        *(
            queue(f"{word} {way}", underlying=f"{word}-{way[0]}", dead_letter=f"{word}-{way[0]}-dead", **more)
            for way in WAYS
            for word, options, period in (
                ("tries", {"max_deliveries": 2}, "80ms"),
                ("age", {"expiration": "600ms"}, "900ms"),
            )
            for lease in [{"lease_period": period} if way == "lease end" else {}]
            for more in [{**options, **lease}]
        ),
        queue("kept"),
        queue("beside", underlying="plain"),
        queue("many", underlying="^many/", default_publish_target="many/direct"),
        queue("loose", underlying="^unrecorded/|^loose/"),
        *(
            queue(f"{leasing} {option}", leasing=leasing)
            for leasing in ("strict", "lenient")
            for option in (None, "expire")
        ),
        '[[journal.topic]]\npattern = "^[^u]"\n',
    ]
)


def letters(server: RunningServer, topic: str, count: int) -> list[dict[str, object]]:
    """Return the labels of the first dead letters of a topic."""
    with tt.Client(f"letters-{topic}", server.uri, timeout=SECONDS) as client:
        stream = client.bookmark_subscribe(topic, tt.EPOCH)
        return [json.loads(message.correlation_id or "") for message in take(stream, count)]


# -- how often ----------------------------------------------------------------------------------------


@pytest.mark.behaviour(36)
def test_cancel_above_max_cancels_expires_the_message(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "cancels", 1)
    stream = a.subscribe("cancels")
    for _ in range(4):
        stream.get(SECONDS).cancel()
    (letter,) = letters(server, "cancels-dead", 1)
    assert (letter["reason"], letter["cancels"], letter["deliveries"]) == ("max_cancels", 4, 4)
    found = wait_state(server, "cancels", depth=0)
    assert (found.returned, found.expired) == ({"cancelled": 3}, {"max_cancels": 1})
    assert nothing(stream)


@pytest.mark.behaviour(36)
def test_failed_delivery_at_max_deliveries_expires_the_message(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "deliveries", 1)
    stream = a.subscribe("deliveries")
    for _ in range(9):
        stream.get(SECONDS).cancel()
    message = stream.get(SECONDS)
    assert state(server, "deliveries").expired == {}, "the tenth delivery is a delivery"
    message.cancel()
    (letter,) = letters(server, "deliveries-dead", 1)
    assert (letter["reason"], letter["deliveries"]) == ("max_deliveries", 10)
    assert wait_state(server, "deliveries", depth=0).returned == {"cancelled": 9}


# -- acknowledging ------------------------------------------------------------------------------------


@pytest.mark.behaviour(37)
def test_ack_is_equivalent_to_sow_delete(server: RunningServer, a: tt.Client) -> None:
    for n in range(5):
        numbers(server, f"acks{n}", 6)
    held = [take(a.subscribe(f"acks{n}", max_backlog=4), 4) for n in range(5)]
    marks = [",".join(message.bookmark or "" for message in some[1:3]) for some in held]
    a.ack("acks0", marks[0])
    a.sow_delete("acks1", bookmark=marks[1])
    a.sow_delete("acks2", filter="/n = 1 OR /n = 2")
    result = CliRunner().invoke(cli, ["ack", "acks4", marks[4], "--server", server.uri])
    assert result.exit_code == 0, result.output
    a.sow_delete("acks3", bookmark=marks[3], options="cancel")
    a.publish_flush(timeout=SECONDS)
    for n in range(3):
        found = wait_state(server, f"acks{n}", acknowledged=2, leased=4)
        assert found.depth == 4, "two messages are acknowledged, and two wait"
    wait_state(server, "acks3", returned={"cancelled": 2}, leased=4)
    assert wait_state(server, "acks4", leased=4).acknowledged == 0, "another connection holds them"


@pytest.mark.behaviour(38)
def test_pattern_subscription_shares_one_backlog_over_all_queues(server: RunningServer, a: tt.Client) -> None:
    for name in ("rx/a", "rx/b"):
        numbers(server, name, 10)
    stream = a.subscribe("^rx/", max_backlog=5)
    held = take(stream, 3)
    assert state(server, "rx/a").leased + state(server, "rx/b").leased == 3
    assert nothing(stream), "the least of 3, 7 and 5"
    for _ in range(17):
        held.pop(0).ack()
        held += take(stream, 1)
    for message in held:
        message.ack()
    for name in ("rx/a", "rx/b"):
        wait_state(server, name, acknowledged=10, depth=0)


@pytest.mark.behaviour(38)
def test_default_max_backlog_is_one(server: RunningServer, a: tt.Client, b: tt.Client) -> None:
    numbers(server, "wide", 5)
    stream = a.subscribe("wide")
    (message,) = take(stream, 1)
    assert wait_state(server, "wide", leased=1).ready == 4
    assert nothing(stream)
    wide = b.subscribe("wide", max_backlog=10)
    assert of(take(wide, 4)) == [1, 2, 3, 4]
    message.ack()


# -- fairness -----------------------------------------------------------------------------------------


@pytest.mark.behaviour(39)
def test_proportional_delivery_selects_the_least_loaded_subscription(server: RunningServer) -> None:
    """With loads of 1/2, 3/4 and 4/10 the third gets the next message. Proportional is the default."""
    numbers(server, "ghosts", 8)
    loads = {"inky": (2, "/n < 1"), "blinky": (4, "/n >= 1 AND /n < 4"), "clyde": (10, "/n >= 4")}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(tt.Client(name, server.uri, timeout=SECONDS)) for name in loads}
        for (name, client), count in zip(clients.items(), (1, 3, 4), strict=True):
            limit, text = loads[name]
            take(client.subscribe("ghosts", filter=text, sub_id="s", max_backlog=limit), count)
        streams = [
            client.subscribe("ghosts", sub_id="s", max_backlog=loads[name][0], replace=True)
            for name, client in clients.items()
        ]
        assert state(server, "ghosts").leased == 8
        got: list[int] = []
        for n in range(8, 16):
            publish(server, "ghosts", {"n": n})
            wait_state(server, "ghosts", leased=n + 1, ready=0)
            got += [which for which, stream in enumerate(streams) if not nothing(stream)]
        # 4/10 is the least load. Then 5/10 and 1/2 are equal, and the first one wins, until 3/4 is the least.
        assert got == [2, 0, 2, 2, 2, 1, 2, 2]


@pytest.mark.behaviour(39)
def test_at_most_once_queue_uses_round_robin(server: RunningServer, a: tt.Client, b: tt.Client) -> None:
    """Proportional delivery would prefer the first of two large backlogs. Round robin does not."""
    first = a.subscribe("in-turn-by-default", max_backlog=100)
    second = b.subscribe("in-turn-by-default", max_backlog=4)
    numbers(server, "in-turn-by-default", 8)
    assert sorted(of(take(first, 4)) + of(take(second, 4))) == list(range(8))
    assert nothing(first, second)
    again = a.subscribe("by-default", max_backlog=100), b.subscribe("by-default", max_backlog=4)
    numbers(server, "by-default", 8)
    assert len(take(again[0], 7)) == 7, "from the second on the other one has a quarter of its backlog"
    assert len(take(again[1], 1)) == 1


@pytest.mark.behaviour(39)
def test_at_most_once_queue_refuses_other_fairness_models(tmp_path: Path) -> None:
    file = tmp_path / "tickertape.toml"
    for fairness in ("fast", "proportional"):
        file.write_text(queue("q", semantics="at-most-once", fairness_model=fairness))
        with pytest.raises(ConfigurationError, match="round-robin"):
            load_config(file)


# -- at most once, barriers, expiration ---------------------------------------------------------------


@pytest.mark.behaviour(40)
def test_at_most_once_ack_frees_backlog_without_redelivery(
    server: RunningServer, a: tt.Client, b: tt.Client
) -> None:
    numbers(server, "once", 9)
    stream = a.subscribe("once", max_backlog=3)
    held = take(stream, 3)
    found = wait_state(server, "once", taken=3, backlog=3)
    assert (found.depth, held[0].lease_expires) == (6, None), "the messages have left the queue"
    for settle in (held[0].cancel, held[1].expire, lambda: held[2].extend(60)):
        settle()
    a.publish_flush(timeout=SECONDS)
    assert state(server, "once").backlog == 3, "neither has an effect"
    assert nothing(stream)
    held[0].ack()
    a.ack("once", held[1])
    assert of(take(stream, 2)) == [3, 4], "each acknowledgement frees backlog"
    stream.close()
    found = wait_state(server, "once", backlog=0, consumers=0)
    assert (found.returned, found.expired, found.taken) == ({}, {}, 5)
    last = b.subscribe("once", max_backlog=10)
    assert of(take(last, 4)) == [5, 6, 7, 8], "delivered messages are not redelivered"
    assert nothing(last)


@pytest.mark.behaviour(40)
def test_removal_is_persisted_before_the_message_is_sent() -> None:
    engine = QueueEngine(QueueDefinition("once", semantics="at-most-once"))
    engine.connect("p").publish("once", [b"%d" % n for n in range(3)])
    engine.settle()
    for number in range(3):
        peer = engine.connect("c")
        peer.subscribe("s", "once")
        engine.settle_but_for_writes()
        assert (peer.heard["s"], len(engine.jobs)) == ([], 1), "it waits for the disk"
        if number == 1:  # killed before the removal: the message is still queued
            engine.reopen()
            assert engine.ready("once") == [b"1", b"2"]
            engine.consumed("once", 1)
            continue
        engine.settle()
        assert [heard.body for heard in peer.heard["s"]] == [b"%d" % number]
        engine.reopen()
        assert engine.ready("once") == [b"1", b"2"][number:], "delivered, not acknowledged, and gone"


@pytest.mark.behaviour(41)
@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_barrier_blocks_until_prior_messages_are_settled(
    server: RunningServer, a: tt.Client, b: tt.Client, semantics: str
) -> None:
    name = f"barrier-{semantics}"
    publish(server, name, {"n": 0}, {"n": 1}, {"n": 2, "barrier": True}, {"n": 3}, {"n": 4})
    stream = a.subscribe(name, max_backlog=10)
    held = take(stream, 2)
    held[0].ack()
    a.publish_flush(timeout=SECONDS)
    assert wait_state(server, name, backlog=1).ready == 3, "one of the earlier ones is not acknowledged"
    assert nothing(stream)
    if semantics == "at-least-once":
        held[1].expire()  # an expired message is settled
    else:
        stream.close()  # messages of a closed stream are settled
        stream = b.subscribe(name, max_backlog=10)
    got = take(stream, 3)
    assert of(got) == [2, 3, 4], (
        "later messages wait for the delivery of the barrier, not for its acknowledgement"
    )
    assert [message.json().get("barrier") for message in got] == [True, None, None]


@pytest.mark.behaviour(42)
def test_leased_message_does_not_expire(server: RunningServer, a: tt.Client) -> None:
    stream = a.subscribe("expiring", max_backlog=2)  # subscribed before the messages expire
    numbers(server, "expiring", 3)
    held = take(stream, 2)
    wait_state(server, "expiring", expired={"expiration": 1})
    found = wait_state(server, "expiring", dooming=0)  # after the expiry is in the log
    assert (found.leased, found.ready) == (2, 0), "the message without a lease has expired"
    held[0].ack()
    assert wait_state(server, "expiring", acknowledged=1).expired == {"expiration": 1}, "overdue, and done"
    held[1].cancel()
    wait_state(server, "expiring", expired={"expiration": 2}, depth=0, returned={})
    got = letters(server, "expiring-dead", 2)
    assert [(letter["reason"], letter["deliveries"]) for letter in got] == [
        ("expiration", 0),
        ("expiration", 1),
    ]
    assert nothing(stream)


@pytest.mark.behaviour(43)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", ["tries", "age"])
def test_every_end_of_a_delivery_follows_one_rule(server: RunningServer, word: str, way: str) -> None:
    name, topic = f"{word} {way}", f"{word}-{way[0]}"
    for number in range(2 if word == "tries" else 1):
        with tt.Client(f"{name} {number}", server.uri, timeout=SECONDS) as client:
            stream = client.subscribe(name, filter="/n = 0")
            if not number:
                numbers(server, topic, 1)
            message = stream.get(SECONDS)
            if word == "age":
                time.sleep(0.65)  # it is to become too old
            if way == "cancel":
                client.subscribe(name, filter="/n = 1", sub_id=stream.sub_id, replace=True)
                message.cancel()
            elif way == "unsubscribe":
                stream.close()
            elif way == "lease end":
                client.subscribe(name, filter="/n = 1", sub_id=stream.sub_id, replace=True)
            if way != "disconnect":
                wait_state(server, name, leased=0)
        found = wait_state(server, name, leased=0, consumers=0)
        assert sum(found.returned.values()) == (word == "tries")
    (letter,) = letters(server, f"{topic}-dead", 1)
    reason = "max_deliveries" if word == "tries" else "expiration"
    assert (letter["reason"], letter["queue"]) == (reason, name)
    wait_state(server, name, depth=0, expired={reason: 1})


# -- where a queue begins -----------------------------------------------------------------------------


@pytest.mark.behaviour(44)
def test_recovery_point_applies_only_when_new_or_changed() -> None:
    """A new queue starts at its recovery point, an existing one continues, a changed value starts anew."""
    engine = QueueEngine()
    publisher = engine.connect("p")
    publisher.publish("t", [b"%d" % n for n in range(6)])
    engine.settle()
    mark = {h.body: f"{h.publisher}|{h.sequence}|" for h in engine.positions().values()}

    def opened(point: str, *, clean: bool) -> bytes:
        engine.reopen(QueueDefinition("q", "t", recovery_point=point), clean=clean)
        return b"".join(engine.ready("q"))

    for clean in (False, True):
        assert opened(mark[b"3"], clean=clean) == b"45", "after the bookmark, like every start point"
        assert opened("epoch", clean=clean) == b"012345"
    engine.consumed("q", 2)
    assert opened("epoch", clean=False) == b"2345", (
        "the queue continues, because its acknowledgements are in the log"
    )
    assert opened("epoch", clean=True) == opened("epoch", clean=False) == b"2345"
    assert opened("now", clean=False) == b""
    engine.connect("p").publish("t", [b"6", b"7"])
    engine.settle()
    assert opened("now", clean=False) == opened("now", clean=True) == b"67", "now is the start of the queue"
    assert opened("20200101T000000", clean=True) == b"234567", "acknowledgements in the log apply"
    engine.reopen(QueueDefinition("q", "t"), QueueDefinition("q2", "t", recovery_point=mark[b"1"]))
    assert b"".join(engine.ready("q") + engine.ready("q2")) == b"234567234567", "one pass for both"
    assert QueueDefinition("q").recovery_point == "epoch"


@pytest.mark.behaviour(45)
def test_queue_with_the_topic_name_replaces_plain_subscriptions(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "kept", 2)
    stream = a.subscribe("kept")
    first = stream.get(SECONDS)
    assert (first.lease_expires, first.topic, first.underlying_topic) == (None, "kept", "kept")
    assert wait_state(server, "kept", leased=1).consumers == 1, "a plain subscription consumes"
    replayed = list(a.replay("kept"))
    assert of(replayed) == [0, 1]
    for message in replayed:
        with pytest.raises(tt.UsageError):
            message.ack()
    assert state(server, "kept").leased == 1, "a bookmark replays the topic, without leases"


@pytest.mark.behaviour(45)
def test_queue_with_another_name_leaves_the_topic_unchanged(
    server: RunningServer, a: tt.Client, b: tt.Client
) -> None:
    live, others = a.subscribe("plain"), b.subscribe("plain")
    stream = a.subscribe("beside", max_backlog=10)
    publish(server, "beside", {"n": 0})  # the publish target is the topic
    publish(server, "plain", {"n": 1})
    assert of(take(live, 2)) == of(take(others, 2)) == [0, 1], "each plain subscriber gets all messages"
    got = take(stream, 2)
    assert [(m.topic, m.underlying_topic) for m in got] == [("beside", "plain")] * 2
    assert of(list(a.replay("beside"))) == [0, 1], "a replay of a queue reads its topic"


# -- leasing ------------------------------------------------------------------------------------------

OUTCOMES = {
    "strict": {
        "own": True,
        "another's": False,
        "none": False,
        "another's, filter": False,
        "none, filter": False,
    },
    "lenient": {
        "own": True,
        "another's": False,
        "none": True,
        "another's, filter": True,
        "none, filter": True,
    },
}


@pytest.mark.behaviour(46)
@pytest.mark.parametrize("option", [None, "expire"])
@pytest.mark.parametrize("leasing", ["strict", "lenient"])
def test_leasing_mode_decides_which_leases_can_be_settled(
    server: RunningServer, a: tt.Client, b: tt.Client, leasing: str, option: str | None
) -> None:
    name = f"{leasing} {option}"
    numbers(server, name, 6)
    own = take(a.subscribe(name, filter="/n < 2", max_backlog=9), 2)
    leased_by_other = take(b.subscribe(name, filter="/n = 2 OR /n = 3", max_backlog=9), 2)
    waiting = [message.bookmark for message in a.replay(name)][4:]
    outcomes = OUTCOMES[leasing]
    settles: list[tuple[str, Callable[[], None]]] = [
        ("own", lambda: a.ack(name, own[0], option)),
        ("own", lambda: a.sow_delete(name, filter="/n = 1", options=option)),
        ("another's", lambda: a.ack(name, leased_by_other[0], option)),
        ("none", lambda: a.ack(name, waiting[0] or "", option)),
        ("another's, filter", lambda: a.sow_delete(name, filter="/n = 3", options=option)),
        ("none, filter", lambda: a.sow_delete(name, filter="/n = 5", options=option)),
    ]
    for (what, settle), n in zip(settles, (0, 1, 2, 4, 3, 5), strict=True):
        before = _depth(server, name)
        settle()
        a.publish_flush(timeout=SECONDS)
        assert _depth(server, name) == before - outcomes[what], f"{what}, message {n}"


def _depth(server: RunningServer, name: str) -> int:
    return state(server, name).depth


# -- patterns and permission --------------------------------------------------------------------------


@pytest.mark.behaviour(47)
def test_queue_over_a_pattern_delivers_underlying_topics(server: RunningServer, a: tt.Client) -> None:
    publish(server, "many/x", {"n": 0})
    publish(server, "many", {"n": 1})
    stream = a.subscribe("many", max_backlog=5)
    assert [(m.underlying_topic, m.json()["n"]) for m in take(stream, 2)] == [
        ("many/x", 0),
        ("many/direct", 1),
    ]
    publish(server, "unrecorded/y", {"n": 2}, {"n": 3})
    assert wait_state(server, "loose", unrecorded=2).entered == 0, "counted, and never in the queue"
    with pytest.raises(tt.PublishRejected, match="default_publish_target"):
        publish(server, "loose", {"n": 4})


@pytest.mark.behaviour(48)
def test_queue_permissions_are_checked_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission covers subscribe and acknowledge, by bookmark and by filter, but not publish."""
    engine = QueueEngine(QueueDefinition("q"))
    writer = engine.connect("writer")
    asked: list[str] = []

    def permit(session: Session, work: QueueWorker) -> None:
        asked.append(f"{session.name} {work.queue.name}")
        raise NotAQueue("not for you")

    monkeypatch.setattr(QueueRegistry, "permit", staticmethod(permit))
    writer.publish("q", [b"1"])
    engine.settle()
    assert (asked, writer.acked_sequence) == ([], 1), "reading is not publishing"
    number = writer.subscribe("s", "q")
    browsing = writer.subscribe("t", "q", options="browse")
    for settlement in (
        Settlement(queue="q", action="ack", runs=runs_of([1], [1])),
        Settlement(queue="q", action="ack", filter="TRUE"),
    ):
        writer.publish("$queue", [encode_settlement(settlement)])
    engine.settle()
    answers = [writer.answers[number], writer.answers[browsing]]
    assert [getattr(answer, "code", None) for answer in answers] == ["not_a_queue"] * 2
    assert set(asked) == {"writer q"}
    refusals = [command for command, _ in writer.received if isinstance(command, Rejected)]
    assert [refusal.code for refusal in refusals] == ["not_a_queue"] * 2
    assert len(engine.broker.queues.snapshots(engine.now())) == 1
    assert engine.broker.queues.snapshots(engine.now())[0].ready == 1
