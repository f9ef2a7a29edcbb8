"""Engine driver: passes input from sockets, disk and clock to the broker, and performs its effects.

The driver runs on one event loop and never blocks it. While the server runs, only this module, and
archive_reads.py for archive answers, pass input to the broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from tickertape.base.errors import (
    FrameStalled,
    HeartbeatMissed,
    JournalError,
    LogonTimeout,
    NotReady,
    TickertapeError,
)
from tickertape.base.histogram import SECONDS_BUCKETS, Histogram
from tickertape.base.interfaces import Buffer, Now
from tickertape.base.limits import receive_buffer_bytes
from tickertape.engine.limits import step_bytes_max
from tickertape.engine.runtime.effects import (
    ArchiveRead,
    CloseConnection,
    DiskJob,
    Effect,
    Fatal,
    LinkEnded,
    LogEvent,
    LogonAccepted,
    PauseReading,
    PauseReason,
    ProbeConnection,
    ReadLog,
    ReadTaskDone,
    ResumeReading,
    Send,
    SendLink,
    SpillRead,
    SpillTrim,
    SpillWrite,
    StagingJob,
)
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import JournalJob, RetireSegments, WriteCommit
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.security.tokens import name_in
from tickertape.server.clock import clock
from tickertape.server.events import event
from tickertape.server.limits import (
    connections_max,
    inbound_stall_seconds_max,
    link_handshakes_bytes_max,
    logon_seconds_max,
)
from tickertape.server.network.command_scheduler import CommandScheduler
from tickertape.server.network.connection import ClientConnection, PeerConnection
from tickertape.server.network.connection_events import log_connection_effect, log_effect, log_end
from tickertape.server.network.inbound_budget import InboundBudget
from tickertape.server.startup import OpenedInstance
from tickertape.server.storage.archive_reads import ArchiveComparison
from tickertape.server.storage.disk_worker import DiskWorker
from tickertape.server.storage.segment_reads import SegmentReads
from tickertape.server.storage.staging_files import StagingFiles
from tickertape.server.storage.worker_thread import Workers
from tickertape.wire.commands import Publish
from tickertape.wire.connection import Received, Violation

if TYPE_CHECKING:  # only servers that replicate import them
    from tickertape.server.network.link_source import LinkSourceConnection
    from tickertape.wire.link import DestinationCommand, LinkOpen, SourceCommand
    from tickertape.wire.link_connection import LinkConnection

_NO_LOGON: Final = (
    f"Cannot wait longer for a logon: none came within {logon_seconds_max:g} s. Log on after connecting."
)
_NO_ANSWER: Final = (
    f"Cannot open a link: the destination did not answer within {logon_seconds_max:g} s. Check it."
)
HANDSHAKES_TEXT: Final = (
    "Cannot open a link: the server reads too many large handshakes of other links now. Try again later."
)
"""Error text for a large handshake beyond the memory of all of them."""
_STOPPED: Final = "Cannot serve clients: the server has stopped. Wait until it runs again."
_LINK_STOPPED: Final = "Cannot continue the link: the server has stopped. Wait until it runs again."
_CLOSE_SECONDS_MAX: Final = 5.0
"""Time limit for closing a connection. Afterwards it is aborted."""
_STALLED: Final = (
    "Cannot wait longer for a large frame: it stalled for "
    f"{inbound_stall_seconds_max:g} s while other frames "
    "waited for its memory. Send frames without pauses."
)
_ENGINE_REASONS: Final[tuple[str, ...]] = (*get_args(PauseReason), "scheduler")
"""Reasons of the server not to read from a connection. A frame does not count as stalled meanwhile."""
_LATE_SECONDS_MAX: Final = 1.0
"""Delay of a timer above which the server itself counts as stalled."""


class EngineDriver:
    """Driver of an instance on the current event loop.

    `inbound`: budget for incomplete large frames (None: default limits). `connections`: limit of connections,
    if file descriptors allow fewer than `connections_max`. `workers`: factories for blocking operations.
    """

    def __init__(
        self,
        opened: OpenedInstance,
        loop: asyncio.AbstractEventLoop,
        inbound: InboundBudget | None = None,
        connections: int = connections_max,
        workers: Workers = Workers(),  # noqa: B008 - a constant
    ) -> None:
        self.broker = opened.broker
        self.inbound = InboundBudget() if inbound is None else inbound
        self.handshakes = InboundBudget(link_handshakes_bytes_max)
        """Memory budgets of incomplete large frames, and of handshakes of peers without rights."""
        self._connections_max = connections
        self._inbound_timer: asyncio.TimerHandle | None = None
        self.stopped: asyncio.Future[TickertapeError | None] = loop.create_future()
        """Result of the run: None after a clean stop, else the error that ended it."""
        self._loop = loop
        self.connections: dict[int, PeerConnection] = {}
        """Open connections by their number."""
        self._logon_timers: dict[int, asyncio.TimerHandle] = {}
        """Timers of connections without a logon."""
        self._next_conn = 1
        self.scratch = memoryview(bytearray(receive_buffer_bytes))
        """Receive buffer shared by all connections. The bytes of a read are consumed before the next read."""
        self.cipher_scratch = memoryview(bytearray(receive_buffer_bytes))
        """Receive buffer for encrypted bytes, shared in the same way."""
        self.steps = Histogram()
        """Durations of event loop steps: each handles one input, one turn of work or one admin query."""
        self.empty = asyncio.Event()
        """Set while the server has no connections."""
        self.empty.set()
        self.disk_worker = DiskWorker(
            opened.executor,
            self._disk_answered,
            loop.call_soon_threadsafe,
            workers,
            workers.syncs(loop, opened.disk),
        )
        self._full = False
        self._segment_reads = SegmentReads(opened.disk, self._on_loop(self._read_answered), workers)
        self._reads: dict[int, ReadRequest] = {}
        self._spill = opened.spill
        if self._spill is not None:
            self._spill.start(self._on_loop(self._spill_answered))
        self._staging = StagingFiles(opened.disk, self._on_loop(self._staging_answered), workers)
        self.links = opened.links
        """Dialers of outgoing links. None: the server does not replicate."""
        self._link_states: dict[int, LinkConnection] = {}
        """Protocol states of the connections of links."""
        self._archive = opened.archive
        if self._archive is not None:
            self._archive.start(loop, self)
        self._outgoing: dict[int, list[Buffer]] = {}
        """Buffers to write at the end of a flush, by connection."""
        self._scheduler = CommandScheduler(self._take)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._working = False
        self._flushing = False
        self._closing = False

    # -- connections ----------------------------------------------------------------------------------

    def connected(self, connection: PeerConnection) -> int:
        """Register an accepted connection. Return its number."""
        conn = self._next_conn
        self._next_conn += 1
        self.connections[conn] = connection
        self.empty.clear()
        self.broker.connected(conn)
        if len(self.connections) > self._connections_max:
            text = f"Cannot connect: too many connections (limit {self._connections_max}). Try again later."
            self.violated(conn, NotReady(text))
        else:
            event("connection_open", conn=conn, address=connection.address or None)
            self._limit_logon(conn, _NO_LOGON)
        return conn

    def _limit_logon(self, conn: int, text: str) -> None:
        timer = self._loop.call_later(logon_seconds_max, self.violated, conn, LogonTimeout(text))
        self._logon_timers[conn] = timer

    def violated(self, conn: int, error: TickertapeError) -> None:
        """Close a connection after a protocol violation."""
        began = time.monotonic()
        self.broker.goodbye(conn, error)
        self.flush(began)

    def received(self, conn: int, events: list[Received | Violation]) -> None:
        """Handle the decoded frames of a connection."""
        now = clock()
        connection = self.connections[conn]
        if connection.takes_logon and conn not in self._link_states and connection.link is not None:
            self._begin_link(conn, connection, connection.link, events[0])
        for incoming in events:
            if self._scheduler.received(conn, incoming, now):
                self._set_scheduled(conn, waits=True)
            if self.connections[conn].takes_logon:
                # A logon raises the limits, and its next command may be among these events already.
                self.flush()
        self.flush(self.connections[conn].decoding_since)

    def _take(self, conn: int, incoming: Received | Violation, now: Now) -> int:
        """Pass a command to the engine. Return its effort."""
        before = self.broker.compiler.effort
        if not isinstance(incoming, Received):
            self.broker.goodbye(conn, incoming.error)
        elif conn in self._link_states:
            command = cast("SourceCommand | DestinationCommand", incoming.command)
            self.broker.link_received(conn, command, incoming.batch, now)
        else:
            self.broker.received(conn, incoming.command, incoming.batch, now)
        return self.broker.compiler.effort - before

    def _set_scheduled(self, conn: int, *, waits: bool) -> None:
        connection = self.connections.get(conn)
        if connection is not None:
            connection.set_reading(enabled=not waits, reason="scheduler")
            self.inbound.excuse(conn, time.monotonic())

    def lost(self, conn: int) -> None:
        """Remove a closed connection. Publishes received before its end are still processed."""
        began = time.monotonic()
        connection = self.connections.pop(conn)
        self._link_states.pop(conn, None)
        if not self.connections:
            self.empty.set()
        self._cancel_logon_timer(conn)
        for incoming in self._scheduler.drop(conn):
            if isinstance(incoming, Received) and isinstance(incoming.command, Publish):
                self._take(conn, incoming, clock())  # a client may publish and close at once
        self.broker.disconnected(conn)
        if self._archive is not None:
            self._archive.drop(conn)
        log_end(conn, connection)
        self.large_frame_ended(conn)
        self.flush(began)

    def writable(self, conn: int, *, writable: bool) -> None:
        """Handle an outbox that reached its limit, or fell below it."""
        # Do not read commands from a client that does not read answers. Nothing else limits their number.
        self.connections[conn].set_reading(enabled=writable, reason="outbox")
        if writable:
            began = time.monotonic()
            self.broker.writable(conn)
            self.flush(began)
        else:
            self.broker.blocked(conn)

    # -- links ----------------------------------------------------------------------------------------

    def connect_links(self) -> None:
        """Start to connect to the destinations of this server."""
        if self.links is not None:
            self.links.start(self._loop, self)

    def link_connections(self) -> dict[int, PeerConnection]:
        """Return the connections of all links by number."""
        return {conn: self.connections[conn] for conn in self._link_states}

    def link_connected(self, connection: LinkSourceConnection) -> int:
        """Register an established connection of an outgoing link. Return its number."""
        now = clock()
        conn = self._next_conn
        self._next_conn += 1
        self.connections[conn] = connection
        self.empty.clear()
        self._link_states[conn] = connection.link
        target = connection.target
        event("connection_open", conn=conn, address=connection.address or None, destination=target.name)
        self._limit_logon(conn, _NO_ANSWER)
        self.broker.link_connected(conn, target.name, target.token, now)
        self.flush(now.mono)
        return conn

    def command_link(self, destination: str, action: str) -> None:
        """Execute a command of an operator: `downgrade`, `upgrade`, `pause` or `resume`.

        Raises `TickertapeError` if it is refused."""
        now = clock()
        try:
            if action in ("downgrade", "upgrade"):
                self.broker.change_level(destination, now, downgraded=action == "downgrade")
            else:
                self.broker.set_link_stopped(destination, now, stopped=action == "pause")
        finally:
            self.flush(now.mono)

    def _begin_link(
        self, conn: int, connection: PeerConnection, link: LinkConnection, first: Received | Violation
    ) -> None:
        """Note that an accepted connection is a link. `first` is its handshake, or a violation in it."""
        if isinstance(first, Received):
            self._link_states[conn] = link
            opening = cast("LinkOpen", first.command)
            token = opening.token
            connection.opens(opening.side.instance, None if token is None else name_in(token))

    def _link_opened(self, connection: PeerConnection) -> None:
        assert self.links is not None
        if connection.destination:
            self.links.opened(connection.destination)
        else:
            self.links.came(connection.source)
        here = self.links.instance
        connection.linked(f"{connection.source or here}!{connection.destination or here}")

    def _send_link(self, effect: SendLink) -> None:
        link = self._link_states.get(effect.conn)
        if link is None:
            return  # the connection is lost, or an earlier frame was not sent
        try:
            buffers = link.send(effect.command, effect.batch)
        except TickertapeError as error:  # a frame above the limit, because of a huge configuration
            del self._link_states[effect.conn]  # later frames that are waiting assume this one
            self.broker.goodbye(effect.conn, error)
        else:
            self._outgoing.setdefault(effect.conn, []).extend(buffers)

    # -- large frames ---------------------------------------------------------------------------------

    def large_frame(self, conn: int, size: int, received: int) -> None:
        """Record the received bytes of an incomplete large frame."""
        now, connection = time.monotonic(), self.connections[conn]
        if connection.takes_logon and not connection.destination:
            if not self.handshakes.came(conn, size, received, now):
                self.handshakes.ended(conn, now)
                self.violated(conn, NotReady(HANDSHAKES_TEXT))
        elif not self.inbound.came(conn, size, received, now):
            connection.set_reading(enabled=False, reason="inbound")
            self._watch_inbound()

    def large_frame_ended(self, conn: int) -> None:
        """Release the large frame of a connection, when it is complete or the connection ends."""
        now = time.monotonic()
        self.handshakes.ended(conn, now)
        for admitted in self.inbound.ended(conn, now):
            self.connections[admitted].set_reading(enabled=True, reason="inbound")

    def _watch_inbound(self) -> None:
        deadline = self.inbound.deadline()
        if deadline is not None and self._inbound_timer is None:
            # A timer that fires early is started again.
            delay = max(deadline - time.monotonic(), 0.0)
            self._inbound_timer = self._loop.call_later(delay, self._check_inbound, deadline)

    def _check_inbound(self, due: float) -> None:
        """Close connections with stalled frames, whose memory other frames wait for."""
        self._inbound_timer = None
        now = time.monotonic()
        if now > due + _LATE_SECONDS_MAX:
            self.inbound.excuse_all(now)
        while (conn := self.inbound.stalled(now)) is not None:
            if any(map(self.connections[conn].unread_for, _ENGINE_REASONS)):
                self.inbound.excuse(conn, now)
            else:
                self.violated(conn, FrameStalled(_STALLED))
                self.large_frame_ended(conn)
        self._watch_inbound()

    # -- disk -----------------------------------------------------------------------------------------

    def _on_loop(self, take: Callable[..., None]) -> Callable[..., Any]:
        """Return a thread-safe callback that calls `take` on the event loop."""
        return partial(self._loop.call_soon_threadsafe, take)

    def _staging_answered(self, token: int, result: list[memoryview] | TickertapeError) -> None:
        now = clock()
        self.broker.staging_done(token, result, now)
        self.flush(now.mono)

    def _spill_answered(self, token: int, data: Buffer | OSError | None) -> None:
        now = clock()
        self.broker.spill_done(token, data, now)
        self.flush(now.mono)

    def _disk_answered(self, job: JournalJob, error: OSError | None, salt: int) -> None:
        now = clock()
        self.broker.disk_done(job, error, salt, now)
        if isinstance(job, RetireSegments):
            self._segment_reads.removed(job.numbers)
        if self.broker.journal.commits.full is not self._full:
            self._full = not self._full
            if self._full:
                reason = self.broker.journal.commits.full_reason
                text = f"Cannot prepare the next segment: {reason}. The server retries every second."
                event("journal_full", logging.WARNING, text=text)
            else:
                event("journal_resumed", logging.WARNING)
        self.flush(now.mono)

    def _read_answered(self, token: int, data: Buffer | OSError) -> None:
        now = clock()
        self._segment_reads.finished(self._reads.pop(token))
        self.broker.read_done(token, _read_outcome(data), now)
        self.flush(now.mono)

    # -- effects --------------------------------------------------------------------------------------

    def flush(self, began: float | None = None) -> None:
        """Perform the effects of the engine until it has none.

        `began`: monotonic time at which the step that this ends began. The step is then measured."""
        if self._flushing:
            return
        self._flushing = True
        budget = step_bytes_max
        try:
            effects = self.broker.effects()
            while effects:
                for effect in effects:
                    budget -= self._perform(effect, budget)
                effects = self.broker.effects() if self.broker.pending_effects else []
            if self._outgoing:
                self._write()
        finally:
            self._flushing = False
        if not self._working and (self.broker.has_work or self._scheduler.waiting):
            self._working = True
            self._loop.call_soon(self._work)
        deadline = self.broker.next_deadline()
        # A timer that fires early is harmless. Restarting it for every commit would be slower.
        if deadline is not None and (self._timer is None or deadline < self._timer_at - 0.001):
            self._set_timer(deadline)
        if self._closing and self.broker.journal.commits.closed:
            self._finish(None)
        if began is not None:
            # As `Histogram.add`. Each message takes several steps, so a call would cost too much.
            seconds = time.monotonic() - began
            steps = self.steps
            steps.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
            steps.total += seconds
            if seconds > steps.highest:
                steps.highest = seconds

    def _perform(self, effect: Effect, budget: int) -> int:
        """Perform one effect. Return the number of bytes read on the event loop."""
        if isinstance(effect, Send):
            self._outgoing.setdefault(effect.conn, []).extend(effect.buffers)
        elif isinstance(effect, DiskJob):
            self._run_job(effect.job)
        elif isinstance(effect, ReadLog):
            return self._read(effect, budget)
        elif isinstance(effect, ArchiveRead):
            assert self._archive is not None
            self._archive.submit(effect)
        elif isinstance(effect, ReadTaskDone):
            assert self._archive is not None
            assert isinstance(effect.task, ArchiveComparison)
            self._archive.compared(effect.task)
        elif isinstance(effect, SpillWrite | SpillRead | SpillTrim):
            assert self._spill is not None
            self._spill.submit(effect)
        elif isinstance(effect, StagingJob):
            self._staging.submit(effect)
        elif isinstance(effect, SendLink):
            self._send_link(effect)
        elif isinstance(effect, LinkEnded):
            assert self.links is not None
            self.links.ended(effect.destination, refused=effect.refused)
        elif isinstance(effect, LogonAccepted):
            self._logged_on(effect.conn)
        elif isinstance(effect, CloseConnection):
            self._close(effect)
        elif isinstance(effect, PauseReading | ResumeReading | ProbeConnection):
            self._control(effect)
        elif isinstance(effect, LogEvent | Fatal):
            log_effect(effect)
            if isinstance(effect, Fatal):
                self._finish(effect.error)
        else:
            connection = self.connections.get(effect.conn)
            log_connection_effect(effect, None if connection is None else connection.client)
        return 0

    def _control(self, effect: PauseReading | ResumeReading | ProbeConnection) -> None:
        connection = self.connections.get(effect.conn)
        if connection is None:
            return
        if isinstance(effect, ProbeConnection):
            self.broker.probed(effect.conn, connection.liveness(), clock())
        else:
            connection.set_reading(enabled=isinstance(effect, ResumeReading), reason=effect.why)
            self.inbound.excuse(effect.conn, time.monotonic())

    def _write(self) -> None:
        """Write the collected buffers, with one call for each connection."""
        outgoing, self._outgoing = self._outgoing, {}
        for conn, buffers in outgoing.items():
            connection = self.connections.get(conn)
            if connection is not None:
                connection.send(buffers)

    def _run_job(self, job: JournalJob) -> None:
        if isinstance(job, WriteCommit) and self.broker.journal.policy is SyncPolicy.NEVER:
            self.broker.disk_done(job, self.disk_worker.run_inline(job), 0, clock())
        else:
            self.disk_worker.submit(job)

    def _read(self, effect: ReadLog, budget: int) -> int:
        token, request = effect
        try:
            data = self._segment_reads.try_now(request) if budget > 0 else None
            if data is None:
                self._segment_reads.submit(token, request)
                self._reads[token] = request
                return 0
        except OSError as error:
            self.broker.read_done(token, _read_outcome(error), clock())
            return 0
        self.broker.read_done(token, data, clock())
        return len(data)

    def _logged_on(self, conn: int) -> None:
        self._cancel_logon_timer(conn)
        connection = self.connections[conn]
        if conn in self._link_states:
            self._link_opened(connection)
            return
        client = self.broker.sessions[conn].name
        assert isinstance(connection, ClientConnection)
        connection.logged_on(client)
        event("logon", conn=conn, client=client)

    def _cancel_logon_timer(self, conn: int) -> None:
        timer = self._logon_timers.pop(conn, None)
        if timer is not None:
            timer.cancel()

    def _close(self, effect: CloseConnection) -> None:
        self._write()  # send the last frames before the close
        connection = self.connections.get(effect.conn)
        if connection is not None:
            # Above the limit, free the descriptor at once. A dead client sends no bytes to drop.
            one_too_many = len(self.connections) > self._connections_max
            linger = not one_too_many and effect.reason != HeartbeatMissed.code
            connection.close(effect.reason, effect.text, linger=linger)
            self.large_frame_ended(effect.conn)
            self._loop.call_later(_CLOSE_SECONDS_MAX, connection.abort)

    def _work(self) -> None:
        self._working = False
        now = clock()
        if self._scheduler.waiting:
            served = self._scheduler.step(now)
            if served is not None:
                self._set_scheduled(served, waits=False)
        self.broker.work(now)
        self.flush(now.mono)

    # -- time -----------------------------------------------------------------------------------------

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(deadline - time.monotonic(), 0.0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = clock()
        self.broker.wake(now)
        self.flush(now.mono)

    # -- stop -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Start a clean stop: persist and acknowledge accepted messages, then complete `stopped`."""
        if not self._closing:
            self._closing = True
            if self.links is not None:
                self.links.stop()
            self.broker.close(clock())
            self.flush()

    def _finish(self, error: TickertapeError | None) -> None:
        if not self.stopped.done():
            self.stopped.set_result(error)

    def crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Stop after an unhandled exception on the event loop. The engine may be in an inconsistent state."""
        loop.default_exception_handler(context)
        self._finish(TickertapeError(f"Internal error: {context.get('exception') or context['message']}"))

    def disconnect_all(self, *, served_only: bool = False) -> None:
        """Send every connection a goodbye and close it. `empty` is set when all are closed.

        `served_only`: close only connections whose subscriptions have delivered all persisted messages."""
        for conn, connection in list(self.connections.items()):
            if connection.ended[0]:
                continue
            session = self.broker.sessions.get(conn)
            if (
                served_only
                and session is not None
                and (self.broker.subscriptions.owed(conn) or connection.outbox_bytes)
            ):
                continue
            self.broker.goodbye(conn, NotReady(_LINK_STOPPED if conn in self._link_states else _STOPPED))
        self.flush()

    def release(self) -> None:
        """End the threads and close the files. Call it after `stopped`."""
        if self._timer is not None:
            self._timer.cancel()
        if self._inbound_timer is not None:
            self._inbound_timer.cancel()
        for connection in list(self.connections.values()):
            connection.abort()
        self.disk_worker.stop()
        self._segment_reads.stop()
        self._staging.stop()
        for files in (self._spill, self._archive):
            if files is not None:
                files.stop()


def _read_outcome(data: Buffer | OSError) -> Buffer | TickertapeError:
    return JournalError(f"Cannot read a segment: {data}") if isinstance(data, OSError) else data
