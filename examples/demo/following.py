"""Subscribers: a replay of a range between two bookmarks, and a replay that continues live."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

import tickertape as tt
from examples.demo.checking import CheckFailed

TOPIC: Final = "arrivals"
FOLLOW_SECONDS_MAX: Final = 60.0
CHUNK: Final = 100
"""Arrivals of a chunk. While the subscriber catches up, a chunk is published every `PAUSE_SECONDS`."""
PAUSE_SECONDS: Final = 0.002


class Crossing(NamedTuple):
    """Result of a replay that continues live."""

    start: int
    """Number of the arrival at the start bookmark."""
    published_before: int
    """Arrivals in the log at the subscription."""
    published_at_crossing: int
    """Arrivals published when the subscription had caught up. Later arrivals were delivered live."""
    received: int
    last: int
    """Number of the last arrival received."""


class Arrival(msgspec.Struct):
    """A message of topic `arrivals`."""

    number: int
    flight: str
    origin: str
    destination: str
    minutes_late: int


class _Landed(msgspec.Struct):
    carrier: str
    flight: int
    origin: str
    dest: str
    arr_delay: int | None


def arrivals(flights: Sequence[bytes]) -> list[bytes]:
    """Return a numbered arrival for each of `flights` with an arrival delay."""
    decode = msgspec.json.Decoder(_Landed).decode
    encode = msgspec.json.Encoder().encode
    found: list[bytes] = []
    for flight in map(decode, flights):
        if flight.arr_delay is not None:
            name = f"{flight.carrier} {flight.flight}"
            number = len(found) + 1
            found.append(encode(Arrival(number, name, flight.origin, flight.dest, flight.arr_delay)))
    return found


def replay_range(uri: str, topic: str, begin: str, end: str, expected: Sequence[bytes]) -> int:
    """Replay from bookmark `begin` to bookmark `end` (inclusive), and return the number of messages.

    Raises `CheckFailed` unless the messages are exactly `expected`.
    """
    with tt.Client("demo-historian", uri, timeout=FOLLOW_SECONDS_MAX) as client:
        found = [message.data for message in client.replay(topic, f"[{begin}:{end}]")]
    if found != expected:
        raise CheckFailed(
            f"The range [{begin}:{end}] of {topic} has {len(found):,} messages that differ from the "
            f"{len(expected):,} messages in the log."
        )
    return len(found)


def cross_into_live(uri: str, bodies: Sequence[bytes]) -> Crossing:
    """Publish half of `bodies`. Then subscribe from a bookmark in them while the rest is being published.

    Raises `CheckFailed` unless the subscriber gets every message after the bookmark, exactly once and in
    order.
    """
    half, start = len(bodies) // 2, len(bodies) // 8 + 1
    with (
        tt.Client("demo-arrivals", uri, timeout=FOLLOW_SECONDS_MAX) as publisher,
        tt.Client("demo-follower", uri, timeout=FOLLOW_SECONDS_MAX) as subscriber,
    ):
        publisher.publish_batch(TOPIC, bodies[:half])
        publisher.publish_flush()
        bookmark = _bookmark_of(subscriber, start)
        writer = _Writer(publisher, bodies, half)
        writer.start()
        try:
            with subscriber.bookmark_subscribe(TOPIC, bookmark) as stream:
                stream.wait_caught_up(FOLLOW_SECONDS_MAX)
                crossed_at = writer.crossed()
                numbers = [_number(stream.get(FOLLOW_SECONDS_MAX)) for _ in range(len(bodies) - start)]
        finally:
            writer.stop()
    if numbers != list(range(start + 1, len(bodies) + 1)):
        raise CheckFailed(_first_gap(numbers, start))
    return Crossing(start, half, crossed_at, len(numbers), numbers[-1])


class _Writer(threading.Thread):
    """Publisher of the remaining arrivals in chunks. It holds the last half until the subscriber has caught
    up."""

    def __init__(self, client: tt.Client, bodies: Sequence[bytes], begin: int) -> None:
        super().__init__(name="demo-arrivals", daemon=True)
        self._client = client
        self._bodies = bodies
        self._published = begin
        self._hold = begin + (len(bodies) - begin) // 2
        self._crossed = threading.Event()
        self._error: tt.TickertapeError | None = None

    def run(self) -> None:
        """Publish all remaining arrivals, on this thread."""
        try:
            self._publish()
        except tt.TickertapeError as error:  # stop() raises it on the main thread
            self._error = error

    def _publish(self) -> None:
        while self._published < len(self._bodies):
            # Hold some arrivals until the subscriber has caught up, so that they can only be delivered live.
            patient = FOLLOW_SECONDS_MAX if self._published >= self._hold else PAUSE_SECONDS
            self._crossed.wait(patient)
            chunk = self._bodies[self._published : self._published + CHUNK]
            self._client.publish_batch(TOPIC, chunk)
            self._published += len(chunk)
        self._client.publish_flush()

    def crossed(self) -> int:
        """Note that the subscriber has caught up. Return the number of arrivals published before."""
        published = self._published
        self._crossed.set()
        return published

    def stop(self) -> None:
        """Wait until all arrivals are published. Raises the error of the thread."""
        self._crossed.set()
        self.join()
        if self._error is not None:
            raise self._error


def _bookmark_of(client: tt.Client, number: int) -> str:
    with client.replay(TOPIC) as stream:
        for message in stream:
            if _number(message) == number:
                assert message.bookmark is not None
                return message.bookmark
    raise CheckFailed(f"Arrival {number:,} is not in the log.")


_decode_arrival = msgspec.json.Decoder(Arrival).decode


def _number(message: tt.Message) -> int:
    return _decode_arrival(message.data).number


def _first_gap(numbers: Sequence[int], start: int) -> str:
    for expected, number in enumerate(numbers, start + 1):
        if number != expected:
            return f"The subscriber got arrival {number:,} instead of {expected:,}."
    return f"The subscriber got only {len(numbers):,} arrivals after number {start:,}."
