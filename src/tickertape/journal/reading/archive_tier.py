"""Archive tier: how far the archive covers the log, as known to the log.

Invariant: only messages confirmed by a probe of the archive count as archived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tickertape.journal.format.retired_state import StoredMessage


class ArchiveCoverage(NamedTuple):
    """Position range and topics of the archive."""

    begin: int | None
    """None if no table exists yet."""
    end: int = 0
    holds: Callable[[str], bool] = bool
    """Whether the archive has all messages of a topic, or of the topics of a pattern."""
    topics: str = ""
    """The archived topics, for messages. Empty means all."""
    last: tuple[int, StoredMessage] | None = None
    """Position of the last archived message, and that message. None without a message."""


class ArchiveTier:
    """The archive as known to the log. `where` names it in messages."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.known = False
        """A probe of the archive was answered."""
        self.covered = ArchiveCoverage(None)

    def cover(self, covered: ArchiveCoverage) -> None:
        """Store the answer of a probe."""
        self.known = True
        self.covered = covered

    @property
    def end(self) -> int:
        """Position below which everything is archived, or 0 while nothing is archived."""
        return 0 if self.covered.begin is None else self.covered.end

    def serves(self, position: int, first: int) -> bool:
        """Return whether the archive has everything from `position` up to `first`, the start of the log."""
        begin = self.covered.begin
        return begin is not None and begin <= position <= first <= self.covered.end

    def __str__(self) -> str:
        begin, end, _, topics, _ = self.covered
        if begin is None:
            return f"the archive {self.where!r}{' has no table yet' if self.known else ''}"
        which = f" of the topics {topics!r}" if topics else ""
        return f"the archive {self.where!r} has positions {begin} to {end} (exclusive){which}"
