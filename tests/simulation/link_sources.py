"""Naive sources of links: logs as lists of rows, which send valid commands of a link.

Must never ask the filter or the intake of the destination: rows and sets of integers decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np

from tests.helpers.sequence_sets import SequenceSets
from tickertape.batch import KIND_CONTROL, BatchBuilder, MessageBatch, as_linked, merge
from tickertape.engine.replication.places import LogStart, LogStarts
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, PublisherNamed
from tickertape.journal.format.replication_records import LogPlace, after, as_foreign, encode_record
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkOrigin,
    LinkRequest,
    LinkRuns,
    LinkSide,
    SourceCommand,
    link_name_bytes,
    link_place_bytes,
)
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_order import LinkOrder
from tickertape.wire.link_rows import NameRows, decode_places, decode_positions, encode_names, encode_pairs

Sent = tuple[SourceCommand, MessageBatch | None]


class LinkRow(NamedTuple):
    """A row of a log, as links see it."""

    kind: str
    """`message`, `after`, `publisher`, `unknown` (a record of an unknown type) or `unrouted`."""
    publisher: int
    """Of a record: the publisher that it is about."""
    sequence: int
    """Of `after`: the end of its hole."""
    path: tuple[bytes, ...]
    """Logs that the row passed before this log, the origin first. Empty: a row of this log."""
    stamp: int
    """Order stamp, the same for all messages of a run."""
    proven: bool = True
    number: int = 0
    """Sequence of a control record in the log that wrote it."""

    @property
    def key(self) -> tuple[int, int]:
        return self.publisher, self.sequence


def body_of(publisher: int, sequence: int) -> bytes:
    """Return the body of a message: it has one body, wherever it is stored."""
    return f"{publisher}/{sequence}:".encode() * (1 + sequence % 5)


class NaiveLog:
    """The log of a source."""

    def __init__(self, log: bytes, name: str, rng: Random) -> None:
        self.log = log
        self.name = name
        self.rng = rng
        self.rows: list[LinkRow] = []
        self.first = 0
        """Position of the first row that retention has kept."""
        self.sets = SequenceSets()
        self.starts: list[LogStart] = []
        self.cursors: dict[bytes, int] = {}
        """Rows of other logs that were taken."""
        self._number = rng.randrange(1, 9)
        self._bound: set[int] = set()
        self.restart()

    def restart(self) -> None:
        """Start the server again."""
        self.starts.append(LogStart(self.rng.getrandbits(63) + 1, len(self.rows)))
        self._add(LinkRow("unrouted", 0, 0, (), 0))

    @property
    def log_starts(self) -> LogStarts:
        return LogStarts(self.log, self.starts)

    @property
    def side(self) -> LinkSide:
        rows = encode_pairs(*zip(*self.starts, strict=True))
        return LinkSide(instance=self.name, group="g", log=self.log, starts=rows)

    def _add(self, row: LinkRow) -> None:
        position = len(self.rows)
        self.rows.append(row)
        if row.kind == "after":
            self.sets.open(row.publisher, row.sequence, position, proven=row.proven)
        elif row.kind == "message":
            self.sets.store(row.publisher, [row.sequence])

    def _own(self, kind: str, publisher: int, sequence: int, *, proven: bool = True) -> None:
        self._number += self.rng.randrange(1, 4)
        self._add(LinkRow(kind, publisher, sequence, (), self._number, proven, self._number))

    def publish(self, publisher: int, sequences: Sequence[int], claim: int | None, stamp: int) -> None:
        """A publisher connects, and sends messages."""
        if publisher not in self._bound:
            self._bound.add(publisher)
            self._own("publisher", publisher, 0)
        if self.rng.random() < 0.1:
            self._own("unknown", publisher, 0)
        last = None
        for sequence in sequences:
            highest = self.sets.highest.get(publisher, 0)
            if sequence > highest:
                if claim is not None and claim > highest:
                    self._own("after", publisher, claim)
                elif highest and last != highest:
                    self._own("after", publisher, highest)
                if claim is None and last is None and sequence - 1 > highest:
                    self._own("after", publisher, sequence - 1, proven=False)
            if self.sets.admits(publisher, sequence, from_link=False):
                self._add(LinkRow("message", publisher, sequence, (), stamp))
                last = sequence
        if self.rng.random() < 0.2:
            self._add(LinkRow("unrouted", 0, 0, (), 0))

    def take(self, other: bytes, rows: Sequence[LinkRow], count: int) -> None:
        """Take some rows of another log, in its order."""
        at = min(self.cursors.get(other, 0), len(rows))
        for row in rows[at : at + count]:
            path = (*row.path, other)
            if row.kind == "after":
                if row.sequence > self.sets.highest.get(row.publisher, 0):
                    self._add(row._replace(path=path))
            elif row.kind == "message" and self.sets.admits(row.publisher, row.sequence, from_link=True):
                own = path.index(self.log) if self.log in path else len(path)
                self._add(row._replace(path=path[:own]))
        self.cursors[other] = min(at + count, len(rows))

    def remove(self, first: int) -> None:
        """Retention removes the rows before a position."""
        self.first = first

    def removed_highest(self) -> dict[int, int]:
        """Return the highest removed sequence of each publisher."""
        highest: dict[int, int] = {}
        for row in self.rows[: self.first]:
            if row.kind in ("message", "after"):
                highest[row.publisher] = max(row.sequence, highest.get(row.publisher, 0))
        return highest


class SourceFrame(NamedTuple):
    """A sent frame, as the checks need it."""

    end: int
    cost: int
    rows: list[LinkRow]
    """Its messages."""


class NaiveSource:
    """The source of one connection of a link, which obeys the order of commands."""

    def __init__(self, log: NaiveLog, destination: bytes, rng: Random) -> None:
        self.log = log
        self.rng = rng
        self.destination = destination
        self.order = LinkOrder()
        self.sent: deque[Sent] = deque()
        """Commands on their way to the destination."""
        self.frames: list[SourceFrame] = []
        self.requested: list[tuple[int, int]] = []
        """Requested rows without an answer: position and frame."""
        self.answered: set[tuple[int, int]] = set()
        """Messages in answers."""
        self.durable = 0
        self.end = -1
        self.named: list[tuple[int, list[LinkRow]]] = []
        """Named runs with their frame, by position."""
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._new: list[LinkOrigin] = []

    def send(self, command: SourceCommand, batch: MessageBatch | None = None) -> None:
        parsed = None if batch is None else MessageBatch.parse(batch.encode())
        self.order.from_source(command, parsed)
        self.sent.append((command, parsed))

    def open(self) -> None:
        self.send(LinkOpen(side=self.log.side))

    def opened(self, command: LinkOpened) -> None:
        """Start the stream."""
        self.order.from_destination(command)
        log = self.log
        places = decode_places(command.places)
        known = [
            log.log_starts.resume(LogPlace(log.log, start, position), len(log.rows))
            for start, position in zip(places.starts.tolist(), places.positions.tolist(), strict=True)
        ]
        found = [position for position in known if position is not None]
        self.end = max(found, default=log.first)
        assert self.end >= log.first
        behind = not found and log.first > 0
        holes = sorted(log.removed_highest().items()) if behind else []
        width = self.rng.choice((1, 100))
        pieces = [holes[low : low + width] for low in range(0, len(holes), width)] or [[]]
        self.holes = deque(
            LinkHoles(
                position=self.end,
                behind=behind,
                rows=encode_pairs(*zip(*piece, strict=True)) if piece else b"",
                more=piece is not pieces[-1],
            )
            for piece in pieces
        )

    def step(self) -> None:
        """Send the next frame that the credit permits."""
        if self.end < 0:
            return
        if self.holes:
            if self._affords(len(self.holes[0].rows), len(self.holes[0].rows) // link_place_bytes):
                command = self.holes.popleft()
                self.send(command)
                self.frames.append(SourceFrame(-1 if command.more else self.end, len(command.rows), []))
            return
        if self.requested and self.rng.random() < 0.6:
            self._answer()
        else:
            self._send_rows()

    def _affords(self, cost: int, count: int) -> bool:
        return cost <= self.order.credit or (count <= 1 and self.order.credit == self.order._window)

    def _send_rows(self) -> None:
        rows = self.log.rows[self.end : self.end + self.rng.choice((1, 3, 20))]
        kinds = [self._handling(row) for row in rows]
        if not rows:
            return
        count = next((at for at, kind in enumerate(kinds) if kind != kinds[0]), len(kinds))
        runs = _runs_of(rows[:count])
        if kinds[0] == "skip":
            self.send(LinkNames(end=self.end + count))
            self.frames.append(SourceFrame(self.end + count, 0, []))
            self.end += count
            return
        while True:
            numbers = [self._number(run[0].path) for run in runs]
            sent = [row for run in runs for row in run]
            end = self.end + len(sent)
            if kinds[0] == "name":
                cost, frames = len(runs) * link_name_bytes, len(runs)
            else:
                batch = self._batch(runs, numbers)
                cost, frames = batch.cost, batch.count
            if self._affords(cost, frames):
                break
            if frames == 1:
                return
            runs = runs[: len(runs) // 2] if len(runs) > 1 else [runs[0][: (len(runs[0]) + 1) // 2]]
        origins = tuple(self._new)
        self._new.clear()
        messages = [row for row in sent if row.kind == "message"]
        if kinds[0] == "name":
            names = self._names(runs, numbers)
            self.send(LinkNames(end=end, origins=origins, rows=names))
            self.named += [(len(self.frames), run) for run in runs]
        else:
            self.send(LinkRuns(end=end, origins=origins), batch)
        self.frames.append(SourceFrame(end, cost, messages))
        self.end = end

    def _handling(self, row: LinkRow) -> str:
        if row.kind == "unrouted":
            return "skip"
        if row.kind == "message" and (self.destination in row.path or row.sequence % 7 == 3):
            return "name"
        return "send"

    def _number(self, path: tuple[bytes, ...]) -> int:
        if path and path not in self._numbers:
            self._numbers[path] = len(self._numbers) + 1
            self._new.append(LinkOrigin(self._numbers[path], path[0], f"i{path[0][0]}", "g", path))
        return self._numbers[path] if path else 0

    def _names(self, runs: list[list[LinkRow]], numbers: list[int]) -> bytes:
        return encode_names(
            NameRows(
                np.array([run[0].publisher for run in runs], np.uint64),
                np.array([run[0].sequence for run in runs], np.uint64),
                np.array([run[-1].sequence for run in runs], np.uint64),
                np.array(numbers, np.uint32),
                np.array([run[0].stamp for run in runs], np.int64),
            )
        )

    def _batch(self, runs: list[list[LinkRow]], numbers: list[int]) -> MessageBatch:
        return merge([self._run(run, number) for run, number in zip(runs, numbers, strict=True)])

    def _run(self, rows: list[LinkRow], number: int) -> MessageBatch:
        builder = BatchBuilder()
        first = rows[0]
        writer = first.path[0] if first.path else self.log.log
        for row in rows:
            if row.kind == "message":
                builder.add("t", body_of(*row.key), sequence=row.sequence, key=f"k{row.sequence}")
            else:
                builder.add(CONTROL_TOPIC, _record(row, writer), kind=KIND_CONTROL, sequence=row.number)
        publisher = first.publisher
        if first.kind != "message":
            publisher = control_publisher(writer) if first.path else CONTROL_PUBLISHER
        if not number and self.rng.random() < 0.5:
            return builder.build(publisher, timestamp=first.stamp)
        late = self.rng.random() < 0.5
        return as_linked(builder.build(publisher, timestamp=9), number, first.stamp, late=late)

    def _answer(self) -> None:
        count = self.rng.randint(1, len(self.requested))
        asked, self.requested = self.requested[:count], self.requested[count:]
        runs = [self.named[position][1] for position, _ in asked]
        numbers = [self._number(run[0].path) for run in runs]
        origins = tuple(self._new)
        self._new.clear()
        positions = np.array([position for position, _ in asked], np.uint64).tobytes()
        self.send(
            LinkRuns(end=self.order.end, origins=origins, answers=positions), self._batch(runs, numbers)
        )
        self.answered |= {row.key for run in runs for row in run}

    def received(self, command: DestinationCommand) -> None:
        """Take a command of the destination."""
        self.order.from_destination(command)
        if isinstance(command, LinkRequest):
            positions = decode_positions(command.positions).tolist()
            self.requested += [(position, self.named[position][0]) for position in positions]
        elif isinstance(command, LinkAck):
            self.durable = command.durable


def _runs_of(rows: Iterable[LinkRow]) -> list[list[LinkRow]]:
    """Return rows in runs: of one publisher, path and order stamp, with rising sequences."""
    runs: list[list[LinkRow]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and last.kind == row.kind == "message"
            and (last.publisher, last.path, last.stamp) == (row.publisher, row.path, row.stamp)
            and last.sequence < row.sequence
        ):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _record(row: LinkRow, writer: bytes) -> bytes:
    """Return the body of a control record."""
    if row.kind == "publisher":
        return msgspec.msgpack.encode(PublisherNamed(publisher=row.publisher, name=f"p{row.publisher}"))
    if row.kind == "unknown":
        return msgspec.msgpack.encode({"type": "begun", "position": 7})
    record = after(writer, row.publisher, 1, row.sequence, proven=row.proven)
    return encode_record(as_foreign(record, writer) if row.path else record)
