"""Rates and conflation of subscriptions in virtual time, through the whole engine."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.interfaces import Now
from tickertape.engine.limits import conflation_piece_messages_max
from tickertape.wire.commands import Ack


def _publish(world: EngineWorld, publisher: Peer, topic: str, gaps: list[float]) -> None:
    """A message after each gap, in seconds of both clocks."""
    for number, gap in enumerate(gaps):
        world.wake(gap)
        publisher.publish(topic, [b'{"k": %d, "n": %d}' % (number % 3, number)])
        world.settle()


def _run(world: EngineWorld, seconds: float, tick: float = 0.002) -> None:
    """Let time pass in small steps."""
    end = world.mono + seconds
    while world.mono < end:
        world.settle()
        world.wake(tick)
    world.settle()


def _numbers(peer: Peer, sub_id: str = "s") -> list[int]:
    return [int(heard.body.split(b'"n": ')[1][:-1]) for heard in peer.heard[sub_id]]


@pytest.mark.behaviour(14)
def test_rate_counts_delivered_messages_and_holds_after_catch_up() -> None:
    world = EngineWorld(3)
    publisher = world.connect("publisher")
    for start in range(0, 500, 50):
        publisher.publish("t", [b'{"n": %d}' % number for number in range(start, start + 50)])
        publisher.publish("other", [b"x"] * 50)
        world.settle()
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="rate=100", credit=1 << 20)
    _run(world, 2.0)
    assert 195 <= len(peer.heard["s"]) <= 206
    _run(world, 4.0)
    assert len(peer.heard["s"]) == 500
    assert peer.marks["s"] == ["completed after 500"]
    publisher.publish("t", [b'{"n": %d}' % number for number in range(500, 800)])
    _run(world, 1.0)
    assert 595 <= len(peer.heard["s"]) <= 610, "at the end of the log too"


def test_rated_replay_woken_exactly_at_the_deadline_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock equals the requested deadline exactly, as in a simulation."""
    world = EngineWorld(3)
    world.mono = 1_066.9
    publisher = world.connect("publisher")
    publisher.publish("t", [b"x"] * 300)
    world.settle()
    monkeypatch.setattr(world, "now", lambda: Now(world.mono, world.wall))
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="rate=100", credit=1 << 20)
    world.settle()
    wakes = 0
    while len(peer.heard["s"]) < 300:
        deadline = world.broker.next_deadline()
        assert deadline is not None
        wakes += 1
        assert wakes <= 900, f"woken without progress at {deadline}"
        world.wake(max(deadline - world.mono, 0.0))
        world.mono = max(world.mono, deadline)
        world.wake()
        world.settle()


def test_a_rate_in_bytes_counts_bodies() -> None:
    world = EngineWorld(4)
    publisher = world.connect("publisher")
    publisher.publish("t", [b"x" * 1024] * 200)
    world.settle()
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="rate=50KB", credit=1 << 20)
    _run(world, 2.0)
    assert 97 <= len(peer.heard["s"]) <= 105


def _tenth(world: EngineWorld, pad: int) -> Peer:
    """Publish 1,500 messages, every tenth with `"k": 1`."""
    publisher = world.connect("publisher")
    for start in range(0, 1_500, 250):
        publisher.publish(
            "t",
            [
                b'{"k": %d, "pad": "%s", "n": %d}' % (number % 10 == 1, b"z" * pad, number)
                for number in range(start, start + 250)
            ],
        )
        world.settle()
    return publisher


@pytest.mark.behaviour(14)
@pytest.mark.parametrize("ids", [("s",), ("s", "other")])
def test_rate_counts_messages_that_pass_the_content_filter(ids: tuple[str, ...]) -> None:
    world = EngineWorld(18)
    publisher = _tenth(world, 10)
    peer = world.connect("reader")
    for sub_id in ids:
        peer.subscribe(sub_id, "t", bookmark="0", filter="/k = 1", options="pause,rate=100", credit=1 << 24)
    world.settle()
    peer.resume(*ids)
    _run(world, 1.0, tick=0.005)
    for sub_id in ids:
        assert 95 <= len(peer.heard[sub_id]) <= 106, sub_id
    _run(world, 0.7, tick=0.005)
    for sub_id in ids:
        assert _numbers(peer, sub_id) == list(range(1, 1_500, 10))
        assert peer.marks[sub_id] == ["completed after 150"]
    publisher.publish("t", [b'{"k": %d, "n": %d}' % (number % 10 == 1, number) for number in range(1_000)])
    _run(world, 0.5, tick=0.005)
    for sub_id in ids:
        assert 195 <= len(peer.heard[sub_id]) <= 210, "at the end of the log too"


