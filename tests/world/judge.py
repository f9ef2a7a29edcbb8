"""Owns what must hold in a world: held against plain lists of what was sent, promised and seen.

Must never share code with the product beyond reading a log and the names of things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tests.world.apps import TOPICS, Seen
from tests.world.publisher import Publisher
from tests.world.reader import PATTERN, Reader, Reading
from tests.world.worker import Worker


class Logged(NamedTuple):
    """A message of the log, in its order."""

    topic: str
    body: bytes


def all_there(publishers: Iterable[Publisher], logs: Sequence[Sequence[Logged]]) -> None:
    """All that was published, and all that was said to be persisted, is in one of the logs."""
    there = {logged.body: logged.topic for log in logs for logged in log}
    for publisher in publishers:
        for number, kept in enumerate(publisher.sent):
            if number not in publisher.perhaps:
                promised = "and was promised" if number < publisher.promised else "and was taken"
                assert kept.body in there, f"{publisher.name}: {kept.body[:40]!r} is lost, {promised}"
            assert there.get(kept.body, kept.topic) == kept.topic
        for number in publisher.committed:
            for kept in publisher.transactions[number]:
                assert kept.body in there, f"{publisher.name}: committed transaction {number} is lost"


def each_once(publishers: Iterable[Publisher], log: Sequence[Logged]) -> None:
    """What is in a log is there once, whole and in the order of its publisher."""
    times = Counter(logged.body for logged in log)
    assert all(count == 1 for count in times.values()), "a message is in the log twice"
    place = {logged.body: at for at, logged in enumerate(log)}
    for publisher in publishers:
        places = [place[kept.body] for kept in publisher.sent if kept.body in place]
        assert places == sorted(places), f"{publisher.name}: not in the order of its sequences"
        _transactions(publisher, place)
    known = {kept.body for p in publishers for kept in p.sent}
    known |= {kept.body for p in publishers for plan in p.transactions for kept in plan}
    assert set(place) <= known, "a message that nobody published"


def _transactions(publisher: Publisher, place: dict[bytes, int]) -> None:
    """Each is there as a whole and in a row, or not at all."""
    for number, plan in enumerate(publisher.transactions):
        found = [place[kept.body] for kept in plan if kept.body in place]
        assert len(found) in (0, len(plan)), f"{publisher.name}: a part of transaction {number}"
        assert not found or found == list(range(found[0], found[0] + len(found))), "something stands within"


def may_be_gone(publishers: Iterable[Publisher], logs: Sequence[Sequence[Logged]]) -> frozenset[bytes]:
    """What may have been shown before it was durable, and then lost: its publisher died with it, or took it
    to another server."""
    gone: set[bytes] = set()
    for publisher in publishers:
        for number, kept in enumerate(publisher.sent):
            if len(logs) > 1 or number in publisher.perhaps:
                gone.add(kept.body)
    return frozenset(gone)


def readings(readers: Iterable[Reader], log: Sequence[Logged], gone: frozenset[bytes]) -> None:
    """Everybody saw what there is to see, in order, and nothing else. Of `gone` those who asked for what is
    not durable may have seen what is not in the log."""
    there = {logged.body for logged in log}
    for reader in readers:
        for reading in reader.readings:
            if reading.options["delivery"] == "live":
                _strike_out(reading, gone - there)
            expected = [Seen(m.topic, m.body, "") for m in log if _passes(reading, m)]
            label = f"{reader.name} {reading.options} {reading.marks} {reading.lives}"
            assert not reading.wrong, f"{label}: other fields than it asked for: {reading.wrong[:3]}"
            if reading.options["command"] == "subscribe":
                _in_order([one._replace(bookmark="") for one in reading.seen], expected, label)
                continue
            starts = [0, *reading.lives]
            for start, end in zip(starts, [*starts[1:], None], strict=True):
                _life(reading, start, end, expected, label)


def has_all(reading: Reading, log: Sequence[Logged]) -> bool:
    """Whether it has seen everything that its last process, or its last stream, has to see."""
    if reading.options["command"] in ("subscribe", "replay"):
        return True
    start = reading.lives[-1] if reading.lives else 0
    if reading.options["taken by"] == "stream" and reading.options["store"] == "none":
        start = max(int(mark.split()[1]) for mark in reading.marks if mark.startswith("from "))
    seen = {one.body for one in reading.seen[start:]}
    return all(message.body in seen for message in log if _passes(reading, message))


def _strike_out(reading: Reading, gone: frozenset[bytes]) -> None:
    before = reading.seen[:]
    reading.seen[:] = [one for one in before if one.body not in gone]
    for number, start in enumerate(reading.lives):
        reading.lives[number] = sum(one.body not in gone for one in before[:start])


def _life(reading: Reading, start: int, end: int | None, expected: Sequence[Seen], label: str) -> None:
    """What a process saw that began at the beginning; one that was killed (`end`) may not have seen all."""
    with_bookmarks = reading.seen[start:end]
    seen = [one._replace(bookmark="") for one in with_bookmarks]
    options = reading.options
    if options["command"] != "replay" and options["taken by"] == "stream" and options["store"] == "none":
        if options["delivery"] != "live":
            _begins_again(reading, start, len(reading.seen) if end is None else end, expected, label)
    elif options["delivery"] == "live":
        if end is None:
            assert Counter(seen) == Counter(expected), f"{label}: each once, and all of them"
        else:
            assert Counter(seen) <= Counter(expected), f"{label}: each once"
        _by_publisher(with_bookmarks, label)
    elif end is None and options["command"] != "replay":
        assert seen == expected, f"{label}: each once, and all of them"
    else:
        assert seen == expected[: len(seen)], f"{label}: it is the log"


def _by_publisher(seen: Sequence[Seen], label: str) -> None:
    """Who asked for what is not on disk yet may have seen it in another order than the log came to have: a
    server lost it, and its publisher sent it again. Transactions are never shown before they are durable."""
    last: dict[str, int] = {}
    for one in seen:
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


def _begins_again(reading: Reading, begin: int, until: int, expected: Sequence[Seen], label: str) -> None:
    """Without a store each stream begins at the beginning."""
    starts = [int(mark.split()[1]) for mark in reading.marks if mark.startswith("from ")]
    starts = [start for start in starts if begin <= start <= until]
    for start, end in pairwise([*starts, until]):
        seen = [one._replace(bookmark="") for one in reading.seen[start:end]]
        assert seen == list(expected[: end - start]), f"{label}: a stream is the log"


def work(workers: Sequence[Worker], jobs: Sequence[Logged]) -> None:
    """Every job was settled by somebody who took it."""
    settled = {body for worker in workers for body in (*worker.settled, *worker.perhaps)}
    for job in jobs:
        assert job.body in settled, f"nobody has settled {job.body[:60]!r}"
