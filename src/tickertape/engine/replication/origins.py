"""Origins: meaning of the origin numbers in the runs of this log.

A control record gives each number its meaning before the first run with the number. 0 is this log itself.

Invariant: a number never gets a second meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tickertape.base.errors import LimitReached
from tickertape.base.limits import link_origins_max
from tickertape.base.text_format import shown
from tickertape.journal.format.replication_records import OriginRecord, origin


class Origin(NamedTuple):
    """A log whose clients' messages are in this log, and their path to this log."""

    log: bytes
    """Id of the log in which a client stored the messages."""
    instance: str
    group: str
    path: tuple[bytes, ...]
    """Ids of the logs that the messages passed, the origin first, without this log."""


class Origins:
    """The origins of the runs of this log, by number."""

    def __init__(self, records: Iterable[OriginRecord] = ()) -> None:
        self._origins: dict[int, Origin] = {}
        self._numbers: dict[Origin, int] = {}
        self._highest = 0
        for record in records:
            self.note(record)

    def __getitem__(self, number: int) -> Origin:
        """Return the origin with a number. Raises `KeyError` for 0 and for an unknown number."""
        return self._origins[number]

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._origins.values())

    def number_of(self, origin: Origin) -> int | None:
        """Return the number of an origin, or None if it has none yet."""
        return self._numbers.get(origin)

    def note(self, record: OriginRecord) -> None:
        """Take a record of this log."""
        made = Origin(record.journal, record.instance, record.group, tuple(record.path))
        self._origins[record.number] = made
        self._numbers.setdefault(made, record.number)
        self._highest = max(self._highest, record.number)

    def add(self, origin: Origin) -> tuple[int, OriginRecord]:
        """Give an origin the next number. Return it, and the record to append before the first run with it.

        Raises `LimitReached` above `link_origins_max`: the link of the origin must end."""
        number = self._highest + 1
        if number > link_origins_max:
            raise LimitReached(
                f"Cannot replicate messages of {shown(origin.instance)}: this log already has messages of "
                f"{link_origins_max:,} other logs, which is the limit. Start with an empty data directory."
            )
        record = _record(number, origin)
        self.note(record)
        return number, record


def _record(number: int, made: Origin) -> OriginRecord:
    return origin(number, made.log, made.instance, made.group, list(made.path))
