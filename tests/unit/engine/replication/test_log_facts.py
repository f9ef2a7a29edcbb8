"""Facts of a log: recovered from a real log after restarts and removals, and kept current by records."""

from __future__ import annotations

import pytest

from tests.simulation.journal_world import drive
from tests.unit.journal.written import Written
from tickertape.base.limits import link_starts_max
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import BatchBuilder, Stamp
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.replication.origins import Origin
from tickertape.engine.replication.places import LogStart
from tickertape.engine.runtime.publisher_ids import (
    CONTROL_PUBLISHER,
    CONTROL_TOPIC,
    PublisherDirectory,
    load_publishers,
)
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.replication_records import (
    LogPlace,
    ReplicationRecord,
    after,
    as_foreign,
    covered,
    encode_record,
    origin,
    reporter,
    started,
)
from tickertape.journal.limits import link_snapshot_records

HERE = bytes(range(16))
THERE, THIRD = b"\x02" * 16, b"\x03" * 16


def append(written: Written, *records: ReplicationRecord | LinkRecord | bytes, size: int = 10) -> None:
    """Append records of the server, and then a message, in one commit each."""
    for record in records:
        builder = BatchBuilder()
        if isinstance(record, LinkRecord):
            builder.add(LINK_TOPIC, encode_link(record), kind=1)
        else:
            builder.add(CONTROL_TOPIC, record if isinstance(record, bytes) else encode_record(record), kind=1)
        now, journal = written._now(), written.journal
        number = journal.highest.get(CONTROL_PUBLISHER, 0) + 1
        journal.append(
            builder.build(), Stamp(CONTROL_PUBLISHER, number, journal.next_stamp(now)), number, now
        )
        written.work()
    written.publish(1, size)


def recovered(written: Written) -> LogFacts:
    """Restart, and recover the facts."""
    written.stop()
    written.start()
    registry = drive(written.disk, load_publishers(written.journal))
    return drive(written.disk, LogFacts.recover(written.journal, registry))


def end(written: Written) -> int:
    return written.journal.commits.accepted_end


def foreign_report(number: int, *places: LogPlace, log: bytes = THERE) -> ReplicationRecord:
    return as_foreign(covered(number, 20, 50, list(places), [HERE, THERE], 5), log)


@pytest.mark.parametrize("removed", [False, True])
def test_facts_survive_a_restart_and_a_removal(removed: bool) -> None:
    written = Written()
    facts = recovered(written)
    append(written, facts.begin_run(7, end(written)))
    number, record = facts.origins.add(Origin(THERE, "ny-1", "ny", (THERE, THIRD)))
    append(written, record, facts.move(LogPlace(THERE, 20, 30)))
    report = foreign_report(3, LogPlace(HERE, 7, 2))
    facts.note(report)
    append(written, report, *facts.take_reporters(), covered(9, 7, 5, [], [HERE], 1))
    if removed:
        append(written, size=9_000)
        append(written, size=9_000)
        written.retire(2)
    found = recovered(written)
    assert list(found.starts) == [LogStart(7, 0)]
    assert found.origins[number] == Origin(THERE, "ny-1", "ny", (THERE, THIRD))
    assert list(found.places) == [LogPlace(THERE, 20, 30)]
    assert found.reporters == {THERE}
    assert not found.reports.is_news(THERE, covered(3, 20, 50, [], [], 0))
    assert found.reports.is_news(THERE, covered(4, 20, 50, [], [], 0))
    assert found.report_number == 9
    assert found.damage == []
    assert found.take_reporters() == []


def test_started_record_is_the_first_row_of_a_run() -> None:
    written = Written()
    positions = []
    for run in range(3):
        facts = recovered(written)
        positions.append(end(written))
        record = facts.begin_run(100 + run, end(written))
        assert record == started(100 + run, run, positions[-1])
        append(written, record)
        assert facts.starts.place(end(written)) == LogPlace(HERE, 100 + run, end(written))
    found = recovered(written)
    assert list(found.starts) == [LogStart(100 + run, positions[run]) for run in range(3)]
    assert found.starts.resume(LogPlace(HERE, 101, 99), end(written)) == positions[2]


