"""Instances of one SOW topic with logs of their own, and publishers that fail over between them.

Publishers resend unacknowledged messages, also over older connections. Clocks are skewed. Links pass rows in
the order of a log, and can cut a run. A delete names keys or a filter. Each instance expires messages alone,
and forgets candidates below its stable position. After each commit its records are compared with the oracle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Final, NamedTuple

from tests.helpers import sow_model
from tests.helpers.sow_model import Deleted, Expired, Message, Published, keys_of
from tickertape.engine.sow.state.candidates import (
    Candidate,
    Candidates,
    Decision,
    DecisionKind,
    Rank,
    StateRow,
)

KEYS: Final = (b"a", b"b")
PUBLISHERS: Final = 3
STEPS: Final = 50
SKEW_MAX: Final = 100
LIFE: Final = 40
"""Age at which messages with an odd sequence expire."""
AFTER_ALL_LIVES: Final = 1000


class Request(NamedTuple):
    """A message of a publisher before an origin stores it."""

    publisher: int
    sequence: int
    kind: str
    """`publish`, `keys` or `filter`."""
    keys: tuple[bytes, ...]


class Records:
    """Records of one instance: a dict in place of the record columns, and the candidates."""

    def __init__(self) -> None:
        self.current: dict[bytes, Candidate[Published]] = {}
        self.candidates = Candidates[Published]()
        self.stream: dict[bytes, Published] = {}
        """The records of a subscription that gets rows which became a record, and restated rows."""

    def enter(self, key: bytes, message: Message, position: int) -> Decision[Published]:
        """Enter one key of a row."""
        current = self.current.get(key)
        if isinstance(message, Expired):
            decision = self.candidates.expire(key, message.publisher, message.sequence, current)
        else:
            row = StateRow(position, message.publisher, message.sequence, message.stamp, message.log)
            if isinstance(message, Published):
                decision = self.candidates.publish(key, row, message, current)
                if decision.kind is DecisionKind.RECORD:
                    self.stream[key] = message
            else:
                named = message.named[key]
                rank = Rank(*named) if named is not None else None
                decision = self.candidates.delete(key, row, rank, current)
        if decision.kind is DecisionKind.REMOVED:
            del self.current[key], self.stream[key]
        elif decision.kind is not DecisionKind.NONE:
            assert decision.record is not None
            self.current[key] = decision.record
            if decision.kind is DecisionKind.RESTATED:
                assert decision.record.content is not None
                self.stream[key] = decision.record.content
        return decision

    def candidate(self, key: bytes, publisher: int) -> Candidate[Published] | None:
        return self.candidates.candidate(key, publisher, self.current.get(key))

    def state(self) -> sow_model.State:
        """Return the records as messages. Raises `AssertionError` if the stream has others."""
        records = {key: found.content for key, found in self.current.items() if found.content is not None}
        assert len(records) == len(self.current), "a record without a message"
        assert self.stream == records, "snapshot and stream differ"
        return records


class Instance:
    """One instance: its log, its clock, and the positions up to which it has the logs of others."""

    def __init__(self, number: int, skew: int, counts: Counter[str]) -> None:
        self.log_id = b"%016d" % number
        self.skew = skew
        self.counts = counts
        self.log: list[Message] = []
        self.first: dict[tuple[int, int], int] = {}
        """Position of the first row of each message."""
        self.highest: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()
        """Position up to which the log of each other instance was read."""
        self.stamp = 0
        self.records = Records()
        self.received: dict[bytes, list[Message]] = {key: [] for key in KEYS}
        """Messages and copies by key, also those that are not in the log."""
        self.touched: set[bytes] = set()
        self.stable = 0
        self.stable_sequences: Counter[tuple[bytes, int]] = Counter()
        """Highest sequence of each publisher on each key in stable rows."""
        self.expiry: Expired | None = None

    # -- rows of clients ------------------------------------------------------------------------------

    def accept(self, requests: Iterable[Request], now: int) -> None:
        """Store the requests of a connection as one run. Duplicates are cut first."""
        self.stamp = max(now + self.skew, self.stamp + 1)
        for request in requests:
            if (request.publisher, request.sequence) not in self.first:
                self._accept(request)

    def _accept(self, request: Request) -> None:
        publisher, sequence, kind, keys = request
        late = sequence < self.highest[publisher]
        if kind == "publish":
            body = {"n": float(publisher + sequence)}
            message: Message = Published(keys[0], publisher, sequence, self.stamp, self.log_id, body)
        else:
            if kind == "filter":
                found = self.records.state()
                keys = tuple(key for key in found if (found[key].sequence + sequence) % 2)
            current = self.records.current
            named = {key: self.records.candidates.highest(key, current.get(key)) for key in keys}
            message = Deleted(publisher, sequence, self.stamp, self.log_id, named)
            self.counts["deletes without candidates"] += None in named.values()
        self._store(message)
        if late:
            return
        for key in keys_of(message):
            record = self.records.current.get(key)
            if isinstance(message, Published):
                assert record is not None, "a publish left no record"
                assert record.content == message, "a publish is not the record"
            else:
                assert record is None, f"a delete of {key!r} left a record"

    def expire(self, now: int) -> bool:
        """Store the chosen expiry, or choose a message that is due. Other rows may be stored in between.

        Return False if no message is due.
        """
        if self.expiry is not None:
            self.counts["expiries after the record changed"] += not self._is_record(self.expiry)
            self._store(self.expiry)
            self.expiry = None
            return True
        for key, record in self.records.current.items():
            if record.sequence % 2 and record.rank.stamp + LIFE <= now + self.skew:
                self.expiry = Expired(key, record.publisher, record.sequence)
                return True
        return False

    def _is_record(self, expiry: Expired) -> bool:
        record = self.records.current.get(expiry.key)
        return record is not None and (record.publisher, record.sequence) == expiry[1:]

    # -- rows of links --------------------------------------------------------------------------------

    def take(self, source: Instance, number: int, rows: int) -> None:
        """Take rows of the log of another instance."""
        for message in source.log[self.taken[number] : self.taken[number] + rows]:
            self.taken[number] += 1
            if isinstance(message, Expired):
                continue
            self.stamp = max(self.stamp, message.stamp)
            if (message.publisher, message.sequence) in self.first:
                self._take_copy(message)
            else:
                self._store(message)

    def _take_copy(self, message: Published | Deleted) -> None:
        """Store a duplicate if it is a copy that counts for one of its keys."""
        keys = []
        for key in keys_of(message):
            self.received[key].append(message)
            self.touched.add(key)
            if self._counts(key, message):
                keys.append(key)
        if keys:
            self.counts["copies"] += 1
            position = len(self.log)
            self.log.append(message)
            for key in keys:
                self._enter(key, message, position)

    def _counts(self, key: bytes, message: Published | Deleted) -> bool:
        if message.sequence <= self.stable_sequences[key, message.publisher]:
            return False
        names = isinstance(message, Published) or message.named[key] is not None
        found = self.records.candidate(key, message.publisher)
        if found is not None and found.sequence == message.sequence:
            return names and (message.stamp, message.log) < found.stored
        older = found is None or found.sequence < message.sequence
        return names and older and isinstance(message, Deleted)

    # -- commits --------------------------------------------------------------------------------------

    def _store(self, message: Message) -> None:
        position = len(self.log)
        self.log.append(message)
        if not isinstance(message, Expired):
            self.counts["late rows"] += message.sequence < self.highest[message.publisher]
            self.first[message.publisher, message.sequence] = position
            self.highest[message.publisher] = max(self.highest[message.publisher], message.sequence)
        for key in keys_of(message):
            self.received[key].append(message)
            self._enter(key, message, position)

    def _enter(self, key: bytes, message: Message, position: int) -> None:
        self.touched.add(key)
        decision = self.records.enter(key, message, position)
        self.counts[f"{type(message).__name__}: {decision.kind.value}"] += 1

    def check(self) -> None:
        """Compare the records of the touched keys with the oracle."""
        found = self.records.state()
        for key in self.touched:
            assert found.get(key) == sow_model.record(key, self.received[key]), f"record of {key!r}"
        self.touched.clear()

    def forget(self, instances: list[Instance]) -> None:
        """Forget candidates below the stable position.

        A row is stable if each instance has it, and all rows that each had before it arrived here.
        """
        while self.stable < len(self.log) and self._is_stable(self.log[self.stable], instances):
            message = self.log[self.stable]
            for key in keys_of(message) if not isinstance(message, Expired) else ():
                of_key = key, message.publisher
                self.stable_sequences[of_key] = max(self.stable_sequences[of_key], message.sequence)
            self.stable += 1
        before = len(self.records.candidates)
        self.records.candidates.forget(self.stable)
        self.counts["forgotten keys"] += before - len(self.records.candidates)

    def _is_stable(self, message: Message, instances: list[Instance]) -> bool:
        if isinstance(message, Expired):
            return True
        bookmark = message.publisher, message.sequence
        return all(
            bookmark in other.first and self.taken[number] > other.first[bookmark]
            for number, other in enumerate(instances)
            if other is not self
        )


class SowPublisher:
    """A publisher: messages without an acknowledgement, and the instance that it is connected to."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sequence = 0
        self.sent: list[Request] = []
        self.at: int | None = None
        self.older: list[tuple[int, list[Request]]] = []
        """Bytes of older connections that have not arrived yet."""


