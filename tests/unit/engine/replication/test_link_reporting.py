"""Pins, reports and stable holes of linked engines."""

from __future__ import annotations

from collections import Counter

from tests.helpers.linked import FailoverStore, join, links_of, make_pair, publish, row_of, run
from tests.simulation.journal_world import read_log
from tests.simulation.linked_engine import LinkedEngine
from tests.simulation.linked_engines import link_to
from tickertape.batch import KIND_CONTROL
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.journal.format.control_record import decode_head
from tickertape.journal.format.replication_records import CoveredRecord, decode_record
from tickertape.journal.retention import RetentionPolicy

SMALL = RetentionPolicy(size_bytes=1)


def reports(engine: LinkedEngine) -> list[CoveredRecord]:
    """Return the reports in a log, also those of other logs."""
    found = []
    for _, batch in read_log(engine.broker.journal, engine.disk):
        for row in range(batch.count):
            if batch.topic(row) == CONTROL_TOPIC and batch.kinds is not None:
                assert batch.kinds[row] == KIND_CONTROL
                body = bytes(batch.body(row))
                if decode_head(body).type == "covered":
                    record = decode_record(body)
                    assert isinstance(record, CoveredRecord)
                    found.append(record)
    return found


def own_reports(engine: LinkedEngine) -> list[CoveredRecord]:
    return [record for record in reports(engine) if record.log is None]


def pass_time(*engines: LinkedEngine, seconds: float = 1.1, rounds: int = 4) -> None:
    """Let time pass until all reports are written and sent."""
    for _ in range(rounds):
        for engine in engines:
            engine.wake(seconds)
        run(*engines)


def first_position(engine: LinkedEngine) -> int:
    return engine.broker.journal.view.first_position


# -- pins -----------------------------------------------------------------------------------------------


def test_destination_that_is_away_pins_the_missing_rows() -> None:
    first, second = make_pair(both=False, retention=SMALL)
    end = join(first, second)
    publish(first, 100)
    run(first, second)
    first.broker.disconnected(end.conn)
    first.collect()
    acknowledged = row_of(first).position
    assert row_of(first).pinned == acknowledged > 100
    publish(first, 400, "q")
    pass_time(first, seconds=61)
    assert 0 < first_position(first) <= acknowledged
    assert first.broker.retention.held_by == "replication to server-1"
    join(first, second)
    pass_time(first, second, seconds=61)
    assert first_position(first) > acknowledged
    assert len({*second.persisted.values()}) == 500


def test_destination_that_was_never_connected_pins_the_whole_log() -> None:
    first, _ = make_pair(both=False, retention=SMALL)
    run(first)
    publish(first, 400)
    pass_time(first, seconds=61)
    assert first_position(first) == row_of(first).pinned == 0
    assert row_of(first).state == "down"


def test_destination_without_reports_pins_all_rows_after_a_start() -> None:
    first, second = make_pair(both=False, retention=SMALL)
    join(first, second)
    publish(first, 200)
    run(first, second)
    first.restart()
    publish(first, 400, "q")
    before = first_position(first)
    pass_time(first, seconds=61)
    assert first_position(first) == before == row_of(first).pinned
    join(first, second)
    pass_time(first, second, seconds=61)
    assert first_position(first) > 300


def test_last_report_of_a_destination_pins_after_a_start() -> None:
    first, second = make_pair(retention=SMALL)
    join(first, second)
    join(second, first)
    publish(second, 3, "other")  # its rows name the log of the instance
    publish(first, 200)
    run(first, second)
    pass_time(first, second)
    first.restart()
    run(first, second)
    pinned = row_of(first).pinned
    assert pinned is not None
    assert 200 < pinned <= first.broker.journal.view.end_position
    assert pinned == max(
        place.position for place in own_reports(second)[-1].places if place.log == first.log_id
    )


def test_log_behind_a_destination_pins_the_missing_rows() -> None:
    counts: Counter[str] = Counter()
    links = ((1,), (0, 2), (1,))
    engines = [
        LinkedEngine(number, number, tuple(map(link_to, links[number])), counts, SMALL) for number in range(3)
    ]
    for number, others in enumerate(links):
        for other in others:
            join(engines[number], engines[other])
    first, middle, last = engines
    publish(first, 10)
    publish(last, 3, "other")
    pass_time(*engines)
    for end in [*middle.ends.values()]:
        if end.peer.engine is last:
            end.lose_bytes(first.rng)
    run(*engines)
    before = first_position(first)
    publish(first, 600, "q")
    pass_time(*engines, seconds=61)
    assert row_of(first).behind == 0
    assert first_position(first) == before
    assert first.broker.retention.held_by == f"replication to log {last.log_id.hex()}"
    join(middle, last)
    join(last, middle)
    pass_time(*engines)
    publish(first, 3, "r")  # logs without new rows write no report
    pass_time(*engines, seconds=61)
    assert first_position(first) > before


