"""Oracle of the state of the world: the state as a function of a set of messages, by dictionaries and `max`.

Must never use product code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Body = Mapping[str, float | str | None]
RankTuple = tuple[int, bytes, int, int]
"""Order stamp, log id of the origin, publisher and sequence."""


class Published(NamedTuple):
    """A published or merged message."""

    key: bytes
    publisher: int
    sequence: int
    stamp: int
    log: bytes
    body: Body

    @property
    def rank(self) -> RankTuple:
        return self.stamp, self.log, self.publisher, self.sequence


class Deleted(NamedTuple):
    """A delete: the rank that its origin named for each key, None without candidates."""

    publisher: int
    sequence: int
    stamp: int
    log: bytes
    named: Mapping[bytes, RankTuple | None]


class Expired(NamedTuple):
    """The expiry of one message on one instance."""

    key: bytes
    publisher: int
    sequence: int


Message = Published | Deleted | Expired
State = dict[bytes, Published]


def keys_of(message: Message) -> Iterable[bytes]:
    """Return the keys that a message names."""
    return message.named if isinstance(message, Deleted) else (message.key,)


def record(key: bytes, messages: Iterable[Message]) -> Published | None:
    """Return the record of `key` after all messages, in any order and with copies of messages."""
    expired, ended = set[tuple[int, int]](), dict[int, int]()
    newest: dict[int, tuple[int, int, bytes, RankTuple, Published | None]] = {}
    for message in messages:
        if key not in keys_of(message):
            continue
        publisher, sequence = message.publisher, message.sequence
        if isinstance(message, Expired):
            expired.add((publisher, sequence))
            continue
        named = message.rank if isinstance(message, Published) else message.named[key]
        if named is None:
            ended[publisher] = max(sequence, ended.get(publisher, 0))
            continue
        live = message if isinstance(message, Published) else None
        found = -sequence, message.stamp, message.log, named, live  # the least counts
        if publisher not in newest or found[:3] < newest[publisher][:3]:
            newest[publisher] = found

    def order(publisher: int) -> tuple[RankTuple, bool]:
        minus, _, _, rank, live = newest[publisher]
        dead = live is None or (publisher, -minus) in expired or -minus < ended.get(publisher, 0)
        return rank, dead

    highest = max(newest, key=order, default=None)
    return None if highest is None or order(highest)[1] else newest[highest][4]


def state(messages: Sequence[Message]) -> State:
    """Return the records of all keys after all messages."""
    of_key: dict[bytes, list[Message]] = {}
    for message in messages:
        for key in keys_of(message):
            of_key.setdefault(key, []).append(message)
    records = {key: record(key, some) for key, some in of_key.items()}
    return {key: found for key, found in records.items() if found is not None}


def state_at(log: Sequence[Message], position: int) -> State:
    """Return the state below a position of a log with one message at each position."""
    return state(log[:position])


def query(
    records: State,
    passes: Callable[[Body], bool] = lambda _: True,
    order_by: Sequence[tuple[str, bool]] = (),
    top_n: int | None = None,
    skip_n: int = 0,
) -> list[Published]:
    """Return the records that pass, by the fields of `order_by` (name, descending), then by rank.

    Absent, null and empty fields are before numbers, and numbers before texts.
    """
    found = sorted((m for m in records.values() if passes(m.body)), key=lambda message: message.rank)
    for name, descending in reversed(order_by):
        found.sort(key=_place_by(name), reverse=descending)
    return found[skip_n:] if top_n is None else found[skip_n : skip_n + top_n]


def _place_by(name: str) -> Callable[[Published], tuple[int, float, bytes]]:
    def place(message: Published) -> tuple[int, float, bytes]:
        value = message.body.get(name)
        if value is None or value == "":
            return 0, 0, b""
        return (2, 0, value.encode()) if isinstance(value, str) else (1, value, b"")

    return place
