"""Link frames: cuts routed rows into the frames of a source, within its credit.

Invariants:
- A frame costs at most the credit, unless it has a single row and nothing is outstanding.
- An origin number has its meaning in the first frame that uses it, and in no other one.
- `end` of a frame is the position of the next row that the link sends or names, or the end of the piece.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import link_origins_per_frame_max, link_rows_max
from tickertape.batch import KIND_CONTROL, RUN_LATE, MessageBatch, select
from tickertape.batch.encode import assemble
from tickertape.batch.format import AnyArray, Columns, Int64s, Runs, UInt64s
from tickertape.engine.replication.origins import Origins
from tickertape.engine.replication.source.routed_log import RoutedPiece
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.journal.format.control_record import decode_head
from tickertape.wire.link import LinkHoles, LinkNames, LinkOrigin, LinkRuns, link_name_bytes
from tickertape.wire.link_checks import CONTROL_TOPIC, SOURCE_LOG, control_publisher
from tickertape.wire.link_rows import NameRows, encode_names

_KEPT_FLAGS: Final = np.uint32(~RUN_LATE & (1 << 32) - 1)
"""Flags of a run that hold in every log. Late runs are late in one log only."""


class LinkFrame(NamedTuple):
    """A command of the source, with its batch."""

    command: LinkHoles | LinkRuns | LinkNames
    batch: MessageBatch | None = None


class NamedSpans(NamedTuple):
    """Where the runs of one frame of names are in the log."""

    positions: Int64s
    """Position of the first message of each name."""
    counts: Int64s
    """Number of its messages, which have consecutive positions."""


class CutFrame(NamedTuple):
    """A frame, its cost, and the places of its names."""

    frame: LinkFrame
    cost: int
    spans: NamedSpans | None = None


class FrameCutter:
    """Cuts the frames of one connection."""

    def __init__(self, log: bytes, origins: Origins) -> None:
        """`log`: id of this log."""
        self._log = log
        self._origins = origins
        self._known = {SOURCE_LOG}
        """Numbers that the destination knows."""

    def cut(self, piece: RoutedPiece, credit: int, *, alone: bool) -> CutFrame | None:
        """Remove the next rows of a piece that is not over, and return them as a frame.

        None if they exceed the credit. `alone`: nothing is outstanding, so one row may exceed it."""
        return (self._cut_names if piece.is_named else self._cut_runs)(piece, credit, alone)

    def for_link(self, batch: MessageBatch) -> MessageBatch:
        """Return a batch of the log as a link sends it: without the parts that belong to this log, and with
        control records under the publisher of their log. Raises `JournalCorrupt`."""
        self._check_records(batch)
        runs = batch.runs
        flags, publishers = runs["flags"] & _KEPT_FLAGS, self._publishers(runs)
        if (
            batch.message_flags is None
            and (flags == runs["flags"]).all()
            and (publishers == runs["publisher"]).all()
        ):
            return batch
        runs = runs.copy()
        runs["flags"], runs["publisher"] = flags, publishers
        return assemble(
            runs=runs.tobytes(),
            offsets=batch.offsets.tobytes(),
            bodies=batch.bodies,
            topics=batch.topics,
            optional=Columns(
                topic_index=batch.topic_index,
                sequences=batch.sequences if batch.has_sequences else None,
                expirations=batch.expirations,
                correlation_ids=batch.correlation_ids,
                keys=batch.keys,
                kinds=batch.kinds,
                order_stamps=batch.order_stamps,
                headers=batch.headers,
            ),
        )

    def _cut_runs(self, piece: RoutedPiece, credit: int, alone: bool) -> CutFrame | None:
        rows, costs = piece.next_rows(), piece.stretch.costs
        total = (costs[rows + 1] - costs[rows]).cumsum()
        count = int(total.searchsorted(credit, "right"))
        if not count:
            if not alone:
                return None
            count = 1
        numbers = piece.batch.runs["origin"][_runs_of(piece.batch, rows[:count])]
        count, origins = self._introduce(numbers)
        batch = self.for_link(select(piece.batch, rows[:count]))
        piece.take(count)
        return CutFrame(LinkFrame(LinkRuns(end=piece.position, origins=origins), batch), batch.cost)

    def _cut_names(self, piece: RoutedPiece, credit: int, alone: bool) -> CutFrame | None:
        batch, rows = piece.batch, piece.next_rows()
        of_run, sequences = _runs_of(batch, rows), batch.sequences[rows]
        new = np.ones(len(rows), np.bool_)
        new[1:] = (
            (of_run[1:] != of_run[:-1])
            | (rows[1:] != rows[:-1] + 1)
            | (sequences[1:] != sequences[:-1] + np.uint64(1))
        )
        begins: Int64s = new.nonzero()[0]
        ends: Int64s = np.append(begins[1:], len(rows))
        count = min(len(begins), link_rows_max, max(credit // link_name_bytes, int(alone)))
        if count < 1:
            return None
        runs = batch.runs[of_run[begins[:count]]]
        count, origins = self._introduce(runs["origin"])
        begins, ends, runs = begins[:count], ends[:count], runs[:count]
        stamps = runs["timestamp"] if batch.order_stamps is None else batch.order_stamps[of_run[begins]]
        names = NameRows(
            self._publishers(runs), sequences[begins], sequences[ends - 1], runs["origin"], stamps
        )
        spans = NamedSpans(rows[begins] + piece.stretch.first_position, ends - begins)
        piece.take(int(ends[-1]))
        command = LinkNames(end=piece.position, origins=origins, rows=encode_names(names))
        return CutFrame(LinkFrame(command), count * link_name_bytes, spans)

    def _publishers(self, runs: Runs) -> UInt64s:
        """Return the publishers of runs, as all logs but the one of the publisher have them."""
        publishers: UInt64s = runs["publisher"]
        foreign = (publishers == np.uint64(CONTROL_PUBLISHER)) & (runs["origin"] != SOURCE_LOG)
        if foreign.any():
            publishers = publishers.copy()
            for number in np.unique(runs["origin"][foreign]).tolist():
                own = foreign & (runs["origin"] == number)
                publishers[own] = control_publisher(self._origins[number].log)
        return publishers

    def _check_records(self, batch: MessageBatch) -> None:
        """Raise `JournalCorrupt` for a record of another log in a run of this log.

        It would change the state of this log at the destination."""
        if batch.kinds is None or CONTROL_TOPIC not in batch.topics:
            return
        records = (batch.kinds == KIND_CONTROL).nonzero()[0]
        own = batch.runs["origin"][_runs_of(batch, records)] == SOURCE_LOG
        for row in records[own].tolist():
            if batch.topic(row) != CONTROL_TOPIC or b"log" not in (body := batch.body(row)):
                continue
            if decode_head(body).log not in (b"", self._log):
                raise JournalCorrupt(
                    f"Cannot replicate the control record {batch.bookmark(row)}: its log id is "
                    "not the one of this log. Report the defect."
                )

    def _introduce(self, numbers: AnyArray) -> tuple[int, tuple[LinkOrigin, ...]]:
        """Return the number of leading rows with few enough new origins for one frame, and these origins.

        `numbers` has the origin number of each row."""
        found, firsts = np.unique(numbers, return_index=True)
        pairs = zip(firsts.tolist(), found.tolist(), strict=True)
        new = sorted((first, number) for first, number in pairs if number not in self._known)
        count = len(numbers)
        if len(new) > link_origins_per_frame_max:
            count = new[link_origins_per_frame_max][0]
            del new[link_origins_per_frame_max:]
        self._known.update(number for _, number in new)
        return count, tuple(LinkOrigin(number, *self._origins[number]) for _, number in new)


def _runs_of(batch: MessageBatch, rows: Int64s) -> Int64s:
    """Return the index of the run of each row."""
    found: Int64s = batch.run_starts.searchsorted(rows, "right") - 1
    return found
