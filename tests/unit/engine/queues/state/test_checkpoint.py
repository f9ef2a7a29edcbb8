"""Log positions that a stored queue checkpoint needs."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from tickertape.engine.queues.state.checkpoint import OldState, QueueCheckpoint, StoredState, needed_from
from tickertape.engine.queues.state.position_set_format import encode_set
from tickertape.engine.queues.state.records import Reason


def stored(ready: list[int], inactive: list[int], expired: list[int]) -> StoredState:
    """Return a state in the current format."""
    first, second, third = (encode_set(BitMap64(positions)) for positions in (ready, inactive, expired))
    return StoredState(first, second, third, [], [], [], (0, 0, 0, 0), {}, {}, (b"", []), b"")


def old(ready: list[int], inactive: list[int], expired: list[int]) -> OldState:
    """Return a state in format version 0."""
    reason = next(iter(Reason))
    sets = BitMap64(ready).serialize(), BitMap64(inactive).serialize()
    expirations = [(at, reason, 0, 0) for at in expired]
    return OldState(*sets, expirations, [], (0, 0, 0, 0), {}, {}, (b"", []), b"")


@pytest.mark.parametrize(
    ("covered", "needed"),
    [
        (QueueCheckpoint("q", b"", 50, 70), 50),
        (QueueCheckpoint("q", b"", 70, 60), 60),
        (QueueCheckpoint("q", b"", 50, 70, stored([], [], [])), 50),
        (QueueCheckpoint("q", b"", 50, 70, stored([12, 40], [], [])), 12),
        (QueueCheckpoint("q", b"", 50, 70, stored([12], [9, 40], [])), 9),
        (QueueCheckpoint("q", b"", 50, 70, stored([12], [9], [30, 3])), 3),
        (QueueCheckpoint("q", b"", 50, 70, old([], [], [])), 50),
        (QueueCheckpoint("q", b"", 50, 70, old([12], [9, 40], [])), 9),
        (QueueCheckpoint("q", b"", 50, 70, old([12], [9], [30, 3])), 3),
    ],
)
def test_checkpoint_needs_the_log_from_the_oldest_stored_position(
    covered: QueueCheckpoint, needed: int
) -> None:
    assert needed_from(covered) == needed