def test_starts_are_bounded_in_the_log_and_in_order() -> None:
    registry = PublisherDirectory()
    written = Written()
    for run in range(link_starts_max + 3):
        registry.apply(encode_record(started(run + 1, run, 10 * run)))
    assert len(registry.latest) == link_starts_max
    assert registry.others == []
    facts = drive(written.disk, LogFacts.recover(written.journal, registry))
    expected = [LogStart(run + 1, 10 * run) for run in range(3, link_starts_max + 3)]
    assert list(facts.starts) == expected
    assert facts.begin_run(1, 10**6).number == link_starts_max + 3


def test_reporter_stays_known_after_reports_without_a_place() -> None:
    written = Written()
    facts = recovered(written)
    first, second = foreign_report(1, LogPlace(HERE, 7, 2)), foreign_report(2)
    facts.note(first)
    (record,) = facts.take_reporters()
    assert record == reporter(THERE)
    append(written, first, record)
    facts.note(second)
    assert facts.take_reporters() == []
    append(written, second)
    found = recovered(written)
    assert found.reporters == facts.reporters == {THERE}


def test_reporter_without_a_record_gets_one_after_a_restart() -> None:
    written = Written()
    append(written, foreign_report(1, LogPlace(HERE, 7, 2)), foreign_report(1, log=THIRD))
    found = recovered(written)
    assert found.reporters == {THERE}
    assert found.take_reporters() == [reporter(THERE)]
    assert found.take_reporters() == []


def test_records_of_other_logs_change_no_fact_of_this_log() -> None:
    written = Written()
    records = (
        as_foreign(started(9, 50, 3), THERE),
        as_foreign(origin(1, THERE, "ny-1", "ny", [THERE]), THERE),
        as_foreign(reporter(THIRD), THERE),
        as_foreign(after(THERE, 5, 1, 9), THERE),
        foreign_report(8),
    )
    live = LogFacts(HERE)
    for record in records:
        live.note(record)
    append(written, *records)
    for facts in (live, recovered(written)):
        assert list(facts.starts) == []
        assert len(facts.origins) == 0
        assert facts.reporters == frozenset()
        assert facts.report_number == 0
        assert facts.begin_run(1, end(written)).number == 0


def test_unreadable_records_are_listed_and_others_count() -> None:
    written = Written()
    broken = encode_record(started(9, 1, 3)).replace(b"position", b"positiom")
    foreign = encode_record(foreign_report(1)).replace(b"members", b"memberz")
    append(written, started(8, 0, 0), broken, foreign, foreign_report(1, LogPlace(HERE, 8, 1), log=THIRD))
    append(written, LinkRecord(THERE, 1, 5))
    found = recovered(written)
    assert list(found.starts) == [LogStart(8, 0)]
    assert found.reporters == {THIRD}
    assert list(found.places) == [LogPlace(THERE, 1, 5)]
    texts = [str(error) for error in found.damage]
    assert len(texts) == 2
    assert texts[0].startswith("Cannot restore 'started 1': invalid control record")
    assert texts[1].startswith(f"Cannot restore 'report of log {THERE.hex()}': invalid control record")


def test_first_place_of_a_run_and_one_in_100_have_all_places() -> None:
    facts = LogFacts(HERE, [LogPlace(THIRD, 1, 2)])
    records = [facts.move(LogPlace(THERE, 1, position)) for position in range(1, 251)]
    assert [at for at, record in enumerate(records) if record.places] == [0, 100, 200]
    assert records[100].places == [LogPlace(THIRD, 1, 2), LogPlace(THERE, 1, 101)]
    assert list(facts.places) == [LogPlace(THIRD, 1, 2), LogPlace(THERE, 1, 250)]


def test_all_places_are_recorded_less_often_with_many_places() -> None:
    many = [LogPlace(bytes([log]) * 16, start, 5) for log in range(10) for start in range(64)]
    facts = LogFacts(HERE, many)
    records = [facts.move(LogPlace(THIRD, 1, position)) for position in range(1, 1_300)]
    at = [index for index, record in enumerate(records) if record.places]
    assert link_snapshot_records < len(many)
    assert at == [0, 640, 1_280]
