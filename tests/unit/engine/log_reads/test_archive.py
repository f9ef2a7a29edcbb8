"""Reads before the start of the log: start searches in the archive, retention, and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulation.archive_world import ArchiveWorld
from tests.simulation.engine_peer import Heard, Peer
from tickertape.base.bookmarks import Bookmark, format_timestamp
from tickertape.base.errors import TickertapeError
from tickertape.engine.log_reads.log_reads import ReadTask
from tickertape.engine.runtime.outbox import NO_CONNECTION
from tickertape.journal.format.retired_state import StoredMessage
from tickertape.journal.reading.archive_reader import (
    ArchiveAnswer,
    ArchivedPlace,
    ArchiveRequest,
    ProbeArchive,
    ReadArchive,
    difference,
)
from tickertape.journal.reading.archive_tier import ArchiveCoverage
from tickertape.wire.commands import Ack, Deliver, Resolve, Resolved, Subscribe

pytestmark = pytest.mark.slow


class Scene:
    """A log whose first half is in the archive only."""

    def __init__(
        self, location: Path, *, require: bool = True, topics: str = "", archive: bool = True
    ) -> None:
        self.world = world = ArchiveWorld(3, location, require=require, topics=topics)
        self.publisher = world.connect("pub")
        self.times: list[int] = []
        self.publish(8)
        if archive:
            world.note()
            world.archive_to(world._known_end)
            world.look()
        world.expire()
        world.settle()
        self.first = world.broker.journal.view.first_position
        self.publish(2)
        world.note()
        self.readers = 0

    def publish(self, segments: int) -> None:
        """Publish about `segments` full segments."""
        world = self.world
        wanted = world.broker.journal.view.segments[-1].number + segments
        number = 0
        while world.broker.journal.view.segments[-1].number < wanted:
            self.publisher.publish("t", [b'{"n":%d,"x":"%s"}' % (number + i, b"x" * 300) for i in range(3)])
            number += 3
            world.settle()

    @property
    def everything(self) -> list[Heard]:
        return [heard for _, heard in sorted(self.world.everything.items())]

    def mark(self, position: int) -> str:
        heard = self.world.everything[position]
        return f"{heard.publisher}|{heard.sequence}|"

    def ask(self, bookmark: str, topic: str = "t", **more: object) -> tuple[Peer, Ack]:
        self.readers += 1
        peer = self.world.connect(f"reader-{self.readers}")
        asked = peer.subscribe("s", topic, bookmark=bookmark, **more)  # type: ignore[arg-type]
        self.world.settle()
        answer = peer.answers[asked]
        assert isinstance(answer, Ack)
        return peer, answer


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    found = Scene(tmp_path / "archive")
    assert found.first > 20
    return found


def test_replay_from_epoch_continues_from_the_archive_into_the_log(scene: Scene) -> None:
    peer, answer = scene.ask("0")
    assert (answer.start, answer.after) == (0, "0")
    assert peer.heard["s"] == scene.everything


def test_subscribe_answer_names_the_message_before_the_start(scene: Scene) -> None:
    positions = sorted(scene.world.everything)
    for index in (5, positions.index(scene.first) - 1, positions.index(scene.first), len(positions) - 1):
        peer, answer = scene.ask(scene.mark(positions[index]))
        assert answer.after == scene.mark(positions[index])
        assert peer.heard["s"] == scene.everything[index + 1 :]


def test_start_at_the_first_message_of_the_log_is_not_reported_as_epoch(scene: Scene) -> None:
    """Otherwise a client that resumes at this position would receive the whole archive."""
    first = scene.mark(scene.first)
    peer, answer = scene.ask(f"[{first}:{first}]")
    assert (answer.start, answer.after) == (scene.first, scene.mark(scene.first - 1))
    assert len(peer.heard["s"]) == 1


def test_a_time_before_the_log_is_found_in_the_archive(scene: Scene) -> None:
    stamps = sorted({stamp for _, stamp in scene.ask("0")[0].stamps["s"]})
    for stamp in (stamps[3], stamps[3] - 1, stamps[-2]):
        peer, _ = scene.ask(format_timestamp(stamp))
        _, everything = zip(*scene.ask("0")[0].stamps["s"], strict=True)
        later = [at for at in everything if at > stamp]
        assert [at for _, at in peer.stamps["s"]] == later


def test_start_missing_in_archive_and_log_is_expired_and_names_both(scene: Scene) -> None:
    publisher = scene.mark(min(scene.world.everything)).split("|")[0]
    missing = f"{publisher}|1|"
    original_answer = scene.world.archive

    def forgets(request: ArchiveRequest) -> ArchiveAnswer | TickertapeError:
        answer = original_answer(request)
        return ArchivedPlace(None) if isinstance(answer, ArchivedPlace) else answer

    scene.world.archive = forgets  # type: ignore[method-assign]
    for start in (missing, f"[{missing}:{scene.mark(scene.first)}]", f"{scene.mark(scene.first)},{missing}"):
        _, answer = scene.ask(start)
        assert answer.code == "bookmark_expired"
        assert "the archive" in answer.text
        assert "were removed by retention. The log starts with" in answer.text
        assert answer.available == scene.mark(scene.first)


def test_archive_reader_does_not_hold_log_segments(scene: Scene) -> None:
    peer = scene.world.connect("slow")
    peer.subscribe("s", "t", bookmark="0", credit=400)
    for _ in range(300):
        scene.world.step()
    assert not peer.owed_credit["s"] or len(peer.heard["s"]) < 10
    scene.world.archive_to(scene.world._known_end)
    scene.world.look()
    scene.world.expire()
    for _ in range(300):
        scene.world.step()
    assert scene.world.broker.journal.view.first_position > scene.first
    scene.world.settle()
    assert peer.heard["s"] == scene.everything


def test_unarchived_segments_are_kept_and_reported(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "archive", archive=False)
    world = scene.world
    assert scene.first == 0
    assert world.broker.retention.held_by == "", "the archive was not checked yet"
    world.older.cover(ArchiveCoverage(None))
    world.expire()
    world.settle()
    assert world.broker.retention.held_by == "archive"
    assert [t.fields["by"] for t in world.told if t.name == "retention_held"] == ["archive"]
    world.archive_to(world._known_end)
    world.look()
    world.wake(0.01)
    world.settle()
    assert world.broker.journal.view.first_position > 0
    assert world.broker.retention.held_by == ""


@pytest.mark.parametrize("damage", ["remove", "cut"])
def test_segment_is_kept_while_an_archive_file_is_missing_or_truncated(tmp_path: Path, damage: str) -> None:
    """The table names files. A segment is removed only when they exist."""
    scene = Scene(tmp_path / "archive", archive=False)
    world = scene.world
    world.archive_to(world._known_end)
    world.look()
    path = min((tmp_path / "archive").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    whole = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(whole[:-1])
    world.expire()
    world.settle()
    assert world.broker.journal.view.first_position == 0
    assert world.broker.retention.removed_segments == 0
    found = "is missing" if damage == "remove" else f"has {len(whole) - 1} bytes instead of {len(whole)}"
    texts = [str(t.fields["text"]) for t in world.told if t.name == "retention_failed"]
    assert texts
    assert all(f"{path.name}' {found}" in text for text in texts)
    path.write_bytes(whole)
    world.wake(61.0)
    for _ in range(200):
        world.step()
    assert world.broker.journal.view.first_position > 0
    world.settle()
    peer, _ = scene.ask("0")
    assert peer.heard["s"] == scene.everything


@pytest.mark.parametrize("archive", [True, False])
def test_last_archived_message_is_compared_with_the_log(tmp_path: Path, archive: bool) -> None:
    """A log restored from a copy reuses positions for other messages or times."""
    scene = Scene(tmp_path / "archive", archive=archive)
    world = scene.world
    view = world.broker.journal.view
    stamps = {
        p: at for p, (_, at) in zip(sorted(world.everything), scene.ask("0")[0].stamps["s"], strict=True)
    }

    def found(position: int, bookmark: Bookmark, stamp: int) -> object:
        covered = ArchiveCoverage(0, position + 1, last=(position, StoredMessage(bookmark, stamp)))
        task = ReadTask(difference(view, covered), NO_CONNECTION)
        world.broker.run(task)
        world.wake(0.01)
        world.settle()
        assert task.closed
        return task.outcome

    def bookmark(position: int) -> Bookmark:
        return Bookmark(world.everything[position].publisher, world.everything[position].sequence)

    present = [position for position in world.everything if position >= scene.first]
    for position in (present[0], present[-1]):
        own, stamp = bookmark(position), stamps[position]
        assert found(position, own, stamp) == ""
        has = f"has {own} of {format_timestamp(stamp)} there"
        assert found(position, Bookmark(own.publisher, own.sequence + 1), stamp) == has
        assert found(position, own, stamp + 1) == has
    controls = [p for p in range(scene.first, present[-1]) if p not in world.everything]
    for position in (*controls, world.broker.journal.commits.persisted_end):
        assert found(position, bookmark(present[0]), 1) == "has no message there"
    assert bool(controls) is not archive
    if archive:
        expired = bookmark(3)
        assert found(3, expired, 1) == "", "the log no longer has the message"
        assert found(3, Bookmark(expired.publisher ^ 1, 1), 1) == "never had it"


def test_unarchived_segments_are_removed_without_the_require_option(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "archive", archive=False, require=False)
    assert scene.first > 0
    peer, answer = scene.ask("0")
    assert answer.start == scene.first, "the archive table does not exist yet"
    assert peer.heard["s"] == [h for p, h in sorted(scene.world.everything.items()) if p >= scene.first]


def test_gap_between_archive_and_log_is_reported_as_expired_bookmark(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "archive", require=False)
    end = scene.first - 5

    def ends_early(request: ArchiveRequest) -> ArchiveAnswer | TickertapeError:
        return ArchiveCoverage(0, end)

    scene.world.archive = ends_early  # type: ignore[method-assign]
    scene.world.older.cover(ArchiveCoverage(0, end))
    for start in ("0", scene.mark(3), format_timestamp(1_000)):
        peer, answer = scene.ask(start)
        assert answer.code == "bookmark_expired"
        assert (
            f"has positions 0 to {end} (exclusive), and the log begins at position {scene.first}"
            in answer.text
        )
        assert peer.heard["s"] == []
    peer, answer = scene.ask(scene.mark(scene.first))
    assert answer.code == ""


def test_messages_archived_after_the_last_check_are_read_without_require(tmp_path: Path) -> None:
    """Retention does not wait for the archive, nor for a check of its end."""
    scene = Scene(tmp_path / "archive", require=False)
    world = scene.world
    peer = world.connect("slow")
    peer.subscribe("s", "t", bookmark="0", credit=400)
    for _ in range(100):
        world.step()
    assert len(peer.heard["s"]) < 10
    world.older.cover(ArchiveCoverage(0, scene.first - 5))  # the result of a check before the archive grew
    world.settle()
    assert not any("ended" in mark for mark in peer.marks["s"])
    assert peer.heard["s"] == scene.everything


def test_lost_archive_ends_the_replay_as_bookmark_expired(scene: Scene) -> None:
    peer = scene.world.connect("slow")
    peer.subscribe("s", "t", bookmark="0", credit=400)
    for _ in range(100):
        scene.world.step()
    covered = ArchiveCoverage(scene.first - 1, scene.first)
    scene.world.older.cover(covered)
    answer = scene.world.archive
    scene.world.archive = lambda request: (  # type: ignore[method-assign]
        covered if isinstance(request, ProbeArchive) else answer(request)
    )
    scene.world.settle()
    assert peer.marks["s"] == ["ended bookmark_expired"]
    assert peer.heard["s"] == scene.everything[: len(peer.heard["s"])]


def test_unreadable_archive_file_ends_only_the_affected_subscription(scene: Scene) -> None:
    victim = min(scene.world.location.rglob("*.parquet"))
    hidden = victim.rename(victim.with_suffix(".hidden"))
    peer, answer = scene.ask("0")
    assert answer.code == ""
    assert peer.marks["s"] == ["ended archive_failed"]
    assert peer.heard["s"] == scene.everything[: len(peer.heard["s"])]
    assert scene.ask(scene.mark(scene.first))[0].marks["s"] != ["ended archive_failed"]
    hidden.rename(victim)
    assert scene.ask("0")[0].heard["s"] == scene.everything


def test_waiting_archive_reads_do_not_block_log_reads(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    world = scene.world
    world.broker.journal.view.tail.clear()
    world.broker.journal.view.tail_bytes_max = 1
    with monkeypatch.context() as patch:
        patch.setattr(world, "run_archive_read", world.work)  # the store does not answer
        waiting = [world.connect(f"waits-{number}") for number in range(40)]
        for peer in waiting:
            peer.subscribe("s", "t", bookmark="0")
            peer.send(
                Resolve(
                    id=5,
                    topic="t",
                    bookmark="",
                    positions=(0, world._known_end),
                    journal=world.broker.journal.identity,
                    messages_max=7,
                )
            )
        for _ in range(400):
            world.step()
        assert world.archive_reads
        peer = world.connect("reader")
        asked = peer.subscribe("s", "t", bookmark=scene.mark(scene.first), credit=1 << 20)
        for _ in range(1500):
            world.step()
        assert isinstance(peer.answers[asked], Ack)
        assert peer.heard["s"] == [h for p, h in sorted(world.everything.items()) if p > scene.first]
    world.settle()
    for peer in waiting:
        assert peer.heard["s"] == scene.everything


def test_filtered_replays_on_both_sides_of_the_archive_boundary_read_correctly(scene: Scene) -> None:
    """Replays just above and just below the start of the log are close, but share no cursor."""
    world = scene.world
    peers = []
    for number, position in enumerate((scene.first - 2, scene.first, scene.first - 1, scene.first + 1)):
        peer = world.connect(f"filter-{number}")
        peer.subscribe("s", "t", bookmark=scene.mark(position), filter=f"/n >= {number - 4}", credit=800)
        peers.append((position, peer))
    world.settle()
    for position, peer in peers:
        assert peer.marks["s"][:1] != ["ended bookmark_expired"]
        assert peer.heard["s"] == [h for p, h in sorted(world.everything.items()) if p > position]


def test_positions_and_a_resolve_reach_into_the_archive(scene: Scene) -> None:
    world = scene.world
    peer = world.connect("spark")
    peer.send(Resolve(id=77, topic="t", bookmark=f"[{scene.mark(4)}:{scene.mark(scene.first + 3)}]"))
    world.settle()
    resolved = [c for c, _ in peer.received if isinstance(c, Resolved)][-1]
    assert (resolved.start, resolved.end) == (4, scene.first + 4)
    stamp = sorted({at for _, at in scene.ask("0")[0].stamps["s"]})[6]
    peer.send(Resolve(id=78, topic="t", bookmark=f"[20200101T000000Z:{format_timestamp(stamp)})"))
    world.settle()
    resolved = [c for c, _ in peer.received if isinstance(c, Resolved)][-1]
    before = sum(at < stamp for _, at in scene.ask("0")[0].stamps["s"])
    assert resolved.end == sorted(world.everything)[before]
    peer.subscribe(
        "p", "t", positions=(4, scene.first + 4), journal=world.broker.journal.identity, credit=50_000
    )
    world.settle()
    assert peer.heard["p"] == [h for p, h in sorted(world.everything.items()) if 4 <= p < scene.first + 4]


def test_unarchived_topic_starts_at_the_start_of_the_log(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "archive", topics="other")
    peer, answer = scene.ask("0")
    assert answer.start == scene.first
    _, answer = scene.ask(scene.mark(3))
    assert answer.code == "bookmark_expired"
    assert "of the topics 'other'" in answer.text
    assert peer.heard["s"] == [h for p, h in sorted(scene.world.everything.items()) if p >= scene.first]


def test_replace_takes_effect_during_an_archive_read(scene: Scene) -> None:
    world = scene.world
    peer = world.connect("changes")
    peer.subscribe("s", "t", bookmark="0", credit=2_000)
    for _ in range(60):
        world.step()
    peer.ids += 1
    reached = len(peer.heard["s"])
    peer.credit["s"] = 50_000
    peer.send(
        Subscribe(id=peer.ids, sub_id="s", topic="t", filter="/n % 2 = 0", credit=50_000, options="replace")
    )
    world.settle()
    heard = peer.heard["s"]
    odd = [h for h in heard if int(h.body[5 : h.body.index(b",")]) % 2]
    assert heard[:reached] == scene.everything[:reached]
    assert len(odd) < len(scene.everything) // 2
    evens = [h for h in scene.everything if int(h.body[5 : h.body.index(b",")]) % 2 == 0]
    assert [h for h in heard if h not in odd] == evens


def test_archive_is_queried_for_the_subscribed_topic_only(scene: Scene) -> None:
    asked: list[ArchiveRequest] = []
    answer = scene.world.archive

    def listening(request: ArchiveRequest) -> ArchiveAnswer | TickertapeError:
        asked.append(request)
        return answer(request)

    scene.world.archive = listening  # type: ignore[method-assign]
    scene.ask("0")
    scene.ask("0", topic="^t$")
    topics = {request.topic for request in asked if isinstance(request, ReadArchive)}
    assert topics == {"t", "^t$"}
    assert all(request.end <= scene.first for request in asked if isinstance(request, ReadArchive))


def test_numbered_delivery_from_the_archive_has_the_log_positions(scene: Scene) -> None:
    world = scene.world
    peer = world.connect("spark")
    end = scene.first + 6
    journal = world.broker.journal.identity
    peer.subscribe("p", "t", credit=2_000, positions=(2, end), journal=journal, numbered=True)
    world.settle()
    found: dict[int, bytes] = {}
    for command, batch in peer.received:
        if isinstance(command, Deliver) and batch is not None:
            places = np.frombuffer(command.positions, "<u8").tolist()
            if len(places) < batch.count:
                places = range(places[0], places[0] + batch.count)
            found |= {place: batch.body(i) for i, place in enumerate(places)}
    assert found == {p: h.body for p, h in world.everything.items() if 2 <= p < end}


@pytest.mark.parametrize("bounds", [{"messages_max": 7}, {"bytes_max": 2_500}, {}])
def test_resolve_in_bounded_steps_covers_archive_and_log(scene: Scene, bounds: dict[str, Any]) -> None:
    """As in a streaming query, each step is bounded and makes progress."""
    world = scene.world
    peer = world.connect("spark")
    at, end, steps = 0, world._known_end, []
    while at < end:
        peer.ids += 1
        peer.send(
            Resolve(
                id=peer.ids,
                topic="t",
                bookmark="",
                positions=(at, end),
                journal=world.broker.journal.identity,
                **bounds,
            )
        )
        world.settle()
        resolved = next(c for c, _ in peer.received if isinstance(c, Resolved) and c.id == peer.ids)
        assert resolved.start == at < resolved.end
        steps.append([h for p, h in sorted(world.everything.items()) if at <= p < resolved.end])
        at = resolved.end
    assert [heard for step in steps for heard in step] == scene.everything
    if not bounds:
        assert len(steps) == 1
    elif "messages_max" in bounds:
        assert {len(step) for step in steps} <= set(range(8))
        assert max(len(step) for step in steps) == 7
    else:
        assert all(sum(len(h.body) for h in step) <= 2_500 for step in steps)


def test_resolve_of_positions_missing_in_archive_and_log_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "archive", archive=False, require=False)
    peer = scene.world.connect("spark")
    journal = scene.world.broker.journal.identity
    peer.send(Resolve(id=5, topic="t", bookmark="", positions=(1, 9), journal=journal, messages_max=3))
    scene.world.settle()
    answer = peer.answers[5]
    assert isinstance(answer, Ack)
    assert answer.code == "bookmark_expired"
