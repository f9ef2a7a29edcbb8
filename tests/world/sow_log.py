"""Oracle of SOW topics in a simulation: all persisted messages of a server, and their records.

Must never use product code beyond reading a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import unpack
from typing import Any, Final, NamedTuple

import msgspec

from tickertape.batch import MessageBatch

GENERATED: Final = "generated"
EXPLICIT: Final = "explicit"
EXPIRING: Final = "expiring"
PATTERN: Final = "orders"
PARTS: Final = ("orders/1", "orders/2")
"""Further topics of the SOW topic `PATTERN`."""
SOW: Final = "$sow"
NO_MESSAGE: Final = 0
DELETED, EXPIRED = 1, 2

Name = tuple[int, int]
"""Publisher and sequence of a message."""
Fields = dict[str, Any]
Identity = tuple[str, Any]
"""Topic, and the value of the key field or the explicit key."""


class Row(NamedTuple):
    """A persisted message of any kind."""

    position: int
    topic: str
    name: Name
    timestamp: int
    key: str | None
    life: int | None
    body: bytes

    @property
    def bookmark(self) -> str:
        return f"{self.name[0]}|{self.name[1]}|"


State = dict[Identity, Row]


class Removal(NamedTuple):
    """A row of the topic `$sow`."""

    topic: str
    kind: int
    counts: tuple[int, int, int]
    more: bool
    named: frozenset[Name]


def sow_of(topic: str) -> str:
    """Return the SOW topic of a topic."""
    return PATTERN if topic in PARTS else topic


def fields_of(row: Row) -> Fields:
    """Return the decoded body of a message."""
    found: Fields = msgspec.json.decode(row.body)
    return found


def identity_of(row: Row) -> Identity:
    """Return the identity of the record of a message."""
    return row.topic, row.key if row.topic == EXPLICIT else fields_of(row)["id"]


def removal_of(row: Row) -> Removal:
    """Return a decoded row of the topic `$sow`. Format: docs/formats/sow-records.md."""
    topic, kind, counts, more, logs, _, publishers, sequences, _, numbers, *_ = msgspec.msgpack.decode(
        row.body
    )
    assert not logs, "there are no links"
    ids = unpack(f"<{len(publishers) // 8}Q", publishers)
    pairs = zip(
        unpack(f"<{len(numbers) // 4}I", numbers), unpack(f"<{len(sequences) // 8}Q", sequences), strict=True
    )
    named = [(ids[number], sequence) for number, sequence in pairs if sequence != NO_MESSAGE]
    return Removal(topic, kind, tuple(counts), more, frozenset(named))


def merged(old: Mapping[str, Any], delta: Mapping[str, Any]) -> Fields:
    """Return `old` with the fields of `delta`: objects merge by name, and other values are replaced."""
    found = dict(old)
    for name, value in delta.items():
        before = found.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            found[name] = merged(before, value)
        else:
            found[name] = value
    return found


def removed_by(state: State, row: Row) -> set[Identity]:
    """Return the records that a row of the topic `$sow` removes."""
    removal = removal_of(row)
    return {
        one
        for one, record in state.items()
        if sow_of(one[0]) == removal.topic and record.name in removal.named
    }


def apply(state: State, row: Row) -> None:
    """Change the records as a row requires."""
    if row.topic == SOW:
        for one in removed_by(state, row):
            del state[one]
    elif not row.topic.startswith("$"):
        state[identity_of(row)] = row


class History:
    """All persisted messages of one server by position, with those that retention has removed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.removed_below = 0
        """Retention has removed the messages below this position."""
        self._places: dict[str, int] = {}

    @property
    def end(self) -> int:
        """Return the position after the last message."""
        return len(self.rows)

    def record(self, first: int, batch: MessageBatch) -> None:
        """Keep the messages of a batch that are new, and compare the others."""
        for i in range(batch.count):
            row = Row(
                first + i,
                batch.topic(i),
                (batch.publisher(i), batch.sequence(i)),
                batch.timestamp(i),
                batch.key(i),
                batch.expiration(i),
                bytes(batch.body(i)),
            )
            if row.position < self.end:
                assert self.rows[row.position] == row, f"position {row.position} has another message"
                continue
            assert row.position == self.end, f"{row.position} follows {self.end}"
            assert row.bookmark not in self._places, f"{row.bookmark} is in the log twice"
            self._places[row.bookmark] = row.position
            self.rows.append(row)

    def after(self, bookmark: str) -> int | None:
        """Return the position after a message. None: the log does not have it."""
        if bookmark == "0":
            return 0
        found = self._places.get(bookmark)
        return None if found is None else found + 1

    def has(self, bookmark: str) -> bool:
        """Return whether a message is persisted."""
        return self.after(bookmark) is not None

    def next_message(self, position: int) -> int:
        """Return the first position from `position` on with a message of an application, or the end."""
        for row in self.rows[position:]:
            if not row.topic.startswith("$"):
                return row.position
        return self.end

    def states(self) -> Iterator[tuple[Row, State]]:
        """Generate each row with the records before it. The dict changes with the next row."""
        state: State = {}
        for row in self.rows:
            yield row, state
            apply(state, row)

    def states_at(self, positions: Iterable[int]) -> dict[int, State]:
        """Return the records below each of these positions."""
        wanted = set(positions)
        found = {row.position: dict(state) for row, state in self.states() if row.position in wanted}
        state: State = {}
        for row in self.rows:
            apply(state, row)
        return {**found, self.end: state}