def test_log_of_an_instance_with_a_newer_log_pins_nothing() -> None:
    first, second = make_pair(retention=SMALL)
    join(first, second)
    join(second, first)
    publish(second, 3, "other")
    publish(first, 10)
    pass_time(first, second)
    assert links_of(first)._reporting._facts.reporters == {second.log_id}
    counts: Counter[str] = Counter()
    new = LinkedEngine(9, 1, (link_to(0),), counts)
    new.log_id = bytes([99]) * 16
    new.disk = type(new.disk)(new.rng, counts=counts)
    new.open()
    for end in [*first.ends.values()]:
        end.lose_bytes(first.rng)
    run(first, second)
    join(first, new)
    join(new, first)
    publish(first, 400, "q")
    pass_time(first, new, seconds=61)
    assert first_position(first) > 100


# -- reports --------------------------------------------------------------------------------------------


def test_no_report_is_written_before_all_destinations_were_connected() -> None:
    first, second = make_pair()
    join(first, second)
    publish(first, 3)
    pass_time(first, second)
    assert own_reports(first) != []
    assert own_reports(second) == [], "the log of server-0 is not known as a destination"
    assert second.broker.next_deadline() is None or not second.broker.has_work
    join(second, first)
    pass_time(first, second)
    (report, *_) = own_reports(second)
    assert {*report.members} == {first.log_id, second.log_id}
    second.restart()
    publish(second, 3, "other")
    count = len(own_reports(second))
    pass_time(first, second)
    assert len(own_reports(second)) == count


def test_reports_of_idle_logs_end() -> None:
    first, second = make_pair()
    join(first, second)
    join(second, first)
    publish(first, 3)
    pass_time(first, second, rounds=8)
    ends = [engine.broker.journal.commits.persisted_end for engine in (first, second)]
    pass_time(first, second, rounds=8)
    assert [engine.broker.journal.commits.persisted_end for engine in (first, second)] == ends


def test_report_has_the_place_of_the_row() -> None:
    first, second = make_pair()
    join(first, second)
    publish(first, 3)
    pass_time(first, second)
    (report, *_) = own_reports(first)
    at = [
        first_row + row
        for first_row, batch in read_log(first.broker.journal, first.disk)
        for row in range(batch.count)
        if batch.topic(row) == CONTROL_TOPIC and decode_head(bytes(batch.body(row))).type == "covered"
    ]
    assert report.position == at[0]


# -- holes ----------------------------------------------------------------------------------------------


def open_hole(engine: LinkedEngine) -> FailoverStore:
    """Let a publisher begin above its first sequences, which other logs may have."""
    store = FailoverStore("late", engine.rng, engine.counts)
    store.connect(engine)
    engine.settle()
    store._next = 5
    store.publish(2)
    engine.settle()
    assert count_of(engine) == 1
    return store


def count_of(engine: LinkedEngine) -> int:
    """Return the number of open holes."""
    exact = engine.broker._writer.exact
    assert exact is not None
    return exact.known.count


def test_hole_is_closed_when_all_members_reported_the_earlier_rows() -> None:
    first, second = make_pair()
    join(first, second)
    join(second, first)
    store = open_hole(first)
    run(first, second)
    assert [count_of(first), count_of(second)] == [1, 1]
    pass_time(first, second)
    assert [count_of(first), count_of(second)] == [0, 0]
    publish(first, 1)
    run(first, second)
    for engine in (first, second):
        engine.restart()
        assert count_of(engine) == 0, "the next commit records it"
    assert store.sent <= {*first.persisted.values()}


def test_hole_stays_open_while_a_member_may_have_the_messages() -> None:
    first, second = make_pair()
    join(first, second)
    back = join(second, first)
    pass_time(first, second)
    first.broker.disconnected(back.peer.conn)
    second.broker.disconnected(back.conn)
    store = FailoverStore("late", first.rng, first.counts)
    store.connect(second)
    second.settle()
    store.publish(4)  # only the second log has them
    second.settle()
    store.connect(first)
    first.settle()
    store.publish(2)
    first.settle()
    pass_time(first, second)
    assert count_of(first) == 1
    join(second, first)
    pass_time(first, second)
    assert {*first.persisted.values()} == {*second.persisted.values()} == store.sent
    assert len(store.sent) == 6
    assert count_of(first) == 0


def test_hole_stays_open_before_the_peer_was_connected() -> None:
    first, second = make_pair()
    run(first, second)
    open_hole(first)
    pass_time(first)
    assert count_of(first) == 1
    join(first, second)
    pass_time(first, second)
    assert count_of(first) == 1, "the second log has not reported"


def test_one_way_link_closes_no_hole() -> None:
    first, second = make_pair(both=False)
    join(first, second)
    open_hole(first)
    pass_time(first, second)
    assert [count_of(first), count_of(second)] == [1, 1]
