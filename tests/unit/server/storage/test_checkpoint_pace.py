"""Checkpoint pace: bytes per second, and waits for commits."""

from __future__ import annotations

from tickertape.server.limits import checkpoint_yield_seconds_max, commit_owed_seconds_max
from tickertape.server.storage.checkpoint_pace import CheckpointPace


class Writing:
    """A checkpoint thread whose clock only waits advance."""

    def __init__(self) -> None:
        self.pace = CheckpointPace(rate=1_000.0)
        self.now = 50.0

    def write(self, nbytes: int) -> float:
        """Write a piece. Return the time that it waited."""
        began = self.now
        while seconds := self.pace.wait_seconds(self.now):
            self.now += seconds
        self.pace.written(nbytes, self.now)
        return self.now - began


def test_pieces_are_written_at_the_rate() -> None:
    writing = Writing()
    for _ in range(10):
        writing.write(500)
    assert writing.now == 50.0 + 9 * 0.5


def test_idle_time_is_not_made_up() -> None:
    writing = Writing()
    writing.write(1_000)
    writing.now += 100
    assert writing.write(1_000) == 0
    assert writing.write(0) == 1.0


def test_piece_waits_while_a_commit_is_owed_and_for_a_bounded_time() -> None:
    writing = Writing()
    writing.pace.commit_began(writing.now)
    assert writing.write(0) == 0
    writing.now += 2 * commit_owed_seconds_max
    for _ in range(2):
        waited = writing.write(0)
        assert abs(waited - checkpoint_yield_seconds_max) < 2 * commit_owed_seconds_max
    writing.pace.commit_done()
    assert writing.write(0) == 0
