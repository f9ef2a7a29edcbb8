"""Place records: bodies of the rows on topic `$link`, made from the facts of the log.

Invariant: the facts know a place when its record is in the log.
"""

from __future__ import annotations

from tickertape.engine.replication.log_facts import LogFacts
from tickertape.journal.format.link_records import encode_link
from tickertape.journal.format.replication_records import LogPlace


class FactPlaceRecords:
    """The records of moved places (`PlaceRecords` of `LinkPlaces`). Each call notes its place as a fact."""

    def __init__(self, facts: LogFacts) -> None:
        self._facts = facts

    @property
    def record_bytes_max(self) -> int:
        """Most bytes of the next body."""
        return self._facts.link_record_bytes_max

    def place_record(self, place: LogPlace) -> bytes:
        """Return the body of the record of a place that moved."""
        return encode_link(self._facts.move(place))
