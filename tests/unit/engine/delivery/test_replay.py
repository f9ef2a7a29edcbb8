"""Bookmark subscriptions: every start and stop point against the list of published messages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.bookmarks import format_timestamp
from tickertape.base.interfaces import Now
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.wire.commands import Ack, Resolved

SECOND = 1_000_000


class Scene:
    """Ten messages of one publisher on topic `t`, one a second, each in a commit of its own."""

    def __init__(self, messages: int = 10) -> None:
        self.world = EngineWorld(7)
        self.publisher = self.world.connect("publisher")
        self.subscriber = self.world.connect("subscriber")
        self.times: list[int] = []
        for number in range(messages):
            self.publish(number)
        assert self.publisher.logged_on is not None
        self.id = self.publisher.logged_on.publisher

    def publish(self, number: int) -> None:
        self.world.wake(1.0)
        self.publisher.publish("t", [b"%d" % number])
        self.world.settle()
        self.times.append(self.world.broker.journal.log_time(self.world.now()))
        stamps = [part.batch.timestamps[-1] for part in self.world.broker.journal.view.tail]
        self.times[-1] = int(stamps[-1])

    def bookmark(self, number: int) -> str:
        """Bookmark of message `number`."""
        return f"{self.id}|{number + 1}|"

    def time(self, number: int, micros: int = 0) -> str:
        """Return the time at which message `number` was accepted."""
        return format_timestamp(self.times[number] + micros)

    def replay(self, bookmark: str, peer: Peer | None = None, **more: Any) -> tuple[list[int], list[str]]:
        """Return deliveries and marks of a subscription with that bookmark after all work is done."""
        peer = peer or self.subscriber
        sub_id = f"s{peer.ids}"
        peer.subscribe(sub_id, "t", bookmark=bookmark, **more)
        self.world.settle()
        return [int(h.body) for h in peer.heard[sub_id]], peer.marks[sub_id]

    def answer(self) -> Ack:
        """The answer to the last subscribe."""
        answer = self.subscriber.answers[self.subscriber.ids]
        assert isinstance(answer, Ack)
        return answer


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def test_epoch_replays_everything_then_completes(scene: Scene) -> None:
    assert scene.replay("0") == (list(range(10)), ["completed after 10"])


def test_now_replays_nothing_and_completes_at_once(scene: Scene) -> None:
    assert scene.replay("0|1|") == ([], ["completed after 0"])


def test_bookmark_starts_after_the_named_message(scene: Scene) -> None:
    assert scene.replay(scene.bookmark(3)) == ([4, 5, 6, 7, 8, 9], ["completed after 6"])


@pytest.mark.behaviour(1)
def test_plain_timestamp_starts_strictly_after(scene: Scene) -> None:
    assert scene.replay(scene.time(4))[0] == [5, 6, 7, 8, 9]
    assert scene.replay(scene.time(4, -1))[0] == [4, 5, 6, 7, 8, 9]
    assert scene.replay(f"[{scene.time(4)}:{scene.time(9)}]")[0] == [4, 5, 6, 7, 8, 9]
    assert scene.replay(scene.time(0, -SECOND * 86_400))[0] == list(range(10)), "before the log is EPOCH"


@pytest.mark.behaviour(1)
def test_plain_timestamp_past_the_end_is_now_and_a_range_holds_back() -> None:
    scene = Scene(3)
    future = format_timestamp(scene.times[-1] + 5 * SECOND)
    plain, ranged = "plain", "ranged"
    scene.subscriber.subscribe(plain, "t", bookmark=future)
    scene.subscriber.subscribe(ranged, "t", bookmark=f"[{future}:20991231T000000]")
    scene.world.settle()
    assert scene.subscriber.marks[plain] == ["completed after 0"]
    scene.publish(3)
    scene.world.wake(10.0)
    scene.publish(4)
    assert [int(h.body) for h in scene.subscriber.heard[plain]] == [3, 4]
    assert [int(h.body) for h in scene.subscriber.heard[ranged]] == [4]
    assert scene.subscriber.marks[ranged] == []


@pytest.mark.behaviour(1)
@pytest.mark.parametrize(("bracket", "expected"), [("(", [2]), ("[", [1, 2])])
def test_a_begin_in_the_future_holds_back_to_the_microsecond(
    bracket: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(1)
    world = scene.world
    future = scene.times[0] + 60 * SECOND
    end = format_timestamp(future + SECOND)
    scene.subscriber.subscribe("s", "t", bookmark=f"{bracket}{format_timestamp(future)}:{end})")
    world.settle()
    for number, wall in ((1, future), (2, future + 1)):
        monkeypatch.setattr(world, "now", lambda wall=wall: Now(world.mono, wall))
        scene.publisher.publish("t", [b"%d" % number])
        world.settle()
    assert [int(heard.body) for heard in scene.subscriber.heard["s"]] == expected


@pytest.mark.behaviour(3)
def test_unknown_bookmark_follows_bookmark_not_found(scene: Scene) -> None:
    for unknown in (f"{scene.id}|999|", "12|1|", "abc|1|", "1|", "99999999999999999999999|1|"):
        assert scene.replay(unknown)[0] == [], "the reference's rule: NOW"
        assert scene.answer().found is False
        assert scene.answer().start == scene.world.broker.journal.commits.accepted_end
        assert scene.replay(unknown, options="bookmark_not_found=epoch")[0] == list(range(10))
        scene.replay(unknown, options="bookmark_not_found=fail")
        assert scene.answer().code == "bookmark_unknown"
        named = f"'{unknown}'" if unknown.endswith("9|") or unknown == "12|1|" else "not publisher|sequence|"
        assert named in scene.answer().text


@pytest.mark.behaviour(3)
@pytest.mark.parametrize(
    ("bookmark", "options", "code"),
    [
        ("2026", "", "bad_bookmark"),
        ("20261399T000000", "", "bad_bookmark"),
        ("20260101T000000+01:00", "", "bad_bookmark"),
        ("20260101T000000z", "", "bad_bookmark"),
        ("[0:", "", "bad_bookmark"),
        ("[20260101T000000:20260102T000000", "", "bad_bookmark"),
        ("20260101T000000:20260102T000000)", "", "bad_bookmark"),
        ("", "", "bad_bookmark"),
        ("0", "bookmark_not_found=maybe", "bad_option"),
        ("0", "no_such_option", "bad_option"),
        ("0", "rate=twice", "bad_option"),
        ("0", "timestamp=yes", "bad_option"),
    ],
)
def test_unreadable_bookmark_or_option_is_refused(
    scene: Scene, bookmark: str, options: str, code: str
) -> None:
    heard, marks = scene.replay(bookmark, options=options)
    assert (heard, marks) == ([], [])
    assert scene.answer().code == code
    assert scene.subscriber.goodbye is None, "a refusal disturbs nothing else"


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[{3}:{6}]", [3, 4, 5, 6]),
        ("({3}:{6}]", [4, 5, 6]),
        ("[{3}:{6})", [3, 4, 5]),
        ("({3}:{6})", [4, 5]),
        ("[ {3} : {6} ]", [3, 4, 5, 6]),
        ("[0:{2}]", [0, 1, 2]),
        ("[{5},{3},{8}:{4},{6}]", [3, 4, 5, 6]),
        ("({5},{3}:{6},{7})", [4, 5, 6]),
        ("[{3},77|9|:{6}]", [3, 4, 5, 6]),
        ("[{6}:{3}]", []),
        ("({3}:{3})", []),
        ("[{3}:{3}]", [3]),
    ],
)
def test_ranges_of_bookmarks(scene: Scene, text: str, expected: list[int]) -> None:
    for number in range(10):
        text = text.replace(f"{{{number}}}", scene.bookmark(number))
    assert scene.replay(text) == (expected, [f"completed after {len(expected)}", "ended"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[{3}:{6}]", [3, 4, 5, 6]),
        ("({3}:{6})", [4, 5]),
        ("[{3}:{6})", [3, 4, 5]),
        ("({3}:{6}]", [4, 5, 6]),
        ("({6}:{3})", []),
    ],
)
def test_time_range_delivers_the_messages_within_the_range(
    scene: Scene, text: str, expected: list[int]
) -> None:
    for number in range(10):
        text = text.replace(f"{{{number}}}", scene.time(number))
    assert scene.replay(text) == (expected, [f"completed after {len(expected)}", "ended"])


def test_range_from_a_time_to_a_bookmark(scene: Scene) -> None:
    text = f"({scene.time(2)}:{scene.bookmark(5)}]"
    assert scene.replay(text) == ([3, 4, 5], ["completed after 3", "ended"])


@pytest.mark.behaviour(6)
def test_list_starts_after_the_earliest_known_member(scene: Scene) -> None:
    text = f"{scene.bookmark(7)},{scene.bookmark(4)},12|9|,{scene.bookmark(8)}"
    assert scene.replay(text)[0] == [5, 6, 7, 8, 9]


def test_unknown_bookmark_at_the_end_of_a_range_is_refused(scene: Scene) -> None:
    scene.replay("[0:12|3|]")
    assert scene.answer().code == "bookmark_unknown"
    assert "the end bookmark '12|3|' in the log. Use" in scene.answer().text


def test_invalid_bookmark_at_the_end_of_a_range_is_reported_as_invalid(scene: Scene) -> None:
    scene.replay(f"[0:{2**64}|1|]")
    assert scene.answer().code == "bookmark_unknown"
    assert "Cannot find the end bookmark: it is not publisher|sequence| with" in scene.answer().text


@pytest.mark.behaviour(5)
def test_a_future_end_completes_by_the_clock_on_a_quiet_topic() -> None:
    scene = Scene(3)
    until = format_timestamp(scene.times[-1] + 30 * SECOND)
    heard, marks = scene.replay(f"[0:{until})")
    assert (heard, marks) == ([0, 1, 2], [])
    scene.world.wake(10.0)
    assert scene.subscriber.marks["s0"] == []
    deadline = scene.world.broker.next_deadline()
    assert deadline is not None, "the engine asks to be woken"
    assert deadline <= scene.world.mono + 1.1, "the wall clock may be set: it is looked at every second"
    scene.world.wake(25.0)
    assert scene.subscriber.marks["s0"] == ["completed after 3", "ended"]
    assert "s0" not in scene.world.broker.subscriptions.of(scene.subscriber.conn), "it is freed"


@pytest.mark.behaviour(5)
def test_message_received_before_the_end_is_delivered_before_completed() -> None:
    scene = Scene(2)
    until = scene.times[-1] + 5 * SECOND
    scene.replay(f"[0:{format_timestamp(until)})")
    scene.world.wake(4.0)
    scene.publisher.publish("t", [b"2"])
    scene.world.wake(4.0)
    assert scene.subscriber.marks["s0"] == [], "accepted before the end, not yet persisted"
    scene.publisher.publish("t", [b"3"])
    scene.world.settle()
    assert [int(h.body) for h in scene.subscriber.heard["s0"]] == [0, 1, 2]
    assert scene.subscriber.marks["s0"] == ["completed after 3", "ended"]


def test_until_caught_up_range_includes_accepted_messages_that_are_not_persisted() -> None:
    scene = Scene(2)
    scene.publisher.publish("t", [b"2", b"3"])
    heard, marks = scene.replay("0", until_caught_up=True)
    assert (heard, marks) == ([0, 1, 2, 3], ["completed after 4", "ended"])
    scene.publish(4)
    assert len(scene.subscriber.heard["s0"]) == 4


@pytest.mark.behaviour(7)
def test_unrecorded_publishes_are_acknowledged_by_themselves() -> None:
    world = EngineWorld(3, recorded=frozenset({"t"}))
    publisher, listener = world.connect("p"), world.connect("l")
    listener.subscribe("live", "u")
    publisher.publish("t", [b"kept"])
    publisher.publish("u", [b"gone"], sequenced=False)
    kinds = [type(command).__name__ for command, _ in publisher.received]
    assert kinds == ["LoggedOn", "Processed"], "the second frame is done, the first is not persisted yet"
    assert publisher.acked_frame == 0
    assert [h.body for h in listener.heard["live"]] == [b"gone"]
    world.settle()
    assert publisher.acked_frame == 1
    assert publisher.acked_sequence == 1
    listener.subscribe("replay", "u", bookmark="0")
    answer = listener.answers[listener.ids]
    assert isinstance(answer, Ack)
    assert answer.code == "topic_not_recorded"


def test_resolve_answers_with_positions_of_this_journal(scene: Scene) -> None:
    from tickertape.wire.commands import Resolve

    scene.subscriber.send(
        Resolve(id=10_001, topic="t", bookmark=f"[{scene.bookmark(3)}:{scene.bookmark(6)}]")
    )
    scene.world.settle()
    answers = [command for command, _ in scene.subscriber.received if isinstance(command, Resolved)]
    assert (answers[-1].end - answers[-1].start, answers[-1].journal) == (
        4,
        scene.world.broker.journal.identity,
    )
    positions = (answers[-1].start, answers[-1].end)
    heard: list[int] = []
    scene.subscriber.subscribe("positions", "t", positions=positions, journal=answers[-1].journal)
    scene.world.settle()
    heard = [int(h.body) for h in scene.subscriber.heard["positions"]]
    assert heard == [3, 4, 5, 6]
    scene.subscriber.subscribe("foreign", "t", positions=positions, journal="00" * 16)
    assert scene.answer().code == "wrong_journal"


def test_searches_of_one_connection_are_bounded_and_the_next_is_refused_alone() -> None:
    from tickertape.engine.limits import searches_per_connection_max
    from tickertape.wire.commands import Resolve

    scene = Scene(2)
    scene.world.broker.journal.view.tail.clear()
    for number in range(searches_per_connection_max + 1):
        scene.subscriber.send(
            Resolve(id=20_000 + number, topic="t", bookmark=f"[{scene.bookmark(0)}:{scene.time(1)}]")
        )
    answer = scene.subscriber.answers[20_000 + searches_per_connection_max]
    assert isinstance(answer, Ack)
    assert answer.code == "not_ready"
    scene.world.settle()
    found = [c for c, _ in scene.subscriber.received if isinstance(c, Resolved)]
    assert len(found) == searches_per_connection_max
    scene.subscriber.subscribe("after", "t", bookmark="0")
    scene.world.settle()
    assert len(scene.subscriber.heard["after"]) == 2


def test_commits_before_each_step_of_the_engine_do_not_prevent_a_replay() -> None:
    world = EngineWorld(7, policy=SyncPolicy.NEVER)
    publisher, subscriber = world.connect("publisher"), world.connect("subscriber")
    for _ in range(20):
        publisher.publish("t", [bytes(1_000)])
        world.settle()
    world.broker.journal.view.tail_bytes_max = 1
    publisher.publish("other", [b""])
    world.settle()
    subscriber.subscribe("all", "t", bookmark="0", credit=1 << 20)
    for _ in range(20):
        publisher.publish("other", [b""])
        while world.jobs:
            world.run_job()
        world.work()
        while world.reads:
            world.run_read()
    assert len(subscriber.heard["all"]) == 20


def test_subscription_ended_before_the_start_is_answered_as_unknown() -> None:
    from tickertape.wire.commands import Unsubscribe

    scene = Scene(2)
    scene.world.broker.journal.view.tail.clear()
    command = scene.subscriber.subscribe("gone", "t", bookmark=scene.bookmark(0))
    scene.subscriber.send(Unsubscribe(id=30_000, sub_ids=("gone",)))
    scene.world.settle()
    answer = scene.subscriber.answers[command]
    assert isinstance(answer, Ack)
    assert answer.code == "subscription_unknown"
    assert scene.subscriber.heard["gone"] == []
    assert scene.subscriber.marks["gone"] == []
