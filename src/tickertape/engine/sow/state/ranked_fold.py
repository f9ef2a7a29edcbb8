"""Ranked fold: applies rows in any order of ranks to the records of one SOW topic.

Rows of links, and late rows of clients, may have lower ranks than rows before them in the log. Messages that
lost, and deletes, are kept as candidates until they are stable (`Candidates`), so the records are a function
of the set of rows. Most rows are newer than the record of their key, and need no candidates.

Invariants:
- The records are those of the candidates with the highest ranks, in any order of arrival.
- All rows of a topic are applied by this fold, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tickertape.batch.format import CORRELATION_IDS, I8, Int64s
from tickertape.engine.sow.state.candidates import (
    Candidate,
    Candidates,
    Decision,
    DecisionKind,
    Rank,
    StateRow,
    live_candidate,
)
from tickertape.engine.sow.state.change import DELETED, EXPIRED
from tickertape.engine.sow.state.delete import DeleteKind, DeleteRecord
from tickertape.engine.sow.state.fold import DeleteRow, Source, StateFold
from tickertape.engine.sow.state.labels import label_of
from tickertape.engine.sow.state.records import RecordRow

_OWN: Final = 0
"""Number of the log of this server."""


class LostMessage(NamedTuple):
    """Content of a message outside the record columns."""

    body: bytes
    life: int
    """Milliseconds, 0 for none."""
    label: bytes | None
    """Correlation id."""


class LostRow(NamedTuple):
    """A published row that is not the record of its key."""

    row: int
    """Index in its batch."""
    restated: Candidate[LostMessage] | None
    """Another message that became the record because of the row, or None."""


class RankedFold:
    """The fold of one SOW topic. `log` is the id of the log of this server."""

    def __init__(self, fold: StateFold, log: bytes) -> None:
        self.fold = fold
        self._candidates = Candidates[LostMessage]()
        self._logs = [log]
        self._log_numbers = {log: _OWN}
        self._origins = np.zeros(0, np.uint16)
        """Number of the log of the record of each slot. Slots behind the end have records of this log."""

    @property
    def unsettled(self) -> int:
        """Number of keys with candidates besides the record."""
        return len(self._candidates)

    # -- rows -------------------------------------------------------------------------------------------

    def publish(
        self, keys: Sequence[bytes], source: Source, rows: Int64s, logs: Sequence[bytes]
    ) -> list[LostRow]:
        """Apply messages: `rows` of a commit, ascending, and their keys. Return those that lost.

        `logs` are the log ids of the origins of the runs of the batch. A message that was applied before may
        be applied again only as a copy of the candidate of its publisher, or if all rows behind it are."""
        batch = source.batch
        runs = np.searchsorted(batch.run_starts, rows, side="right") - 1
        stamps = batch.runs["timestamp"] if batch.order_stamps is None else batch.order_stamps
        labelled = batch.columns & CORRELATION_IDS
        lost: list[LostRow] = []
        for key, index, run in zip(keys, rows.tolist(), runs.tolist(), strict=True):
            position = source.first_position + index
            row = StateRow(
                position, batch.publisher(index), batch.sequence(index), int(stamps[run]), logs[run]
            )
            label = label_of(batch, index) if labelled else None
            content = LostMessage(bytes(batch.body(index)), batch.expiration(index) or 0, label)
            decision = self._published(key, row, content)
            self._apply(key, decision, position, source.end, DELETED)
            if decision.kind is not DecisionKind.RECORD:
                restated = decision.record if decision.kind is DecisionKind.RESTATED else None
                lost.append(LostRow(index, restated))
        return lost

    def delete(self, row: DeleteRow, log: bytes, low: int, high: int) -> list[Candidate[LostMessage]]:
        """Apply the keys `[low, high)` of a delete or expiry record whose origin is a log.

        Return the messages that became records because of it."""
        record = row.record
        expiry = record.kind is DeleteKind.EXPIRED
        state_row = StateRow(row.position, row.publisher, row.sequence, row.order_stamp, log)
        restated: list[Candidate[LostMessage]] = []
        named = _named_between(record, log, low, high)
        for key, rank in zip(record.keys_between(low, high), named, strict=True):
            current = self._current(key)
            if not expiry:
                decision = self._candidates.delete(key, state_row, rank, current)
            elif rank is not None:
                decision = self._candidates.expire(key, rank.publisher, rank.sequence, current)
            else:
                continue
            self._apply(key, decision, row.position, row.position + 1, EXPIRED if expiry else DELETED)
            if decision.kind is DecisionKind.RESTATED and decision.record is not None:
                restated.append(decision.record)
        return restated

    def highest(self, key: bytes) -> Rank | None:
        """Return the rank that a delete of a key names, or None without candidates."""
        return self._candidates.highest(key, self._current(key))

    def candidate(self, key: bytes, publisher: int) -> Candidate[LostMessage] | None:
        """Return the candidate of a publisher. A copy of it with a lower stamp or log id counts instead."""
        return self._candidates.candidate(key, publisher, self._current(key))

    def forget(self, stable: int, stamp: int) -> None:
        """Drop candidates at positions below `stable` with order stamps up to `stamp`: see `Candidates`."""
        self._candidates.forget(stable, stamp)

    # -- decisions --------------------------------------------------------------------------------------

    def _published(self, key: bytes, row: StateRow, content: LostMessage) -> Decision[LostMessage]:
        """Enter a message. One without candidates and behind its own publisher's record needs no entry."""
        if key not in self._candidates:
            slot = self._slot(key)
            if slot < 0:
                return Decision(DecisionKind.RECORD, live_candidate(row, content))
            publisher, sequence = self._bookmark(slot)
            if publisher == row.publisher and sequence != row.sequence:
                if sequence < row.sequence:
                    return Decision(DecisionKind.RECORD, live_candidate(row, content))
                return Decision(DecisionKind.NONE, None)
        return self._candidates.publish(key, row, content, self._current(key))

    def _apply(self, key: bytes, decision: Decision[LostMessage], position: int, end: int, kind: int) -> None:
        """Change the record of a key because of the row at a position, in a commit that ends at `end`.

        The record gets this position, so that checkpoints and columns find the change."""
        record = decision.record
        if decision.kind is DecisionKind.REMOVED:
            self.fold.end_records(position, np.array([self._slot(key)], I8), [key], kind)
        elif decision.kind is not DecisionKind.NONE and record is not None and record.content is not None:
            records = self.fold.records
            row = RecordRow(
                records.blocks.append_one(record.content.body),
                position,
                record.stored[0],
                records.publishers.number(record.publisher),
                record.sequence,
                record.content.life,
                record.content.label,
            )
            self._set_log(self.fold.set_record(key, row, (position, end)), record.stored[1])

    # -- records ----------------------------------------------------------------------------------------

    def _slot(self, key: bytes) -> int:
        return int(self.fold.keys.find([key])[0])

    def _bookmark(self, slot: int) -> tuple[int, int]:
        rows = self.fold.records.rows(np.array([slot], I8))
        return int(self.fold.records.publishers.ids(rows.publishers)[0]), int(rows.sequences[0])

    def _current(self, key: bytes) -> Candidate[LostMessage] | None:
        """Return the record of a key as a candidate."""
        slot = self._slot(key)
        if slot < 0:
            return None
        records = self.fold.records
        rows = records.rows(np.array([slot], I8))
        row = StateRow(
            int(rows.positions[0]),
            int(records.publishers.ids(rows.publishers)[0]),
            int(rows.sequences[0]),
            int(rows.order_stamps[0]),
            self._logs[self._origins[slot]] if slot < len(self._origins) else self._logs[_OWN],
        )
        body = records.body(slot)
        assert body is not None
        life = 0 if rows.lives is None else int(rows.lives[0])
        label = None if rows.labels is None else rows.labels[0]
        return live_candidate(row, LostMessage(body, life, label))

    def _set_log(self, slot: int, log: bytes) -> None:
        """Note the log of the record of a slot."""
        number = self._log_numbers.get(log)
        if number is None:
            number = self._log_numbers[log] = len(self._logs)
            self._logs.append(log)
        if slot >= len(self._origins):
            if number == _OWN:
                return
            self._origins = np.concatenate([self._origins, np.zeros(slot + 1, np.uint16)])
        self._origins[slot] = number


def _named_between(record: DeleteRecord, log: bytes, low: int, high: int) -> list[Rank | None]:
    """Return the ranks of the messages that the keys `[low, high)` name, None without a message."""
    logs = (log, *record.logs)
    numbers = record.log_numbers[low:high].tolist() if len(record.log_numbers) else [0] * (high - low)
    columns = zip(
        record.order_stamps[low:high].tolist(),
        numbers,
        record.publishers_between(low, high).tolist(),
        record.sequences[low:high].tolist(),
        strict=True,
    )
    return [
        Rank(stamp, logs[number], publisher, sequence) if sequence else None
        for stamp, number, publisher, sequence in columns
    ]
