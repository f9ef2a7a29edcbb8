"""Subscribers: one that replays a range between two bookmarks, one that crosses from replay into live."""

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
"""Arrivals published at a time while the subscriber crosses, a chunk every `PAUSE_SECONDS`."""
PAUSE_SECONDS: Final = 0.002


class Crossing(NamedTuple):
    """How the subscriber came from the log into what is live."""

    start: int
    """Number of the arrival after whose bookmark it started."""
    published_before: int
    """Arrivals in the log when it subscribed."""
    published_at_crossing: int
    """Arrivals published when the server said that the replay had caught up; what follows came live."""
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
    """A numbered arrival for each of `flights` that landed where it should."""
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
    """Replay from bookmark `begin` to bookmark `end`, both included; the number of messages.

    Raises `CheckFailed` unless it is exactly `expected`.
    """
    with tt.Client("demo-historian", uri, timeout=FOLLOW_SECONDS_MAX) as client:
        found = [message.data for message in client.replay(topic, f"[{begin}:{end}]")]
    if found != expected:
        raise CheckFailed(
            f"the range [{begin}:{end}] of {topic} gave {len(found):,} messages, and not the "
            f"{len(expected):,} between the two in the log"
        )
    return len(found)


def cross_into_live(uri: str, bodies: Sequence[bytes]) -> Crossing:
    """Publish half of `bodies`; subscribe from a bookmark in them while the rest is being published.

    Raises `CheckFailed` unless the subscriber got everything after its bookmark, once and in order.
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
    """Publishes the rest of the arrivals, chunk by chunk; the last half when the subscriber has crossed."""

    def __init__(self, client: tt.Client, bodies: Sequence[bytes], begin: int) -> None:
        super().__init__(name="demo-arrivals", daemon=True)
        self._client = client
        self._bodies = bodies
        self._published = begin
        self._hold = begin + (len(bodies) - begin) // 2
        self._crossed = threading.Event()
        self._error: tt.TickertapeError | None = None

    def run(self) -> None:
        """The thread: publish to the end."""
        try:
            self._publish()
        except tt.TickertapeError as error:  # stop() raises it on the main thread
            self._error = error

    def _publish(self) -> None:
        while self._published < len(self._bodies):
            # Until the subscriber has crossed there is something left that can only come live.
            patient = FOLLOW_SECONDS_MAX if self._published >= self._hold else PAUSE_SECONDS
            self._crossed.wait(patient)
            chunk = self._bodies[self._published : self._published + CHUNK]
            self._client.publish_batch(TOPIC, chunk)
            self._published += len(chunk)
        self._client.publish_flush()

    def crossed(self) -> int:
        """The subscriber has caught up; how many arrivals were published by then."""
        published = self._published
        self._crossed.set()
        return published

    def stop(self) -> None:
        """Wait until everything is published. Raises what went wrong."""
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
    raise CheckFailed(f"arrival {number:,} is not in the log")


_decode_arrival = msgspec.json.Decoder(Arrival).decode


def _number(message: tt.Message) -> int:
    return _decode_arrival(message.data).number


def _first_gap(numbers: Sequence[int], start: int) -> str:
    for expected, number in enumerate(numbers, start + 1):
        if number != expected:
            return f"the subscriber got arrival {number:,} where {expected:,} comes next"
    return f"the subscriber got {len(numbers):,} arrivals after number {start:,}, not all"
