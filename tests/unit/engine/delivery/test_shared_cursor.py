"""Shared cursors: filtered subscriptions behind the log end share reads and filter work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import JournalError, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.commands import subscribe
from tickertape.engine.delivery import fanout, log_delivery, shared_cursor
from tickertape.engine.delivery.fanout import Fanout, FeedIndex
from tickertape.engine.delivery.shared_cursor import SharedCursor
from tickertape.engine.log_reads.budget import ReadBudget
from tickertape.engine.matching.subscription_index import InterestGroup, SubscriptionIndex
from tickertape.engine.runtime.effects import ReadLog
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.filter.compiler.compile import FilterInputs
from tickertape.filter.index.search import FilterSearch
from tickertape.journal.format.segment import segment_path
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.wire.commands import Unsubscribe

KINDS = 200


def _publish(peer: Peer, count: int, topic: str = "a") -> None:
    peer.publish(topic, [b'{"k":%d,"n":%d}' % (n % KINDS, n) for n in range(count)])


def _all_feeds(world: EngineWorld) -> list[LogFeed]:
    return [feed for conn in world.peers for feed in world.log_feeds(conn).values()]


def _readers(world: EngineWorld, count: int, connections: int = 4) -> list[Peer]:
    """Subscribe `count` filters, each to one kind."""
    peers = [world.connect(f"reader{number}") for number in range(connections)]
    for number in range(count):
        peer = peers[number % connections]
        peer.subscribe(f"s{number}", "a", filter=f"/k = {number % KINDS}", credit=1 << 20)
    world.settle()
    return peers


def _heard(peers: Sequence[Peer]) -> int:
    return sum(len(heard) for peer in peers for heard in peer.heard.values())


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the filter search steps, in bodies."""
    seen: list[int] = []
    before = FilterSearch.look_at

    def look_at(
        self: FilterSearch[object], bodies: Sequence[bytes], context: FilterInputs | None, begin: int
    ) -> Iterator[int]:
        seen.append(len(bodies))
        return before(self, bodies, context, begin)

    monkeypatch.setattr(FilterSearch, "look_at", look_at)
    return seen


def test_shared_replay_after_a_stall_filters_each_message_a_few_times(looked_at: list[int]) -> None:
    world = EngineWorld(1, segment_bytes=1 << 20)
    publisher = world.connect("publisher")
    peers = _readers(world, KINDS)
    for peer in peers:
        world.broker.blocked(peer.conn)
    for _ in range(20):
        _publish(publisher, 1000)
        world.settle()
    assert _heard(peers) == 0
    world.broker.journal.view.tail_bytes_max = 1  # later messages are read from the disk
    _publish(publisher, 1000)
    world.settle()
    assert {sub.phase for sub in _all_feeds(world)} == {Phase.REPLAY}
    looked_at.clear()
    reads = world.counts["reads"]
    for peer in peers:
        world.broker.writable(peer.conn)
    world.settle()
    assert _heard(peers) == 21 * 1000
    assert sum(looked_at) <= 4 * 21 * 1000, "200 times as often, if each did it alone"
    assert world.counts["reads"] - reads <= 40
    assert {sub.phase for sub in _all_feeds(world)} == {Phase.TAIL}


def _full_again(world: EngineWorld) -> tuple[Peer, int]:
    """Return the only reader, which is far behind with a full connection, and the number of its messages."""
    publisher, (peer,) = world.connect("publisher"), _readers(world, KINDS, 1)
    world.broker.blocked(peer.conn)
    for _ in range(10):
        _publish(publisher, 1000)
        world.settle()
    world.broker._delivery.step_bytes_max = 100_000
    world.broker.writable(peer.conn)
    while len(_sharing(world)) < KINDS:
        world.work()
    world.work()
    world.broker.blocked(peer.conn)
    world.settle()
    assert _heard([peer]) < 10_000
    assert len(_sharing(world)) == KINDS
    return peer, 10_000


def _sharing(world: EngineWorld) -> list[LogFeed]:
    return [sub for sub in _all_feeds(world) if sub.phase is Phase.SHARED_REPLAY]


