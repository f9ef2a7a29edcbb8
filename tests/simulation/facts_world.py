"""Simulation of one log with records of links: starts, places, origins, reports, removals, power losses.

Must never take an expected fact from the facts of the product: the oracle folds all rows that were accepted
and not lost, one after the other.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tests.simulation.hole_world import HoleWorld
from tests.simulation.journal_world import drive
from tickertape.base.interfaces import Now
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.origins import Origin
from tickertape.engine.replication.reports import Group, ReportWriter
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC, load_publishers
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.replication_records import (
    CoveredRecord,
    LogPlace,
    OriginRecord,
    ReplicationRecord,
    StartedRecord,
    as_foreign,
    covered,
    encode_record,
)

HERE = bytes(range(16))
LOGS = tuple(bytes([number]) * 16 for number in (201, 202, 203))
PLACES_MAX = 3
STARTS_MAX = 5
SNAPSHOT_RECORDS = 4


class FactRow(NamedTuple):
    """A row of the log with a record."""

    position: int
    record: ReplicationRecord | LinkRecord


class Expected:
    """The facts of rows, computed row by row."""

    def __init__(self, rows: list[FactRow]) -> None:
        self.starts: list[tuple[int, int]] = []
        self.places: list[LogPlace] = []
        self.origins: dict[int, tuple[object, ...]] = {}
        self.reports: dict[bytes, CoveredRecord] = {}
        self.reporters: set[bytes] = set()
        self.number = 0
        for position, record in rows:
            self._enter(position, record)

    def _enter(self, position: int, record: ReplicationRecord | LinkRecord) -> None:
        if isinstance(record, LinkRecord):
            self._move(LogPlace(record.log, record.start, record.position))
        elif isinstance(record, StartedRecord):
            self.starts = [*self.starts, (record.start, position)][-STARTS_MAX:]
        elif isinstance(record, OriginRecord):
            assert record.number not in self.origins
            self.origins[record.number] = record.journal, record.instance, record.group, tuple(record.path)
        elif isinstance(record, CoveredRecord) and record.log is not None:
            known = self.reports.get(record.log)
            if known is None or record.number > known.number:
                self.reports[record.log] = record
            if any(place.log == HERE for place in record.places):
                self.reporters.add(record.log)
        elif isinstance(record, CoveredRecord):
            assert record.number > self.number
            self.number = record.number

    def _move(self, place: LogPlace) -> None:
        self.places = [one for one in self.places if one[:2] != place[:2]] + [place]
        own = [one for one in self.places if one.log == place.log]
        if len(own) > PLACES_MAX:
            self.places.remove(own[0])


class FactsWorld(HoleWorld):
    """A log with holes, and with records of links."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.fact_rows: list[FactRow] = []
        """All accepted rows with records, without those that a crash has removed."""
        self._positions: dict[tuple[bytes, int], int] = {}
        self._numbers = dict.fromkeys(LOGS, 0)
        super().__init__(seed, counts)

    def open(self) -> None:
        """Start on the contents of the disk, and compare the recovered facts with the oracle."""
        super().open()
        end = self.journal.commits.accepted_end
        lost = sum(row.position >= end for row in self.fact_rows)
        self.counts["records lost"] += lost
        self.fact_rows = [row for row in self.fact_rows if row.position < end]
        registry = drive(self.disk, load_publishers(self.journal))
        self.facts = drive(self.disk, LogFacts.recover(self.journal, registry))
        retired = self.journal.view.retired
        self.counts["places of removed rows"] += bool(retired is not None and retired.links)
        self.counts["starts after removals"] += retired is not None
        self.check_facts()
        self.reporter = ReportWriter(self.facts.report_number)
        self.add(self.facts.begin_run(self.rng.getrandbits(64), end), first=True)
        self._add_reporters()

    def _add_reporters(self) -> None:
        for record in self.facts.take_reporters():
            self.add(record)
            self.counts["reporters"] += 1

    def add(self, record: ReplicationRecord | LinkRecord, *, first: bool = False) -> None:
        """Append a record. `first`: it is the first row of a run."""
        builder = BatchBuilder()
        if isinstance(record, LinkRecord):
            builder.add(LINK_TOPIC, encode_link(record), kind=1)
        else:
            builder.add(CONTROL_TOPIC, encode_record(record), kind=1)
        before = self.journal.commits.accepted_end
        self._append_control(builder.build())
        position = self.journal.accepted[-1].position
        assert position == before or not first
        self.fact_rows.append(FactRow(position, record))
        self._note_accepted()

    def _append_control(self, batch: MessageBatch) -> None:
        self._clock.set(self._now())
        self.writer.append_control(batch)
        self.reporter.appended(batch)

    # -- inputs -----------------------------------------------------------------------------------------

    def move(self) -> None:
        """A link brings rows, and the place of its source moves."""
        self.link()
        log, start = self.rng.choice(LOGS), self.rng.randint(1, 5)
        position = self._positions.get((log, start), 0) + self.rng.randint(1, 2**40)
        self._positions[log, start] = position
        record = self.facts.move(LogPlace(log, start, position))
        self.counts["records with all places"] += record.places is not None
        self.add(record)

    def number_origin(self) -> None:
        """A link brings rows of an origin, perhaps of a new one."""
        log = self.rng.choice(LOGS)
        path = (log, *self.rng.sample([one for one in LOGS if one != log], self.rng.randint(0, 2)))
        origin = Origin(log, f"i{log[0]}", self.rng.choice(("ny", "ldn")), path)
        known = self.facts.origins.number_of(origin)
        if known is None:
            known, record = self.facts.origins.add(origin)
            self.add(record)
        assert self.facts.origins[known] == origin

    def foreign_report(self) -> None:
        """A link brings a report of another log, which may have rows of this one or not."""
        log = self.rng.choice(LOGS)
        self._numbers[log] += 1
        places = [LogPlace(HERE, 1, 5)] if self.rng.random() < 0.2 else []
        number = self._numbers[log]
        report = as_foreign(covered(number, 9, 10 * number, places, [HERE, log], number), log)
        assert self.facts.reports.is_news(log, report)
        self.facts.note(report)
        self.add(report)
        self._add_reporters()

    def report(self) -> None:
        """This log reports, if it has new rows and the last report is older than a second."""
        now = self._now()
        self._mono += self.rng.choice((0, 0.5, 2))
        now = Now(self._mono, now.wall)
        if self.reporter.due(now.mono) == 0.0:
            end = self.journal.commits.accepted_end
            group = Group(frozenset((HERE, *LOGS)), frozenset(LOGS), self.facts.places)
            record = self.reporter.report(now, self.facts.starts.place(end), group, 0)
            assert record.start == self.fact_starts()[-1][0]
            self.facts.note(record)
            self.add(record)
            self.counts["reports"] += 1

    def fact_starts(self) -> list[tuple[int, int]]:
        """Return the newest starts, by the oracle."""
        return Expected(self.fact_rows).starts

    # -- checks -----------------------------------------------------------------------------------------

    def check_facts(self) -> None:
        """Compare all facts with the oracle."""
        expected, facts = Expected(self.fact_rows), self.facts
        assert facts.damage == []
        assert [(one.start, one.first) for one in facts.starts] == expected.starts
        for log in LOGS:
            own = [place for place in expected.places if place.log == log]
            assert facts.places.of(log) == own[::-1]
        assert facts.places.count == len(expected.places)
        assert len(facts.origins) == len(expected.origins)
        assert {number: tuple(facts.origins[number]) for number in expected.origins} == expected.origins
        for log in LOGS:
            known = expected.reports.get(log)
            number = 0 if known is None else known.number
            assert not facts.reports.is_news(log, covered(number, 0, 0, [], [], 0)) or known is None
            assert facts.reports.is_news(log, covered(number + 1, 0, 0, [], [], 0))
        assert facts.reporters == expected.reporters
        assert facts.report_number == expected.number
        self.counts["checks with reporters"] += bool(expected.reporters)
        self.counts["checks with origins"] += bool(expected.origins)
        self.counts["checks with dropped starts"] += sum(
            isinstance(row.record, StartedRecord) for row in self.fact_rows
        ) > len(expected.starts)

    def step(self) -> None:
        """Take one random step, and compare the facts."""
        if self.rng.random() < 0.5:
            super().step()
        else:
            ways = [*[self.move] * 4, self.number_origin, self.foreign_report, self.report]
            self.rng.choice(ways)()
        self.check_facts()

    def crash(self) -> None:
        """Power fails, or only the process ends. Rows of the disk's queue may be lost."""
        super().crash()
        self.counts["crashes"] += 1
