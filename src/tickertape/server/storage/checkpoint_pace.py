"""Checkpoint pace: delays the writes of checkpoints, so that they do not delay commits. Pure."""

from __future__ import annotations

from tickertape.server.limits import (
    checkpoint_yield_seconds_max,
    commit_owed_seconds_max,
    sow_checkpoint_bytes_per_second,
)


class CheckpointPace:
    """Pace of the checkpoint thread. Times are monotonic seconds.

    Commits are noted from any thread, at most one at a time."""

    def __init__(self, rate: float = sow_checkpoint_bytes_per_second) -> None:
        """`rate`: bytes per second."""
        self._rate = rate
        self._owed_since: float | None = None
        self._yields_since: float | None = None
        """Since when the next piece waits for commits."""
        self._free_at = float("-inf")
        """Time at which earlier pieces have used up their share of the rate."""

    def commit_began(self, now: float) -> None:
        """Note that a commit is on its way to the disk."""
        self._owed_since = now

    def commit_done(self) -> None:
        """Note that the disk has answered the commit."""
        self._owed_since = None

    @property
    def commit_owed(self) -> bool:
        """Whether the disk has not answered a commit."""
        return self._owed_since is not None

    def wait_seconds(self, now: float) -> float:
        """Return how long to wait before the question is repeated, or 0 if the next piece may be written."""
        if now < self._free_at:
            return self._free_at - now
        since = self._owed_since
        if since is None or now - since <= commit_owed_seconds_max:
            return 0.0
        if self._yields_since is None:
            self._yields_since = now
        return commit_owed_seconds_max if now - self._yields_since < checkpoint_yield_seconds_max else 0.0

    def written(self, nbytes: int, now: float) -> None:
        """Count a piece that is written now."""
        self._yields_since = None
        self._free_at = max(self._free_at, now) + nbytes / self._rate