def test_shared_cursor_of_one_connection_waits_while_the_connection_is_full() -> None:
    world = EngineWorld(21, segment_bytes=1 << 20)
    peer, expected = _full_again(world)
    budget = world.broker.reads.budgets.log
    group = _sharing(world)[0].group
    assert isinstance(group, Fanout)
    assert budget.held_bytes
    before = any(group.pending)
    waiting = object()
    assert budget.reserve(waiting, budget.bytes_max, lambda: None)  # evicts the messages of the cursor
    budget.forget(waiting)
    assert not budget.held_bytes
    assert (before, any(group.pending)) == (True, False)
    world.broker.writable(peer.conn)
    world.settle()
    assert _heard([peer]) == expected
    assert {sub.phase for sub in _all_feeds(world)} == {Phase.TAIL}
    assert not len(world.broker._delivery.shared_cursors)


def test_full_connections_leave_shared_cursors_to_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cursor, "shared_cursors_max", 3)
    world = EngineWorld(23, segment_bytes=1 << 20)
    publisher, delivery = world.connect("publisher"), world.broker._delivery
    topics = ("a", "b", "c")
    for topic in topics:
        _publish(publisher, 1000, topic)
    world.settle()
    delivery.step_bytes_max = 100_000
    full = [world.connect(f"full {topic}") for topic in topics]
    for peer, topic in zip(full, topics, strict=True):
        for number in range(10):
            peer.subscribe(f"s{number}", topic, bookmark="0", filter=f"/k >= {number}", credit=1 << 20)
        while not any(sub.phase is Phase.SHARED_REPLAY for sub in world.log_feeds(peer.conn).values()):
            world.step()
        world.broker.blocked(peer.conn)
        world.settle()
    assert len(delivery.shared_cursors) == 1
    for peer in full:
        world.broker.writable(peer.conn)
    world.settle()
    assert {len(heard) for peer in full for heard in peer.heard.values()} == {
        1000 - 5 * number for number in range(10)
    }


def test_shared_cursor_of_a_full_connection_ends_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribe, "dropped_subscriptions_max", 10)
    world = EngineWorld(22, segment_bytes=1 << 20)
    peer, _ = _full_again(world)
    peer.closed = True
    world.broker.disconnected(peer.conn)
    world.settle()
    assert not len(world.broker._delivery.shared_cursors)
    assert not world.broker.reads.budgets.log.held_bytes
    assert world.broker._delivery.oldest_needed().position == world.broker.journal.commits.persisted_end


def test_fanout_overrun_keeps_filtered_subscriptions_in_one_shared_cursor(looked_at: list[int]) -> None:
    world = EngineWorld(2)
    publisher = world.connect("publisher")
    peers = _readers(world, KINDS)
    plain = world.connect("plain")
    plain.subscribe("p", "a", credit=1 << 20)
    world.settle()
    end = world.broker._delivery
    end.fanout.backlog_bytes_max = 100
    end.step_bytes_max = 1
    for _ in range(3):
        _publish(publisher, KINDS)
        while world.jobs:
            world.run_job()
    assert end.fanout.overruns
    assert len(end.shared_cursors) == 1
    assert {sub.phase for sub in _all_feeds(world) if sub.sub_id != "p"} == {Phase.SHARED_REPLAY}
    assert len({id(sub.group) for sub in _all_feeds(world) if sub.sub_id != "p"}) == 1
    looked_at.clear()
    world.settle()
    assert _heard(peers) == 3 * KINDS
    assert len(plain.heard["p"]) == 3 * KINDS
    assert sum(looked_at) <= 2 * 3 * KINDS
    assert {sub.phase for sub in _all_feeds(world)} == {Phase.TAIL}


