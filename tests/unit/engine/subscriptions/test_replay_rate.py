"""Replay rate limiter in virtual time: rates over seconds, stalls without bursts, and shortened gaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tickertape.batch import MessageBatch, batch_from_bodies, merge
from tickertape.engine.limits import rate_catch_up_seconds, rate_tick_seconds
from tickertape.engine.subscriptions.options import parse_rate
from tickertape.engine.subscriptions.pacing import RateLimiter

START = 5_000.0


def stamped(seconds: Sequence[float], size: int = 10) -> MessageBatch:
    """A batch of messages recorded at `seconds`."""
    return merge(
        [
            batch_from_bodies(
                "t", [bytes(size)], publisher=1, first_sequence=i + 1, timestamp=round(second * 1e6)
            )
            for i, second in enumerate(seconds)
        ]
    )


def bodies(count: int, size: int = 10) -> MessageBatch:
    return batch_from_bodies("t", [bytes(size)] * count, publisher=1, first_sequence=1, timestamp=7)


def replay(
    pacer: RateLimiter,
    batch: MessageBatch,
    now: float = START,
    until: float = float("inf"),
    late: float = 0.0,
) -> list[float]:
    """Return the send time of each message, with checks `late` seconds after each requested wake-up."""
    times: list[float] = []
    low = 0
    while now < until:
        count, wake = pacer.allowed(batch, low, batch.count, now)
        if count:
            pacer.sent(batch, low, low + count, now)
            times += [now] * count
            low += count
        if wake is None:
            break
        assert wake >= now + rate_tick_seconds * 0.999
        now = wake + late
    return times


@pytest.mark.behaviour(14)
@pytest.mark.parametrize("rate", [10, 333, 1_000, 10_000, 14_141])
def test_a_rate_in_messages_holds_over_ten_seconds(rate: int) -> None:
    times = replay(RateLimiter(parse_rate(str(rate))), bodies(rate * 12), until=START + 11.5)
    for begin in (0.0, 0.7, 1.3):
        within = [t for t in times if START + begin <= t < START + begin + 10]
        assert abs(len(within) - 10 * rate) <= max(0.002 * 10 * rate, 1)


@pytest.mark.behaviour(14)
@pytest.mark.parametrize(("rate", "size"), [("100KB", 100), ("100KB", 10_000), ("1.5MB", 333)])
def test_a_rate_in_bytes_counts_payload(rate: str, size: int) -> None:
    per_second = parse_rate(rate).amount
    times = replay(RateLimiter(parse_rate(rate)), bodies(int(per_second * 11 / size), size))
    within = [t for t in times if t < START + 10]
    assert abs(len(within) * size - 10 * per_second) <= max(0.002 * 10 * per_second, size)


@pytest.mark.behaviour(14)
def test_rate_holds_for_messages_delivered_as_published() -> None:
    pacer = RateLimiter(parse_rate("100"))
    replay(pacer, bodies(50))
    one = bodies(1)
    now = START + 10  # caught up, then 1,000 messages a second arrive for two seconds
    sent = waiting = 0
    for _ in range(2_000):
        now += 0.001
        waiting += 1
        if waiting and pacer.allowed(one, 0, 1, now)[0]:
            pacer.sent(one, 0, 1, now)
            sent, waiting = sent + 1, waiting - 1
    assert 199 <= sent <= 200 + 100 * rate_catch_up_seconds + 1


def test_messages_slower_than_the_rate_are_not_held_up() -> None:
    pacer = RateLimiter(parse_rate("1000"))
    one = bodies(1)
    for i in range(100):
        now = START + i * 0.01
        assert pacer.allowed(one, 0, 1, now) == (1, None)
        pacer.sent(one, 0, 1, now)


def test_a_stall_is_not_followed_by_a_burst() -> None:
    pacer = RateLimiter(parse_rate("10000"))
    batch = bodies(100_000)
    sent = len(replay(pacer, batch, until=START + 1))
    count, wake = pacer.allowed(batch, sent, batch.count, START + 60)
    assert count == pytest.approx(10_000 * rate_catch_up_seconds, abs=2)
    pacer.sent(batch, sent, sent + count, START + 60)
    assert wake == pytest.approx(START + 60 + rate_tick_seconds)
    assert pacer.allowed(batch, sent + count, batch.count, START + 60)[0] == 0


def test_delay_of_a_busy_server_within_the_limit_is_caught_up() -> None:
    times = replay(RateLimiter(parse_rate("1000")), bodies(12_000), late=rate_catch_up_seconds * 0.9)
    assert len([t for t in times if t < START + 10]) == pytest.approx(10_000, rel=0.006)


def test_a_slow_rate_sends_one_at_a_time() -> None:
    times = replay(RateLimiter(parse_rate("0.5")), bodies(4))
    assert times == pytest.approx([START, START + 2, START + 4, START + 6])


def test_message_larger_than_a_tick_is_sent_when_the_budget_allows() -> None:
    pacer = RateLimiter(parse_rate("1MB"))
    batch = bodies(3, 1024 * 1024)
    assert replay(pacer, batch) == pytest.approx([START, START + 1, START + 2])


def test_rate_limiter_releases_due_messages_once_per_tick() -> None:
    pacer = RateLimiter(parse_rate("100000"))
    batch = bodies(10_000)
    pacer.sent(batch, 0, 1, START)
    early = START + 0.3 * rate_tick_seconds
    assert pacer.allowed(batch, 1, batch.count, early) == (0, early + rate_tick_seconds)
    assert pacer.allowed(batch, 1, batch.count, START + rate_tick_seconds)[0] == pytest.approx(200, abs=1)
    dense = stamped([0.0001 * i for i in range(100)])
    pacer = RateLimiter(parse_rate("1x"))
    pacer.sent(dense, 0, 1, START)
    assert pacer.allowed(dense, 1, dense.count, early) == (0, early + rate_tick_seconds)
    assert pacer.allowed(dense, 1, dense.count, START + rate_tick_seconds)[0] == pytest.approx(20, abs=1)


def test_early_timer_does_not_cause_extra_wake_ups() -> None:
    pacer = RateLimiter(parse_rate("1000"))
    batch = bodies(1_000)
    low, looks, now = 0, 0, START
    while now < START + 0.9:
        count, wake = pacer.allowed(batch, low, batch.count, now)
        if count:
            pacer.sent(batch, low, low + count, now)
        low, looks = low + count, looks + 1
        assert wake is not None
        now = wake - 0.0005
    assert looks <= 0.9 / (rate_tick_seconds - 0.0005) + 2
    assert low == pytest.approx(900, abs=4)


def test_allowed_does_not_change_the_rate_limiter() -> None:
    pacer = RateLimiter(parse_rate("2x"))
    batch = stamped([0, 1, 2, 3])
    assert [pacer.allowed(batch, 0, 4, START) for _ in range(3)] == [(1, START + 0.5)] * 3
    assert pacer.allowed(batch, 0, 4, START + 60) == (
        1,
        START + 60.5,
    )  # nothing was sent, so the schedule starts then


@pytest.mark.parametrize(("rate", "factor"), [("1x", 1.0), ("2X", 0.5), ("0.5x", 2.0), ("100x", 0.01)])
def test_rate_multiple_keeps_the_recorded_times(rate: str, factor: float) -> None:
    recorded = [0, 0.1, 0.1, 0.1, 3.5, 3.6, 70.0, 70.0, 71.25]
    times = replay(RateLimiter(parse_rate(rate)), stamped(recorded))
    wanted = [START + second * factor for second in recorded]
    assert all(0 <= t - w <= 1.01 * rate_tick_seconds for t, w in zip(times, wanted, strict=True))


def test_messages_with_equal_timestamps_are_sent_together() -> None:
    pacer = RateLimiter(parse_rate("1x"))
    batch = stamped([0, 0, 0, 1, 1])
    assert pacer.allowed(batch, 0, 5, START) == (3, START + 1)
    pacer.sent(batch, 0, 3, START)
    assert pacer.allowed(batch, 3, 5, START + 1) == (2, None)


@pytest.mark.behaviour(15)
def test_long_gaps_are_cut_in_replay_time_and_the_timeline_shifts() -> None:
    # 5x with 10 s: gaps above 50 s in the recording are 10 s of waiting
    recorded = [0.0, 49.0, 99.0, 160.0, 165.0, 86_400.0, 86_450.0]
    times = replay(RateLimiter(parse_rate("5X"), 10.0), stamped(recorded))
    waits = [b - a for a, b in pairwise(times)]
    assert waits == pytest.approx([9.8, 10, 10, 1, 10, 10], abs=rate_tick_seconds)


@pytest.mark.behaviour(15)
def test_never_more_than_a_second_at_the_original_pace() -> None:
    recorded = [0.0, 0.5, 2.5, 2.6, 3_600.0, 3_600.9]
    times = replay(RateLimiter(parse_rate("1x"), 1.0), stamped(recorded))
    waits = [b - a for a, b in pairwise(times)]
    assert waits == pytest.approx([0.5, 1, 0.1, 1, 0.9], abs=rate_tick_seconds)


@pytest.mark.behaviour(15)
def test_gap_counts_between_messages_of_the_subscription_across_batches() -> None:
    pacer = RateLimiter(parse_rate("1x"), 1.0)
    assert replay(pacer, stamped([0.0])) == [START]
    times = replay(pacer, stamped([500.0, 500.25]), START + 0.1)
    assert times == pytest.approx([START + 1, START + 1.25], abs=rate_tick_seconds)


def test_a_late_consumer_shifts_the_timeline() -> None:
    pacer = RateLimiter(parse_rate("1x"))
    batch = stamped([0.01 * i for i in range(1_000)])
    sent = len(replay(pacer, batch, until=START + 1))
    assert pacer.allowed(batch, sent, 1_000, START + 30)[0] == pytest.approx(
        rate_catch_up_seconds / 0.01, abs=1
    )
    times = replay(pacer, batch_part(batch, sent), START + 30)
    assert times[-1] - START == pytest.approx(30 + 0.01 * (999 - sent), abs=rate_catch_up_seconds + 0.01)


def batch_part(batch: MessageBatch, low: int) -> MessageBatch:
    return stamped([float(stamp) / 1e6 for stamp in batch.timestamps[low:]])


def test_rate_of_one_keeps_up_with_live_messages_and_half_lags() -> None:
    once, half = RateLimiter(parse_rate("1x")), RateLimiter(parse_rate("0.5x"))
    for second in range(1, 20):
        batch, now = stamped([float(second)]), START + second
        assert once.allowed(batch, 0, 1, now) == (1, None)
        once.sent(batch, 0, 1, now)
        half_at = START + 1 + 2 * (second - 1)
        if second > 1:
            assert half.allowed(batch, 0, 1, half_at - 0.1)[0] == 0
        assert half.allowed(batch, 0, 1, half_at) == (1, None)
        half.sent(batch, 0, 1, half_at)


@pytest.mark.parametrize("rate", ["10", "1KB", "1x"])
def test_pause_shifts_the_schedule_by_the_pause_length(rate: str) -> None:
    batch = stamped([0.0, 10.0, 20.0], 10 * 1024)
    if rate == "10":
        batch = bodies(3)
    plain, paused = RateLimiter(parse_rate(rate)), RateLimiter(parse_rate(rate))
    wanted = replay(plain, batch)
    paused.sent(batch, 0, 1, START)
    paused.pause(START + 0.04)
    paused.pause(START + 50)  # repeated: already paused
    assert paused.allowed(batch, 1, 3, START + 70) == (0, None)
    paused.resume(START + 100.04)
    paused.resume(START + 200)
    times: list[float] = []
    low, now = 1, START + 100.04
    while low < 3:
        count, wake = paused.allowed(batch, low, 3, now)
        if count:
            paused.sent(batch, low, low + count, now)
            times += [now] * count
            low += count
        now = now if wake is None else wake
    assert times == pytest.approx([t + 100 for t in wanted[1:]], abs=rate_tick_seconds)


def test_schedule_starts_at_the_first_message_after_a_pause() -> None:
    pacer = RateLimiter(parse_rate("1x"))
    pacer.pause(START)
    pacer.resume(START + 1_000)
    batch = stamped([0.0, 1.0])
    assert pacer.allowed(batch, 0, 2, START + 1_005) == (1, START + 1_006)


def test_rate_limiter_uses_separate_timestamps_of_conflated_messages() -> None:
    batch = stamped([5.0, 3.0, 4.0])  # times of the last messages, which may decrease
    firsts = stamped([0.0, 1.0, 100.0]).timestamps
    pacer = RateLimiter(parse_rate("1x"), 2.0)
    assert pacer.allowed(batch, 0, 3, START, firsts) == (1, START + 1)
    pacer.sent(batch, 0, 1, START, firsts)
    assert pacer.allowed(batch, 1, 3, START + 1, firsts) == (1, START + 3)
    pacer.sent(batch, 1, 2, START + 1, firsts)
    assert pacer.allowed(batch, 2, 3, START + 3, firsts) == (1, None)
