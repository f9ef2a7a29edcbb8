"""Effects: requests of the engine to its driver, as data, executed in order.

`conn` is the number that the driver assigned to a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.journal.commit.jobs import JournalJob
from tickertape.journal.format.staging_file import StagingTask
from tickertape.journal.reading.archive_reader import ArchiveRequest
from tickertape.journal.reading.log_view import ReadRequest

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch
    from tickertape.wire.link import DestinationCommand, SourceCommand


class Send(NamedTuple):
    """Write these buffers to a connection, in order. They do not change later."""

    conn: int
    buffers: list[Buffer]


class LogonAccepted(NamedTuple):
    """Lift the limits for unauthenticated connections: the logon succeeded."""

    conn: int


class CloseConnection(NamedTuple):
    """Close a connection after everything sent to it is written. `reason` is an error code."""

    conn: int
    reason: str
    text: str


class ProbeConnection(NamedTuple):
    """Report the traffic of a connection with `Broker.probed`."""

    conn: int


class LogonRefused(NamedTuple):
    """Log a rejected command of a connection."""

    conn: int
    error: TickertapeError


class SubscriptionEnded(NamedTuple):
    """Log a subscription that ended with an error."""

    conn: int
    sub_id: str
    topic: str
    error: TickertapeError


PauseReason = Literal[
    "journal", "unrecorded", "searches", "settling", "staging", "state", "replication", "links"
]
"""Why a connection is not read. It waits for the disk, delivery of non-persistent messages, searches,
settlements, files of staged messages, the fold of the state of the world, held answers of a link, or
acknowledgements of synchronous links."""


class PauseReading(NamedTuple):
    """Stop reading from a connection until `ResumeReading` for the same reason."""

    conn: int
    why: PauseReason


class ResumeReading(NamedTuple):
    """Resume reading from a connection, unless another reason to pause remains."""

    conn: int
    why: PauseReason


class DiskJob(NamedTuple):
    """Execute a journal job, in order. Answer with `Broker.disk_done`."""

    job: JournalJob


class ReadLog(NamedTuple):
    """Read from a segment. Answer with `Broker.read_done` and the same token."""

    token: int
    request: ReadRequest


class ArchiveRead(NamedTuple):
    """Read from the archive. Answer with `Broker.read_done` and the same token."""

    token: int
    request: ArchiveRequest
    conn: int
    """The connection that needs the answer."""


class ReadTaskDone(NamedTuple):
    """A task that the driver passed to `Broker.run` is done."""

    task: object


class LogEvent(NamedTuple):
    """Log an event that does not concern a single connection."""

    name: str
    warning: bool
    fields: dict[str, str | int]


class SpillWrite(NamedTuple):
    """Write a block to a spill file, and create the file if it is new. Answer with `Broker.spill_done`."""

    token: int
    file: int
    offset: int
    buffers: list[Buffer]


class SpillRead(NamedTuple):
    """Read a block from a spill file. Answer with `Broker.spill_done`."""

    token: int
    file: int
    offset: int
    size: int


class SpillTrim(NamedTuple):
    """Delete a spill file, if it exists. The engine has no read or write of this file in progress."""

    file: int


class StagingJob(NamedTuple):
    """Execute a job on a file of staged messages, in order per file. Answer with `Broker.staging_done`."""

    token: int
    task: StagingTask


class OfflineStart(NamedTuple):
    """Log that the backlog of a connection is now spilled to disk."""

    conn: int
    bytes: int


class OfflineStop(NamedTuple):
    """Log that a connection emptied its spilled backlog or closed, after `seconds`."""

    conn: int
    seconds: float


class SendLink(NamedTuple):
    """Encode a command with its batch, and write it to the connection of a link."""

    conn: int
    command: SourceCommand | DestinationCommand
    batch: MessageBatch | None = None


class LinkEnded(NamedTuple):
    """The connection of an outgoing link ended. Sent once for each `Broker.link_connected`.

    `refused`: only an operator can change the cause, so the driver connects again after a long delay."""

    conn: int
    destination: str
    error: TickertapeError | None
    refused: bool


class Fatal(NamedTuple):
    """Stop the server with the exit code of the error, because the journal failed. Sent once."""

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
    | SendLink
    | LinkEnded
    | Fatal
)
