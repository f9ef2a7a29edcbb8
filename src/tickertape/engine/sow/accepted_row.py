"""Accepted row: the latest accepted candidate of a key, as deltas and deletes see it."""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.batch import MessageBatch


class AcceptedRow(NamedTuple):
    """The latest candidate of a key. It is dead if a delete or an expiry ended it."""

    live: bool
    publisher: int
    sequence: int
    """0: the key has no candidate."""
    order_stamp: int
    batch: MessageBatch | None
    """Batch with the message. None: it is in the records, or the candidate is dead."""
    place: int
    """Index in the batch, or slot of the record."""
    position: int = 0
    """Position of the row that decided last."""


NO_CANDIDATE: Final = AcceptedRow(False, 0, 0, 0, None, 0)
