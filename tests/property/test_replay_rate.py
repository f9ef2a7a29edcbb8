"""The schedule against a loop over single messages, in virtual time: the same messages go at the same
moments, however the stream is cut, and no stretch of time has more than the rate allows."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tickertape.batch import MessageBatch, batch_from_bodies, merge
from tickertape.engine.limits import rate_catch_up_seconds, rate_tick_seconds
from tickertape.engine.subscriptions.options import Rate, RateUnit
from tickertape.engine.subscriptions.pacing import RateLimiter

_CLOSE = 1e-7


@dataclass
class Line:
    """Messages with sizes and recorded microseconds, and a schedule that considers them one by one."""

    unit: RateUnit
    amount: float
    max_gap: float | None
    sizes: list[int]
    stamps: list[int]
    due: float | None = None
    last: int = -1
    times: list[float] = field(default_factory=list)

    def due_of_next(self, now: float) -> float:
        """Return the time at which the next message may be sent, as of `now`."""
        index = self.last + 1
        if self.due is None:
            return now
        if self.unit is RateUnit.MULTIPLE:
            wait = (self.stamps[index] - self.stamps[index - 1]) / 1e6 / self.amount
            if self.max_gap is not None:
                wait = min(wait, self.max_gap)
        elif self.unit is RateUnit.BYTES:
            wait = self.sizes[index - 1] / self.amount
        else:
            wait = 1 / self.amount
        return max(self.due + wait, now - rate_catch_up_seconds)

    def take(self, now: float, most: int) -> int:
        """Return the number of messages sent at `now`."""
        count = 0
        while count < most and self.last + 1 < len(self.sizes):
            due = self.due_of_next(now)
            if due > now + _CLOSE:
                break
            self.due = due
            self.last += 1
            self.times.append(now)
            count += 1
        return count


def batches(line: Line, cuts: list[int]) -> list[MessageBatch]:
    """Return the messages of `line` in batches of the given sizes, over and over."""
    made = []
    at = turn = 0
    while at < len(line.sizes):
        stop = min(at + cuts[turn % len(cuts)], len(line.sizes))
        made.append(
            merge(
                [
                    batch_from_bodies(
                        "t",
                        [bytes(line.sizes[i])],
                        publisher=1,
                        first_sequence=i + 1,
                        timestamp=line.stamps[i],
                    )
                    for i in range(at, stop)
                ]
            )
        )
        at, turn = stop, turn + 1
    return made


_rates = st.one_of(
    st.builds(Rate, st.just(RateUnit.MESSAGES), st.sampled_from([0.5, 3.0, 100.0, 997.0, 20_000.0])),
    st.builds(Rate, st.just(RateUnit.BYTES), st.sampled_from([10.0, 1024.0, 50_000.0, 1e7])),
    st.builds(Rate, st.just(RateUnit.MULTIPLE), st.sampled_from([0.1, 0.5, 1.0, 2.0, 7.5, 1000.0])),
)
_messages = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 10, 100, 5000]), st.sampled_from([0, 0, 1, 400, 9_999, 300_000, 5_000_000])
    ),
    min_size=1,
    max_size=60,
)
_moments = st.lists(st.sampled_from([0.0, 0.0005, 0.0021, 0.01, 0.049, 0.3, 4.0]), max_size=40)


def _line(rate: Rate, gap: float | None, messages: list[tuple[int, int]]) -> Line:
    stamps = []
    stamp = 1_700_000_000_000_000
    for _, later in messages:
        stamp += later
        stamps.append(stamp)
    sizes = [size for size, _ in messages]
    return Line(rate.unit, rate.amount, gap if rate.unit is RateUnit.MULTIPLE else None, sizes, stamps)


@given(
    _rates,
    st.sampled_from([None, 0.001, 0.05, 1.0]),
    _messages,
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    _moments,
    st.integers(1, 60),
)
def test_rate_limiter_with_any_batches_has_the_schedule_of_single_messages(
    rate: Rate,
    gap: float | None,
    messages: list[tuple[int, int]],
    cuts: list[int],
    moments: list[float],
    credit: int,
) -> None:
    line = _line(rate, gap, messages)
    pacer = RateLimiter(rate, line.max_gap)
    now, low = 1_000.0, 0
    waiting = batches(line, cuts)
    pauses = iter(moments)
    while waiting:
        batch = waiting[0]
        high = min(low + credit, batch.count)
        count, wake = pacer.allowed(batch, low, high, now)
        assert (wake is None) == (count == high - low)
        if count:
            assert line.take(now, count) == count, "the loop would not let them go yet"
            pacer.sent(batch, low, low + count, now)
            low += count
            if low == batch.count:
                waiting.pop(0)
                low = 0
        if wake is not None:
            assert wake > now
            # never later than a tick after the next is due, unless a tick has not passed
            assert wake <= max(line.due_of_next(now), now) + rate_tick_seconds + _CLOSE
            now = max(wake, now + next(pauses, 0.0))
        else:
            now += next(pauses, 0.0)
    assert line.last == len(messages) - 1


@given(_rates, _messages, st.lists(st.integers(1, 20), min_size=1, max_size=4), _moments)
def test_rate_limiter_never_exceeds_the_rate_and_the_catch_up_allowance(
    rate: Rate, messages: list[tuple[int, int]], cuts: list[int], moments: list[float]
) -> None:
    line = _line(rate, None, messages)
    pacer = RateLimiter(rate)
    now = 1_000.0
    sent_at: list[tuple[float, float]] = []  # when, and the cost of all before it
    spent = 0.0
    pauses = iter(moments)
    index = 0
    for batch in batches(line, cuts):
        low = 0
        while low < batch.count:
            count, wake = pacer.allowed(batch, low, batch.count, now)
            if count:
                pacer.sent(batch, low, low + count, now)
            for i in range(index, index + count):
                if rate.unit is RateUnit.MULTIPLE:
                    spent = float(line.stamps[i] - line.stamps[0]) / 1e6
                sent_at.append((now, spent))
                if rate.unit is not RateUnit.MULTIPLE:
                    spent += line.sizes[i] if rate.unit is RateUnit.BYTES else 1
            low, index = low + count, index + count
            now = (now if wake is None else wake) + next(pauses, 0.0)
    for a, (begin, before) in enumerate(sent_at):
        for end, after in sent_at[a + 1 :]:
            assert (after - before) / rate.amount <= end - begin + rate_catch_up_seconds + 1e-5


@given(_rates, st.sampled_from([None, 0.05]), _messages, st.floats(0.0, 500.0), st.integers(0, 59))
def test_rate_limiter_paused_anywhere_only_delays_the_rest(
    rate: Rate, gap: float | None, messages: list[tuple[int, int]], length: float, at: int
) -> None:
    line = _line(rate, gap, messages)
    (batch,) = batches(line, [len(messages)])
    times: list[list[float]] = []
    for paused in (0.0, length):
        pacer = RateLimiter(rate, line.max_gap)
        now, low, sent_at = 1_000.0, 0, list[float]()
        steps = 0
        while low < batch.count:
            if steps == at:
                pacer.pause(now)
                now += paused
                pacer.resume(now)
            steps += 1
            count, wake = pacer.allowed(batch, low, batch.count, now)
            if count:
                pacer.sent(batch, low, low + count, now)
            sent_at += [now - (paused if steps > at else 0.0)] * count
            low += count
            now = now if wake is None else wake
        times.append(sent_at)
    assert all(abs(a - b) <= rate_tick_seconds + 1e-6 for a, b in zip(*times, strict=True))