def test_replays_that_start_within_a_commit_share_a_cursor_and_receive_all_matches() -> None:
    world = EngineWorld(3)
    publisher = world.connect("publisher")
    _publish(publisher, 1000)
    world.settle()
    assert publisher.logged_on is not None
    peer = world.connect("reader")
    for number in range(50):
        bookmark = f"{publisher.logged_on.publisher}|{number * 10}|" if number else "0"
        peer.subscribe(f"s{number}", "a", bookmark=bookmark, filter="/k IN (1, 195)", credit=1 << 20)
    together = 0
    for _ in range(10_000):
        together = max(together, sum(sub.phase is Phase.SHARED_REPLAY for sub in _all_feeds(world)))
        if not (world.jobs or world.reads or world.broker.has_work):
            break
        world.step()
    assert together > 10
    numbers = [n for n in range(1000) if n % KINDS in (1, 195)]
    for number in range(50):
        expected = [b'{"k":%d,"n":%d}' % (n % KINDS, n) for n in numbers if n >= number * 10]
        assert [message.body for message in peer.heard[f"s{number}"]] == expected
        assert peer.marks[f"s{number}"] == [f"completed after {len(expected)}"]


def _behind(world: EngineWorld, count: int) -> tuple[Peer, list[Peer]]:
    """Return the publisher and readers of a shared cursor at the start of the log."""
    publisher = world.connect("publisher")
    _publish(publisher, 1000)
    _publish(publisher, 1000, "b")
    world.settle()
    world.broker.journal.view.tail_bytes_max = 1
    _publish(publisher, 1)
    world.settle()
    peers = [world.connect("reader 1"), world.connect("reader 2")]
    for number in range(count):
        peers[number % 2].subscribe(f"s{number}", "a", bookmark="0", filter=f"/k = {number}", credit=1 << 20)
    while not world.broker._delivery.shared_cursors:
        world.step()
    return publisher, peers


def test_retention_keeps_segments_that_a_shared_cursor_needs() -> None:
    world = EngineWorld(4)
    _behind(world, 6)
    while any(sub.phase is not Phase.SHARED_REPLAY for sub in _all_feeds(world)):
        world.step()
    world.reads.clear()  # without reads, the shared cursor keeps its position
    oldest = min(sub.considered_to for sub in _all_feeds(world))
    pin = world.broker.services.log.oldest_needed()
    assert pin.position == oldest < world.broker.journal.commits.persisted_end


@pytest.mark.parametrize("leave", ["unsubscribe", "pause", "replace", "disconnect"])
def test_subscription_that_leaves_a_shared_cursor_affects_no_other(leave: str) -> None:
    world = EngineWorld(5)
    _, peers = _behind(world, 6)
    while any(sub.phase is not Phase.SHARED_REPLAY for sub in _all_feeds(world)):
        world.step()
    if leave == "disconnect":
        world.broker.disconnected(peers[0].conn)
    elif leave == "replace":
        heard = [message.body for message in peers[0].heard["s2"]]
        peers[0].subscribe("s2", "a", filter="/k = 100", options="replace", credit=1 << 20)
    elif leave == "pause":
        peers[0].pause("s2")
        world.settle()
        assert len(peers[0].heard["s2"]) < 5
        peers[0].resume("s2")
    else:
        peers[0].send(Unsubscribe(id=1000, sub_ids=("s2",)))
    world.settle()
    assert [len(peers[1].heard[f"s{n}"]) for n in (1, 3, 5)] == [5, 5, 5]
    if leave == "pause":
        assert [message.body for message in peers[0].heard["s2"]] == [
            b'{"k":2,"n":%d}' % n for n in range(2, 1000, KINDS)
        ]
    elif leave == "replace":
        assert heard == []
        assert [message.body for message in peers[0].heard["s2"]] == [
            b'{"k":100,"n":%d}' % n for n in range(100, 1000, KINDS)
        ]
    if leave != "disconnect":
        assert [len(peers[0].heard[f"s{n}"]) for n in (0, 4)] == [6, 5]


