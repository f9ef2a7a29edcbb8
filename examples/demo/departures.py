"""Two days of departures, published at the pace of their schedule, time running faster; then one of the days
replayed at a multiple of that pace, picked by a filter on its date."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

import tickertape as tt
from examples.demo.checking import CheckFailed

TOPIC: Final = "departures"
DAY_SECONDS: Final = 2.0
"""What a day of the schedule takes when it is published."""
MULTIPLE: Final = 2
REPLAY_SECONDS_MAX: Final = 120.0
_MINUTES: Final = 24 * 60


class Day(NamedTuple):
    """A day of 2013 that has flights."""

    month: int
    day: int

    @property
    def filter(self) -> str:
        """What passes only its flights."""
        return f"/month = {self.month} AND /day = {self.day}"

    def __str__(self) -> str:
        return f"2013-{self.month:02}-{self.day:02}"


class Replayed(NamedTuple):
    """How a day was replayed."""

    day: Day
    published: int
    """Departures of all days that were published."""
    flights: int
    """Departures of this one."""
    recorded_seconds: float
    """Between the first and the last of them in the log."""
    seconds: float
    """From the request of the replay to the last of them."""


class _Scheduled(msgspec.Struct):
    month: int
    day: int
    sched_dep_time: int
    """Hours and minutes as one number: 515 is 5:15."""

    @property
    def minute(self) -> int:
        return self.sched_dep_time // 100 * 60 + self.sched_dep_time % 100


def some_days(flights: Sequence[bytes]) -> tuple[Day, list[tuple[int, bytes]]]:
    """A day, the last whole one among `flights` if there are several, and its flights and those of the day
    before, with the minute, from the first midnight on, at which they are scheduled."""
    decode = msgspec.json.Decoder(_Scheduled).decode
    parsed = [(decode(body), body) for body in flights]
    days = sorted({Day(one.month, one.day) for one, _ in parsed})
    days = days[-3:-1] if len(days) > 2 else days[-2:]  # the last one may have been cut
    schedule = [
        (days.index(Day(one.month, one.day)) * _MINUTES + one.minute, body)
        for one, body in parsed
        if Day(one.month, one.day) in days
    ]
    schedule.sort(key=lambda entry: entry[0])
    return days[-1], schedule


def replay_a_day(uri: str, flights: Sequence[bytes]) -> Replayed:
    """Publish days as they pass, then replay the last one. Raises `CheckFailed` unless exactly its
    flights come, in order, and no faster than they should."""
    day, schedule = some_days(flights)
    _publish(uri, schedule)
    own = msgspec.json.Decoder(_Scheduled).decode
    expected = [body for _, body in schedule if Day(own(body).month, own(body).day) == day]
    with tt.Client("demo-board", uri) as client:
        begun = time.monotonic()  # not at the first message: a process that gets it late would measure less
        heard = list(client.replay(TOPIC, filter=day.filter, rate=f"{MULTIPLE}x"))
        seconds = time.monotonic() - begun
    if [message.data for message in heard] != expected:
        raise CheckFailed(
            f"the replay of {day} gave {len(heard):,} departures, not the {len(expected):,} of the schedule"
        )
    first, last = heard[0], heard[-1]
    assert first.timestamp is not None
    assert last.timestamp is not None
    recorded = (last.timestamp - first.timestamp).total_seconds()
    if seconds < 0.9 * recorded / MULTIPLE:
        raise CheckFailed(f"{recorded:.2f} s of the log were replayed in {seconds:.2f} s")
    return Replayed(day, len(schedule), len(heard), recorded, seconds)


def _publish(uri: str, schedule: Sequence[tuple[int, bytes]]) -> None:
    with tt.Client("demo-schedule", uri, publish_store=tt.MemoryPublishStore()) as client:
        begun = time.monotonic()
        for minute, body in schedule:
            ahead = begun + minute * DAY_SECONDS / _MINUTES - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)  # the pace is what is shown
            client.publish(TOPIC, body)
        client.publish_flush(timeout=REPLAY_SECONDS_MAX)
