"""Simulation of the destination of links: naive sources, publishers that fail over, and a strict disk.

Must never compute expectations with the filter of the log: sets of integers, and rows of the sources, decide.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import msgspec
import numpy as np

from tests.helpers.sequence_sets import SequenceSets
from tests.simulation.journal_world import drive, read_log
from tests.simulation.link_sources import LinkRow, NaiveLog, NaiveSource, body_of
from tickertape.base.interfaces import Now
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import RUN_LATE, BatchBuilder, MessageBatch
from tickertape.engine.replication.destination.link_destination import LinkDestination
from tickertape.engine.replication.destination.link_places import LinkPlaces
from tickertape.engine.replication.destination.run_intake import ReplicatedLog
from tickertape.engine.replication.destination.whole_topics import WholeTopics
from tickertape.engine.replication.origins import Origins
from tickertape.engine.replication.reports import Reports
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.holes import PublisherConnection
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC, load_publishers
from tickertape.journal.commit.jobs import DiskFull, DiskJobExecutor, JournalJob
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.replication_records import (
    AfterRecord,
    LogPlace,
    OriginRecord,
    ReplicationRecord,
)
from tickertape.journal.journal import AcceptedBatch, Journal
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk
from tickertape.wire.link import LinkAck, LinkCredit, LinkHoles, LinkNames, LinkOpen, LinkRuns, LinkSide
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import encode_pairs

OWN = bytes(range(16))
SOURCES = (bytes([100]) * 16, bytes([200]) * 16)
PUBLISHERS = (2**63 + 11, 12, 13)


class MapRecords:
    """Records of places as plain arrays."""

    record_bytes_max = 64

    def place_record(self, place: LogPlace) -> bytes:
        return msgspec.msgpack.encode(place)


class Publisher:
    """A publisher with a publish store."""

    def __init__(self, publisher: int) -> None:
        self.publisher = publisher
        self.next = 1
        self.left_out: set[int] = set()
        """Sequences that it never uses."""
        self.acknowledged = 0
        self.server = -1
        """Number of its server: 0 is the destination."""
        self.connection = PublisherConnection()
        self.unpersisted: deque[tuple[int, int]] = deque()
        """End of the log and last sequence of each frame that the destination has not persisted."""


class LinkEnd:
    """One connection of a link, with both ends."""

    def __init__(self, source: NaiveSource, destination: LinkDestination, window: int) -> None:
        self.source = source
        self.destination = destination
        self.window = window
        self.order = LinkOrder()
        """Order of commands as the destination sees it."""
        self.taken = 0
        """Frames that arrived at the destination, without answers."""
        self.cost = 0
        """Cost of these frames."""
        self.returned = 0
        self.waiting: dict[int, int] = {}
        """Requested rows whose answers did not arrive, and their frames."""


class LinkWorld:
    """A destination on a strict disk with one or two sources."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.rng = Random(seed)
        self.counts = counts
        self.disk = StrictDisk(self.rng, counts=counts)
        self._mono, self._wall = 100.0, 1_760_000_000_000_000
        self.logs = [NaiveLog(log, f"s{log[0]}", self.rng) for log in SOURCES[: self.rng.choice((1, 2, 2))]]
        self.publishers = [Publisher(publisher) for publisher in PUBLISHERS]
        self.rows: list[LinkRow] = []
        """Messages and openings of the log in log order, with positions in `at`."""
        self.at: list[int] = []
        self.links: dict[int, LinkEnd] = {}
        self.copy: tuple[StrictDisk, int] | None = None
        self.acknowledged = dict.fromkeys(SOURCES, LogPlace(OWN, 0, 0))
        """Highest acknowledged place of each source."""
        for _ in range(self.rng.choice((0, 30))):
            self.publish(elsewhere=True)
        if len(self.logs) == 2 and self.logs[0].rows and self.rng.random() < 0.5:
            self.logs[1].take(SOURCES[0], self.logs[0].rows, 1_000)
            self.logs[0].remove(self.rng.randrange(len(self.logs[0].rows)))
        self.open()

    def _now(self) -> Now:
        self._mono += self.rng.random() * 0.001
        self._wall += self.rng.randrange(0, 1_500)
        return Now(self._mono, self._wall)

    # -- the destination ----------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the destination on the contents of the disk."""
        self.links = {}
        identity = open_identity(self.disk, owner="engine", create=True, new_id=OWN)
        recovered = recover_journal(self.disk, identity.journal_id)
        self.journal = Journal(recovered, self._now(), segment_bytes=16_384)
        self._executor = DiskJobExecutor(self.disk, lambda: self.rng.getrandbits(64))
        self.jobs: deque[JournalJob] = deque()
        while self.jobs or self.journal.commits.queued or not self.journal.commits.ready:
            self._disk_job()
        registry = drive(self.disk, load_publishers(self.journal))
        assert registry.damage == []
        self._clock = EngineClock()
        self._clock.set(self._now())
        self.writer = LogWriter(self.journal, registry, self._clock, replicating=True)
        assert self.writer.exact is not None
        self.exact = self.writer.exact
        records = [body for key, body in registry.latest.items() if key.startswith("origin ")]
        origins = Origins(msgspec.msgpack.decode(body, type=OriginRecord) for body in records)
        self.places = LinkPlaces(self.exact, MapRecords(), self._places_on_disk())
        self.log = ReplicatedLog(
            OWN,
            "local",
            self.writer,
            self.exact,
            registry,
            origins,
            Reports(OWN),
            self.places,
            WholeTopics(origins),
        )
        end = self.journal.commits.accepted_end
        kept = sum(at < end for at in self.at)
        self.counts["rows lost"] += len(self.rows) - kept
        self.rows, self.at = self.rows[:kept], self.at[:kept]
        self.sets = SequenceSets()
        for row, at in zip(self.rows, self.at, strict=True):
            self._enter(row, at)
        for publisher in self.publishers:
            publisher.unpersisted.clear()
            if publisher.server == 0:
                publisher.server = -1
        for log in self.logs:
            log.cursors[OWN] = min(log.cursors.get(OWN, 0), len(self.rows))
        self._check_places()

    def _places_on_disk(self) -> list[LogPlace]:
        """Return the places in the log, in the order in which they moved last."""
        found: dict[tuple[bytes, int], LogPlace] = {}
        for _, batch in read_log(self.journal, self.disk):
            for index in range(batch.count):
                if batch.topic(index) == LINK_TOPIC:
                    place = msgspec.msgpack.decode(batch.body(index), type=LogPlace)
                    found.pop((place.log, place.start), None)
                    found[place.log, place.start] = place
        return [*found.values()]

    def _check_places(self) -> None:
        """A source never has to send acknowledged rows again."""
        for log in self.logs:
            place = self.acknowledged[log.log]
            if place.position:
                starts = log.log_starts
                known = [starts.resume(one, len(log.rows)) or 0 for one in self.places.persisted.of(log.log)]
                assert max(known, default=0) >= place.position
                self.counts["acknowledged places after a start"] += 1

    def _enter(self, row: LinkRow, position: int) -> None:
        if row.kind == "after":
            self.sets.open(row.publisher, row.sequence, position, proven=row.proven)
        else:
            self.sets.store(row.publisher, [row.sequence])

    def _disk_job(self) -> None:
        self.jobs += self.journal.commits.jobs()
        if self.jobs:
            job = self.jobs.popleft()
            salt, error = 0, None
            try:
                salt = self._executor.run(job)
            except DiskFull as full:
                error = full
            self.journal.commits.done(job, error, salt, self._now())
            self.journal.take_persisted()

    def idle(self) -> None:
        """The disk completes some jobs."""
        for _ in range(self.rng.choice((1, 3, 100))):
            self._disk_job()
            self._note_accepted(None)
            self._persisted()

    def _persisted(self) -> None:
        end = self.journal.commits.persisted_end
        self.places.log_persisted(end)
        for link in self.links.values():
            link.destination.log_persisted(end)
        for publisher in self.publishers:
            while publisher.unpersisted and publisher.unpersisted[0][0] <= end:
                publisher.acknowledged = max(publisher.acknowledged, publisher.unpersisted.popleft()[1])

    def crash(self) -> None:
        """Power fails, the process ends, or an old copy of the data directory is started."""
        kind = self.rng.choice(("power", "power", "kill", "copy"))
        if kind == "copy" and self.copy is not None:
            self.disk, rows = self.copy
            self.rows, self.at = self.rows[:rows], self.at[:rows]
            self.acknowledged = dict.fromkeys(SOURCES, LogPlace(OWN, 0, 0))
            self.copy = None
            self.counts["old copies"] += 1
        else:
            self.disk = self.disk.kill_clone(self.rng) if kind == "kill" else self.disk.crash_clone(self.rng)
        self.open()

    def keep_copy(self) -> None:
        """Copy the data directory."""
        end = self.journal.commits.persisted_end
        self.copy = self.disk.kill_clone(self.rng), sum(at < end for at in self.at)

    # -- publishers and sources -----------------------------------------------------------------------------

    def publish(self, *, elsewhere: bool = False) -> None:
        """A publisher sends messages to its server, or to another one."""
        publisher = self.rng.choice(self.publishers)
        old = publisher.server
        if old < 0 or self.rng.random() < 0.15 or (elsewhere and old == 0):
            publisher.server = self.rng.randint(1 if elsewhere else 0, len(self.logs))
        moved = publisher.server != old
        count = self.rng.choice((1, 1, 4, 12))
        first = publisher.acknowledged + 1 if moved else publisher.next
        last = max(first, publisher.next) + count
        if count > 1 and self.rng.random() < 0.2:
            publisher.left_out.add(last - 2)
        sequences = [s for s in range(first, last) if s not in publisher.left_out]
        publisher.next = last
        claim = None if self.rng.random() < 0.1 else publisher.acknowledged
        if publisher.server:
            stamp = self._now().wall
            self.logs[publisher.server - 1].publish(publisher.publisher, sequences, claim, stamp)
            publisher.unpersisted.clear()
            if self.rng.random() < 0.8:
                publisher.acknowledged = last - 1
            else:
                publisher.server = -1  # the acknowledgement is lost
            return
        self._clock.set(self._now())
        if moved:
            publisher.connection = PublisherConnection(claim, 1)
        builder = BatchBuilder()
        for sequence in sequences:
            builder.add("t", body_of(publisher.publisher, sequence), sequence=sequence)
        batch = builder.build(publisher.publisher)
        name = f"p{publisher.publisher}"
        self.writer.append_from(publisher.publisher, name, batch, publisher.connection)
        publisher.unpersisted.append((self.journal.commits.accepted_end, sequences[-1]))
        self._note_accepted(None)
        self.counts["published here"] += 1

    def exchange(self) -> None:
        """A source takes rows of another log."""
        log = self.rng.choice(self.logs)
        other = self.rng.choice([OWN, *(one.log for one in self.logs if one is not log)])
        end = self.journal.commits.persisted_end
        rows = next((one.rows for one in self.logs if one.log == other), None)
        if rows is None:
            rows = [row for row, at in zip(self.rows, self.at, strict=True) if at < end]
        log.take(other, rows, self.rng.choice((1, 5, 50)))

    def restart_source(self) -> None:
        """A source starts again. Its link connects again."""
        number = self.rng.randrange(len(self.logs))
        self.logs[number].restart()
        self.links.pop(number, None)

    def connect(self) -> None:
        """A link connects, or connects again."""
        number = self.rng.randrange(len(self.logs))
        log, window = self.logs[number], self.rng.choice((150, 1_000, 100_000))
        source = NaiveSource(log, OWN, self.rng)
        destination = LinkDestination(self.log, log.side, window_bytes=window)
        link = self.links[number] = LinkEnd(source, destination, window)
        source.open()
        command, _ = source.sent.popleft()
        assert isinstance(command, LinkOpen)
        link.order.from_source(command)
        starts = encode_pairs([1], [0])
        opened = destination.opened(LinkSide(instance="d", group="g", log=OWN, starts=starts))
        assert opened.holes == sum(map(len, self.sets.all_ranges().values()))
        link.order.from_destination(opened)
        if opened.place is not None:
            known = log.log_starts.resume(LogPlace(log.log, *opened.place), len(log.rows))
            self._check_durable(log, known or 0)
        source.opened(opened)
        self.counts["connections"] += 1

    # -- a link ---------------------------------------------------------------------------------------------

    def send(self) -> None:
        """A source sends some frames."""
        for link in self.links.values():
            for _ in range(self.rng.choice((1, 4))):
                link.source.step()

    def deliver(self) -> None:
        """Some frames arrive."""
        for link in self.links.values():
            for _ in range(self.rng.choice((1, 4))):
                if not link.source.sent:
                    break
                command, batch = link.source.sent.popleft()
                assert isinstance(command, LinkHoles | LinkRuns | LinkNames)
                link.order.from_source(command, batch)
                if isinstance(command, LinkRuns) and command.answers:
                    for position in np.frombuffer(command.answers, np.uint64).tolist():
                        del link.waiting[position]
                else:
                    link.cost += link.source.frames[link.taken].cost
                    link.taken += 1
                link.destination.received(command, batch)
                held = [frame.cost for frame in link.destination._frames]
                assert sum(held) <= max([link.window, *held]), "only a single message exceeds the window"

    def work(self) -> None:
        """Destinations take steps."""
        for link in self.links.values():
            if self.rng.random() < 0.1:
                link.destination.pause(self.rng.choice(("sow_full", None)))
            self._clock.set(self._now())
            before = len(self.rows)
            blocked = bool(link.waiting)
            link.destination.step()
            self._note_accepted(link)
            if blocked and link.waiting:
                new = {row.key for row in self.rows[before:] if row.kind == "message"}
                assert new <= link.source.answered, "rows behind a requested one"
                self.counts["held frames"] += link.taken - 1 > min(link.waiting.values())
            self.counts["late by a link"] += self._late
            self.counts["expired"] += link.destination.take_expired()

    def answer(self) -> None:
        """The commands of destinations arrive at their sources."""
        for number, link in self.links.items():
            for command in link.destination.take_commands():
                link.order.from_destination(command)
                link.source.received(command)
                if isinstance(command, LinkAck):
                    self._check_ack(self.logs[number], command.durable)
                elif isinstance(command, LinkCredit):
                    link.returned += command.bytes
                else:
                    link.waiting |= dict(link.source.requested)
                    self.counts["requested rows"] += 1
            first = min(link.waiting.values(), default=link.taken)
            processed = sum(frame.cost for frame in link.source.frames[:first])
            assert link.returned <= processed, "credit of held frames"

    def _check_ack(self, log: NaiveLog, durable: int) -> None:
        """The rows below an acknowledged position are on the disk, and so is a place that is not lower."""
        self._check_durable(log, durable)
        self.acknowledged[log.log] = log.log_starts.place(durable)
        self.counts["acknowledgements"] += 1

    def _check_durable(self, log: NaiveLog, position: int) -> None:
        end = self.journal.commits.persisted_end
        persisted = {row.key for row, at in zip(self.rows, self.at, strict=True) if at < end}
        below = {row.key for row in log.rows[log.first : position] if row.kind == "message"}
        assert below <= persisted, "rows that the source need not send again are not durable"

    # -- the log --------------------------------------------------------------------------------------------

    def _note_accepted(self, link: LinkEnd | None) -> None:
        """Enter the accepted rows into the oracle, and check them."""
        self._late = 0
        for accepted in self.journal.take_accepted():
            assert accepted.batch is not None
            for index in range(accepted.batch.count):
                self._note_row(accepted, accepted.batch, index, link)
        known = self.exact.known
        ranges = self.sets.all_ranges()
        assert {p: known.holes(p) for p in PUBLISHERS if p in known} == ranges
        assert {p: known.highest(p) for p in PUBLISHERS if known.highest(p)} == self.sets.highest

    def _note_row(
        self, accepted: AcceptedBatch, batch: MessageBatch, index: int, link: LinkEnd | None
    ) -> None:
        position, topic, run = accepted.position + index, batch.topic(index), batch.first_run
        if topic == LINK_TOPIC:
            self._check_place(msgspec.msgpack.decode(batch.body(index), type=LogPlace))
            return
        path = self.log.origins[run.origin].path if run.origin else ()
        stamp = 0 if batch.order_stamps is None else int(batch.order_stamps[0])
        if topic == CONTROL_TOPIC:
            body = bytes(batch.body(index))
            head = msgspec.msgpack.decode(body, type=dict)
            assert head["type"] != "begun", "a record that does not travel"
            if head["type"] == "after":
                record = msgspec.msgpack.decode(body, type=ReplicationRecord)
                assert isinstance(record, AfterRecord)
                assert record.log == (path[0] if path else None)
                assert accepted.stamp is not None
                number = batch.sequence(index) if path else accepted.stamp.first_sequence + index
                row = LinkRow(
                    "after", record.publisher, record.after, path, number, not record.unproven, number
                )
                self._add(row, position)
                self.counts["foreign openings"] += bool(path)
            return
        row = LinkRow("message", run.publisher, batch.sequence(index), path, stamp)
        assert bytes(batch.body(index)) == body_of(*row.key)
        assert self.sets.admits(*row.key, from_link=link is not None), "twice"
        late = row.sequence <= self.sets.highest.get(row.publisher, 0)
        assert bool(run.flags & RUN_LATE) == late
        if link is None:
            assert not run.origin
            row = row._replace(stamp=accepted.stamp.timestamp if accepted.stamp else 0)
        else:
            self._late += late
            assert batch.key(index) == f"k{row.sequence}"
            self._check_source(row, link.source.log)
        self._add(row, position)

    def _add(self, row: LinkRow, position: int) -> None:
        self._enter(row, position)
        self.rows.append(row)
        self.at.append(position)

    def _check_source(self, row: LinkRow, log: NaiveLog) -> None:
        """A message of a link has origin, path and order stamp of the row of its source."""
        sent = next(one for one in log.rows if one.kind == "message" and one.key == row.key)
        path = (*sent.path, log.log)
        assert row.path == (path[: path.index(OWN)] if OWN in path else path)
        assert row.stamp == sent.stamp
        self.counts["rows of this log that came back"] += OWN in path
        self.counts["rows of other origins"] += len(row.path) > 1

    def _check_place(self, place: LogPlace) -> None:
        """All messages of a source before a place are in the log before its record."""
        log = next(log for log in self.logs if log.log == place.log)
        assert place == log.log_starts.place(place.position)
        here = {row.key for row in self.rows if row.kind == "message"}
        below = {row.key for row in log.rows[log.first : place.position] if row.kind == "message"}
        assert below <= here, "a place precedes its rows"
        self.counts["places"] += 1

    def step(self) -> None:
        """Take one random step."""
        ways = [self.send, self.deliver, self.deliver, self.work, self.work, self.answer, self.idle] * 5
        ways += [self.publish] * 6 + [self.exchange] * 4 + [self.connect] * 2
        ways += [self.restart_source, self.keep_copy]
        self.rng.choice(ways)()

    def heal(self) -> None:
        """Connect all links, and take all rows of the sources."""
        self.links = {}
        while len(self.links) < len(self.logs):
            self.connect()
        for _ in range(3_000):
            self.send()
            self.deliver()
            for link in self.links.values():
                link.destination.pause(None)
            self.work()
            for link in self.links.values():
                link.destination.pause(None)
            self.answer()
            self.idle()
            if all(link.source.durable == len(link.source.log.rows) for link in self.links.values()):
                break
        else:
            raise AssertionError("a link does not reach the end of its source")
        self.check_all()

    def check_all(self) -> None:
        """The log has each message of each source once, on the disk."""
        found = Counter(
            (batch.publisher(index), batch.sequence(index))
            for _, batch in read_log(self.journal, self.disk)
            for index in range(batch.count)
            if batch.topic(index) == "t"
        )
        assert set(found.values()) <= {1}
        assert set(found) == {row.key for row in self.rows if row.kind == "message"}
        for log in self.logs:
            sent = {row.key for row in log.rows[log.first :] if row.kind == "message"}
            assert sent <= set(found), "lost"
        if len(self.logs) == 1 or not self.logs[0].first:
            everything = {row.key for log in self.logs for row in log.rows if row.kind == "message"}
            assert everything <= set(found)
        self.counts["messages"] += len(found)