def test_damage_outside_a_topic_does_not_end_subscriptions_of_the_topic() -> None:
    world = EngineWorld(6)
    publisher = world.connect("publisher")
    for _ in range(3):
        _publish(publisher, 200)
        world.settle()
        _publish(publisher, 200, "b")
        world.settle()
    world.broker.journal.view.tail_bytes_max = 1
    _publish(publisher, 1)
    world.settle()
    path = segment_path(world.broker.journal.view.segments[0].number)
    handle = world.disk.open(path)
    data = world.disk.contents()[path]
    at = data.index(b'{"k":7,"n":7}', data.index(b'{"k":7,"n":7}') + 1)  # the second one has topic b
    world.disk.write(handle, at, [b"!"])
    world.disk.close(handle)
    peer = world.connect("reader")
    for number in range(4):
        peer.subscribe(f"a{number}", "a", bookmark="0", filter=f"/k = {number}", credit=1 << 20)
        peer.subscribe(f"x{number}", "^[ab]$", bookmark="0", filter=f"/k = {number}", credit=1 << 20)
    world.settle()
    for number in range(4):
        assert len(peer.heard[f"a{number}"]) == 3 + (number == 0)
        assert peer.marks[f"a{number}"] == [f"completed after {3 + (number == 0)}"]
        assert peer.marks[f"x{number}"] == ["ended journal_corrupt"]


def test_subscriptions_move_from_a_shared_cursor_to_the_tail_in_bounded_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (shared_cursor, log_delivery):
        monkeypatch.setattr(module, "shared_cursor_moves_max", 5)
    world = EngineWorld(7)
    publisher = world.connect("publisher")
    peers = _readers(world, 40)
    blocked = peers[:2]
    for peer in blocked:
        world.broker.blocked(peer.conn)
    _publish(publisher, KINDS)
    world.settle()
    world.broker._delivery.step_bytes_max = 1
    for peer in blocked:
        world.broker.writable(peer.conn)
    at_end = [sum(sub.phase is Phase.TAIL for sub in _all_feeds(world))]
    while world.broker.has_work:
        world.work()
        at_end.append(sum(sub.phase is Phase.TAIL for sub in _all_feeds(world)))
    assert at_end[0] == 20
    assert at_end[-1] == 40
    assert max(after - before for before, after in pairwise(at_end)) <= 5
    assert _heard(peers) == 40


def test_many_replays_of_one_connection_do_not_starve_another_connection() -> None:
    world = EngineWorld(8, segment_bytes=1 << 20)
    publisher = world.connect("publisher")
    for _ in range(20):
        publisher.publish("a", [b"x" * 1000] * 300)
    world.settle()
    many, one = world.connect("many"), world.connect("one")
    for number in range(100):
        many.subscribe(f"s{number}", "a", bookmark="0", credit=1 << 24)
    one.subscribe("s", "a", bookmark="0", credit=1 << 24)
    works = 0
    while "completed after 6000" not in one.marks["s"]:
        works += 1
        if world.reads:
            world.run_read()
        else:
            world.work()
    assert sum(len(heard) for heard in many.heard.values()) <= 3 * 6000
    assert works < 100


def test_read_of_an_ended_shared_cursor_is_released() -> None:
    world = EngineWorld(9)
    _, peers = _behind(world, 2)
    while not world.reads:
        world.step()
    assert isinstance(world.reads[0], ReadLog)
    for peer in peers:
        world.broker.disconnected(peer.conn)
    world.settle()
    assert not world.broker._delivery.shared_cursors
    assert world.broker.reads.budgets.log.held_bytes == 0


def _faulty(world: EngineWorld, monkeypatch: pytest.MonkeyPatch, wanted: bytes, times: int) -> list[int]:
    """Corrupt `wanted` in the first `times` reads that contain it, and count them."""
    met = [0]
    before = world._bytes

    def read(request: ReadRequest) -> Buffer | TickertapeError:
        answer = before(request)
        assert not isinstance(answer, TickertapeError)
        data = bytes(answer)
        if wanted in data and met[0] < times:
            met[0] += 1
            return data.replace(wanted, b"!" * len(wanted))
        return data

    monkeypatch.setattr(world, "_bytes", read)
    return met


def _long_log(world: EngineWorld) -> Peer:
    publisher = world.connect("publisher")
    world.broker.journal.view.tail_bytes_max = 1
    for start in range(0, 2000, 10):
        publisher.publish("a", [b'{"k":1,"n":%d}' % n for n in range(start, start + 10)])
        world.settle()
    return publisher