@pytest.mark.behaviour(14)
@pytest.mark.parametrize("ids", [("s",), ("s", "other")])
def test_rate_in_bytes_counts_bodies_after_the_select_list(ids: tuple[str, ...]) -> None:
    world = EngineWorld(19)
    _tenth(world, 1_000)
    peer = world.connect("reader")
    for sub_id in ids:
        peer.subscribe(sub_id, "t", bookmark="0", options="pause,rate=1KB,select=[-/,+/k]", credit=1 << 24)
    world.settle()
    peer.resume(*ids)
    _run(world, 1.0, tick=0.005)
    for sub_id in ids:
        bodies = [heard.body for heard in peer.heard[sub_id]]
        assert set(map(len, bodies)) == {len(b'{"k":1}')}
        assert 950 <= sum(map(len, bodies)) <= 1_150, sub_id


@pytest.mark.parametrize(("rate", "factor"), [("2x", 2.0), ("0.5X", 0.5)])
def test_rate_multiple_keeps_the_recorded_gaps(rate: str, factor: float) -> None:
    world = EngineWorld(5)
    publisher = world.connect("publisher")
    _publish(world, publisher, "t", [0.1, 0.2, 0.4, 0.1, 0.3])
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options=f"rate={rate}", credit=1 << 20)
    _run(world, 1.2 / factor)
    times = [mono for mono, _ in peer.stamps["s"]]
    stamps = [stamp for _, stamp in peer.stamps["s"]]
    assert len(times) == 5
    for index in range(1, 5):
        recorded = (stamps[index] - stamps[index - 1]) / 1e6 / factor
        assert times[index] - times[index - 1] == pytest.approx(recorded, abs=0.006)


@pytest.mark.behaviour(15)
def test_a_gap_is_cut_between_messages_that_are_delivered() -> None:
    world = EngineWorld(6)
    publisher = world.connect("publisher")
    for number in range(3):
        publisher.publish("t", [b'{"n": %d}' % number])
        world.settle()
        for _ in range(20):  # messages of other topics do not fill the gap
            world.wake(5.0)
            publisher.publish("other", [b"x"])
            world.settle()
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="rate=5X,rate_max_gap=1s", credit=1 << 20)
    _run(world, 2.5)
    times = [mono for mono, _ in peer.stamps["s"]]
    assert len(times) == 3
    assert times[1] - times[0] == pytest.approx(1.0, abs=0.006)
    assert times[2] - times[1] == pytest.approx(1.0, abs=0.006)


def test_pause_shifts_the_rate_schedule_without_a_burst() -> None:
    world = EngineWorld(7)
    publisher = world.connect("publisher")
    publisher.publish("t", [b'{"n": %d}' % number for number in range(500)])
    world.settle()
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="rate=100", credit=1 << 20)
    _run(world, 1.0)
    peer.pause("s")
    _run(world, 5.0)
    before = len(peer.heard["s"])
    assert before <= 106
    peer.resume("s")
    _run(world, 1.0)
    assert len(peer.heard["s"]) - before <= 106


def test_messages_of_a_key_within_one_recorded_interval_are_conflated() -> None:
    world = EngineWorld(8)
    publisher = world.connect("publisher")
    _publish(world, publisher, "t", [0.2] * 15)  # 3 seconds, keys 0 1 2 in turn
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s,conflation_key=[/k]", credit=1 << 20)
    world.settle()
    heard = peer.heard["s"]
    assert peer.marks["s"] == [f"completed after {len(heard)}"]
    numbers = _numbers(peer)
    # the interval of key 0 starts with 0 and includes 3: 5 is a second later and has key 2
    assert numbers[:3] == [3, 4, 5]
    log = world.log("t")
    first = log[0]
    assert (heard[0].publisher, heard[0].sequence) == (first.publisher, first.sequence)
    assert set(numbers) >= {12, 13, 14}
    assert len(numbers) == 9
    assert [h.sequence for h in heard] == sorted(h.sequence for h in heard)


@pytest.mark.behaviour(18)
def test_held_messages_are_flushed_before_completed_and_at_a_stop() -> None:
    world = EngineWorld(9)
    publisher = world.connect("publisher")
    _publish(world, publisher, "t", [0.01] * 6)
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="conflation=10s", credit=1 << 20)
    peer.subscribe("stops", "t", bookmark="0", options="conflation=10s", until_caught_up=True, credit=1 << 20)
    world.settle()
    assert _numbers(peer) == [5]
    assert peer.marks["s"] == ["completed after 1"]
    assert peer.marks["stops"] == ["completed after 1", "ended"]
    assert peer.heard["stops"][0].sequence == world.log("t")[0].sequence


