"""Sans-I/O client protocol state machine.

It enforces the logon and the order of calls, and determines the consequences of a lost connection. A driver
passes events with the time and performs `effects`. Publishing, subscriptions and pending calls have their own
modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tickertape.base.client_limits import check_filter
from tickertape.base.errors import (
    BadCommand,
    PeerError,
    StoreError,
    TickertapeError,
    TopicNotRecorded,
    UsageError,
    error_from_code,
)
from tickertape.base.interfaces import Now
from tickertape.base.names import check_client_name
from tickertape.base.text_format import not_one_of
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import (
    ConnectionDown,
    Effect,
    EndConnection,
    ReportError,
    ResolveCall,
    Send,
    Sink,
    State,
    Waiter,
)
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import check_known, check_sub_ids
from tickertape.client.protocol.calls import Answer, PendingCalls
from tickertape.client.protocol.heartbeat import ClientHeartbeat, Interval
from tickertape.client.protocol.logon import HA_ADVICE, Advice, LogonState
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.publishing.publisher import Publisher
from tickertape.client.publishing.resend import AFTER_RESEND
from tickertape.client.queues.ack_batcher import AckBatcher
from tickertape.client.subscriptions.registry import SubscriptionRegistry
from tickertape.client.subscriptions.resubscribe import ResubscribeRound
from tickertape.client.subscriptions.subscription import combined
from tickertape.wire import commands
from tickertape.wire.connection import Connection, Received, Violation
from tickertape.wire.heartbeat import Liveness


class ConnectionOpened(NamedTuple):
    """A connection was opened. `token` is resolved with `LoggedOn` or the error of the logon."""

    token: Waiter


class BytesReceived(NamedTuple):
    """`size` bytes were read into `buffer()`."""

    size: int


class ConnectionEnded(NamedTuple):
    """The connection ended: the peer closed it, or reading or writing failed."""

    error: TickertapeError


Input = ConnectionOpened | BytesReceived | ConnectionEnded | bytes

_BEFORE_LOGGED_ON: Final = (commands.Goodbye, commands.LoggedOn, commands.Heartbeat)
"""Commands that a server may send before its answer to the logon."""


def _ignore(_: commands.Heartbeat) -> None:
    """Received bytes already prove that the server is alive."""


class ClientProtocol:
    """Client state machine for any number of successive connections.

    The publisher id derives from the client name `name`. With `reconnects`, the driver reconnects and decides
    when publishing resumes, and subscriptions with a handler outlive their connection. Raises `BadName` for
    an invalid name, `BadOption` for invalid credentials.
    """

    def __init__(
        self,
        name: str,
        *,
        user: str | None = None,
        password: str | None = None,
        software: str = "",
        reconnects: bool = False,
    ) -> None:
        check_client_name(name)
        self._effects: list[Effect] = []
        self.waiting: Sequence[Effect] = self._effects
        """Pending effects, read-only."""
        self.publishing = Publisher(name, self._send_published, self._effects)
        self.logon = LogonState(name, software, self.publishing, HA_ADVICE if reconnects else Advice())
        """Logon state, and the errors of calls before a logon."""
        self.logon.set_credentials(user, password)
        self.name = name
        self.acks = AckBatcher(self.publishing)
        """Acknowledgements and other settlements of queue messages."""
        self.subscriptions = SubscriptionRegistry(self._effects, self.acks, keep=reconnects)
        self.heartbeat = ClientHeartbeat()
        """Heartbeat of the connection (see `check_heartbeat`)."""
        self._connection: Connection | None = None
        self._logon_token: Waiter | None = None
        self._goodbye: TickertapeError | None = None
        self._calls = PendingCalls(self._frame, self.publishing, self.subscriptions, self._effects)
        self.connections = 0
        """Number of connections, the present one included."""
        self._step_by_step = reconnects
        """Whether `resume_publishing` is a separate step after the logon."""
        self.ack_level: str | None = None
        """Weakest level of the acknowledgements before the last flush, since the one before."""
        self._level: str | None = None
        """Weakest level of the acknowledgements since the last flush."""
        self._takers = self._make_takers()
        """Methods that take the commands of the server, by their class."""

    # -- interface of a state machine -------------------------------------------------------------------

    def receive(self, happened: Input, now: Now) -> None:
        """Process an event of the driver. Never blocks, and never raises for actions of the peer."""
        if isinstance(happened, BytesReceived):
            if self._connection is not None:
                self._take(self._connection.received(happened.size), now)
        elif isinstance(happened, bytes):
            if self._connection is not None:
                self._take(self._connection.feed(happened), now)
        elif isinstance(happened, ConnectionOpened):
            self._open(happened.token, now)
        else:
            self._lose(happened.error)

    def buffer(self) -> memoryview:
        """Return the buffer for the next read. Only between `ConnectionOpened` and `ConnectionEnded`."""
        assert self._connection is not None
        return self._connection.buffer()

    def effects(self) -> list[Effect]:
        """Return the pending effects, in order, and clear them."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    def next_deadline(self) -> float | None:
        """Return when to call `wake` (monotonic seconds), or None."""
        deadline, retry_at = self.subscriptions.next_deadline(), self._calls.retry_at
        send_at = self.acks.next_deadline()
        if retry_at is None and send_at is None:
            return deadline
        return min(moment for moment in (deadline, retry_at, send_at) if moment is not None)

    def wake(self, now: Now) -> None:
        """Perform due work."""
        self._send_credits(self.subscriptions.wake(now))
        self._run_reported(partial(self.acks.wake, now))
        if self._calls.retry_at is not None and self._calls.retry_at <= now.mono:
            self._calls.retry()
            self._run_pending()

    def resume_publishing(self, now: Now) -> None:
        """Discard persisted messages from the publish store, and resend the rest.

        Afterwards all calls are possible. Does nothing if the connection is already lost.
        """
        accepted = self.logon.accepted
        if accepted is None or self._goodbye is not None:
            return
        self.logon.ready(accepted)
        try:
            replicating = accepted.replication is not None
            self.publishing.logged_on(accepted.last_persisted, now, replicating=replicating)
        except (StoreError, TopicNotRecorded) as error:  # ends the connection with this reason
            self._hang_up(error)
            return
        if self.publishing.store is not None:
            self._effects.append(State(ConnectionState.PUBLISH_REPLAYED))
        self._run_reported(self.acks.connected)
        self._calls.hurry()

    def written(self, frame: int) -> None:
        """Record that the driver wrote all frames up to `frame`, a former `publishing.unwritten_frame`."""
        try:
            self.publishing.written(frame)
        except StoreError as error:
            self._hang_up(error)

    def next_heartbeat(self) -> float | None:
        """Return when to call `check_heartbeat` (monotonic seconds), or None."""
        return self.heartbeat.next_deadline()

    def check_heartbeat(self, liveness: Liveness, now: Now) -> None:
        """Check the state of the connection, at the latest at `next_heartbeat()`."""
        verdict = self.heartbeat.check(liveness, now.mono)
        if verdict == "beat":
            self._send(commands.Heartbeat())
        elif verdict == "silent" and self._goodbye is None:
            silence = self.heartbeat.silence()
            self.heartbeat.end()
            self._hang_up(silence)
            # A handler that blocks the receive thread may delay the processing of the loss itself.
            self._calls.lost(silence)

    # -- calls of the application -----------------------------------------------------------------------

    def set_heartbeat(self, interval: Interval | None, idle: Interval | None, now: Now) -> None:
        """Set the heartbeat of this and later connections. Raises `BadOption`."""
        self.heartbeat.choose(interval, idle)
        if self._connection is not None:
            self.heartbeat.begin(now.mono)
            self._send(commands.Heartbeat(interval_ms=self.heartbeat.interval_ms))

    def set_store(self, store: PublishStore | None, now: Now) -> None:
        """Set the publish store. Raises `UsageError` while another store holds messages."""
        try:
            self.publishing.set_store(store, now)
        except TopicNotRecorded as error:  # already reported, and the store is set
            self._hang_up(error)

    def flush(self, token: Waiter, level: str) -> None:
        """Resolve `token` once everything sent before is `level`.

        `publishing.rejections` then has the rejected messages. Raises `Disconnected`, `Closed`, `UsageError`,
        `PublisherTakenOver`.
        """
        if level not in ("persisted", "processed"):
            raise UsageError(not_one_of("Invalid level", level, ("persisted", "processed")))
        if not self.logon.closed:
            self.publishing.check_taken_over()
        self.logon.check_ready()
        self.acks.flush_all()
        frame = self.publishing.flush()
        answers_come = not self.publishing.eager or self.publishing.answered(frame)
        if (level == "persisted" and answers_come) or frame == AFTER_RESEND:
            # Every frame gets its own answer, so another command would only cost a round trip.
            self._calls.flush(frame, token)
            return
        command = commands.Flush(id=self._calls.new_id(), level=level)
        self._calls.ask(command.id, command, token)

    def flushed(self) -> None:
        """Note the end of a flush."""
        if self._level is not None:
            self.ack_level, self._level = self._level, None

    def delete(self, token: Waiter, body: bytes) -> int | None:
        """Publish a delete of records. Resolve `token` with the `Deleted` of the server. Return its sequence.

        With a publish store, a client that reconnects resolves `token` after the resend. Raises as a publish
        does, and `Disconnected`.
        """
        self.publishing.check_taken_over()
        if not (self._step_by_step and self.publishing.store is not None):
            self.logon.check_ready()
        return self.publishing.delete(body, token)

    def subscribe(self, token: Waiter, request: SubscribeRequest, sink: Sink) -> None:
        """Subscribe. Resolve `token` with the `Ack` of the server, or at the start of the result of a query.

        With `replace`, a subscription with the same id continues until then, and ends with the reason
        `replaced`. Raises `Disconnected`, `SubscriptionExists`, and the errors of the bookmark store.
        """
        check_filter(request.filter, self.logon.check_ready().filter_bytes_max)
        self.publishing.flush()
        coming = self.subscriptions.prepare(request, sink)
        command = coming.command(self._calls.new_id())
        self._calls.ask(command.id, command, token, request, partial(self.subscriptions.begin, coming))

    def resubscribe(self, token: Waiter) -> None:
        """Resubscribe all subscriptions that were kept after a lost connection, in their original order.

        Resolve `token` with a list of (sub_id, error) of refused subscriptions. Each of them has ended with
        its error, which was also reported to the exception listener. Raises `Disconnected`, `Closed`.
        """
        self.logon.check_ready()
        self._calls.place_next(ResubscribeRound(token, self.subscriptions.kept()))
        self._run_pending()

    def unsubscribe(self, token: Waiter, sub_ids: tuple[str, ...]) -> None:
        """Unsubscribe. Resolve `token` once the server has ended the subscriptions.

        Those that wait for resubscription end at once. Raises `Disconnected`, `SubscriptionUnknown`.
        """
        check_sub_ids("unsubscribe", sub_ids)
        if self.logon.logged_on is not None or not set(sub_ids) <= set(self.subscriptions.kept()):
            self._check_known("unsubscribe", sub_ids, "nothing was ended")
        sub_ids = self.subscriptions.drop_kept(sub_ids)
        if not sub_ids:
            self._effects.append(ResolveCall(token, None))
            return
        self.send_settlements()
        command = commands.Unsubscribe(id=self._calls.new_id(), sub_ids=sub_ids)
        self._calls.ask(command.id, command, token)

    def leave(self, request: SubscribeRequest) -> None:
        """End a subscription whose stream has no reader, unless it has ended or was replaced.

        Raises `Disconnected`.
        """
        if self.subscriptions.leave_kept(request):
            return
        self.logon.check_ready()
        if self.subscriptions.leave(request):
            self.send_settlements()
            self._calls.leave(request.context.sub_id)

    def pause(self, token: Waiter, sub_ids: tuple[str, ...]) -> None:
        """Pause delivery. Resolve `token` once it stops. Raises `Disconnected`, `SubscriptionUnknown`."""
        self._check_known("pause", sub_ids, "nothing was paused")
        self.ask(token, lambda number: commands.Pause(id=number, sub_ids=sub_ids))

    def resume(self, token: Waiter, sub_ids: tuple[str, ...]) -> None:
        """Resume delivery. Resolve `token` afterwards. Raises `Disconnected`, `SubscriptionUnknown`."""
        self._check_known("resume", sub_ids, "nothing was resumed")
        self.ask(token, lambda number: commands.Resume(id=number, sub_ids=sub_ids))

    def resolve(self, token: Waiter, asked: commands.Resolve) -> None:
        """Send `asked` with an id. Resolve `token` with `Resolved`. Raises `Disconnected`."""
        check_filter(asked.filter, self.logon.check_ready().filter_bytes_max)
        self.publishing.flush()
        self.ask(token, lambda number: replace(asked, id=number))

    def ask(
        self, token: Waiter, make: Callable[[int], commands.Command], batch: MessageBatch | None = None
    ) -> None:
        """Send the command that `make` returns for an id. Resolve `token` with its answer.

        Raises `Disconnected`.
        """
        self.logon.check_ready()
        number = self._calls.new_id()
        self._calls.ask(number, make(number), token, batch=batch)

    def consumed(self, sub_id: str, cost: int, request: SubscribeRequest | None = None) -> None:
        """Record that the application consumed messages of this cost from the subscription of `request`."""
        credit = self.subscriptions.consumed(sub_id, cost, request)
        if credit is not None:
            self._send(credit)

    def consumed_all(self, takings: Sequence[tuple[SubscribeRequest, int]]) -> None:
        """Record consumption of several subscriptions (see `consumed`)."""
        self._send_credits(self.subscriptions.consumed_all(takings))

    def forked(self) -> None:
        """Reject all calls, because this is a forked child process."""
        self.logon.forked()
        self.publishing.forked()

    def close(self) -> None:
        """Send gathered messages and close the connection. Afterwards every call raises `Closed`."""
        self.acks.send_all()
        self.logon.close()
        if self.logon.logged_on is not None:
            self.publishing.put_gathered()
        if self._connection is None:
            refusal = self.logon.closed_error()
            self.publishing.lost(refusal)
            self.publishing.deletes.lost(refusal, resent=False)
            self.subscriptions.lost("closed", refusal)
            self._effects.append(State(ConnectionState.SHUTDOWN))
        else:
            self._effects.append(EndConnection(self.logon.closed_error()))

    # -- inside -----------------------------------------------------------------------------------------

    def _open(self, token: Waiter, now: Now) -> None:
        assert self._connection is None, "one connection at a time"
        self._connection = Connection("client")
        self.connections += 1
        self._goodbye = None
        self._logon_token = token
        self._effects += (State(ConnectionState.CONNECTED), Send([self._connection.preface()]))
        options, beat_ms = self.logon.options, self.heartbeat.interval_ms
        try:
            claim = self.publishing.connecting(now, eager=bool(options))
        except StoreError as error:  # ends the connection with this reason
            self._hang_up(error)
            return
        logon = replace(self.logon.command, options=options, heartbeat_ms=beat_ms, **claim._asdict())
        self._send(logon)
        self.heartbeat.begin(now.mono)

    def _frame(self, command: commands.Command, batch: MessageBatch | None = None) -> Send:
        assert self._connection is not None
        return Send(self._connection.send(command, batch))

    def _send(self, command: commands.Command, batch: MessageBatch | None = None) -> None:
        if self._connection is not None:
            self._effects.append(Send(self._connection.send(command, batch)))

    def _send_published(self, command: commands.Publish | commands.Flush, batch: MessageBatch | None) -> None:
        if isinstance(command, commands.Flush):
            self._calls.hasten()
        elif self._connection is not None:
            self._effects.append(Send(self._connection.send(command, batch)))

    def _send_credits(self, grants: list[commands.Credit]) -> None:
        for command in combined(grants):
            self._send(command)

    def _check_known(self, what: str, sub_ids: tuple[str, ...], consequence: str) -> None:
        check_sub_ids(what, sub_ids)
        self.logon.check_ready()
        check_known(sub_ids, self.subscriptions, consequence)

    def _take(self, events: Sequence[Received | Violation], now: Now) -> None:
        for event in events:
            if self._goodbye is not None:
                return
            if isinstance(event, Violation):
                self._hang_up(event.error)
                return
            try:
                self._command(event.command, event.batch, now)
            except (PeerError, StoreError, TopicNotRecorded) as error:
                self._hang_up(error)
            if self.subscriptions.grants or self.subscriptions.leaving:
                self._run_pending()
            if self._calls.postponed and self._calls.retry_at is None:
                self._calls.retry_later(now)

    def _run_reported(self, step: Callable[[], None]) -> None:
        """Run a step of acknowledgements without a caller, and report its errors."""
        try:
            step()
        except TickertapeError as error:
            self._effects.append(ReportError(error))

    def send_settlements(self) -> None:
        """Send gathered settlements and all earlier publishes, because a later command may end leases.

        Never raises.
        """
        if self.acks.busy:
            self.acks.send_all()
            self.publishing.put_gathered()

    def _run_pending(self) -> None:
        """Send pending credit and unsubscribes of subscriptions."""
        subscriptions = self.subscriptions
        grants, leaving = subscriptions.take_pending()
        self._send_credits(grants)
        for sub_id in leaving:
            self._calls.leave(sub_id)

    def _make_takers(self) -> dict[type[commands.Command], Callable[[Any], None]]:
        """Return the methods that take the commands of the server which depend on no batch and no time."""
        subscriptions = self.subscriptions
        takers: dict[type[commands.Command], Callable[[Any], None]] = {
            commands.Goodbye: self._goodbye_received,
            commands.Heartbeat: _ignore,
            commands.Persisted: self._published,
            commands.Processed: self._published,
            commands.Rejected: self._published,
            commands.Deleted: self.publishing.deleted,
            commands.Completed: subscriptions.completed,
            commands.PersistedNotice: subscriptions.noticed,
            commands.Ended: subscriptions.ended,
        }
        return takers | dict.fromkeys(Answer.__args__, self._calls.answered)

    def _command(self, command: commands.Command, batch: MessageBatch | None, now: Now) -> None:
        kind = type(command)  # a chain of `isinstance` would cost more than most of the commands
        if self.logon.logged_on is None and kind not in _BEFORE_LOGGED_ON:
            raise BadCommand(
                f"Unexpected {kind.__name__} from the server before its logon answer. Update the server."
            )
        take = self._takers.get(kind)
        if take is not None:
            take(command)
        elif type(command) is commands.Deliver:
            if batch is not None:
                self.subscriptions.deliver(command, batch, now)
        elif isinstance(command, commands.GroupBegin | commands.Records | commands.GroupEnd):
            self.subscriptions.found(command, batch, now)
        elif isinstance(command, commands.LoggedOn):
            self._log_on(command, now)
        else:
            raise BadCommand(
                f"Unexpected {kind.__name__} from the server: this client never requests it. "
                "Report the defect of the server."
            )

    def _goodbye_received(self, command: commands.Goodbye) -> None:
        self._hang_up(error_from_code(command.code, command.text))

    def _published(self, command: commands.Persisted | commands.Processed | commands.Rejected) -> None:
        if self.acks.behind:
            self._run_reported(self.acks.answered)
        if isinstance(command, commands.Persisted):
            level = command.level
            if level != self._level:
                self._level = level if self._level is None else commands.weaker(self._level, level)
            self.publishing.persisted(command)
            self._calls.hurry()
        elif isinstance(command, commands.Processed):
            self.publishing.processed(command)
        else:
            self.publishing.rejected(command)
        self._calls.settle_flushes()
        if self.acks.waiting:
            self._run_reported(self.acks.room)

    def _log_on(self, command: commands.LoggedOn, now: Now) -> None:
        assert self._connection is not None
        self.logon.accept(command)
        self._connection.logged_on()
        self.subscriptions.logged_on(command.journal)
        self._effects.append(State(ConnectionState.LOGGED_ON))
        if not self._step_by_step:
            self.resume_publishing(now)
            if self._goodbye is not None:
                return
        token, self._logon_token = self._logon_token, None
        assert token is not None
        self._effects.append(ResolveCall(token, command))

    def _hang_up(self, error: TickertapeError) -> None:
        self._goodbye = error
        self.logon.end(error)
        self._effects.append(EndConnection(error))

    def _lose(self, error: TickertapeError) -> None:
        if self._connection is None:
            return
        if self._goodbye is not None:
            error = self._goodbye
        # Unwritten frames belong to the lost connection.
        self._effects[:] = [
            effect for effect in self._effects if not isinstance(effect, Send | EndConnection)
        ]
        was_on, closed = self.logon.accepted is not None, self.logon.closed
        self._connection = None
        self.heartbeat.end()
        refusal: TickertapeError = self.logon.closed_error() if closed else error
        try:
            error, reason, refusal = self.logon.lost(error)
            self.acks.lost()
            keep = self.subscriptions.keep and not closed
            if keep:
                self._calls.unanswered()
            self.subscriptions.lost(reason, refusal, keep=keep)
        finally:
            # Even after an exception, no caller keeps waiting, and the driver learns of the loss.
            if self._logon_token is not None:
                self._effects.append(ResolveCall(self._logon_token, refusal if closed else error))
                self._logon_token = None
            self._calls.lost(refusal)
            self.publishing.deletes.lost(refusal, resent=self._step_by_step and not closed)
            self._effects.append(State(ConnectionState.DISCONNECTED))
            if closed:
                self._effects.append(State(ConnectionState.SHUTDOWN))
            elif was_on:
                self._effects.append(ConnectionDown(error, self.connections))