def test_damage_for_one_replay_does_not_stop_a_replay_that_starts_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = EngineWorld(10, segment_bytes=1 << 22)
    publisher = _long_log(world)
    assert publisher.logged_on is not None
    _faulty(world, monkeypatch, b'"n":605}', times=1 << 30)
    one, two = world.connect("one"), world.connect("two")
    one.subscribe("s", "a", bookmark="0", filter="/k = 1", credit=1 << 20, options="pause")
    mark = f"{publisher.logged_on.publisher}|1000|"
    two.subscribe("s", "a", bookmark=mark, filter="/k > 0", credit=1 << 20, options="pause")
    world.settle()
    one.resume("s")
    two.resume("s")
    world.settle()
    assert (len(one.heard["s"]), one.marks["s"]) == (600, ["ended journal_corrupt"])
    assert (len(two.heard["s"]), two.marks["s"]) == (1000, ["completed after 1000"])


def test_read_error_of_a_shared_cursor_does_not_end_later_shared_reads() -> None:
    world = EngineWorld(11, segment_bytes=1 << 22)
    _long_log(world)
    shared = world.connect("shared")
    for number in range(2):
        shared.subscribe(f"a{number}", "a", bookmark="0", filter=f"/n = {number}", credit=1 << 20)
    owners = world.broker.reads._owners
    while not any(isinstance(owner, SharedCursor) for owner in owners.values()):
        world.step()
    (read,) = [read for read in world.reads if isinstance(owners[read.token], SharedCursor)]
    world.reads.remove(read)
    world.broker.read_done(read.token, JournalError("EIO, once"), world.now())
    world.settle()
    assert [shared.marks[f"a{number}"] for number in range(2)] == [["completed after 1"]] * 2
    reads = world.counts["reads"]
    for number in range(60):
        shared.subscribe(f"b{number}", "a", bookmark="0", filter=f"/n = {number}", credit=1 << 20)
    world.settle()
    assert world.counts["reads"] - reads < 60, "they share reads"
    assert [len(shared.heard[f"b{number}"]) for number in range(60)] == [1] * 60


@pytest.mark.parametrize("sizes", [(30, 30), (30, 12), (12, 30)])
def test_two_shared_cursors_at_one_position_reach_the_tail_without_a_cycle(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    for module in (shared_cursor, log_delivery):
        monkeypatch.setattr(module, "shared_cursor_moves_max", 5)
    world = EngineWorld(12)
    publisher = world.connect("publisher")
    peers = _readers(world, sum(sizes), connections=1)
    end = world.broker._delivery.fanout
    subs = [*end.feeds()]
    for some in (subs[: sizes[0]], subs[sizes[0] :]):
        feed_index: FeedIndex = SubscriptionIndex(InterestGroup)
        for sub in some:
            end.remove(sub)
            feed_index.add(sub)
        assert world.broker._delivery.shared_cursors.begin(feed_index, end.position)
    _publish(publisher, KINDS)
    world.settle()
    assert _heard(peers) == sum(sizes)
    assert {sub.phase for sub in _all_feeds(world)} == {Phase.TAIL}


def test_shared_cursor_reads_do_not_eject_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "dispatch_backlog_bytes_max", 100)
    world = EngineWorld(13)
    publisher = world.connect("publisher")
    peers = _readers(world, 10, connections=1)
    world.broker.blocked(peers[0].conn)
    for _ in range(20):
        _publish(publisher, 10)
        world.settle()
    monkeypatch.setattr(ReadBudget, "extend", lambda *_: False)  # nothing is merged
    assert {sub.phase for sub in _all_feeds(world)} == {Phase.REPLAY}
    left: list[int] = []
    before = fanout.Fanout._eject

    def eject(self: fanout.Fanout, sub: LogFeed, position: int, solo_until: int = 0) -> None:
        left.append(position)
        before(self, sub, position, solo_until)

    monkeypatch.setattr(fanout.Fanout, "_eject", eject)
    world.broker.writable(peers[0].conn)
    world.settle()
    assert left == [], "a subscription was ejected although none was slow"
    assert _heard(peers) == 20 * 10