@pytest.mark.behaviour(18)
def test_at_the_end_of_the_log_the_interval_runs_on_the_clock() -> None:
    world = EngineWorld(10)
    publisher = world.connect("publisher")
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0|1|", options="conflation=1s,conflation_key=/k", credit=1 << 20)
    world.settle()
    for number in range(4):
        publisher.publish("t", [b'{"k": 1, "n": %d}' % number])
        _run(world, 0.1)
    assert _numbers(peer) == []
    _run(world, 0.7)
    assert _numbers(peer) == [3]
    assert peer.heard["s"][0].sequence == world.log("t")[0].sequence
    publisher.publish("t", [b'{"k": 1, "n": 9}'])
    _run(world, 1.1)
    assert _numbers(peer) == [3, 9]


@pytest.mark.behaviour(18)
def test_recorded_time_first_and_the_clock_from_the_hand_over_on() -> None:
    world = EngineWorld(20)
    publisher = world.connect("publisher")
    _publish(world, publisher, "t", [0.4] * 10)  # recorded over 4 s
    world.wake(30.0)
    publisher.publish("t", [b'{"k": 0, "n": 10}'])
    world.settle()
    peer = world.connect("reader")
    begun = world.mono
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s", credit=1 << 20)
    world.settle()
    # Intervals are one second of recorded time, although the replay is immediate.
    assert world.mono - begun < 0.5
    assert _numbers(peer) == [2, 5, 8, 9, 10]
    assert peer.marks["s"] == ["completed after 5"]
    # From here on the clock ends an interval, without further messages.
    publisher.publish("t", [b'{"k": 0, "n": 11}'])
    _run(world, 0.3)
    publisher.publish("t", [b'{"k": 0, "n": 12}'])
    _run(world, 0.6)
    assert _numbers(peer) == [2, 5, 8, 9, 10]
    _run(world, 0.2)
    assert _numbers(peer) == [2, 5, 8, 9, 10, 12]
    sent_at = world.mono
    publisher.publish("t", [b'{"k": 0, "n": 13}'])
    _run(world, 1.1)
    assert _numbers(peer)[-1] == 13
    # the simulated wall clock runs faster than the monotonic clock
    assert 0.8 <= peer.stamps["s"][-1][0] - sent_at <= 1.05


@pytest.mark.behaviour(18)
def test_messages_held_at_the_hand_over_are_released_by_the_clock() -> None:
    world = EngineWorld(21)
    world.broker.journal.view.tail_bytes_max = 1
    publisher, peer = world.connect("publisher"), world.connect("reader")
    _publish(world, publisher, "t", [0.4] * 5)
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s", credit=1 << 20)
    _publish(world, publisher, "t", [0.0])  # after the position of `completed`, its interval is open
    begun = world.mono
    assert _numbers(peer) == [2, 4]
    _run(world, 1.2)
    assert _numbers(peer) == [2, 4, 0]
    assert 0.8 <= peer.stamps["s"][-1][0] - begun <= 1.05


def test_held_messages_do_not_wake_the_engine_while_the_disk_writes() -> None:
    world = EngineWorld(14)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    peer.subscribe("s", "t", bookmark="0|1|", options="conflation=100ms", credit=1 << 20)
    publisher.publish("t", [b'{"n": 1}'])
    world.settle()
    publisher.publish("other", [b"x"])  # accepted, not yet on disk
    world.wake(1.0)
    while world.broker.has_work:
        world.work()
    now = world.now()
    deadline = world.broker.next_deadline()
    assert deadline is None or deadline > now.mono
    world.settle()
    assert _numbers(peer) == [1]


def test_message_without_a_conflation_key_is_delivered_unconflated() -> None:
    world = EngineWorld(11)
    publisher = world.connect("publisher")
    bodies = [b'{"k": 1, "n": 1}', b'{"n": 2}', b"no json", b'{"k": 1, "n": 3}', b'{"k": null, "n": 4}']
    publisher.publish("t", bodies)
    world.settle()
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s,conflation_key=[/k]", credit=1 << 20)
    world.settle()
    assert [heard.body for heard in peer.heard["s"]] == [bodies[3], bodies[1], bodies[2], bodies[4]]


def test_conflated_replay_waits_for_credit_of_the_consumer() -> None:
    world = EngineWorld(12)
    publisher = world.connect("publisher")
    _publish(world, publisher, "t", [0.5] * 60)
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s", credit=100)
    for _ in range(200):
        world.step()
        assert len(peer.heard["s"]) <= 3
    world.settle()
    # an interval starts with a message and covers one second
    assert 19 <= len(peer.heard["s"]) <= 31
    assert _numbers(peer)[-1] == 59


