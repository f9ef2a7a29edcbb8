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
    """The connection's logon succeeded: lift the limits for strangers."""

    conn: int


class CloseConnection(NamedTuple):
    """Close a connection once what was sent to it is written. `reason` is an error code, `text` says more."""

    conn: int
    reason: str
    text: str


class ProbeConnection(NamedTuple):
    """Tell what a connection looks like now: answer with `Broker.probed`."""

    conn: int


class LogonRefused(NamedTuple):
    """A command of a connection was refused and answered; for the driver's log."""

    conn: int
    error: TickertapeError


class SubscriptionEnded(NamedTuple):
    """A subscription of a connection was ended by an error, and its client told; for the driver's log."""

    conn: int
    sub_id: str
    topic: str
    error: TickertapeError


PauseReason = Literal["journal", "unrecorded", "searches", "settling", "staging"]
"""Why a connection is not read from: ahead of the disk, of what is handed on, of what is looked up, of a
settlement that is, or of the files of what is staged."""


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
    """Ask the archive; answer with `Broker.archive_done` under the same token."""

    token: int
    request: ArchiveRequest
    conn: int
    """For whom."""


class ReadTaskDone(NamedTuple):
    """A task of the driver, which it gave to `Broker.run`, has its outcome."""

    task: object


class LogEvent(NamedTuple):
    """Something that is no matter of one connection; for the driver's log: name of the event, its level, its
    fields."""

    name: str
    warning: bool
    fields: dict[str, str | int]


class SpillWrite(NamedTuple):
    """Write what waits for slow clients to one of their files, which is made when it is new; answer with
    `Broker.spill_done`."""

    token: int
    file: int
    offset: int
    buffers: list[Buffer]


class SpillRead(NamedTuple):
    """Read from one of those files; answer with `Broker.spill_done`."""

    token: int
    file: int
    offset: int
    size: int


class SpillTrim(NamedTuple):
    """One of those files, if it was made, is no longer needed; nothing is under way in it."""

    file: int


class StagingJob(NamedTuple):
    """Do something with a file of what is staged, those of one file in order; answer with
    `Broker.staging_done`."""

    token: int
    task: StagingTask


class OfflineStart(NamedTuple):
    """What waits for a connection is written to disk from now on; `bytes` wait."""

    conn: int
    bytes: int


class OfflineStop(NamedTuple):
    """Nothing waits for it any more, after so many seconds: it was all sent, or the connection has ended."""

    conn: int
    seconds: float


class Fatal(NamedTuple):
    """The journal failed: stop with the exit code for it. Sent once."""

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
