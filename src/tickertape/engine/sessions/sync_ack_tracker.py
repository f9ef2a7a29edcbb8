"""Sync ack tracker: answers that also wait until synchronous links have made the messages durable.

Answers wait first for this log, in log order, as those of `AckTracker`. Then they wait for their links, in a
queue for each connection, so that an answer holds up only later ones of its own connection.

Invariants:
- An answer is sent when the log is persisted up to its end, and enough links of its topics have all rows
  before it. A duplicate waits as a new message does.
- Answers of one connection keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from tickertape.batch import MessageBatch
from tickertape.engine.limits import owed_max
from tickertape.engine.runtime.durability import LinkSet, SyncLinks
from tickertape.engine.sessions.ack_tracker import AckTracker, PendingAck
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.journal.journal import Journal
from tickertape.wire.commands import Command, Persisted, weaker

_CLOSED_MIN: Final = 64
"""Closed connections in a heap that are too few to remove."""


class AckLinks(Protocol):
    """The synchronous links and their topics."""

    links: SyncLinks

    def links_of(self, topics: tuple[str, ...]) -> LinkSet:
        """Return the links for which an acknowledgement of messages on these topics waits."""
        ...


class SyncAckTracker(AckTracker):
    """Pending answers of all sessions of a server with synchronous links."""

    def __init__(self, journal: Journal, throttle: ReadThrottle, topics: AckLinks) -> None:
        super().__init__(journal, throttle)
        self._links = topics.links
        self._links_of = topics.links_of
        self._held: dict[int, deque[PendingAck]] = {}
        """Answers that wait for links, by connection, without empty queues."""
        self._fronts: dict[LinkSet, list[tuple[int, int]]] = {}
        """Heap of the first held answers, as end and connection, by their links."""
        self._owed: dict[int, int] = {}
        """Answers of each connection from the first one with links on."""
        self._owed_count = 0
        """Sum of `_owed`."""

    # -- inputs ---------------------------------------------------------------------------------------

    def add(self, session: Session, frame: int, sequence: int, batch: MessageBatch, /) -> None:
        """Acknowledge a publish frame once everything accepted until now is persisted here, and at the
        synchronous destinations of its topics."""
        end, links = self._journal.commits.accepted_end, self._links_of(batch.topics)
        self._owe(PendingAck(end, session, frame, sequence, None, False, links))

    def add_answer(self, session: Session, answer: Callable[[], Command]) -> None:
        """Send `answer()` once everything accepted until now is persisted here, after all earlier answers of
        the session."""
        self._owe(PendingAck(self._journal.commits.accepted_end, session, 0, 0, answer))

    def add_outcome(self, session: Session, outcome: Command, batch: MessageBatch, /) -> None:
        """Send the outcome of a request of a frame, as `add` does, before the `Persisted` of the frame."""
        end, links = self._journal.commits.accepted_end, self._links_of(batch.topics)
        self._owe(PendingAck(end, session, 0, 0, lambda: outcome, True, links))

    def _owe(self, owed: PendingAck) -> None:
        if owed.session.ended:
            return
        self.pending.append(owed)
        conn = owed.session.conn
        if owed.links or conn in self._owed:
            self._owed[conn] = self._owed.get(conn, 0) + 1
            self._owed_count += 1

    def forget(self, conn: int) -> None:
        """Drop the held answers of a closed connection."""
        self._held.pop(conn, None)
        self._owed_count -= self._owed.pop(conn, 0)

    def pause_if_behind(self, session: Session) -> None:
        """Stop reading from a publisher if too much waits for the disk, or if its answers are among too many
        that wait for links."""
        super().pause_if_behind(session)
        if self._owed_count > owed_max and session.conn in self._owed:
            self._throttle.pause(session.conn, "links")

    def resume_unless_behind(self) -> None:
        """Resume reading from publishers that were ahead of the disk or of links."""
        super().resume_unless_behind()
        if self._owed_count <= owed_max:
            self._throttle.resume_all("links")

    # -- outputs --------------------------------------------------------------------------------------

    def take_due(self) -> list[tuple[Session, Command]]:
        """Remove and return the answers that are due, of those that waited for this log."""
        end = self._journal.commits.persisted_end
        due = _DueAnswers(self._journal.level, self._links)
        while self.pending and self.pending[0].end <= end:
            owed = self.pending.popleft()
            if owed.session.ended:
                continue
            conn = owed.session.conn
            held = self._held.get(conn)
            if held is not None:
                held.append(owed)
            elif self._is_durable(owed):
                self._answer(owed, due)
            else:
                self._held[conn] = deque((owed,))
                self._add_front(owed)
        return due.answers()

    def take_replicated(self) -> list[tuple[Session, Command]]:
        """Remove and return the answers that are due, of those that waited for links. Call it after links
        have moved."""
        end = self._journal.commits.persisted_end
        due = _DueAnswers(self._journal.level, self._links)
        for links, heap in [*self._fronts.items()]:
            horizon = self._links.horizon(links, end)
            while heap and heap[0][0] <= horizon:
                _, conn = heappop(heap)
                if conn in self._held:
                    self._release(conn, due)
            if not heap:
                del self._fronts[links]
        return due.answers()

    def _release(self, conn: int, due: _DueAnswers) -> None:
        """Take the first held answers of a connection, up to one that still waits."""
        held = self._held[conn]
        while held and self._is_durable(held[0]):
            self._answer(held.popleft(), due)
        if held:
            self._add_front(held[0])
        else:
            del self._held[conn]

    def _answer(self, owed: PendingAck, due: _DueAnswers) -> None:
        due.add(owed)
        conn = owed.session.conn
        counted = self._owed.get(conn)
        if counted is None:
            return
        self._owed_count -= 1
        if counted > 1:
            self._owed[conn] = counted - 1
        else:
            del self._owed[conn]

    def _is_durable(self, owed: PendingAck) -> bool:
        """Return whether enough links have all rows before the end of an answer."""
        return not owed.links or self._links.horizon(LinkSet(owed.links), owed.end) >= owed.end

    def _add_front(self, owed: PendingAck) -> None:
        heap = self._fronts.setdefault(LinkSet(owed.links), [])
        heappush(heap, (owed.end, owed.session.conn))
        if len(heap) > 2 * len(self._held) + _CLOSED_MIN:
            heap[:] = [front for front in heap if front[1] in self._held]
            heapify(heap)


class _DueAnswers:
    """Answers to send, in order: one cumulative `Persisted` for each session, after outcomes and before other
    answers."""

    def __init__(self, local: str, links: SyncLinks) -> None:
        self._local = local
        self._links = links
        self._reached: dict[int, tuple[Session, Persisted]] = {}
        self._due: list[tuple[Session, Command]] = []
        self._others: list[tuple[Session, Command]] = []

    def add(self, owed: PendingAck) -> None:
        """Add an answer that is due."""
        session, sequence = owed.session, owed.sequence
        if owed.answer is not None:
            (self._due if owed.precedes else self._others).append((session, owed.answer()))
            return
        level = self._links.level(LinkSet(owed.links), owed.end, self._local)
        before = self._reached.get(session.conn)
        if before is not None:
            sequence = max(sequence, before[1].sequence)
            level = weaker(level, before[1].level)
        self._reached[session.conn] = session, Persisted(frame=owed.frame, sequence=sequence, level=level)

    def answers(self) -> list[tuple[Session, Command]]:
        """Return the answers."""
        return [*self._due, *self._reached.values(), *self._others]
