"""Options of subscriptions in both clients: patterns, pauses, rates, conflation, fields."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.relay import Relay
from tickertape.base.options import format_options
from tickertape.testing.server import wait_until
from tickertape.wire.commands import Pause, Resume, Subscribe

FILTER = "/wanted = 1"
PASSES = b'{"wanted": 1, "filter": "/wanted = 1"}'


def texts(stream: tt.MessageStream) -> list[str]:
    return [message.data.decode() for message in stream]


def take(stream: tt.MessageStream, count: int) -> list[str]:
    return [stream.get(10).data.decode() for _ in range(count)]


def assert_no_message(client: tt.Client, *streams: tt.MessageStream) -> None:
    """Check that no message arrived on the streams before a flush."""
    client.publish_flush(level="processed")
    for stream in streams:
        with pytest.raises(tt.TimedOut):
            stream.get(0.05)


# -- patterns -----------------------------------------------------------------------------------------


def test_pattern_covers_all_matching_topics(client: tt.Client, topic: str, other_topic: str) -> None:
    both = f"^({topic}|{other_topic})$"
    client.publish(topic, b"1")
    client.publish(other_topic, b"2")
    replayed = [(message.topic, message.data) for message in client.replay(both)]
    assert replayed == [(topic, b"1"), (other_topic, b"2")]
    live = client.subscribe(both)
    further = client.bookmark_subscribe(both, tt.NOW)
    client.publish(other_topic, b"3")
    client.publish(topic, b"4")
    for stream in (live, further):
        assert [(m.topic, m.data) for m in (stream.get(10), stream.get(10))] == [
            (other_topic, b"3"), (topic, b"4"),
        ]  # fmt: skip


def test_publish_to_pattern_raises_bad_topic(client: tt.Client) -> None:
    with pytest.raises(tt.BadTopic):
        client.publish("^orders", b"1")


# -- pause and resume ---------------------------------------------------------------------------------


def test_paused_subscription_delivers_after_resume(client: tt.Client, topic: str) -> None:
    client.publish(topic, b"1")
    stream = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="p", pause=True)
    client.publish(topic, b"2")
    assert_no_message(client, stream)
    client.resume("p")
    assert take(stream, 2) == ["1", "2"]
    client.pause("p")
    client.publish(topic, b"3")
    assert_no_message(client, stream)
    client.resume("p")
    assert take(stream, 1) == ["3"]


@pytest.mark.behaviour(17)
def test_pause_and_resume_with_unknown_id_change_no_subscription(client: tt.Client, topic: str) -> None:
    streams = [client.bookmark_subscribe(topic, tt.NOW, sub_id=sub_id) for sub_id in ("a", "b")]
    with pytest.raises(tt.SubscriptionUnknown, match=r"'c'.*nothing was paused"):
        client.pause("a", "c", "b")
    plain = client.subscribe(topic, sub_id="plain")
    with pytest.raises(tt.BadOption, match="no bookmark"):
        client.pause("a", "plain")
    client.publish(topic, b"1")
    assert [take(stream, 1) for stream in (*streams, plain)] == [["1"]] * 3
    client.pause("a", "b")
    client.publish(topic, b"2")
    assert_no_message(client, *streams)
    with pytest.raises(tt.SubscriptionUnknown, match="nothing was resumed"):
        client.resume("b", "c")
    assert_no_message(client, *streams)
    client.resume("a", "b")
    assert [take(stream, 1) for stream in streams] == [["2"], ["2"]]


@pytest.mark.behaviour(17)
def test_pause_and_resume_send_one_command_for_several_ids(
    front: Front, uri: str, name: str, topic: str
) -> None:
    ids = tuple(f"s{number}" for number in range(20))
    with Relay(uri) as relay:
        client = front.connect(name, relay.uri)
        for sub_id in ids:
            client.bookmark_subscribe(topic, tt.NOW, sub_id=sub_id)
        client.pause(*ids)
        client.resume(*reversed(ids))
        asked = [command for command in relay.asked if isinstance(command, Pause | Resume)]
    assert [(type(command), command.sub_ids) for command in asked] == [(Pause, ids), (Resume, ids[::-1])]


@pytest.mark.behaviour(17)
def test_messages_in_flight_at_a_pause_still_arrive(
    front: Front, client: tt.Client, uri: str, name: str, topic: str
) -> None:
    with Relay(uri) as relay:
        reader = front.connect(f"{name} reads", relay.uri)
        stream = reader.bookmark_subscribe(topic, tt.NOW, sub_id="s")
        relay.hold()
        client.publish_batch(topic, [b"%d" % number for number in range(100)])
        client.publish_flush()
        wait_until(lambda: relay.delivered == 100, 10)  # sent, and not arrived
        pausing = threading.Thread(target=reader.pause, args=("s",))
        pausing.start()
        wait_until(lambda: any(isinstance(command, Pause) for command in relay.asked), 10)
        relay.release()
        pausing.join(10)
        assert not pausing.is_alive()
        client.publish_batch(topic, [b"%d" % number for number in range(100, 200)])
        client.publish_flush()
        assert take(stream, 100) == [str(number) for number in range(100)]
        assert_no_message(reader, stream)
        assert relay.delivered == 100
        reader.resume("s")
        assert take(stream, 100) == [str(number) for number in range(100, 200)]


def test_subscribe_command_with_pause_and_resume_options_pauses_and_resumes(
    client: tt.Client, topic: str
) -> None:
    streams = [client.bookmark_subscribe(topic, tt.NOW, sub_id=sub_id) for sub_id in ("a", "b")]
    paused = client.execute(tt.Command("subscribe", options="pause", sub_id=("a", "b")))
    assert paused.end_reason == "complete"
    client.publish(topic, b"1")
    assert_no_message(client, *streams)
    client.execute(tt.Command("subscribe", options="resume", sub_id="a,b"))
    assert [take(stream, 1) for stream in streams] == [["1"], ["1"]]
    client.execute(tt.Command("pause", sub_id="a"))
    client.execute(tt.Command("subscribe", options="pause,", sub_id="b"))
    client.publish(topic, b"2")
    assert_no_message(client, *streams)
    client.execute(tt.Command("resume", sub_id=("a", "b")))
    assert [take(stream, 1) for stream in streams] == [["2"], ["2"]]
    new = tt.Command("subscribe", topic, bookmark=tt.EPOCH, options="pause", sub_id="c")
    begun = client.execute(new)
    assert_no_message(client, begun)
    client.resume("c")
    assert take(begun, 2) == ["1", "2"]


@pytest.mark.parametrize(
    ("command", "error", "says"),
    [
        (tt.Command("subscribe", options="resume", sub_id="nobody"), tt.SubscriptionUnknown, "nobody"),
        (tt.Command("subscribe", options="resume"), tt.UsageError, "Cannot resume: no subscription is named"),
        (
            tt.Command("subscribe", options="resume,rate=2x", sub_id="a"),
            tt.BadOption,
            "also has other options",
        ),
        (tt.Command("subscribe", options="resume=1", sub_id="a"), tt.BadOption, "options='resume' alone"),
        (tt.Command("subscribe", "t", options="resume", sub_id="a"), tt.BadOption, "does not use topic"),
        (tt.Command("pause"), tt.UsageError, "Cannot pause: no subscription is named"),
        (tt.Command("pause", topic="t", sub_id="a"), tt.BadOption, "topic='t'"),
        (tt.Command("subscribe", "t", options="pause", sub_id="a"), tt.BadOption, "requires a bookmark"),
    ],
)
def test_pause_and_resume_commands_with_invalid_fields_raise(
    client: tt.Client, command: tt.Command, error: type[tt.TickertapeError], says: str
) -> None:
    with pytest.raises(error, match=says):
        client.execute(command)


@pytest.mark.parametrize("command", ["pause", "resume", "unsubscribe"])
def test_pause_resume_and_unsubscribe_require_separate_ids(
    client: tt.Client, topic: str, command: str
) -> None:
    for sub_id in ("a", "b"):
        client.bookmark_subscribe(topic, tt.EPOCH, sub_id=sub_id)
    act = getattr(client, command)
    with pytest.raises(tt.UsageError, match=f"Cannot {command}: no subscription is named. Pass the sub_id"):
        act()
    with pytest.raises(tt.SubscriptionUnknown, match=r"'a,b' on this connection: .* Pass each id separately"):
        act("a,b")
    with pytest.raises(tt.UsageError, match="Invalid sub_id of type int"):
        act("a", 1)
    act("a", "b")


@pytest.mark.behaviour(16)
def test_handlers_of_subscriptions_resumed_together_run_in_log_order(
    front: Front, client: tt.Client, uri: str, name: str, topic: str, other_topic: str
) -> None:
    received: list[tuple[str | None, int]] = []
    done = threading.Event()

    def note(message: tt.Message) -> None:
        received.append((message.sub_id, int(message.data)))
        if len(received) == 600:
            done.set()

    publisher = front.connect(f"{name}-p", uri)
    for number in range(600):
        publisher.publish((topic, other_topic)[number % 3 == 0], b"%d" % number)
    publisher.publish_flush()
    for sub_id, covered in {"one": topic, "other": other_topic}.items():
        client.bookmark_subscribe(covered, tt.EPOCH, sub_id=sub_id, pause=True, on_message=note, depth="8KB")
    client.resume("one", "other")
    assert done.wait(30)
    assert [number for _, number in received] == list(range(600))
    assert all(sub_id == ("other" if number % 3 == 0 else "one") for sub_id, number in received)


@pytest.mark.behaviour(16)
def test_subscriptions_resumed_together_each_get_every_message(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"%d" % i for i in range(500)])
    client.publish_flush()
    received: list[tuple[int, str | None]] = []
    for sub_id in ("a", "b"):
        client.bookmark_subscribe(
            topic, tt.EPOCH, sub_id=sub_id, pause=True,
            on_message=lambda message: received.append((int(message.data), message.sub_id)),
        )  # fmt: skip
    stream = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="c", pause=True, depth="4KB")
    client.resume("a", "b", "c")
    assert take(stream, 500) == [str(i) for i in range(500)]
    wait_until(lambda: len(received) == 1000, 10)
    assert [number for number, _ in received] == [i for i in range(500) for _ in "ab"]
    assert stream.recovery_point is not None


def test_handler_exception_and_unsubscribe_do_not_affect_other_subscriptions(
    client: tt.Client, topic: str
) -> None:
    client.publish_batch(topic, [b"%d" % i for i in range(50)])
    client.publish_flush()
    received: dict[str, list[int]] = {"a": [], "b": []}
    problems: list[BaseException] = []
    client.set_exception_listener(problems.append)

    def note(message: tt.Message) -> None:
        received[str(message.sub_id)].append(int(message.data))
        if message.sub_id == "a" and int(message.data) == 9:
            raise ValueError("on purpose")

    for sub_id in received:
        client.bookmark_subscribe(topic, tt.EPOCH, sub_id=sub_id, pause=True, on_message=note)
    client.resume(*received)
    wait_until(lambda: len(received["b"]) == 50, 10)
    assert received == {"a": list(range(50)), "b": list(range(50))}
    assert [str(problem) for problem in problems] == ["on purpose"]
    client.unsubscribe("a")
    client.publish(topic, b"50")
    wait_until(lambda: len(received["b"]) == 51, 10)
    assert received["a"] == list(range(50))


# -- pace ---------------------------------------------------------------------------------------------


def options_asked(relay: Relay) -> str:
    """Return the options of the last subscribe command."""
    return [command.options for command in relay.asked if isinstance(command, Subscribe)][-1]


@pytest.mark.parametrize("rate", [200, 200.0, "200", "2KB"])
def test_replay_rate_in_any_form_spreads_deliveries(
    front: Front, relay: Relay, name: str, topic: str, rate: float | str
) -> None:
    """`unit/engine/subscriptions/test_replay_rate.py` tests the precision in simulated time."""
    client = front.connect(name, relay.uri)
    client.publish_batch(topic, [b"%010d" % i for i in range(60)])
    client.publish_flush()
    assert len(texts(client.replay(topic))) == 60
    at_once = relay.deliveries
    assert len(texts(client.replay(topic, rate=rate))) == 60
    assert ",rate=2" in options_asked(relay)
    assert at_once < relay.deliveries - at_once, "deliveries are spread over time"


def test_replay_rate_as_multiple_limits_gaps_to_rate_max_gap(
    front: Front, relay: Relay, name: str, topic: str
) -> None:
    client = front.connect(name, relay.uri)
    client.publish(topic, b"1")
    client.publish_flush()
    time.sleep(0.3)
    client.publish(topic, b"2")
    client.publish_flush()
    assert texts(client.replay(topic, rate="1x", rate_max_gap="50ms")) == ["1", "2"]
    assert options_asked(relay).endswith("rate=1x,rate_max_gap=50ms")
    before = relay.deliveries
    assert texts(client.replay(topic, options="rate=2X,rate_max_gap=10s,")) == ["1", "2"]
    assert options_asked(relay).endswith("rate=2X,rate_max_gap=10s")
    assert relay.deliveries - before == 2, "the second message is not due with the first"


# -- conflation and fields ----------------------------------------------------------------------------


def test_replay_with_conflation_returns_newest_message_of_each_key(client: tt.Client, topic: str) -> None:
    for number in range(30):
        client.publish(topic, {"k": "ab"[number % 2], "n": number})
    client.publish_flush()
    every = list(client.replay(topic))
    for key in ("/k", "[/k]", ["/k"], ("/k",)):
        conflated = list(client.replay(topic, conflation="1h", conflation_key=key))
        # an hourly interval may end meanwhile
        assert 2 <= len(conflated) <= 4
        assert [message.json()["n"] for message in conflated[-2:]] == [28, 29]
    assert conflated[0].bookmark == every[0].bookmark
    assert conflated[1].bookmark == every[1].bookmark
    whole = list(client.replay(topic, conflation=3600))
    assert 1 <= len(whole) <= 2


def test_recovery_point_of_conflated_stream_misses_nothing(client: tt.Client, topic: str) -> None:
    for number in range(20):
        client.publish(topic, {"k": number % 2, "n": number})
    client.publish_flush()
    every = [message.bookmark for message in client.replay(topic)]
    # the replay delivers everything, so the last bookmark is the first of an interval
    stream = client.replay(topic, conflation="1d", conflation_key=["/k"])
    bookmarks = [message.bookmark for message in stream]
    assert bookmarks == every[: len(bookmarks)] or len(bookmarks) > 2
    point = stream.recovery_point
    assert point == bookmarks[-1]
    assert point is not None
    again = list(client.replay(topic, point))
    assert [message.bookmark for message in again] == every[every.index(point) + 1 :]
    assert again[-1].json()["n"] == 19


def test_select_limits_the_fields_of_messages(client: tt.Client, topic: str) -> None:
    client.publish(topic, {"a": 1, "b": 2, "c": {"d": 3}})
    for select in (["-/", "+/a", "+/c/d"], "[-/,+/a,+/c/d]", "-/,+/a,+/c/d"):
        (message,) = client.replay(topic, select=select)
        assert message.json() == {"a": 1, "c": {"d": 3}}
    live = client.subscribe(topic, select=["-/b"])
    client.publish(topic, {"a": 1, "b": 2})
    assert live.get(10).json() == {"a": 1}


# -- rejected options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"rate": "fast"}, "Invalid rate 'fast'"),
        ({"rate": "2x", "rate_max_gap": "0s"}, "rate_max_gap"),
        ({"rate_max_gap": 1}, "rate_max_gap requires a rate"),
        ({"rate": 1000, "rate_max_gap": 1}, "rate_max_gap"),
        ({"conflation": "auto"}, "conflation=auto"),
        ({"conflation_key": ["/a"]}, "conflation_key requires an interval"),
        ({"conflation": 1, "conflation_key": ["a"]}, "conflation_key"),
        ({"select": "[+a]"}, "select"),
        ({"live": True, "rate": 10}, "live"),
        ({"live": True, "pause": True}, "live"),
        ({"rate": []}, "Invalid rate of type list"),
        ({"pause": "yes"}, "Invalid pause of type str"),
        ({"options": "rate=1", "rate": 1}, "Cannot set option 'rate' twice"),
        ({"options": "speed=1"}, "Unknown option 'speed'"),
    ],
)
def test_subscription_with_invalid_option_value_raises_and_names_the_cause(
    client: tt.Client, topic: str, keywords: dict[str, object], says: str
) -> None:
    with pytest.raises(tt.BadOption, match=says):
        client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", **keywords)  # type: ignore[arg-type]
    assert client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s").end_reason is None


@pytest.mark.parametrize("flag", ["live", "fully_durable"])
def test_bookmark_subscription_with_live_or_fully_durable_continues_after_replay(
    client: tt.Client, topic: str, flag: str
) -> None:
    client.publish(topic, b"1")
    keyword = client.bookmark_subscribe(topic, tt.EPOCH, **{flag: True})  # type: ignore[arg-type]
    option = client.bookmark_subscribe(topic, tt.EPOCH, options=f"{flag},")
    for stream in (keyword, option):
        assert take(stream, 1) == ["1"]
        stream.wait_caught_up()
    client.publish(topic, b"2")
    assert [take(stream, 1) for stream in (keyword, option)] == [["2"], ["2"]]


@pytest.mark.parametrize(
    "asked",
    [{"rate": 10}, {"rate": "2x", "rate_max_gap": "1s"}, {"pause": True}, {"fully_durable": True}],
)
def test_replay_options_without_bookmark_raise(client: tt.Client, topic: str, asked: dict[str, Any]) -> None:
    options = format_options({name: None if value is True else str(value) for name, value in asked.items()})
    for more in (asked, {"options": options}):
        with pytest.raises(tt.BadOption, match="requires a bookmark"):
            client.subscribe(topic, **more)
    with pytest.raises(tt.BadOption, match="bookmark_not_found requires a bookmark"):
        client.subscribe(topic, bookmark_not_found="now")


def test_subscribe_and_replay_accept_all_replay_options(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"1", b"2"])
    client.publish_flush()
    rated = client.subscribe(topic, bookmark=tt.EPOCH, rate="2000x", rate_max_gap=1, fully_durable=True)
    live = client.subscribe(topic, bookmark=tt.EPOCH, live=True)
    paused = client.subscribe(topic, bookmark=tt.EPOCH, pause=True, sub_id="paused")
    assert [take(stream, 2) for stream in (rated, live)] == [["1", "2"]] * 2
    assert_no_message(client, paused)
    client.resume("paused")
    assert take(paused, 2) == ["1", "2"]
    assert texts(client.replay(topic, live=True)) == ["1", "2"]
    assert texts(client.replay(topic, fully_durable=True)) == ["1", "2"]
    waits = client.replay(topic, pause=True, sub_id="s")
    assert_no_message(client, waits)
    instead = client.replay(topic, sub_id="s", replace=True)
    assert (texts(waits), waits.end_reason) == ([], "replaced")
    assert texts(instead) == ["1", "2"]


def test_replacement_changes_the_rate_of_a_running_replay(client: tt.Client, topic: str) -> None:
    client.publish_batch(topic, [b"%d" % number for number in range(2_000)])
    client.publish_flush()
    slow = client.bookmark_subscribe(topic, tt.EPOCH, sub_id="s", rate=10)
    assert take(slow, 1) == ["0"]
    with pytest.raises(tt.BadOption, match="Invalid rate 'fast'"):
        client.subscribe(topic, sub_id="s", replace=True, rate="fast")
    fast = client.subscribe(topic, sub_id="s", replace=True, rate=1_000_000)
    begun = ["0", *texts(slow)]
    assert begun + take(fast, 2_000 - len(begun)) == [str(number) for number in range(2_000)]


def test_filter_applies_to_replay_command_and_live_subscription(client: tt.Client, topic: str) -> None:
    client.publish(topic, b"other")
    client.publish(topic, PASSES)
    command = tt.Command("subscribe", topic, bookmark=tt.EPOCH, filter=FILTER, until_caught_up=True)
    for stream in (client.replay(topic, filter=FILTER), client.execute(command)):
        assert texts(stream) == [PASSES.decode()]
    live = client.subscribe(topic, filter=FILTER)
    client.publish(topic, b"other")
    client.publish(topic, PASSES)
    assert take(live, 1) == [PASSES.decode()]
    with pytest.raises(tt.BadOption, match="Invalid filter of type int"):
        client.subscribe(topic, filter=1)  # type: ignore[arg-type]
