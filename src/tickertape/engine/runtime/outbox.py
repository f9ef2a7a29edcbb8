"""Outbox: the ordered list of effects that the engine requests. Only this module appends effects.

Invariants:
- A held acknowledgement is sent before an `Ack` or `Goodbye`. Other commands may overtake it.
- Tokens of reads and staging jobs are unique.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tickertape.base.errors import BookmarkExpired, TickertapeError
from tickertape.engine.runtime.ack_conflation import AckConflation, Recipient
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import (
    ArchiveRead,
    CloseConnection,
    DiskJob,
    Effect,
    LogEvent,
    LogonRefused,
    ReadLog,
    Send,
    StagingJob,
    SubscriptionEnded,
)
from tickertape.engine.runtime.statistics import Statistics
from tickertape.journal.commit.jobs import JournalJob
from tickertape.journal.format.staging_file import StagingTask
from tickertape.journal.reading.archive_reader import ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.wire.commands import Ack, Command, Ended, Goodbye, LinkMismatch, Persisted
from tickertape.wire.frames import encode_frame

NO_CONNECTION: Final = -1
"""Connection number of reads for the engine itself."""


class Outbox:
    """Effects since the last `take`."""

    def __init__(self, statistics: Statistics, clock: EngineClock) -> None:
        self._statistics = statistics
        self._clock = clock
        self.effects: list[Effect] = []
        """Effects since the last `take`. Callers must not change it."""
        self._token = 0
        self.put: Callable[[Effect], None] = self.effects.append
        """Append an effect directly: deliveries, and effects without side conditions."""
        self._conflation = AckConflation()

    def take(self) -> list[Effect]:
        """Remove and return the effects."""
        taken = self.effects[:]
        self.effects.clear()
        return taken

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `release`. None if no acknowledgement is
        held."""
        return self._conflation.next_deadline()

    # -- connections ------------------------------------------------------------------------------------

    def send(self, conn: int, command: Command) -> None:
        """Send a command to a connection, after the held acknowledgement if it is an `Ack` or `Goodbye`."""
        if type(command) is Ack or type(command) is Goodbye:
            held = self._conflation.release(conn)
            if held is not None:
                self._put(conn, held)
        self._put(conn, command)

    def _put(self, conn: int, command: Command) -> None:
        self.put(Send(conn, encode_frame(command)))

    def reply_all(self, answers: Iterable[tuple[Recipient, Command]]) -> None:
        """Send answers that depend on a commit."""
        for session, command in answers:
            if type(command) is not Persisted:
                self.send(session.conn, command)
            elif not session.ack_conflation or self._conflation.persisted(session, command, self._clock.mono):
                self._put(session.conn, command)
        if self._conflation.held:
            self._clock.announce(self)

    def release(self) -> None:
        """Send held acknowledgements that are due."""
        for conn, held in self._conflation.due(self._clock.mono):
            self._put(conn, held)

    def forget(self, conn: int) -> None:
        """Drop the held acknowledgement of a closed connection."""
        self._conflation.drop(conn)

    def reject(self, conn: int, command_id: int, error: TickertapeError) -> None:
        """Answer a command with an error."""
        available = error.available if isinstance(error, BookmarkExpired) else ""
        answer = Ack(id=command_id, code=error.code, text=str(error), available=available)
        self.reject_with(conn, answer, error)

    def reject_with(self, conn: int, answer: Command, error: TickertapeError) -> None:
        """Send `answer`, which reports `error`. Count and log the error."""
        self._statistics.refuse(error)
        self.send(conn, answer)
        self.put(LogonRefused(conn, error))

    def end_subscription(self, conn: int, sub_id: str, topic: str, error: TickertapeError) -> None:
        """End a subscription with an error. Count and log the error."""
        self._statistics.end_subscription(error)
        self.send(conn, Ended(sub_id=sub_id, code=error.code, text=str(error)))
        self.put(SubscriptionEnded(conn, sub_id, topic, error))

    def close(self, conn: int, error: TickertapeError, mismatches: tuple[LinkMismatch, ...] = ()) -> None:
        """Send a goodbye with an error and close the connection. Count the error."""
        self.send(conn, Goodbye(code=error.code, text=str(error), mismatches=mismatches))
        self._statistics.end(error)
        self.put(CloseConnection(conn, error.code, str(error)))

    # -- disk -------------------------------------------------------------------------------------------

    def next_token(self) -> int:
        """Return a token that no other request has."""
        self._token += 1
        return self._token

    def read(self, request: ReadRequest | ArchiveRequest, conn: int = NO_CONNECTION) -> int:
        """Request a read of the log, or of the archive for a connection. Return its token."""
        token = self.next_token()
        if isinstance(request, ReadRequest):
            self.put(ReadLog(token, request))
        else:
            self.put(ArchiveRead(token, request, conn))
        return token

    def stage(self, task: StagingTask) -> int:
        """Request a job on a file of staged messages. Return its token."""
        token = self.next_token()
        self.put(StagingJob(token, task))
        return token

    def submit(self, jobs: Iterable[JournalJob]) -> None:
        """Request journal jobs, in order."""
        self.effects.extend(map(DiskJob, jobs))

    # -- log of the server ------------------------------------------------------------------------------

    def log_event(self, name: str, warning: bool, fields: dict[str, str | int]) -> None:
        """Log an event that does not concern a single connection."""
        self.put(LogEvent(name, warning, fields))
