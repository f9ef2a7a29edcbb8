"""Frame settlements: executes the settlements of a publish frame, and replaces them by their outcomes.

Invariants:
- Settling starts only after the messages of all settlements of the frame are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from pyroaring import BitMap64

from tickertape.base.errors import BadBatch, TickertapeError
from tickertape.batch import MessageBatch
from tickertape.batch.format import Bools, Bytes8
from tickertape.engine.limits import settlement_runs_per_frame_max, settlements_per_frame_max
from tickertape.engine.log_reads.log_reads import Steps
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.state.records import QueueRecord, encode_record
from tickertape.engine.sessions.session import Session
from tickertape.wire.settlement import QUEUE_TOPIC, Runs, Settlement, decode_settlement


class _Asked(NamedTuple):
    at: int
    """Index in the batch."""
    settlement: Settlement
    runs: Runs


class Settlements:
    """Settlements of a batch.

    Messages in `known` are duplicates."""

    def __init__(
        self,
        queues: QueueRegistry,
        session: Session,
        batch: MessageBatch,
        known: Bools,
    ) -> None:
        self._queues = queues
        self._session = session
        self._batch = batch
        self._known = known
        self._asked: list[_Asked] = []
        self._found: dict[int, BitMap64] = {}
        self.bad: dict[int, TickertapeError] = {}
        """Refused settlements by index."""
        indices = self._indices()
        if len(indices) > settlements_per_frame_max:
            raise BadBatch(
                f"Invalid frame with {len(indices):,} settlements. Send at most "
                f"{settlements_per_frame_max:,}."
            )
        for index in indices:
            try:
                self._asked.append(_Asked(index, *decode_settlement(bytes(batch.body(index)))))
            except TickertapeError as error:
                self.bad[index] = error

        runs = sum(len(asked.runs) for asked in self._asked)
        if runs > settlement_runs_per_frame_max:
            raise BadBatch(
                f"Invalid frame: its settlements have {runs:,} runs of bookmarks. "
                f"Send at most {settlement_runs_per_frame_max:,}."
            )

    def _indices(self) -> list[int]:
        batch = self._batch
        if batch.topic_index is None:
            own = ~self._known
        else:
            own = (batch.topic_index == batch.topics.index(QUEUE_TOPIC)) & ~self._known
        found: list[int] = own.nonzero()[0].tolist()
        return found

    def look_up(self) -> Steps[None]:
        """Find the messages that the settlements name."""
        for index, settlement, runs in self._asked:
            try:
                self._found[index] = yield from self._queues.look_up(self._session, settlement, runs)
            except TickertapeError as error:
                self.bad[index] = error

    def settle(self, bodies: list[bytes], kinds: Bytes8) -> None:
        """Execute the settlements. Writes the outcomes into the bodies and kinds of the frame."""
        nothing = BitMap64()
        for first, *others in self._alike():
            together = _together([first, *others])
            found = BitMap64()
            for asked in (first, *others):
                found |= self._found.get(asked.at, nothing)
            try:
                body = self._queues.settle(self._session, together.settlement, together.runs, found)
            except TickertapeError as error:
                self.bad.update((asked.at, error) for asked in (first, *others))
                continue
            bodies[first.at] = body
            for asked in others:
                # Its outcome is in the record of the first.
                bodies[asked.at] = encode_record(QueueRecord(asked.settlement.queue, []))
        kinds[self._indices()] = 1

    def _alike(self) -> Iterator[list[_Asked]]:
        """Yield sequences of settlements that differ only in their bookmarks and are settled together."""
        alike: list[_Asked] = []
        for asked in self._asked:
            if asked.at in self.bad:
                continue
            if alike and (asked.settlement.filter is not None or _kind(asked) != _kind(alike[0])):
                yield alike
                alike = []
            alike.append(asked)
        if alike:
            yield alike


def _kind(asked: _Asked) -> tuple[object, ...]:
    settlement = asked.settlement
    return settlement.queue, settlement.action, settlement.filter, settlement.extend_ms


def _together(alike: list[_Asked]) -> _Asked:
    """Merge settlements that differ only in their bookmarks."""
    if len(alike) == 1:
        return alike[0]
    first = alike[0]
    runs = np.concatenate([asked.runs for asked in alike])
    return first._replace(
        settlement=msgspec.structs.replace(first.settlement, runs=runs.tobytes()), runs=runs
    )
