"""The head of a batch, without its bodies.

A reader that needs few messages of a large commit reads the head, then only the bodies of the runs with those
messages. It reads entire runs, because their checksum covers the whole run.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.errors import BadBatch
from tickertape.base.interfaces import Buffer
from tickertape.batch.derive import take_part
from tickertape.batch.format import I8, Int64s, check_head, lengths_of, offsets_from
from tickertape.batch.message_batch import MessageBatch


class BatchHead:
    """Header and columns of an encoded batch of `nbytes`, to read some of its runs without all bodies."""

    def __init__(self, head: Buffer, nbytes: int) -> None:
        """Validate everything except the bodies. Raises `BadBatch`."""
        source, count, run_count, head_bytes, body_bytes, columns, topics, places = check_head(head, nbytes)
        self._batch = MessageBatch(count, run_count, head_bytes, body_bytes, columns, topics, places)
        self._batch._table = source
        self._batch.bodies = memoryview(b"")
        self.body_bytes = body_bytes
        """Size of all bodies in bytes."""

    def runs_with(self, topic: str) -> Int64s:
        """Return the increasing indices of the runs with a message of `topic`."""
        batch = self._batch
        if topic not in batch.topics:
            return np.empty(0, I8)
        if batch.topic_index is None:
            return np.arange(batch.run_count, dtype=I8)
        own = (batch.topic_index == batch.topics.index(topic)).nonzero()[0]
        runs: Int64s = np.unique(batch.run_starts.searchsorted(own, "right") - 1)
        return runs

    def ranges(self, runs: Int64s) -> list[tuple[int, int]]:
        """Return the byte ranges (end exclusive, from the start of the bodies) of increasing `runs`. Adjacent
        ones are merged, and empty ones left out."""
        starts, offsets = self._batch.run_starts, self._batch.offsets
        found: list[tuple[int, int]] = []
        firsts, lasts = offsets[starts[runs]].tolist(), offsets[starts[runs + 1]].tolist()
        for first, last in zip(firsts, lasts, strict=True):
            if found and found[-1][1] == first:
                found[-1] = found[-1][0], last
            elif first < last:
                found.append((first, last))
        return found

    def take(self, runs: Int64s, bodies: Buffer) -> tuple[MessageBatch, Int64s]:
        """Return the messages of `runs` and their indices in the batch.

        `bodies` has the joined bytes of `ranges(runs)`. Raises `BadBatch` for a wrong number of bytes,
        `CorruptBatch` for a wrong checksum.
        """
        batch = self._batch
        wanted = np.zeros(batch.run_count, np.bool_)
        wanted[runs] = True
        indices = np.repeat(wanted, lengths_of(batch.run_starts)).nonzero()[0]
        offsets = offsets_from(lengths_of(batch.offsets)[indices])
        if int(offsets[-1]) != memoryview(bodies).nbytes:
            raise BadBatch(
                f"Cannot read a batch: expected {int(offsets[-1])} bytes of bodies, "
                f"got {memoryview(bodies).nbytes}. Report the defect."
            )
        taken = take_part(batch, indices, offsets, bodies)
        taken.verify()
        return taken, indices
