"""Two days of departures, published faster than real time, and a filtered replay of one day.

The replay selects the day by a filter on its date, and runs at a multiple of the recorded rate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

import tickertape as tt
from examples.demo.checking import CheckFailed

TOPIC: Final = "departures"
DAY_SECONDS: Final = 2.0
"""Time in which a day of the schedule is published."""
MULTIPLE: Final = 2
REPLAY_SECONDS_MAX: Final = 120.0
_MINUTES: Final = 24 * 60


class Day(NamedTuple):
    """A day of 2013 with flights."""

    month: int
    day: int

    @property
    def filter(self) -> str:
        """Filter for the flights of this day."""
        return f"/month = {self.month} AND /day = {self.day}"

    def __str__(self) -> str:
        return f"2013-{self.month:02}-{self.day:02}"


class Replayed(NamedTuple):
    """Result of the replay of a day."""

    day: Day
    published: int
    """Published departures of all days."""
    flights: int
    """Departures of this day."""
    recorded_seconds: float
    """Log time between the first and the last departure of this day."""
    seconds: float
    """Time from the request of the replay to the last departure."""


class _Scheduled(msgspec.Struct):
    month: int
    day: int
    sched_dep_time: int
    """Hours and minutes as one number: 515 is 5:15."""

    @property
    def minute(self) -> int:
        return self.sched_dep_time // 100 * 60 + self.sched_dep_time % 100


def some_days(flights: Sequence[bytes]) -> tuple[Day, list[tuple[int, bytes]]]:
    """Return the last complete day among `flights`, and the flights of that day and the day before.

    Each flight has its scheduled minute since the first midnight."""
    decode = msgspec.json.Decoder(_Scheduled).decode
    parsed = [(decode(body), body) for body in flights]
    days = sorted({Day(one.month, one.day) for one, _ in parsed})
    days = days[-3:-1] if len(days) > 2 else days[-2:]  # the last day may be incomplete
    schedule = [
        (days.index(Day(one.month, one.day)) * _MINUTES + one.minute, body)
        for one, body in parsed
        if Day(one.month, one.day) in days
    ]
    schedule.sort(key=lambda entry: entry[0])
    return days[-1], schedule


def replay_a_day(uri: str, flights: Sequence[bytes]) -> Replayed:
    """Publish days faster than real time, then replay the last one.

    Raises `CheckFailed` unless the replay has exactly its flights, in order, and is not faster than its
    rate."""
    day, schedule = some_days(flights)
    _publish(uri, schedule)
    own = msgspec.json.Decoder(_Scheduled).decode
    expected = [body for _, body in schedule if Day(own(body).month, own(body).day) == day]
    with tt.Client("demo-board", uri) as client:
        begun = time.monotonic()  # before the first message, whose delivery may be delayed
        heard = list(client.replay(TOPIC, filter=day.filter, rate=f"{MULTIPLE}x"))
        seconds = time.monotonic() - begun
    if [message.data for message in heard] != expected:
        raise CheckFailed(
            f"The replay of {day} has {len(heard):,} departures, but the schedule has {len(expected):,}, or "
            "they differ."
        )
    first, last = heard[0], heard[-1]
    assert first.timestamp is not None
    assert last.timestamp is not None
    recorded = (last.timestamp - first.timestamp).total_seconds()
    if seconds < 0.9 * recorded / MULTIPLE:
        raise CheckFailed(f"The replay was too fast: {recorded:.2f} s of the log in {seconds:.2f} s.")
    return Replayed(day, len(schedule), len(heard), recorded, seconds)


def _publish(uri: str, schedule: Sequence[tuple[int, bytes]]) -> None:
    with tt.Client("demo-schedule", uri, publish_store=tt.MemoryPublishStore()) as client:
        begun = time.monotonic()
        for minute, body in schedule:
            ahead = begun + minute * DAY_SECONDS / _MINUTES - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)  # publish at the accelerated schedule
            client.publish(TOPIC, body)
        client.publish_flush(timeout=REPLAY_SECONDS_MAX)
