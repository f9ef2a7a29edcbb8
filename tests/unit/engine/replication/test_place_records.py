"""Records of places: their bodies, their bound, and the facts of the log."""

from __future__ import annotations

from tickertape.engine.replication.destination.place_records import FactPlaceRecords
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.journal.format.link_records import decode_link
from tickertape.journal.format.replication_records import LogPlace

HERE, THERE, FAR = (bytes([number]) * 16 for number in (1, 2, 3))


def test_place_records_have_the_moved_place_and_change_the_facts() -> None:
    facts = LogFacts(HERE, [LogPlace(FAR, 7, 70)])
    records = FactPlaceRecords(facts)
    place = LogPlace(THERE, 2**64 - 1, 2**63 - 1)
    first = decode_link(records.place_record(place))
    assert first.place == place
    assert first.places == [LogPlace(FAR, 7, 70), place]
    assert facts.places.of(THERE) == [place]
    later = place._replace(position=2**63)
    second = decode_link(records.place_record(later))
    assert (second.place, second.places) == (later, None)


def test_bound_of_place_records_covers_a_record_with_all_places() -> None:
    facts = LogFacts(HERE, [LogPlace(FAR, 2**64 - 1 - start, 2**64 - 1) for start in range(20)])
    records = FactPlaceRecords(facts)
    most = records.record_bytes_max
    assert len(records.place_record(LogPlace(THERE, 2**64 - 1, 2**64 - 1))) <= most
