"""Effects: what the engine asks of its driver, as data, drained in order.

`conn` is the number under which the driver announced a connection.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.journal.commit.jobs import JournalJob
from tickertape.journal.format.staging_file import StagingTask
from tickertape.journal.reading.archive_reader import ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest


class Send(NamedTuple):
    """Write these buffers to a connection, in order, without changing them later."""

    conn: int
    buffers: list[Buffer]


class LogonAccepted(NamedTuple):
    """The logon of a connection succeeded: lift the limits for unauthenticated connections."""

    conn: int


class CloseConnection(NamedTuple):
    """Close a connection once everything sent to it is written. `reason` is an error code."""

    conn: int
    reason: str
    text: str


class ProbeConnection(NamedTuple):
    """Report the traffic of a connection with `Broker.probed`."""

    conn: int


class LogonRefused(NamedTuple):
    """Log that a command of a connection was rejected."""

    conn: int
    error: TickertapeError


class SubscriptionEnded(NamedTuple):
    """Log that an error ended a subscription."""

    conn: int
    sub_id: str
    topic: str
    error: TickertapeError


PauseReason = Literal["journal", "unrecorded", "searches", "settling", "staging"]
"""What a connection waits for while it is not read from: the disk, delivery of messages that are not
recorded, searches, settlements, or files of staged messages."""


class PauseReading(NamedTuple):
    """Read nothing more from a connection until `ResumeReading` for the same reason."""

    conn: int
    why: PauseReason


class ResumeReading(NamedTuple):
    """Read from a connection again, unless there is another reason not to."""

    conn: int
    why: PauseReason


class DiskJob(NamedTuple):
    """Carry out a job of the journal, in order; answer with `Broker.disk_done`."""

    job: JournalJob


class ReadLog(NamedTuple):
    """Read from a segment; answer with `Broker.read_done` under the same token."""

    token: int
    request: ReadRequest


class ArchiveRead(NamedTuple):
    """Ask the archive; answer with `Broker.read_done` under the same token."""

    token: int
    request: ArchiveRequest
    conn: int
    """The connection that needs the answer."""


class ReadTaskDone(NamedTuple):
    """A task of the driver, which it gave to `Broker.run`, has its outcome."""

    task: object


class LogEvent(NamedTuple):
    """Log an event that concerns no single connection."""

    name: str
    warning: bool
    fields: dict[str, str | int]


class SpillWrite(NamedTuple):
    """Write a block to a spill file, which is created when it is new; answer with `Broker.spill_done`."""

    token: int
    file: int
    offset: int
    buffers: list[Buffer]


class SpillRead(NamedTuple):
    """Read a block from a spill file; answer with `Broker.spill_done`."""

    token: int
    file: int
    offset: int
    size: int


class SpillTrim(NamedTuple):
    """Remove a spill file, if it exists. No read or write of it is under way."""

    file: int


class StagingJob(NamedTuple):
    """Do a job on a file of staged messages, those of one file in order; answer with
    `Broker.staging_done`."""

    token: int
    task: StagingTask


class OfflineStart(NamedTuple):
    """Log that the backlog of a connection is written to disk from now on."""

    conn: int
    bytes: int


class OfflineStop(NamedTuple):
    """Log that the backlog of a connection is empty again, or the connection closed, after `seconds`."""

    conn: int
    seconds: float


class Fatal(NamedTuple):
    """Stop with the exit code of the error: the journal failed. Sent once."""

    error: TickertapeError


Effect = (
    Send
    | LogonAccepted
    | CloseConnection
    | ProbeConnection
    | LogonRefused
    | SubscriptionEnded
    | PauseReading
    | ResumeReading
    | DiskJob
    | ReadLog
    | ArchiveRead
    | ReadTaskDone
    | LogEvent
    | SpillWrite
    | SpillRead
    | SpillTrim
    | StagingJob
    | OfflineStart
    | OfflineStop
    | Fatal
)
