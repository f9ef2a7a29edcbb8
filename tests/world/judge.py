"""Guarantees of a simulation, checked against plain lists of sent, acknowledged and received messages.

Must never share code with the product beyond reading a log and names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from tests.world.apps import RETRIES, TOPICS, UNRECORDED, App, Labels, Seen
from tests.world.publisher import Publisher
from tests.world.reader import Reader
from tests.world.reading import PATTERN, RATE, Reading
from tests.world.worker import Worker

RATE_SECONDS: Final = 0.06
"""Seconds by which a rate-limited replay may lag behind its rate, and catch up."""


def calls(apps: Iterable[App], wrong: Sequence[str], *expected: type[BaseException]) -> None:
    """Check that no application saw a violation or an unexpected error. `expected`: allowed ones."""
    assert not wrong, wrong[:3]
    for app in apps:
        unexpected = [error for error in app.told if not isinstance(error, (*RETRIES, *expected))]
        assert not unexpected, f"{app.name} received {unexpected[:3]!r}"


class Logged(NamedTuple):
    """A message of the log, in its order."""

    topic: str
    body: bytes
    labels: Labels


def all_there(publishers: Iterable[Publisher], logs: Sequence[Sequence[Logged]]) -> None:
    """Check that all published messages, and all reported as persisted, are in one of the logs."""
    there = {logged.body: logged for log in logs for logged in log}
    for publisher in publishers:
        for number, kept in enumerate(publisher.sent):
            if number not in publisher.perhaps:
                promised = "and was promised" if number < publisher.promised else "and was taken"
                assert kept.body in there, f"{publisher.name}: {kept.body[:40]!r} is lost, {promised}"
            if kept.body in there:
                assert there[kept.body] == tuple(kept), f"{publisher.name}: not the published message"
        for number in publisher.committed:
            for kept in publisher.transactions[number]:
                assert kept.body in there, f"{publisher.name}: committed transaction {number} is lost"
                assert there[kept.body] == tuple(kept), f"{publisher.name}: not the committed message"


def each_once(publishers: Iterable[Publisher], log: Sequence[Logged]) -> None:
    """Check that messages of a log are there once, whole and in the order of their publisher."""
    times = Counter(logged.body for logged in log)
    assert all(count == 1 for count in times.values()), "a message is in the log twice"
    place = {logged.body: at for at, logged in enumerate(log)}
    for publisher in publishers:
        places = [place[kept.body] for kept in publisher.sent if kept.body in place]
        assert places == sorted(places), f"{publisher.name}: not in the order of its sequences"
        _transactions(publisher, place)
        assert not publisher.dropped & place.keys(), f"{publisher.name}: a dropped message is in the log"
        assert not publisher.refused & place.keys(), f"{publisher.name}: a refused message is in the log"
        silent = publisher.refused - publisher.rejected - publisher.untold
        assert not silent, f"{publisher.name} received no refusal of {list(silent)[:2]}"
    known = {kept.body for p in publishers for kept in p.sent}
    known |= {kept.body for p in publishers for plan in p.transactions for kept in plan}
    assert set(place) <= known, "a message that was never published"


def _transactions(publisher: Publisher, place: dict[bytes, int]) -> None:
    """Check that each transaction is stored whole and in a row, or not at all."""
    for number, plan in enumerate(publisher.transactions):
        found = [place[kept.body] for kept in plan if kept.body in place]
        assert len(found) in (0, len(plan)), f"{publisher.name}: a part of transaction {number}"
        assert not found or found == list(range(found[0], found[0] + len(found))), "another message is within"


def possibly_lost(publishers: Iterable[Publisher], logs: Sequence[Sequence[Logged]]) -> frozenset[bytes]:
    """Return bodies that may have been delivered before they were durable, and then lost.

    Their publisher ended with the server, or moved the messages to another server.
    """
    gone: set[bytes] = set()
    for publisher in publishers:
        for number, kept in enumerate(publisher.sent):
            if len(logs) > 1 or number in publisher.perhaps:
                gone.add(kept.body)
    return frozenset(gone)


def readings(
    readers: Iterable[Reader], log: Sequence[Logged], gone: frozenset[bytes], publishers: Sequence[Publisher]
) -> None:
    """Check that every reader saw the covered messages, in order, and no others.

    Readers that accept non-durable messages may also have seen messages of `gone`, which the log lacks.
    """
    there = {logged.body for logged in log}
    for reader in readers:
        for reading in reader.readings:
            label = f"{reader.name} {reading.options} streams {reading.streams} lives {reading.lives}"
            assert not reading.wrong, f"{label}: something else than it asked for: {reading.wrong[:3]}"
            if reading.topic == UNRECORDED:
                _of_nowhere(reading, publishers, label)
                continue
            if reading.options["delivery"] == "live":
                _exclude(reading, gone - there)
            part = _part(reading, log)
            expected = [Seen(m.topic, m.body, "", m.labels) for m in part if _passes(reading, m)]
            if reading.conflated:
                _newest(reading, expected, label)
                if reading.past:
                    _newest_of_the_past(reading, part, log, label)
                continue
            if reading.plain:
                _in_order([one._replace(bookmark="") for one in reading.seen], expected, label)
                continue
            if reading.options["discards"] == "late":
                seen = {one._replace(bookmark="") for one in reading.seen}
                assert seen == set(expected), f"{label}: all of them, and nothing else"
                continue
            if reading.past:
                _replayed(reading, log, label)
            starts = [0, *reading.lives]
            for start, end in zip(starts, [*starts[1:], None], strict=True):
                _life(reading, start, end, expected, label)


def has_all(reading: Reading, log: Sequence[Logged]) -> bool:
    """Return whether a reading has all messages for its last process, or its last stream."""
    if reading.plain or reading.past:
        return True
    if reading.conflated:
        return _lacks(reading, [m for m in log if _passes(reading, m)]) == []
    start = reading.lives[-1] if reading.lives else 0
    if reading.options["taken by"] == "stream" and reading.options["store"] == "none":
        start = max(reading.streams)
    seen = {one.body for one in reading.seen[start:]}
    return all(message.body in seen for message in log if _passes(reading, message))


def _exclude(reading: Reading, gone: frozenset[bytes]) -> None:
    before = reading.seen[:]
    reading.seen[:] = [one for one in before if one.body not in gone]
    for number, start in enumerate(reading.lives):
        reading.lives[number] = sum(one.body not in gone for one in before[:start])


def _life(reading: Reading, start: int, end: int | None, expected: Sequence[Seen], label: str) -> None:
    """Check the messages of a process that started from the beginning. A killed one (`end`) may lack some."""
    with_bookmarks = reading.seen[start:end]
    seen = [one._replace(bookmark="") for one in with_bookmarks]
    options = reading.options
    if not reading.past and options["taken by"] == "stream" and options["store"] == "none":
        _check_streams(reading, start, end, expected, label)
    elif options["delivery"] == "live":
        if end is None:
            assert Counter(seen) == Counter(expected), f"{label}: each once, and all of them"
        else:
            assert Counter(seen) <= Counter(expected), f"{label}: each once"
        _by_publisher(with_bookmarks, label)
    elif end is None and not reading.past:
        assert seen == expected, f"{label}: each once, and all of them"
    else:
        assert seen == expected[: len(seen)], f"{label}: it is the log"


def _by_publisher(seen: Sequence[Seen], label: str) -> None:
    """Check the order per publisher for a reader of non-durable messages.

    It may differ from the log: a server lost them, and the publisher resent them. Transactions are never
    shown before they are durable.
    """
    last: dict[str, int] = {}
    for one in seen:
        publisher, sequence, _ = one.bookmark.split("|")
        assert int(sequence) > last.get(publisher, -1), f"{label}: {publisher} is not in its order"
        last[publisher] = int(sequence)


def _passes(reading: Reading, message: Logged) -> bool:
    if message.topic != reading.topic and (reading.topic != PATTERN or message.topic not in TOPICS):
        return False
    return _wants(reading, message.body)


def _wants(reading: Reading, body: bytes) -> bool:
    return reading.options["filter"] == "none" or bool(msgspec.json.decode(body)["even"])


def _in_order(seen: Sequence[Seen], expected: Sequence[Seen], label: str) -> None:
    """Check that live messages are a part of the log, in its order, each once."""
    at = {one: number for number, one in enumerate(expected)}
    places = [at[one] for one in seen]
    assert places == sorted(set(places)), f"{label}: not in the order of the log, or twice"


def _check_streams(
    reading: Reading, begin: int, end: int | None, expected: Sequence[Seen], label: str
) -> None:
    """Check streams without a store: each starts from the beginning, and the last one has everything."""
    until = len(reading.seen) if end is None else end
    starts = [start for start in reading.streams if begin <= start <= until]
    for first, last in pairwise([*starts, until]):
        with_bookmarks = reading.seen[first:last]
        seen = [one._replace(bookmark="") for one in with_bookmarks]
        whole = end is None and last == until and first == starts[-1]
        if reading.options["delivery"] == "live":
            assert Counter(seen) <= Counter(expected), f"{label}: a stream has each once"
            assert not whole or len(seen) == len(expected), f"{label}: the last stream has all of them"
            _by_publisher(with_bookmarks, label)
        else:
            assert seen == list(expected[: last - first]), f"{label}: a stream is the log"
            assert not whole or len(seen) == len(expected), f"{label}: the last stream is all of it"


def _part(reading: Reading, log: Sequence[Logged]) -> Sequence[Logged]:
    """Return the part of the log that a reading covers."""
    if reading.behind is None:
        return log
    bodies = [message.body for message in log]
    start = bodies.index(reading.behind)
    if reading.until is None:
        return log[start + 1 :]
    return log[start : bodies.index(reading.until) + 1]


def _key(one: Logged | Seen) -> tuple[str, str]:
    """Return the conflation key of a message: each topic is conflated by itself."""
    return one.topic, msgspec.json.decode(one.body)["by"]


def _lacks(reading: Reading, expected: Iterable[Logged | Seen]) -> list[bytes]:
    """Return the newest messages of their keys that a conflated reading lacks."""
    seen = {one.body for one in reading.seen}
    return [body for body in _newest_of(expected).values() if body not in seen]


def _newest_of(messages: Iterable[Logged | Seen]) -> dict[tuple[str, str], bytes]:
    """Return the newest body of each key."""
    return {_key(one): one.body for one in messages}


def _newest(reading: Reading, expected: Sequence[Seen], label: str) -> None:
    """Check conflated messages: they are in the log, in order per key, and end with the newest of each key.

    After an interruption an interval may repeat.
    """
    place = {one.body: at for at, one in enumerate(expected)}
    for one in reading.seen:
        at = place.get(one.body)
        assert at is not None, f"{label}: {one.body[:60]!r} is not there"
        assert expected[at].labels == one.labels, f"{label}: {one.body[:60]!r} with {one.labels}"
    if reading.options["taken by"] == "stream":
        for first, last in pairwise([0, *reading.streams, len(reading.seen)]):
            latest: dict[tuple[str, str], int] = {}
            for one in reading.seen[first:last]:
                key, at = _key(one), place[one.body]
                assert at > latest.get(key, -1), f"{label}: {one.body[:60]!r} behind a newer one of its key"
                latest[key] = at
    if not reading.plain and not reading.past:
        assert not _lacks(reading, expected), f"{label}: the newest of each key"


def _newest_of_the_past(reading: Reading, part: Sequence[Logged], log: Sequence[Logged], label: str) -> None:
    """Check that a conflated replay has the newest message of each key at its request, or a newer one."""
    if not reading.whole:
        return
    known = {message.body for message in _asked_for(reading, log)}
    there = [message for message in part if message.body in known]
    place = {message.body: at for at, message in enumerate(log)}
    latest: dict[tuple[str, str], int] = {}
    for one in reading.seen:
        latest[_key(one)] = max(place[one.body], latest.get(_key(one), -1))
    for key, body in _newest_of(message for message in there if _passes(reading, message)).items():
        assert latest.get(key, -1) >= place[body], f"{label}: {body[:60]!r} is the newest of its key"


def _asked_for(reading: Reading, log: Sequence[Logged]) -> Sequence[Logged]:
    """Return the log at the time of the last request."""
    assert reading.asked is not None
    return log[: reading.asked.length]


def _of_nowhere(reading: Reading, publishers: Sequence[Publisher], label: str) -> None:
    """Check messages of a non-persistent topic: each arrives at most once, in the order of its publisher."""
    for publisher in publishers:
        sent = [kept.body for kept in publisher.nowhere]
        known = {kept.body: kept for kept in publisher.nowhere}
        seen = [one for one in reading.seen if one.body in known]
        for one in seen:
            assert (one.topic, one.labels) == known[one.body][::2], f"{label}: not the published message"
            assert not one.bookmark, f"{label}: {one.bookmark} is in no log"
            assert _wants(reading, one.body), f"{label}: {one.body[:60]!r} does not pass its filter"
        places = [sent.index(one.body) for one in seen]
        assert places == sorted(set(places)), f"{label}: not in the order of {publisher.name}, or twice"
    all_sent = {kept.body for publisher in publishers for kept in publisher.nowhere}
    assert {one.body for one in reading.seen} <= all_sent, f"{label}: a message that was never published"


def _replayed(reading: Reading, log: Sequence[Logged], label: str) -> None:
    """Check that a replay has the log at the time of its request, and keeps to its rate."""
    assert reading.asked is not None
    if not reading.whole:
        return
    known = {message.body for message in _asked_for(reading, log)}
    least = sum(_passes(reading, message) and message.body in known for message in _part(reading, log))
    assert len(reading.seen) >= least, f"{label}: {len(reading.seen)} of {least} that were there"
    if reading.options["pace"] == "rate" and reading.moments:
        taken = reading.moments[-1] - reading.asked.at
        assert taken >= (len(reading.seen) - 1) / RATE - RATE_SECONDS, f"{label}: in {taken} s"


def plainly(reader: Reader, late: Sequence[Logged], nowhere: Sequence[bytes]) -> bool:
    """Return whether plain subscriptions saw the messages published while they certainly existed.

    These are messages in the log, and, by one publisher, `nowhere`.
    """
    for reading in reader.plain:
        if reading.final is None:
            return False
        seen = [one.body for one in reading.seen[reading.final :]]
        if reading.topic == UNRECORDED:
            wanted = [body for body in nowhere if _wants(reading, body)]
            wanted = wanted[-1:] if reading.conflated else wanted
            if not all(body in seen for body in wanted):
                return False
        elif reading.conflated:
            newest = _newest_of(message for message in late if _passes(reading, message))
            if not all(body in seen for body in newest.values()):
                return False
        elif not all(message.body in seen for message in late if _passes(reading, message)):
            return False
    return True


def work(workers: Sequence[Worker], jobs: Sequence[Logged]) -> None:
    """Check that every job was settled by a worker that had it."""
    settled = {body for worker in workers for body in (*worker.settled, *worker.perhaps)}
    for job in jobs:
        assert job.body in settled, f"no worker has settled {job.body[:60]!r}"
