"""What clients, messages and configurations do wrong about queues: nothing breaks, and everybody is told.

One real server for what is said to it; what takes many starts happens in virtual time.
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
def test_bookmarks_that_name_nothing_have_no_effect(server: RunningServer, a: tt.Client) -> None:
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
def test_what_is_no_bookmark_is_refused_before_it_is_sent(a: tt.Client, bookmarks: str) -> None:
    with pytest.raises((tt.BadBookmark, tt.UsageError)):
        a.ack("unknown", bookmarks)


@pytest.mark.slow
def test_an_acknowledgement_counts_once(server: RunningServer, a: tt.Client) -> None:
    numbers(server, "duplicate name", 4)
    stream = a.subscribe("duplicate name", max_backlog=2)
    first, second = take(stream, 2)
    for _ in range(3):
        first.ack()
    a.ack("duplicate name", [first, first, second, second])
    first.cancel()
    second.expire()
    assert of(take(stream, 2)) == [2, 3], "room for two, not for more"
    assert nothing(stream)
    found = wait_state(server, "duplicate name", acknowledged=2)
    assert (found.leased, found.returned, found.expired) == (2, {}, {})


@pytest.mark.slow
def test_what_another_one_holds_is_not_touched(server: RunningServer, a: tt.Client) -> None:
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
def test_what_is_no_queue_is_refused_and_the_rest_of_the_frame_taken(server: RunningServer) -> None:
    numbers(server, "mixed", 2)
    store = tt.MemoryPublishStore()
    with tt.Client("m", server.uri, publish_store=store, timeout=SECONDS) as client:
        refused: list[BaseException] = []
        client.set_failed_write_handler(lambda error, _messages: refused.append(error))
        held = take(client.subscribe("mixed", max_backlog=2), 2)
        client.publish("plain", b"before")
        client.ack("plain", held[0])
        client.ack("nobody", held[0])
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
def test_the_reserved_topic_is_nobody_elses(server: RunningServer, a: tt.Client) -> None:
    for topic in ("$queue", "$tickertape"):
        with pytest.raises(tt.BadTopic):
            a.publish(topic, b"x")
    for start in (None, tt.EPOCH):
        with pytest.raises(tt.BadTopic):
            a.subscribe("$queue", bookmark=start)
    stream = a.subscribe("^[$]")
    numbers(server, "reserved", 1)
    a.subscribe("reserved").get(SECONDS).ack()
    wait_state(server, "reserved", acknowledged=1)  # by a record in the log
    assert nothing(stream), "control records are for no subscriber"
    topics = {message.topic for message in a.replay("^")}
    assert "reserved" in topics
    assert not [topic for topic in topics if topic.startswith("$")]


@pytest.mark.slow
def test_a_pattern_without_a_target_takes_no_publish(server: RunningServer, a: tt.Client) -> None:
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
def test_options_without_a_meaning_are_refused(a: tt.Client, topic: str, options: str, word: str) -> None:
    with pytest.raises(tt.BadOption, match=word):
        a.subscribe(topic, options=options)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["max_backlog=2", "browse"])
def test_queue_option_for_a_topic_is_not_a_queue(a: tt.Client, option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(tt.NotAQueue, match=f"Cannot use option {name}: 'no-queue' is not a queue"):
        a.subscribe("no-queue", options=option)


BAD = {
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
    "another queue": encode_settlement(Settlement(queue="nobody", action="ack", filter="TRUE")),
    "a queue without a name": encode_settlement(Settlement(queue="", action="ack", filter="TRUE")),
}


@pytest.mark.parametrize("what", BAD)
def test_settlements_that_are_none_are_refused_alone(what: str) -> None:
    world = QueueEngine(QueueDefinition("q"))
    peer = world.connect("p")
    peer.publish("q", [b"1", b"2"])
    world.settle()
    peer.subscribe("s", "q", options="max_backlog=2")
    world.settle()
    before = len(peer.received)
    peer.publish(QUEUE_TOPIC, [BAD[what]])
    world.settle()
    (refusal,) = [command for command, _ in peer.received[before:] if isinstance(command, Rejected)]
    assert refusal.code in ("bad_command", "bad_filter", "not_a_queue", "bad_topic"), refusal
    assert refusal.text
    world.settlement(peer, "q", b"1")
    assert world.look("q").acknowledged == 1, "the connection and the queue go on"
    assert peer.goodbye is None
    assert any(isinstance(command, Persisted) for command, _ in peer.received[before:])
    world.reopen()
    assert world.ready("q") == [b"2"]


def test_a_settlement_is_carried_out_once_though_it_is_sent_again() -> None:
    """As after a lost connection: the second time its sequence is known, and no cancel counts twice."""
    world = QueueEngine(QueueDefinition("q", max_cancels=5))
    peer = world.connect("p")
    peer.publish("q", [b"1"])
    world.settle()
    peer.subscribe("s", "q")
    world.settle()
    world.settlement(peer, "q", b"1", action="cancel")
    assert (len(peer.heard["s"]), world.look("q").returned) == (2, {"cancelled": 1})
    peer.next_sequence -= 1
    world.settlement(peer, "q", b"1", action="cancel")
    assert world.look("q").returned == {"cancelled": 1}
    world.settlement(peer, "q", b"1", action="cancel")
    assert world.look("q").returned == {"cancelled": 2}


# -- messages -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_poison_message_ends_as_a_dead_letter(server: RunningServer) -> None:
    """Every handler fails on it, three times; the others are done meanwhile."""
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


def test_bodies_that_are_no_json_neither_pass_a_filter_nor_have_a_priority() -> None:
    world = QueueEngine(
        QueueDefinition("f", "t", filter="/n > 1"),
        QueueDefinition("p", "t", priority="/n"),
        QueueDefinition("b", "t", barrier_expression="/n > 1"),
    )
    peer = world.connect("p")
    bodies = [b"{", b"", b'{"n":2}', b"\xff", b'{"n":-1}', b'{"n":1e300}', b"[" * 100_000]
    peer.publish("t", bodies)
    world.settle()
    assert world.ready("f") == [b'{"n":2}', b'{"n":1e300}']
    assert world.look("f").filtered == len(bodies) - 2
    got = []
    for _ in bodies:
        got += world.consumed("p", 1)
    assert sorted(got) == sorted(bodies)
    assert got[:2] == [b'{"n":1e300}', b'{"n":2}']
    assert world.consumed("b", len(bodies)) == bodies[:2], "what is behind them is the first barrier"


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
def test_configurations_that_cannot_be_meant_are_refused(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "tickertape.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=word):
        load_config(file)


def filled(*definitions: QueueDefinition) -> tuple[QueueEngine, Peer]:
    """An engine with ten messages on `t`, which are 0 to 9."""
    world = QueueEngine(*definitions)
    peer = world.connect("p")
    peer.publish("t", [b'{"n":%d}' % n for n in range(10)])
    world.settle()
    return world, peer


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("file_backed", [False, True])
def test_a_changed_definition_counts_from_the_next_start(clean: bool, file_backed: bool) -> None:
    plain = QueueDefinition("q", "t", file_backed_metadata=file_backed)
    world, _ = filled(plain)
    world.consumed("q", 3)
    few = QueueDefinition("q", "t", filter="/n > 6", file_backed_metadata=file_backed)
    world.reopen(few, clean=clean)
    assert world.ready("q") == [b'{"n":7}', b'{"n":8}', b'{"n":9}']
    world.consumed("q", 1)
    world.reopen(plain, clean=clean)
    assert [json.loads(body)["n"] for body in world.ready("q")] == [3, 4, 5, 6, 8, 9], "nothing is lost by it"
    world.reopen(QueueDefinition("q", "other", file_backed_metadata=file_backed), clean=clean)
    assert world.ready("q") == []
    world.reopen(plain, clean=clean)
    assert [json.loads(body)["n"] for body in world.ready("q")] == [3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("file_backed", [False, True])
@pytest.mark.parametrize("others", [(), (QueueDefinition("other"),)])
def test_a_queue_that_was_away_goes_on(
    clean: bool, file_backed: bool, others: tuple[QueueDefinition, ...]
) -> None:
    own = QueueDefinition("q", "t", file_backed_metadata=file_backed)
    world, _ = filled(own)
    world.consumed("q", 3)
    world.queues = ()
    world.reopen(*others, clean=clean)
    peer = world.connect("p")
    peer.publish("t", [b'{"n":10}'])
    world.settle()
    world.reopen(own, *others, clean=clean)
    assert [json.loads(body)["n"] for body in world.ready("q")] == [3, 4, 5, 6, 7, 8, 9, 10]
    world.reopen(clean=True)
    assert len(world.ready("q")) == 8


def after_a_restart() -> tuple[QueueEngine, Peer, bytes, bytes]:
    """A strict queue `q` and a lenient one over the messages 1 and 2, started anew; the client that had
    published these, connected again, and how a settlement names each of the two."""
    world = QueueEngine(QueueDefinition("q", "t", leasing="strict"), QueueDefinition("lenient", "t"))
    peer = world.connect("p")
    peer.publish("t", [b"1", b"2"])
    world.settle()
    runs = {heard.body: runs_of([heard.publisher], [heard.sequence]) for heard in world.positions().values()}
    world.reopen()
    return world, world.connect("p"), runs[b"1"], runs[b"2"]


@pytest.mark.parametrize("action", ["cancel", "expire", "ack"])
def test_what_is_sent_again_after_a_restart_does_not_end_a_new_lease(action: str) -> None:
    """A client sends what it said again and then subscribes again; it all may come at once. What it said of
    its former lease is taken first, though the log has to be read for it."""
    world, peer, one, two = after_a_restart()
    for queue_, action_, runs in (("lenient", "ack", two), ("q", action, one)):
        told = Settlement(queue=queue_, action=action_, runs=runs)  # type: ignore[arg-type]
        peer.publish(QUEUE_TOPIC, [encode_settlement(told)])
    peer.subscribe("s", "q", options="max_backlog=5")
    peer.subscribe("l", "lenient", options="max_backlog=5")
    first = world.reads.pop(0)  # the disk takes its time with what the settlements need
    world.settle()
    world.reads.append(first)
    world.settle()
    assert [heard.body for heard in peer.heard["s"]] == [b"1", b"2"], "each once"
    assert [heard.body for heard in peer.heard["l"]] == [b"1"]
    look = world.look("q")
    assert (look.leased, look.acknowledged, look.returned, look.expired) == (2, 0, {}, {})


def test_what_was_acknowledged_before_an_unsubscribe_does_not_go_back() -> None:
    world, peer, one, two = after_a_restart()
    peer.subscribe("s", "q", options="max_backlog=1")
    world.settle()
    for queue_, runs in (("lenient", two), ("q", one)):
        peer.publish(QUEUE_TOPIC, [encode_settlement(Settlement(queue=queue_, action="ack", runs=runs))])
    peer.send(Unsubscribe(id=99, sub_ids=("s",)))
    world.settle()
    look = world.look("q")
    assert look.acknowledged == 1
    assert world.ready("q") == [b"2"]
    assert sum(look.returned.values()) <= 1
