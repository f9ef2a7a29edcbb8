"""Bad input for queues: bookmarks, settlements, options, messages and configurations.

Requests use one real server. Tests with many starts use virtual time.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.queue_engine import QueueEngine
from tests.helpers.queues import SECONDS, nothing, numbers, of, publish, queue, state, take, wait_state
from tests.simulation.engine_peer import Peer
from tickertape.base.errors import ConfigurationError
from tickertape.base.limits import settlement_bytes_max, settlement_messages_max, settlement_runs_max
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.server.config.config import load_config
from tickertape.testing import RunningServer
from tickertape.wire.commands import Persisted, Rejected, Unsubscribe
from tickertape.wire.settlement import QUEUE_TOPIC, Settlement, encode_settlement, runs_of

CONFIG = "".join(
    [
        queue("unknown"),
        queue("other"),
        queue("duplicate name"),
        queue("shared"),
        queue("handler", max_deliveries=3, dead_letter="handler-dead"),
        queue("mixed"),
        queue("options"),
        queue("reserved"),
        queue("pattern", underlying="^pattern/"),
    ]
)


# -- bookmarks ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ack_of_unknown_bookmarks_has_no_effect(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "unknown", 3)
    numbers(server, "other", 3)
    held = take(a.subscribe("unknown", max_backlog=3), 3)
    publisher, sequence = held[0].batch.publisher(0), held[0].sequence
    foreign = next(iter(a.replay("other"))).bookmark
    for option in (None, "cancel", "expire", "lease_extension=1s"):
        a.ack("unknown", "1|1|", option)
        a.ack("unknown", f"{publisher}|{sequence + 1_000_000}|", option)
        a.ack("unknown", foreign or "", option)
        a.ack("unknown", f"1|1|,{publisher}|{2**64 - 2}|", option)
    a.sow_delete("unknown", filter="/n = 17")
    a.publish_flush(timeout=SECONDS)
    found = state(server, "unknown")
    assert (found.leased, found.acknowledged, found.returned, found.expired) == (3, 0, {}, {})
    assert state(server, "other").depth == 3, "another queue has that message"
    a.ack("unknown", f"1|1|,{held[1].bookmark},{foreign}")
    wait_state(server, "unknown", acknowledged=1, leased=2)


@pytest.mark.parametrize(
    "bookmarks", ["", "x", "1|0|", "|1|", "1|2|3|", "0", "[1|1|:2|2|]", "20200101T000000"]
)
@pytest.mark.slow
def test_ack_of_an_invalid_bookmark_is_refused_by_the_client(a: tt.Client, bookmarks: str) -> None:
    with pytest.raises((tt.BadBookmark, tt.UsageError)):
        a.ack("unknown", bookmarks)


@pytest.mark.slow
def test_duplicate_acknowledgements_count_once(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "duplicate name", 4)
    stream = a.subscribe("duplicate name", max_backlog=2)
    first, second = take(stream, 2)
    for _ in range(3):
        first.ack()
    a.ack("duplicate name", [first, first, second, second])
    first.cancel()
    second.expire()
    assert of(take(stream, 2)) == [2, 3], "backlog for two messages, not for more"
    assert nothing(stream)
    found = wait_state(server, "duplicate name", acknowledged=2)
    assert (found.leased, found.returned, found.expired) == (2, {}, {})


@pytest.mark.slow
def test_ack_of_a_lease_of_another_client_has_no_effect(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "shared", 1)
    with tt.Client("owner", server.uri, timeout=SECONDS) as owner:
        message = owner.subscribe("shared").get(SECONDS)
        for option in (None, "cancel", "expire", "lease_extension=1s"):
            a.ack("shared", message.bookmark or "", option)
        a.publish_flush(timeout=SECONDS)
        assert state(server, "shared").leased == 1
    wait_state(server, "shared", returned={"holder_gone": 1})
    with pytest.raises(tt.Closed):
        message.ack()


@pytest.mark.slow
def test_ack_of_a_plain_topic_is_refused_and_the_rest_of_the_frame_accepted(server: RunningServer) -> None:
    numbers(server, "mixed", 2)
    store = tt.MemoryPublishStore()
    with tt.Client("m", server.uri, publish_store=store, timeout=SECONDS) as client:
        refused: list[BaseException] = []
        client.set_failed_write_handler(lambda error, _messages: refused.append(error))
        held = take(client.subscribe("mixed", max_backlog=2), 2)
        client.publish("plain", b"before")
        client.ack("plain", held[0])
        client.ack("no-queue", held[0])
        client.ack("mixed", held[0])
        client.publish("plain", b"after")
        client.publish_flush(timeout=SECONDS)
        assert [type(error.__cause__) for error in refused] == [tt.NotAQueue] * len(refused)
        assert refused
        assert client.unpersisted_count() == 0
        assert [message.data for message in client.replay("plain")] == [b"before", b"after"]
    wait_state(server, "mixed", acknowledged=1)


# -- the reserved topic -------------------------------------------------------------------------------


@pytest.mark.slow
def test_reserved_topics_refuse_publish_and_subscribe(server: RunningServer, a: tt.Client) -> None:
    for topic in ("$queue", "$tickertape"):
        with pytest.raises(tt.BadTopic):
            a.publish(topic, b"x")
    for start in (None, tt.EPOCH):
        with pytest.raises(tt.BadTopic):
            a.subscribe("$queue", bookmark=start)
    stream = a.subscribe("^[$]")
    numbers(server, "reserved", 1)
    a.subscribe("reserved").get(SECONDS).ack()
    wait_state(server, "reserved", acknowledged=1)  # with a record in the log
    assert nothing(stream), "control records are not delivered"
    topics = {message.topic for message in a.replay("^")}
    assert "reserved" in topics
    assert not [topic for topic in topics if topic.startswith("$")]


@pytest.mark.slow
def test_publish_to_a_pattern_queue_without_a_target_is_rejected(server: RunningServer, a: tt.Client) -> None:
    with pytest.raises(tt.PublishRejected, match="default_publish_target"):
        publish(server, "pattern", b"x")
    publish(server, "pattern/x", {"n": 0})
    assert of(take(a.subscribe("pattern"), 1)) == [0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "options", "word"),
    [
        ("options", "max_backlog=0", "max_backlog"),
        ("options", "max_backlog=-1", "max_backlog"),
        ("options", "max_backlog=1000001", "max_backlog"),
        ("options", "max_backlog=x", "max_backlog"),
        ("options", "browse,max_backlog=2", "browse"),
        ("options", "conflation=1s", "conflation"),
        ("^op", "browse", "browse"),
    ],
)
def test_subscribe_options_without_effect_are_refused(
    a: tt.Client, topic: str, options: str, word: str
) -> None:
    with pytest.raises(tt.BadOption, match=word):
        a.subscribe(topic, options=options)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["max_backlog=2", "browse"])
def test_queue_option_for_a_topic_is_not_a_queue(a: tt.Client, option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(tt.NotAQueue, match=f"Cannot use option {name}: 'no-queue' is not a queue"):
        a.subscribe("no-queue", options=option)


INVALID_SETTLEMENTS = {
    "no message pack": b"\xc1",
    "nothing": b"",
    "a list": b"\x90",
    "nested": b"\x91" * 10_000,
    "an unknown action": b"\x82\xa5queue\xa1q\xa6action\xa4burn",
    "neither bookmarks nor a filter": encode_settlement(Settlement(queue="q", action="ack")),
    "both": encode_settlement(Settlement(queue="q", action="ack", runs=runs_of([1], [1]), filter="TRUE")),
    "half a run": encode_settlement(Settlement(queue="q", action="ack", runs=b"\x01" * 23)),
    "an empty run": encode_settlement(Settlement(queue="q", action="ack", runs=bytes(24))),
    "too many runs": encode_settlement(
        Settlement(
            queue="q", action="ack", runs=runs_of([1, 2] * settlement_runs_max, [1] * 2 * settlement_runs_max)
        )
    ),
    "too many messages": encode_settlement(
        Settlement(
            queue="q",
            action="ack",
            runs=b"".join(n.to_bytes(8, "little") for n in (1, 1, settlement_messages_max + 1)),
        )
    ),
    "beyond the last sequence": encode_settlement(
        Settlement(queue="q", action="ack", runs=b"".join(n.to_bytes(8, "little") for n in (1, 2**64 - 1, 5)))
    ),
    "too large": encode_settlement(
        Settlement(queue="q", action="ack", filter="TRUE" + " " * settlement_bytes_max)
    ),
    "no filter": encode_settlement(Settlement(queue="q", action="ack", filter="/a = ")),
    "an extension of nothing": encode_settlement(Settlement(queue="q", action="extend", filter="TRUE")),
    "an extension without end": encode_settlement(
        Settlement(queue="q", action="extend", filter="TRUE", extend_ms=2**62)
    ),
    "an extended acknowledgement": encode_settlement(
        Settlement(queue="q", action="ack", filter="TRUE", extend_ms=5)
    ),
    "another queue": encode_settlement(Settlement(queue="no-queue", action="ack", filter="TRUE")),
    "a queue without a name": encode_settlement(Settlement(queue="", action="ack", filter="TRUE")),
}


@pytest.mark.parametrize("what", INVALID_SETTLEMENTS)
def test_invalid_settlement_is_rejected_without_side_effects(what: str) -> None:
    engine = QueueEngine(QueueDefinition("q"))
    peer = engine.connect("p")
    peer.publish("q", [b"1", b"2"])
    engine.settle()
    peer.subscribe("s", "q", options="max_backlog=2")
    engine.settle()
    before = len(peer.received)
    peer.publish(QUEUE_TOPIC, [INVALID_SETTLEMENTS[what]])
    engine.settle()
    (refusal,) = [command for command, _ in peer.received[before:] if isinstance(command, Rejected)]
    assert refusal.code in ("bad_command", "bad_filter", "not_a_queue", "bad_topic"), refusal
    assert refusal.text
    engine.settlement(peer, "q", b"1")
    assert engine.look("q").acknowledged == 1, "the connection and the queue go on"
    assert peer.goodbye is None
    assert any(isinstance(command, Persisted) for command, _ in peer.received[before:])
    engine.reopen()
    assert engine.ready("q") == [b"2"]


def test_resent_settlement_takes_effect_once() -> None:
    """After a lost connection the server knows the sequence, so no cancel counts twice."""
    engine = QueueEngine(QueueDefinition("q", max_cancels=5))
    peer = engine.connect("p")
    peer.publish("q", [b"1"])
    engine.settle()
    peer.subscribe("s", "q")
    engine.settle()
    engine.settlement(peer, "q", b"1", action="cancel")
    assert (len(peer.heard["s"]), engine.look("q").returned) == (2, {"cancelled": 1})
    peer.next_sequence -= 1
    engine.settlement(peer, "q", b"1", action="cancel")
    assert engine.look("q").returned == {"cancelled": 1}
    engine.settlement(peer, "q", b"1", action="cancel")
    assert engine.look("q").returned == {"cancelled": 2}


# -- messages -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_poison_message_becomes_a_dead_letter(server: RunningServer) -> None:
    """The handler fails on this message three times, and processes the others."""
    publish(server, "handler", {"n": 0}, b"}poison{", {"n": 2})
    done: list[int] = []
    with tt.Client("worker", server.uri, timeout=SECONDS) as client:
        client.auto_ack = True
        client.set_exception_listener(lambda _error: None)
        client.subscribe(
            "handler", on_message=lambda message: done.append(message.json()["n"]), max_backlog=2
        )
        letter = client.bookmark_subscribe("handler-dead", tt.EPOCH).get(SECONDS)
        wait_state(server, "handler", depth=0, acknowledged=2)
    assert (letter.data, done) == (b"}poison{", [0, 2])
    label = json.loads(letter.correlation_id or "")
    assert (label["reason"], label["deliveries"], label["cancels"]) == ("max_deliveries", 3, 2)
    found = state(server, "handler")
    assert (found.returned, found.expired) == ({"cancelled": 2}, {"max_deliveries": 1})


def test_bodies_that_are_not_json_match_no_filter_and_have_no_priority() -> None:
    engine = QueueEngine(
        QueueDefinition("f", "t", filter="/n > 1"),
        QueueDefinition("p", "t", priority="/n"),
        QueueDefinition("b", "t", barrier_expression="/n > 1"),
    )
    peer = engine.connect("p")
    bodies = [b"{", b"", b'{"n":2}', b"\xff", b'{"n":-1}', b'{"n":1e300}', b"[" * 100_000]
    peer.publish("t", bodies)
    engine.settle()
    assert engine.ready("f") == [b'{"n":2}', b'{"n":1e300}']
    assert engine.look("f").filtered == len(bodies) - 2
    got = []
    for _ in bodies:
        got += engine.consumed("p", 1)
    assert sorted(got) == sorted(bodies)
    assert got[:2] == [b'{"n":1e300}', b'{"n":2}']
    assert engine.consumed("b", len(bodies)) == bodies[:2], "the first barrier follows"


# -- configuration ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[[journal.topic]]\nname = "t"\n' + queue("q"), "is not persistent"),
        (
            '[[journal.topic]]\nname = "t"\n' + queue("q", underlying="t", dead_letter="d"),
            "is not persistent",
        ),
        ("[journal]\ntopic = []\n" + queue("q"), "is not persistent"),
        (queue("q") + queue("q", underlying="t"), "duplicate name"),
        (queue("q", underlying="("), "underlying"),
        (queue("q", filter="/a ="), "filter"),
        (queue("q", priority="/a ="), "priority"),
        (queue("q", lease_period="0s"), "lease_period"),
        (queue("q", max_deliveries=0), "max_deliveries"),
        (queue("q", semantics="exactly-once"), "semantics"),
        (queue("q", semantics="at-most-once", lease_period="1s"), "lease_period"),
        (queue("q", recovery_point="[1|1|:]"), "recovery_point"),
        (queue("q", lease="1s"), "lease"),
        (queue("q", dead_letter="q"), "dead_letter"),
    ],
)
def test_invalid_queue_configurations_are_refused(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "tickertape.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=word):
        load_config(file)


def filled(*definitions: QueueDefinition) -> tuple[QueueEngine, Peer]:
    """Return an engine with the messages 0 to 9 in `t`."""
    engine = QueueEngine(*definitions)
    peer = engine.connect("p")
    peer.publish("t", [b'{"n":%d}' % n for n in range(10)])
    engine.settle()
    return engine, peer


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("file_backed", [False, True])
def test_changed_queue_definition_applies_from_the_next_start(clean: bool, file_backed: bool) -> None:
    plain = QueueDefinition("q", "t", file_backed_metadata=file_backed)
    engine, _ = filled(plain)
    engine.consumed("q", 3)
    few = QueueDefinition("q", "t", filter="/n > 6", file_backed_metadata=file_backed)
    engine.reopen(few, clean=clean)
    assert engine.ready("q") == [b'{"n":7}', b'{"n":8}', b'{"n":9}']
    engine.consumed("q", 1)
    engine.reopen(plain, clean=clean)
    assert [json.loads(body)["n"] for body in engine.ready("q")] == [3, 4, 5, 6, 8, 9], (
        "no message is lost by the change"
    )
    engine.reopen(QueueDefinition("q", "other", file_backed_metadata=file_backed), clean=clean)
    assert engine.ready("q") == []
    engine.reopen(plain, clean=clean)
    assert [json.loads(body)["n"] for body in engine.ready("q")] == [3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("file_backed", [False, True])
@pytest.mark.parametrize("others", [(), (QueueDefinition("other"),)])
def test_queue_removed_and_added_to_the_configuration_continues(
    clean: bool, file_backed: bool, others: tuple[QueueDefinition, ...]
) -> None:
    own = QueueDefinition("q", "t", file_backed_metadata=file_backed)
    engine, _ = filled(own)
    engine.consumed("q", 3)
    engine.queues = ()
    engine.reopen(*others, clean=clean)
    peer = engine.connect("p")
    peer.publish("t", [b'{"n":10}'])
    engine.settle()
    engine.reopen(own, *others, clean=clean)
    assert [json.loads(body)["n"] for body in engine.ready("q")] == [3, 4, 5, 6, 7, 8, 9, 10]
    engine.reopen(clean=True)
    assert len(engine.ready("q")) == 8


def after_a_restart() -> tuple[QueueEngine, Peer, bytes, bytes]:
    """Return a restarted engine with a strict queue `q` and a lenient queue over the messages 1 and 2.

    Also return the reconnected publisher, and the runs that name each message in a settlement.
    """
    engine = QueueEngine(QueueDefinition("q", "t", leasing="strict"), QueueDefinition("lenient", "t"))
    peer = engine.connect("p")
    peer.publish("t", [b"1", b"2"])
    engine.settle()
    runs = {heard.body: runs_of([heard.publisher], [heard.sequence]) for heard in engine.positions().values()}
    engine.reopen()
    return engine, engine.connect("p"), runs[b"1"], runs[b"2"]


@pytest.mark.parametrize("action", ["cancel", "expire", "ack"])
def test_resent_settlement_after_a_restart_does_not_end_a_new_lease(action: str) -> None:
    """A client resends its settlements and then resubscribes, perhaps in one read of the server. The server
    applies the settlement of the former lease first, although it must read the log."""
    engine, peer, one, two = after_a_restart()
    for queue_, action_, runs in (("lenient", "ack", two), ("q", action, one)):
        settlement = Settlement(queue=queue_, action=action_, runs=runs)  # type: ignore[arg-type]
        peer.publish(QUEUE_TOPIC, [encode_settlement(settlement)])
    peer.subscribe("s", "q", options="max_backlog=5")
    peer.subscribe("l", "lenient", options="max_backlog=5")
    first = engine.reads.pop(0)  # the read for the settlements is delayed
    engine.settle()
    engine.reads.append(first)
    engine.settle()
    assert [heard.body for heard in peer.heard["s"]] == [b"1", b"2"], "each once"
    assert [heard.body for heard in peer.heard["l"]] == [b"1"]
    snapshot = engine.look("q")
    assert (snapshot.leased, snapshot.acknowledged, snapshot.returned, snapshot.expired) == (2, 0, {}, {})


def test_message_acknowledged_before_an_unsubscribe_is_not_returned() -> None:
    engine, peer, one, two = after_a_restart()
    peer.subscribe("s", "q", options="max_backlog=1")
    engine.settle()
    for queue_, runs in (("lenient", two), ("q", one)):
        peer.publish(QUEUE_TOPIC, [encode_settlement(Settlement(queue=queue_, action="ack", runs=runs))])
    peer.send(Unsubscribe(id=99, sub_ids=("s",)))
    engine.settle()
    snapshot = engine.look("q")
    assert snapshot.acknowledged == 1
    assert engine.ready("q") == [b"2"]
    assert sum(snapshot.returned.values()) <= 1
