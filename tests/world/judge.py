"""Owns what must hold in a world: held against plain lists of what was sent, promised and seen.

Must never share code with the product beyond reading a log and the names of things.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from tests.world.apps import PATTERN, TOPICS, Publisher, Reader, Reading, Seen, Sent, Worker


class Logged(NamedTuple):
    """A message of the log, in its order."""

    topic: str
    body: bytes


def everything_once(publishers: Iterable[Publisher], log: Sequence[Logged]) -> None:
    """All that was published is in the log, once, and in the order of its publisher."""
    times = Counter(logged.body for logged in log)
    assert all(count == 1 for count in times.values()), "a message is in the log twice"
    place = {logged.body: at for at, logged in enumerate(log)}
    topics = {logged.body: logged.topic for logged in log}
    for publisher in publishers:
        sent: list[Sent] = publisher.sent
        for kept in sent:
            assert kept.body in place, f"{publisher.name}: {kept} is lost"
            assert topics[kept.body] == kept.topic
        places = [place[kept.body] for kept in sent]
        assert places == sorted(places), f"{publisher.name}: not in the order of its sequences"
        _transactions(publisher, place)
    known = {kept.body for p in publishers for kept in p.sent}
    known |= {kept.body for p in publishers for plan in p.transactions for kept in plan}
    assert set(place) <= known, "a message that nobody published"


def _transactions(publisher: Publisher, place: dict[bytes, int]) -> None:
    """Each is there as a whole and in a row, or not at all; and what was said to be committed is there."""
    for number, plan in enumerate(publisher.transactions):
        found = [place[kept.body] for kept in plan if kept.body in place]
        assert len(found) in (0, len(plan)), f"{publisher.name}: a part of transaction {number}"
        assert not plan or found == list(range(found[0], found[0] + len(found))), "something stands within it"
        assert found or not plan or number not in publisher.committed, "a committed transaction is lost"


def promised(publishers: Iterable[Publisher], log: Sequence[Logged]) -> None:
    """At any moment: what was said to be persisted is in the log."""
    there = {logged.body for logged in log}
    for publisher in publishers:
        for kept in publisher.sent[: publisher.promised]:
            assert kept.body in there, f"{publisher.name} was promised {kept.body[:40]!r}, and it is lost"
        for number in publisher.committed:
            assert all(kept.body in there for kept in publisher.transactions[number])


def readings(readers: Iterable[Reader], log: Sequence[Logged]) -> None:
    """Everybody saw what there is to see, in order, and nothing else."""
    for reader in readers:
        for reading in reader.readings:
            expected = [Seen(m.topic, m.body, "") for m in log if _passes(reading, m)]
            seen = [one._replace(bookmark="") for one in reading.seen]
            label = f"{reader.name} {reading.options} {reading.marks}"
            if reading.options["command"] == "replay":
                assert seen == expected[: len(seen)], f"{label}: a replay is the log"
            elif reading.options["command"] == "subscribe":
                _in_order(seen, expected, label)
            elif reading.options["delivery"] == "live":
                _once_by_publisher(reading, seen, expected, label)
            elif reading.options["store"] == "memory":
                assert seen == expected, f"{label}: each once, and all of them"
            elif reading.options["taken by"] == "handler":
                assert seen == expected, f"{label}: a handler goes on where it was"
            else:
                _begins_again(reading, seen, expected, label)


def _once_by_publisher(reading: Reading, seen: Sequence[Seen], expected: Sequence[Seen], label: str) -> None:
    """Who asked for what is not on disk yet may have seen it in another order than the log came to have: a
    server lost it, and its publisher sent it again. Transactions are never shown before they are durable."""
    if reading.options["store"] == "none" and reading.options["taken by"] == "stream":
        return  # each stream begins at the beginning
    assert Counter(seen) == Counter(expected), f"{label}: each once, and all of them"
    last: dict[str, int] = {}
    for one in reading.seen:
        publisher, sequence, _ = one.bookmark.split("|")
        assert int(sequence) > last.get(publisher, -1), f"{label}: {publisher} is not in its order"
        last[publisher] = int(sequence)


def _passes(reading: Reading, message: Logged) -> bool:
    if message.topic != reading.topic and (reading.topic != PATTERN or message.topic not in TOPICS):
        return False
    return reading.options["filter"] == "none" or bool(msgspec.json.decode(message.body)["even"])


def _in_order(seen: Sequence[Seen], expected: Sequence[Seen], label: str) -> None:
    """Live messages: what came is a part of the log, in its order, each once."""
    at = {one: number for number, one in enumerate(expected)}
    places = [at[one] for one in seen]
    assert places == sorted(set(places)), f"{label}: not in the order of the log, or twice"


def _begins_again(reading: Reading, seen: Sequence[Seen], expected: Sequence[Seen], label: str) -> None:
    """Without a store each stream begins at the beginning."""
    starts = [int(mark.split()[1]) for mark in reading.marks if mark.startswith("from ")]
    for start, end in zip(starts, [*starts[1:], len(seen)], strict=True):
        assert list(seen[start:end]) == list(expected[: end - start]), f"{label}: a stream is the log"


def work(workers: Sequence[Worker], jobs: Sequence[Logged]) -> None:
    """Every job was taken, and none again after the server had its acknowledgement."""
    times: dict[bytes, int] = defaultdict(int)
    for worker in workers:
        for body in worker.settled:
            times[body] += 1
    for job in jobs:
        assert times[job.body], f"nobody has settled {job.body[:60]!r}"
