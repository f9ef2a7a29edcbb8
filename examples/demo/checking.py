"""Comparison of replayed messages with the source file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

import tickertape as tt
from examples.demo.flights import CarrierTruth, Digests, Flight
from examples.demo.screen import count


class CheckFailed(Exception):
    """A check of the demo failed. The text has the difference."""


class LogReading(NamedTuple):
    """Result of reading a topic's log and comparing it with the source."""

    messages: int
    missing: int
    """Messages of the source that the log does not have."""
    doubled: int
    """Duplicate messages."""
    unknown: int
    """Messages that the source does not have."""
    out_of_order: int
    """Messages after a later message of the same publisher."""
    publishers: int
    order: list[int]
    """Index in the source of each message, in the order of the log. -1 for an unknown message."""
    bookmarks: list[str]
    """Bookmarks of the messages at `bookmarks_at`."""

    def check(self, topic: str) -> None:
        """Raise `CheckFailed` unless the log has every message exactly once, in order."""
        wrong = [
            f"{number:,} {name}"
            for number, name in (
                (self.missing, "missing"),
                (self.doubled, "more than once"),
                (self.unknown, "not from the source"),
                (self.out_of_order, "out of order"),
            )
            if number
        ]
        if wrong:
            raise CheckFailed(f"Topic {topic}: of {self.messages:,} messages in the log, {', '.join(wrong)}.")


def read_log(
    batches: Iterable[tt.MessageBatch],
    source: Sequence[bytes],
    *,
    bookmarks_at: Sequence[int] = (),
    digests: Digests | None = None,
) -> LogReading:
    """Compare `batches` with `source`, whose messages are all different.

    `bookmarks_at`: ascending indexes in the log whose bookmarks are returned. `digests`: gets every message,
    by its carrier.
    """
    places = {body: place for place, body in enumerate(source)}
    seen = bytearray(len(source))
    newest: dict[int, int] = {}
    order: list[int] = []
    bookmarks: list[str] = []
    unknown = doubled = out_of_order = 0
    for batch in batches:
        publishers = batch.publishers.tolist()
        bodies = batch.bodies_list()
        wanted = [at - len(order) for at in bookmarks_at if len(order) <= at < len(order) + len(bodies)]
        bookmarks += [str(tt.Bookmark(publishers[i], int(batch.sequences[i]))) for i in wanted]
        for publisher, body in zip(publishers, bodies, strict=True):
            place = places.get(body, -1)
            order.append(place)
            if digests is not None:
                digests.add(carrier_of(body), body)
            if place < 0:
                unknown += 1
            elif seen[place]:
                doubled += 1
            else:
                seen[place] = 1
                out_of_order += newest.get(publisher, -1) > place
                newest[publisher] = place
    missing = seen.count(0)
    return LogReading(len(order), missing, doubled, unknown, out_of_order, len(newest), order, bookmarks)


class _Carrier(msgspec.Struct):
    carrier: str


_decode = msgspec.json.Decoder(_Carrier).decode


def carrier_of(body: bytes) -> str:
    """Return the carrier in a flight message. Raises `CheckFailed` for a message without a carrier."""
    try:
        return _decode(body).carrier
    except msgspec.DecodeError as error:
        raise CheckFailed(f"A message in the log has no carrier ({error}): {body[:80]!r}") from None


def digests_of(flights: Iterable[Flight]) -> Digests:
    """Return the digests of the source."""
    digests = Digests()
    for flight in flights:
        digests.add(flight.carrier, flight.body)
    return digests


def check_digests(source: Digests, log: Digests) -> list[list[str]]:
    """Return rows of carrier, flights in the file and in the log, and digest.

    Raises `CheckFailed` if file and log differ."""
    ours, theirs = source.texts(), log.texts()
    for carrier in sorted(ours.keys() | theirs.keys()):
        if ours.get(carrier) != theirs.get(carrier):
            in_file, in_log = source.counts.get(carrier, 0), log.counts.get(carrier, 0)
            raise CheckFailed(
                f"Carrier {carrier}: {count(in_file, 'flight')} in the file with digest {ours.get(carrier)}, "
                f"{in_log:,} in the log with digest {theirs.get(carrier)}."
            )
    by_size = sorted(source.counts.items(), key=lambda item: -item[1])
    return [[carrier, f"{size:,}", f"{log.counts[carrier]:,}", ours[carrier]] for carrier, size in by_size]


class SparkRow(msgspec.Struct, frozen=True):
    """Result of the Spark job for one carrier, or one hour of scheduled departure."""

    name: str
    flights: int
    departed: int
    delay_minutes: int | None
    mean_delay: float | None


def check_spark(truth: Mapping[str, CarrierTruth], rows: Sequence[SparkRow]) -> None:
    """Raise `CheckFailed` unless the Spark results equal the sums of the file."""
    found = {row.name: row for row in rows}
    if len(found) != len(rows) or found.keys() != truth.keys():
        raise CheckFailed(f"Spark found {sorted(found)}, but the file has {sorted(truth)}.")
    for name, known in truth.items():
        row = found[name]
        theirs = (row.flights, row.departed, row.delay_minutes or 0, row.mean_delay)
        ours = (known.flights, known.departed, known.delay_minutes, known.mean_delay)
        if theirs != ours:
            raise CheckFailed(
                f"{name}: flights, departures, sum and mean of delays are {theirs} in Spark, but {ours} in "
                "the file."
            )
