"""Ack tracker: answers that wait until the log is persisted up to a position.

Invariants:
- Messages are acknowledged only after they are persisted.
- Each session gets one cumulative `Persisted` per commit, after outcomes and before other answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.engine.limits import owed_max
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.journal.journal import Journal
from tickertape.wire.commands import Command, Persisted


class PendingAck(NamedTuple):
    """An answer that is due once the log is persisted up to `end`."""

    end: int
    session: Session
    frame: int
    sequence: int
    answer: Callable[[], Command] | None
    """Creates the command to send. None: a `Persisted`."""
    precedes: bool = False
    """Whether the answer is sent before the `Persisted` of its session."""
    links: int = 0
    """Synchronous links for which it waits (`LinkSet`)."""


class AckTracker:
    """Pending answers of all sessions, in log order."""

    def __init__(self, journal: Journal, throttle: ReadThrottle) -> None:
        self._journal = journal
        self._throttle = throttle
        self.pending: deque[PendingAck] = deque()
        """Answers in log order. Callers must not change it."""

    def add(self, session: Session, frame: int, sequence: int, _batch: MessageBatch, /) -> None:
        """Acknowledge the publish frame of a batch once everything accepted until now is persisted."""
        self.pending.append(PendingAck(self._journal.commits.accepted_end, session, frame, sequence, None))

    def add_answer(self, session: Session, answer: Callable[[], Command]) -> None:
        """Send `answer()` once everything accepted until now is persisted."""
        self.pending.append(PendingAck(self._journal.commits.accepted_end, session, 0, 0, answer))

    def add_outcome(self, session: Session, outcome: Command, _batch: MessageBatch, /) -> None:
        """Send the outcome of a request of a batch once everything accepted until now is persisted, before
        the `Persisted` of its frame."""
        end = self._journal.commits.accepted_end
        self.pending.append(PendingAck(end, session, 0, 0, lambda: outcome, precedes=True))

    def pause_if_behind(self, session: Session) -> None:
        """Stop reading from a publisher if too many bytes or answers wait for the disk."""
        if len(self.pending) > owed_max or self._journal.commits.congested:
            self._throttle.pause(session.conn, "journal")

    def resume_unless_behind(self) -> None:
        """Resume reading from publishers that were ahead of the disk."""
        if len(self.pending) <= owed_max and not self._journal.commits.congested:
            self._throttle.resume_all("journal")

    def take_due(self) -> list[tuple[Session, Command]]:
        """Remove and return the answers that are due."""
        end = self._journal.commits.persisted_end
        if not self.pending or self.pending[0].end > end:
            return []
        reached: dict[int, tuple[Session, int, int]] = {}
        due: list[tuple[Session, Command]] = []
        others: list[tuple[Session, Command]] = []
        while self.pending and self.pending[0].end <= end:
            _, session, frame, sequence, answer, precedes, _ = self.pending.popleft()
            if answer is not None:
                (due if precedes else others).append((session, answer()))
                continue
            before = reached.get(session.conn)
            if before is not None:
                sequence = max(sequence, before[2])
            reached[session.conn] = session, frame, sequence
        level = self._journal.level
        for session, frame, sequence in reached.values():
            due.append((session, Persisted(frame=frame, sequence=sequence, level=level)))
        return due + others