class OrderWorld:
    """A schedule of requests, connections, links, expiries and commits."""

    def __init__(self, seed: int, instances: int, counts: Counter[str]) -> None:
        self.random = Random(seed)
        skews = [self.random.randint(-SKEW_MAX, SKEW_MAX) for _ in range(instances)]
        self.instances = [Instance(number, skew, counts) for number, skew in enumerate(skews)]
        self.publishers = [SowPublisher(number + 1) for number in range(PUBLISHERS)]
        self.now = 1000

    def run(self) -> None:
        """Run a schedule, deliver everything, and compare all instances with each other."""
        for _ in range(STEPS):
            self.now += self.random.choice((0, 0, 1, 3, 10))
            self._step()
        for publisher in self.publishers:
            self._arrive(publisher.at or 0, publisher.sent)
        self._pass_everything()
        for instance in self.instances:
            self._expire_everything(instance)
            instance.forget(self.instances)
            assert not len(instance.records.candidates), "candidates stay after all rows are stable"
            assert instance.records.state() == self.instances[0].records.state(), "instances differ"
            self._check_all(instance)

    def _step(self) -> None:
        chance = self.random.random()
        publisher = self.random.choice(self.publishers)
        if chance < 0.28:
            self._request(publisher)
        elif chance < 0.52:
            if publisher.sent and publisher.at is not None:
                self._arrive(publisher.at, publisher.sent[: self.random.randint(1, 3)])
                self._acknowledge(publisher)
        elif chance < 0.68:
            if publisher.at is not None and publisher.sent:
                publisher.older.append((publisher.at, list(publisher.sent)))
            publisher.at = self._any()
        elif chance < 0.74:
            if publisher.older:
                self._arrive(*publisher.older.pop(0))
        elif chance < 0.82:
            instance = self.instances[self._any()]
            instance.expire(self.now)
            self._commit(instance)
        elif len(self.instances) > 1:
            source, destination = self.random.sample(range(len(self.instances)), 2)
            self._link(source, destination, self.random.randint(1, 5))

    def _any(self) -> int:
        return self.random.randrange(len(self.instances))

    def _request(self, publisher: SowPublisher) -> None:
        publisher.sequence += 1
        kind = self.random.choice(("publish", "publish", "publish", "publish", "keys", "filter"))
        keys = self.random.sample(KEYS, self.random.choice((1, 1, 2)) if kind == "keys" else 1)
        publisher.sent.append(Request(publisher.number, publisher.sequence, kind, tuple(keys)))
        if publisher.at is None:
            publisher.at = self._any()

    def _arrive(self, at: int, requests: list[Request]) -> None:
        self.instances[at].accept(requests, self.now)
        self._commit(self.instances[at])

    def _acknowledge(self, publisher: SowPublisher) -> None:
        if publisher.at is not None and self.random.random() < 0.6:
            stored = self.instances[publisher.at].first
            publisher.sent = [r for r in publisher.sent if (r.publisher, r.sequence) not in stored]

    def _link(self, source: int, destination: int, rows: int) -> None:
        self.instances[destination].take(self.instances[source], source, rows)
        self._commit(self.instances[destination])

    def _commit(self, instance: Instance) -> None:
        instance.check()
        instance.forget(self.instances)
        if len(self.instances) == 1:
            assert not len(instance.records.candidates), "candidates stay on one instance"

    def _pass_everything(self) -> None:
        numbers = range(len(self.instances))
        while any(
            self.instances[destination].taken[source] < len(self.instances[source].log)
            for source in numbers
            for destination in numbers
            if source != destination
        ):
            for source in numbers:
                for destination in numbers:
                    if source != destination:
                        self._link(source, destination, len(self.instances[source].log))

    def _expire_everything(self, instance: Instance) -> None:
        while instance.expire(self.now + AFTER_ALL_LIVES):
            self._commit(instance)

    def _check_all(self, instance: Instance) -> None:
        """Compare all records with the oracle over the log, and on one instance with the order of the log."""
        messages = instance.log
        assert instance.records.state() == sow_model.state(messages)
        if len(self.instances) == 1:
            assert instance.records.state() == in_log_order(messages)


def in_log_order(messages: Iterable[Message]) -> sow_model.State:
    """Return the state if each row changes the state of the rows before."""
    records: sow_model.State = {}
    for message in messages:
        for key in keys_of(message):
            if isinstance(message, Published):
                records[key] = message
            elif isinstance(message, Deleted) or (
                key in records and records[key][1:3] == (message.publisher, message.sequence)
            ):
                records.pop(key, None)
    return records