def test_progress_notices_of_conflation_are_sent_only_when_nothing_is_held() -> None:
    world = EngineWorld(13)
    publisher = world.connect("publisher")
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0|1|", options="conflation=10s", credit=1 << 20)
    world.settle()
    publisher.publish("t", [b'{"n": 1}'])
    _run(world, 3.0, tick=0.25)
    assert peer.heard["s"] == []
    assert not peer.notices, "held messages are not sent"
    _run(world, 10.0, tick=0.25)
    assert _numbers(peer) == [1]
    publisher.publish("other", [b"x"])
    _run(world, 3.0, tick=0.25)
    assert peer.notices


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("rate=0", "rate"),
        ("rate=fast", "Invalid rate 'fast'"),
        ("rate", "Option rate requires a value"),
        ("rate=10,rate_max_gap=1s", "rate_max_gap requires a rate that is a multiple"),
        ("rate_max_gap=1s", "rate_max_gap requires a rate"),
        ("conflation=auto", "not supported"),
        ("conflation_key=[/a]", "conflation_key requires an interval"),
        ("conflation=1s,conflation_key=[a b]", "conflation_key"),
        ("pause=1", "Option pause takes no value"),
    ],
)
def test_invalid_rate_or_conflation_option_is_refused_without_a_subscription(options: str, text: str) -> None:
    world = EngineWorld(1)
    peer = world.connect("reader")
    command = peer.subscribe("s", "t", bookmark="0", options=options)
    answer = peer.answers[command]
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert text in answer.text
    assert "s" not in world.broker.subscriptions.of(peer.conn)


@pytest.mark.parametrize("options", ["rate=10", "pause", "fully_durable", "rate_max_gap=1s"])
def test_replay_option_without_a_bookmark_is_refused(options: str) -> None:
    world = EngineWorld(1)
    peer = world.connect("reader")
    answer = peer.answers[peer.subscribe("s", "t", options=options)]
    assert isinstance(answer, Ack)
    assert answer.code == "bad_option"
    assert "requires a bookmark" in answer.text


def test_fully_durable_delivers_persisted_messages_on_a_single_server() -> None:
    world = EngineWorld(2)
    publisher = world.connect("publisher")
    peer = world.connect("reader")
    peer.subscribe("s", "t", bookmark="0", options="fully_durable")
    publisher.publish("t", [b"1"])
    assert peer.heard["s"] == []
    world.settle()
    assert [heard.body for heard in peer.heard["s"]] == [b"1"]


@pytest.mark.parametrize(
    "key", [b"[99999999999999999999999]", b'{"a": [1e300, 123456789012345678901234567890]}', b"[null, {}]"]
)
def test_conflation_key_with_extreme_values_does_not_fail_the_replay(key: bytes) -> None:
    world = EngineWorld(15)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    publisher.publish("t", [b'{"k": ' + key + b', "n": %d}' % number for number in range(3)])
    world.settle()
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s,conflation_key=[/k]", credit=1 << 20)
    world.settle()
    assert _numbers(peer) in ([0, 1, 2], [2])


def test_large_commit_is_conflated_in_several_steps() -> None:
    world = EngineWorld(16)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    count = 5 * conflation_piece_messages_max
    publisher.publish("t", [b'{"k": %d, "n": %d}' % (n % 7, n) for n in range(count)])
    world.settle()
    peer.subscribe("s", "t", bookmark="0", options="conflation=1s,conflation_key=[/k]", credit=1 << 20)
    steps = 0
    while world.broker.has_work or world.reads:
        world.run_read() if world.reads else world.work()
        steps += 1
    world.settle()
    assert steps >= 5
    assert sorted(_numbers(peer)) == list(range(count - 7, count))


def test_conflation_memory_of_all_subscriptions_is_bounded() -> None:
    world = EngineWorld(17)
    publisher, peer = world.connect("publisher"), world.connect("reader")
    memory = world.broker.subscriptions.conflation.budget
    memory.bytes_max = 20_000
    ids = [f"s{number}" for number in range(4)]
    for sub_id in ids:
        peer.subscribe(
            sub_id, "t", bookmark="0|1|", options="conflation=1h,conflation_key=[/k]", credit=1 << 20
        )
    world.settle()
    for number in range(300):
        publisher.publish("t", [b'{"k": %d, "n": %d}' % (number, number)])
        world.settle()
        assert memory.bytes <= memory.bytes_max
    assert memory.bytes
    assert any(peer.heard.values()), "some left early"
    world.broker.disconnected(peer.conn)
    assert memory.bytes == 0
