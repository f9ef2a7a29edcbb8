"""The whole table of start points and ranges through the engine, on a log of two publishers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.helpers.start_points import MESSAGES, POINTS, RANGES, Row, written
from tests.simulation.engine_peer import Heard
from tests.simulation.engine_world import EngineWorld
from tickertape.base.bookmarks import format_timestamp, parse_bookmark
from tickertape.base.errors import BookmarkExpired, JournalError
from tickertape.engine.subscriptions.start_position import ExtentSearch, ReplayRange, with_place
from tickertape.journal.reading.log_view import LogView, ReadRequest
from tickertape.wire.commands import Ack, Completed, Resolve, Resolved, Unsubscribe

SECOND = 1_000_000


class Scene:
    """Ten messages on topic `t`, by two publishers in turn, each in a commit of its own, a second apart."""

    def __init__(self, *, from_disk: bool = False) -> None:
        self.world = EngineWorld(11)
        self.publishers = [self.world.connect("even"), self.world.connect("odd")]
        self.subscriber = self.world.connect("subscriber")
        self.times: list[int] = []
        for number in range(MESSAGES):
            self.publish(number)
        self.bookmarks = [f"{heard.publisher}|{heard.sequence}|" for heard in self.world.log("t")]
        if from_disk:
            self.world.broker.journal.view.tail.clear()

    def publish(self, number: int) -> None:
        self.world.wake(1.0)
        self.publishers[number % 2].publish("t", [b"%d" % number])
        self.world.settle()
        self.times.append(int(self.world.broker.journal.view.tail[-1].batch.timestamps[-1]))

    def text(self, text: str) -> str:
        logged_on = self.publishers[0].logged_on
        assert logged_on is not None
        return written(text, self.bookmarks, self.times, logged_on.publisher)

    def ask(self, sub_id: str, row: Row) -> Ack:
        """Subscribe, do all work, and return the answer."""
        asked = self.subscriber.subscribe(sub_id, "t", bookmark=self.text(row.text), options=row.options)
        self.world.settle()
        answer = self.subscriber.answers[asked]
        assert isinstance(answer, Ack)
        return answer

    def heard(self, sub_id: str) -> list[int]:
        return [int(heard.body) for heard in self.subscriber.heard[sub_id]]


@pytest.fixture(scope="module", params=[False, True], ids=["memory", "disk"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(from_disk=request.param)


@pytest.fixture
def sub_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.mark.parametrize("row", POINTS, ids=lambda row: row.name)
def test_each_start_point_covers_the_expected_messages(scene: Scene, row: Row, sub_id: str) -> None:
    answer = scene.ask(sub_id, row)
    assert (answer.code, answer.found) == (row.code, row.found)
    assert scene.heard(sub_id) == row.covers
    marks = [] if row.code else [f"completed after {len(row.covers)}"]
    assert scene.subscriber.marks[sub_id] == marks, "the subscription continues live"
    assert (sub_id in scene.world.broker.subscriptions.of(scene.subscriber.conn)) is (not row.code)


@pytest.mark.parametrize("row", RANGES, ids=lambda row: row.name)
def test_each_range_covers_the_expected_messages(scene: Scene, row: Row, sub_id: str) -> None:
    answer = scene.ask(sub_id, row)
    assert (answer.code, answer.found) == (row.code, row.found)
    assert scene.heard(sub_id) == row.covers
    marks = [] if row.code else [f"completed after {len(row.covers)}", "ended"]
    assert scene.subscriber.marks[sub_id] == marks
    assert sub_id not in scene.world.broker.subscriptions.of(scene.subscriber.conn), "it is freed"


@pytest.mark.parametrize("row", [row for row in POINTS if not row.code], ids=lambda row: row.name)
def test_message_published_after_each_start_point_is_delivered_once(row: Row) -> None:
    scene = Scene()
    scene.ask("s", row)
    scene.publish(MESSAGES)
    assert scene.heard("s") == [*row.covers, MESSAGES]


@pytest.mark.behaviour(5)
@pytest.mark.parametrize("row", [row for row in RANGES if not row.code], ids=lambda row: row.name)
def test_ended_range_delivers_nothing_and_frees_the_id(row: Row) -> None:
    scene = Scene()
    scene.ask("s", row)
    scene.publish(MESSAGES)
    assert scene.heard("s") == row.covers
    completed = [c for c, _ in scene.subscriber.received if isinstance(c, Completed)]
    assert len(completed) == 1, "exactly one"
    assert scene.ask("s", POINTS[0]).code == "", "the id can be used again"


@pytest.mark.parametrize("row", [row for row in RANGES if row.found], ids=lambda row: row.name)
def test_resolve_returns_the_positions_of_each_range(scene: Scene, row: Row, sub_id: str) -> None:
    asked = 5_000 + RANGES.index(row) + (1_000 if "disk" in sub_id else 0)
    scene.subscriber.send(Resolve(id=asked, topic="t", bookmark=scene.text(row.text), options=row.options))
    scene.world.settle()
    if row.code:
        answer = scene.subscriber.answers[asked]
        assert isinstance(answer, Ack)
        assert answer.code == row.code
        return
    (found,) = [c for c, _ in scene.subscriber.received if isinstance(c, Resolved) and c.id == asked]
    positions = scene.world.positions()
    covered = [positions[at] for at in range(found.start, found.end) if at in positions]
    assert [int(heard.body) for heard in covered if heard.topic == "t"] == row.covers


# -- future times ------------------------------------------------------------------------


def test_time_range_of_a_day_includes_midnight_and_excludes_the_next() -> None:
    world = EngineWorld(12)
    world.wall = round(datetime(2026, 6, 3, 23, 59, 59, tzinfo=UTC).timestamp() * SECOND)
    peer, reader = world.connect("p"), world.connect("r")
    bodies = [b"the day before", b"midnight", b"noon", b"the last second", b"the day after"]
    moments = [(3, 23, 59, 59), (4, 0, 0, 0), (4, 12, 0, 0), (4, 23, 59, 59), (5, 0, 0, 0)]
    for body, (day, hour, minute, second) in zip(bodies, moments, strict=True):
        world.wall = round(datetime(2026, 6, day, hour, minute, second, tzinfo=UTC).timestamp() * SECOND)
        peer.publish("t", [body])
        world.settle()
    reader.subscribe("day", "t", bookmark="[20260604T000000:20260605T000000)")
    world.settle()
    assert [heard.body for heard in reader.heard["day"]] == bodies[1:4]
    assert reader.marks["day"] == ["completed after 3", "ended"]


@pytest.mark.behaviour(1)
def test_only_in_a_range_does_a_begin_in_the_future_hold_delivery_back() -> None:
    scene = Scene()
    begin = format_timestamp(scene.times[-1] + 5 * SECOND)
    end = format_timestamp(scene.times[-1] + 60 * SECOND)
    scene.ask("range", Row("", f"[{begin}:{end})", []))
    scene.ask("point", Row("", begin, []))
    scene.publish(10)
    assert (scene.heard("range"), scene.heard("point")) == ([], [10])
    scene.world.wake(10.0)
    scene.publish(11)
    assert (scene.heard("range"), scene.heard("point")) == ([11], [10, 11])
    assert scene.subscriber.marks["range"] == []
    scene.world.wake(60.0)
    assert scene.subscriber.marks["range"] == ["completed after 1", "ended"]


@pytest.mark.behaviour(5)
def test_a_future_end_delivers_live_until_then_and_completes_once() -> None:
    scene = Scene()
    end = format_timestamp(scene.times[-1] + 10 * SECOND)
    scene.ask("s", Row("", f"[b8:{end})", []))
    for number in (10, 11):
        scene.publish(number)
    assert (scene.heard("s"), scene.subscriber.marks["s"]) == ([8, 9, 10, 11], [])
    scene.world.wake(20.0)
    scene.publish(12)
    assert scene.heard("s") == [8, 9, 10, 11]
    assert scene.subscriber.marks["s"] == ["completed after 4", "ended"]
    assert "s" not in scene.world.broker.subscriptions.of(scene.subscriber.conn)


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(("end", "covers"), [("]", [10]), (")", [])])
def test_the_end_bracket_decides_about_a_message_of_just_that_moment(end: str, covers: list[int]) -> None:
    scene = Scene()
    moment = scene.world.wall + 5 * SECOND
    scene.ask("s", Row("", f"(b9:{format_timestamp(moment)}{end}", []))
    scene.world.wall = moment
    scene.world.rng.randrange = lambda *_: 0  # type: ignore[method-assign]  # the clock is fixed
    scene.publishers[0].publish("t", [b"10"])
    scene.world.settle()
    assert scene.heard("s") == covers


def test_a_bookmark_of_another_topic_is_a_point_of_the_same_log() -> None:
    scene = Scene()
    scene.publishers[0].publish("u", [b"other"])
    scene.world.settle()
    other: list[Heard] = scene.world.log("u")
    scene.publish(10)
    text = f"{other[0].publisher}|{other[0].sequence}|"
    scene.ask("s", Row("", text, []))
    assert scene.heard("s") == [10]
    scene.ask("r", Row("", f"[b8:{text}]", []))
    assert scene.heard("r") == [8, 9]


@pytest.mark.behaviour(26)
@pytest.mark.parametrize("from_disk", [False, True], ids=["memory", "disk"])
def test_answer_names_the_message_before_the_start(*, from_disk: bool) -> None:
    scene = Scene(from_disk=from_disk)

    def after(text: str) -> str:
        asked = scene.subscriber.subscribe("s", "t", bookmark=text)
        scene.world.settle()
        answer = scene.subscriber.answers[asked]
        assert isinstance(answer, Ack)
        scene.subscriber.send(Unsubscribe(id=10_000 + asked, sub_ids=("s",)))
        scene.world.settle()
        return answer.after

    fifth = format_timestamp(scene.times[4])
    for text, expected in (
        ("0", "0"),
        ("0|1|", scene.bookmarks[-1]),
        (scene.bookmarks[3], scene.bookmarks[3]),
        (f"{scene.bookmarks[6]},{scene.bookmarks[3]}", scene.bookmarks[3]),
        (f"[{scene.bookmarks[3]}:{scene.bookmarks[6]})", scene.bookmarks[2]),
        (fifth, scene.bookmarks[4]),
        (f"[{fifth}:{scene.bookmarks[8]})", scene.bookmarks[3]),
        (f"[{format_timestamp(scene.times[-1] + 3600 * SECOND)}:20991231T000000Z)", ""),
        (format_timestamp(scene.times[-1] + 3600 * SECOND), scene.bookmarks[-1]),
    ):
        assert after(text) == expected, text


def test_range_with_a_future_start_sends_no_progress_notice_before_the_start() -> None:
    scene = Scene()
    begin = scene.times[-1] + 2 * SECOND + SECOND // 2
    scene.subscriber.subscribe("s", "t", bookmark=f"[{format_timestamp(begin)}:20991231T000000Z)")
    scene.publish(0)
    scene.world.wake(1.0)
    assert not scene.subscriber.notices
    scene.publish(1)
    scene.publish(2)
    assert scene.heard("s") == [1, 2]


def test_subscription_starts_without_a_named_message_when_the_read_fails() -> None:
    scene = Scene(from_disk=True)
    asked = scene.subscriber.subscribe("s", "t", bookmark="0|1|")
    (read,) = scene.world.reads
    scene.world.reads.clear()
    scene.world.broker.read_done(read.token, JournalError("broken"), scene.world.now())
    scene.world.collect()
    end = scene.world.broker.journal.commits.accepted_end
    assert scene.subscriber.answers[asked] == Ack(id=asked, start=end)


def test_start_removed_by_retention_during_the_position_read_is_expired_or_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(from_disk=True)
    journal, end = scene.world.broker.journal, scene.world.broker.journal.commits.accepted_end

    def search(text: str) -> ExtentSearch:
        """Return a search that waits for the read of its start position."""
        point = parse_bookmark(text)

        def found() -> ExtentSearch:
            yield from ()
            return ReplayRange(5)

        waiting = with_place(journal, point, found(), scene.times[-1])
        assert isinstance(next(waiting), ReadRequest)
        return waiting

    searches = search(scene.bookmarks[3]), search(format_timestamp(scene.times[4]))
    monkeypatch.setattr(LogView, "first_position", property(lambda _: end))
    with pytest.raises(BookmarkExpired):
        searches[0].throw(JournalError("gone"))
    with pytest.raises(StopIteration) as done:
        searches[1].throw(JournalError("gone"))
    assert done.value.value == ReplayRange(end, after="0")
