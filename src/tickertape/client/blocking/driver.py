"""Driver of the blocking client: one connection, its threads, and waiting callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any

import msgspec

from tickertape.base.errors import Closed, Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.batch import MessageBatch
from tickertape.client.api import exit_flush as exits
from tickertape.client.api.driver import DriverSettings, Step
from tickertape.client.blocking.connection import SocketConnection, TlsConnection, open_socket, shake
from tickertape.client.blocking.receivers import HandledPart, HandlerReceiver, ThreadReceiver, push_all
from tickertape.client.blocking.sender import ThreadSender, TimerThread, WriteNotifier
from tickertape.client.blocking.streams import MessageStream, stream_of
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.client.common import effects
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import Timeout, no_logon, now, remaining
from tickertape.client.protocol.core import BytesReceived, ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publishing.pending_deletes import NOTHING_DELETED, DeleteResult, with_answer
from tickertape.client.publishing.send_buffer import NO_OWNER
from tickertape.wire.commands import Deleted, LoggedOn


class ThreadDriver(ThreadSender):
    """Driver of a `Client`: connects, waits and performs effects. Any number of threads may call it."""

    def __init__(self, core: ClientProtocol, settings: DriverSettings) -> None:
        super().__init__(core, settings)
        self._timer: TimerThread | None = None
        self._connecting = threading.Lock()
        self._handling_loss = threading.RLock()
        self._loss_handled_on = NO_OWNER
        forks.register(self, type(self).forked)
        exits.register(self)

    # -- calls ------------------------------------------------------------------------------------------

    def connect(self, timeout: Timeout) -> None:
        """See `Client.connect`."""
        seconds = self.seconds(timeout)
        self.check_may_wait("connect")
        self._check_no_takeover(handling_loss=self._loss_handled_on == get_ident())
        with self._connecting:
            self._wait_for_loss(seconds)
            if self.connection is not None and self.logon.logged_on is None:
                # A second Ctrl-C interrupted the cleanup after the first one.
                self._abandon(
                    self.connection,
                    Disconnected("Cannot connect: the attempt was interrupted. Connect again."),
                )
            if self.logon.logged_on is not None:
                self._arm_beats()
                self._keep_notifying()
                return
            if self.logon.closed:
                raise self.closed_error()
            self._log_on(seconds)

    def close(self, timeout: Timeout) -> None:
        """See `Client.close`."""
        if not self.is_open:
            return
        seconds = self.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        apart = not self._on_receive_thread()
        with self.lock:
            self.publishing.end()
            self._room.notify_all()
        answered = False
        if apart and self.logon.connected and self._unsettled():
            try:
                self.flush(seconds, "processed")
                answered = True
            except TickertapeError as error:
                self.handlers.report(error)
        if not answered:
            self._report_unanswered()
        with self.lock:
            connection = self.connection
            refused = self.rejections.take()
            self.core.close()
            later = self._take_sends()
            self._room.notify_all()
        if refused is not None:
            self.handlers.report(refused)
        self._carry_out(connection, later)
        if connection is not None and apart:
            if connection.discard():  # Another thread has not started the receive thread yet.
                self.lost(Disconnected(str(self.closed_error())))
            else:
                connection.thread.join(remaining(deadline))

    def flush(self, timeout: Timeout, level: str) -> None:
        """See `Client.publish_flush`."""
        what = f"publish_flush ({level})"
        seconds = self.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        self.check_may_wait(what)
        call = ThreadWaiter()
        connection = self._begin_flush(call, level, deadline, seconds, what)
        self._read_answer(connection, call, deadline)
        call.wait(remaining(deadline), what, seconds)
        with self.lock:
            self.core.flushed()
        if self.rejections.count:
            with self.lock:
                refused = self.rejections.take()
            if refused is not None:
                raise refused

    def _begin_flush(
        self, call: ThreadWaiter, level: str, deadline: float | None, seconds: float | None, what: str
    ) -> SocketConnection | None:
        """Send the flush as soon as the publish store has space for pending settlements."""
        while True:
            full: StoreFull | None = None
            with self.lock:
                self._until_ready(deadline, seconds, what)
                try:
                    self.core.flush(call, level)
                except StoreFull as error:
                    full = error
                connection, later = self.connection, self._take_sends()
            self._carry_out(connection, later)
            if full is None:
                return connection
            self._wait_for_store(full, seconds, deadline)

    def open_stream(
        self, request: SubscribeRequest, timeout: Timeout, on_message: Handler | None
    ) -> MessageStream:
        """Send a subscribe or query, and wait until it is accepted or its result starts."""
        if request.handled != (on_message is not None):
            request = msgspec.structs.replace(request, handled=on_message is not None)
        if on_message is None:
            receiver = ThreadReceiver(request, self)
        else:
            receiver = HandlerReceiver(request, self, handler=on_message, handlers=self.handlers)
        what, seconds, query = request.call, self.seconds(timeout), request.query
        self.check_may_wait(what)
        deadline = None if seconds is None else time.monotonic() + seconds
        call = ThreadWaiter()
        begin = partial(self.core.subscribe, call, request, receiver)
        try:
            connection = self._begin_call(begin, deadline, seconds, what)
            stream = stream_of(receiver)  # while the server executes the command
            if query is not None and request.limited:
                stream.timeout = seconds
            if query is not None and not request.handled:
                self._read_answer(connection, call, deadline, request)
            self._answer(call, deadline, seconds, what)
            return stream
        except BaseException as error:
            if isinstance(error, TimedOut) or not isinstance(error, TickertapeError):  # such as Ctrl-C
                self.leave(request)  # The caller has no stream, so it would fill up.
            raise

    def name_subscriptions(self, what: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        """Send a command for existing subscriptions. Waits for completion, except on the receive thread."""
        begin = self._naming(what, sub_ids)
        if self._on_receive_thread():
            self.send_only(begin)
        else:
            self.call(begin, timeout, what)

    def leave(self, request: SubscribeRequest) -> None:
        """End a subscription whose stream has no consumer any more."""
        # The subscription may have ended meanwhile, for example with its connection.
        with suppress(Disconnected, Closed):
            self.send_only(lambda _: self.core.leave(request))

    def delete(self, body: bytes, timeout: Timeout, *, wait: bool) -> DeleteResult | None:
        seconds = self.seconds(timeout)
        if not wait:
            self.publish_when_room(seconds, self.publishing.delete, body)
            return None
        self.check_may_wait("sow_delete")
        deadline = None if seconds is None else time.monotonic() + seconds
        result, more = NOTHING_DELETED, True
        while more:
            call = ThreadWaiter()
            if self.publishing.store is None:  # otherwise the delete is stored now, and sent later
                with self.lock:
                    self._until_ready(deadline, seconds, "sow_delete")
            self.publish_when_room(remaining(deadline), self.core.delete, call, body)
            try:
                answer = call.wait(remaining(deadline), "sow_delete", seconds)
            except BaseException:
                with self.lock:
                    self.publishing.deletes.abandon(call)
                raise
            assert isinstance(answer, Deleted)
            result, more = with_answer(result, answer), answer.more
        return result

    def call(self, begin: Callable[[ThreadWaiter], None], timeout: Timeout, what: str) -> object:
        seconds = self.seconds(timeout)
        self.check_may_wait(what)
        deadline = None if seconds is None else time.monotonic() + seconds
        call = ThreadWaiter()
        self._begin_call(partial(begin, call), deadline, seconds, what)
        return self._answer(call, deadline, seconds, what)

    def _begin_call(
        self, begin: Step, deadline: float | None, seconds: float | None, what: str
    ) -> SocketConnection | None:
        """Send the command of a call. Return the connection."""
        with self.lock:
            self._until_ready(deadline, seconds, what)
            begin()
            connection, later = self.connection, self._take_sends()
        self._carry_out(connection, later)
        return connection

    def _answer(self, call: ThreadWaiter, deadline: float | None, seconds: float | None, what: str) -> object:
        """Wait for the answer to the call `what`. `deadline`: the end of its timeout of `seconds`."""
        return call.wait(remaining(deadline), what, seconds)

    def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        """Wait for a reconnect, under the lock, until `deadline`, the end of the timeout of `seconds`.

        This class does not reconnect, so a call on a lost connection raises. The HA driver overrides it.
        """

    # -- the receive thread -----------------------------------------------------------------------------

    def arrived(self, count: int) -> float | None:
        """Process received bytes, or the passage of time."""
        moment = now()
        with self.lock:
            if count:
                self.core.receive(BytesReceived(count), moment)
            deadline = self.core.next_deadline()
            if deadline is not None and deadline <= moment.mono:
                self.core.wake(moment)
            connection, later = self.connection, self._take_sends()
        try:
            self._carry_out(connection, later)
        except BaseException:
            for effect in later:  # After a Ctrl-C in a reading caller, other callers still get their answers.
                if isinstance(effect, effects.ResolveCall):
                    effect.token.settle(effect.outcome)
            raise
        return self.core.next_deadline()

    def lost(self, error: Disconnected) -> None:
        """Process the loss of the connection."""
        timer, notifier, later = None, None, list[effects.Effect]()
        try:
            with self.lock:
                try:
                    self.core.receive(ConnectionEnded(error), now())
                finally:  # Also after an exception, the connection is gone and the loss is reported.
                    self.connection = None
                    timer, self._timer = self._timer, None
                    notifier, self._notifier = self._notifier, None
                    later = self._take_sends()
                    self._begin_telling_loss(later)
                    self._room.notify_all()
        finally:
            try:
                if timer is not None:
                    timer.changed()
                if notifier is not None:
                    notifier.end()
                self._carry_out(None, later)
            finally:
                self._end_telling_loss()

    def end_with_program(self, seconds: float) -> exits.ProgramEnd | None:
        """Close the client at the end of the program if it is open."""
        if self.logon.closed or self._forked:
            return None
        if not self.lock.acquire(timeout=seconds):  # A daemon thread that never continues may hold it.
            return (
                exits.ProgramEnd(self.core.name, self.publishing.unanswered_count())
                if self._may_end()
                else None
            )
        try:
            if not self._may_end():
                return None
        finally:
            self.lock.release()
        with self._ending():
            self.close(timeout=self._at_most(seconds))
        return exits.ProgramEnd(self.core.name, self._unsent)

    def forked(self) -> None:
        """Refuse every call: a forked child has no receive thread, and its locks may be held."""
        super().forked()
        refusing: Any = self.lock
        self._room = self._connecting = refusing
        self.owns_lock = forks.refuse
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.detach()

    # -- heartbeats and written frames ------------------------------------------------------------------

    def _arm_beats(self) -> None:
        """Start or wake the timer thread for heartbeats."""
        with self.lock:
            connection, timer = self.connection, self._timer
            if timer is not None:
                timer.changed()
            elif connection is not None and self.core.next_heartbeat() is not None:
                name = f"tickertape beats {self._address.uri}"
                timer = self._timer = TimerThread(lambda: self._look(connection), name)
                timer.start()

    def _look(self, connection: SocketConnection) -> float | None:
        """Perform due heartbeat work, on the timer thread. Returns the next deadline."""
        later: list[effects.Effect] = []
        with self.lock:
            if self.connection is not connection:
                return None
            deadline = self.core.next_heartbeat()
            moment = now()
            if deadline is not None and deadline <= moment.mono:
                self.core.check_heartbeat(connection.liveness(), moment)
                later = self._take_sends()
                deadline = self.core.next_heartbeat()
            if deadline is None:
                self._timer = None
        connection.try_again()
        self._carry_out(connection, later)
        return deadline

    def _keep_notifying(self) -> None:
        """Start the thread that reports written frames, if the publisher needs these reports."""
        with self.lock:
            connection = self.connection
            if connection is not None and self.publishing.eager and self._notifier is None:
                name = f"tickertape writes {self._address.uri}"
                notifier = WriteNotifier(lambda frame: self._written(connection, frame), name)
                notifier.start()
                self._notifier = notifier

    def _written(self, connection: SocketConnection, frame: int) -> None:
        """Process the write of `frame` to the socket of `connection`, on the notifier thread."""
        connection.wait_unblocked()
        with self.lock:
            if self.connection is not connection:
                return
            self.core.written(frame)
            later = self._take_sends()
            self.publishing.finished()
        self._carry_out(connection, later)

    # -- inside -----------------------------------------------------------------------------------------

    def _dial(self, seconds: float | None) -> SocketConnection:
        """Connect to `_address` within `seconds`, including the TLS handshake."""
        address = self._address
        if not address.tls:
            return SocketConnection(open_socket(address, seconds), address.uri, self)
        from tickertape.security.tls_channel import TlsChannel  # imports `ssl`

        deadline = None if seconds is None else time.monotonic() + seconds
        channel = TlsChannel(self._credentials.context(), server_name=self._credentials.name_of(address))
        connection = open_socket(address, seconds)
        try:
            shake(connection, channel, address.uri, deadline, seconds)
            connection.setblocking(False)
            return TlsConnection(connection, address.uri, self, channel)
        except BaseException:
            connection.close()
            raise

    def _log_on(self, seconds: float | None) -> LoggedOn:
        """Connect to `_address` and log on. A failure leaves no connection."""
        deadline = None if seconds is None else time.monotonic() + seconds
        call = ThreadWaiter()
        connection = self._dial(seconds)
        try:
            with self.lock:
                if self.logon.closed:
                    raise self.closed_error()
                self.connection = connection
                self.core.receive(ConnectionOpened(call), now())
                later = self._take_sends()
            connection.start()
            self._arm_beats()
            self._keep_notifying()
            self._carry_out(connection, later)
            try:
                answer = call.wait(remaining(deadline), "the logon", seconds)
            except TimedOut:
                raise no_logon(self._address.uri, seconds) from None
        except BaseException as error:
            why = (
                str(error)
                if isinstance(error, TimedOut)
                else "Cannot connect: the attempt was interrupted. Connect again."
            )
            self._abandon(connection, Disconnected(why))
            raise
        assert isinstance(answer, LoggedOn)
        return answer

    def _wait_for_loss(self, seconds: float | None) -> None:
        """Wait until the loss of an ended connection is processed: a handler may block its receive thread."""
        with self.lock:
            if not self._room.wait_for(lambda: self.logon.ending is None, seconds):
                raise TimedOut(
                    f"Cannot reconnect: a handler on the lost connection did not return {within(seconds)}. "
                    "Return from the handler, then connect again."
                )

    def _abandon(self, connection: SocketConnection, why: Disconnected) -> None:
        """End a connection before its logon completes, so that a new one can be opened.

        Waits for the loss, not for the thread, which may wait for the caller's handler.
        """
        if connection.discard():
            if self.connection is connection:
                self.lost(why)
            return
        if self.logon.logged_on is not None and not connection.hung_up:
            return  # The logon completed just before the exception. The next connect() finds it.
        connection.hang_up(why)
        with self.lock:
            while self.connection is connection:
                self._room.wait()

    def _handle(self, handler: Callable[..., object], *arguments: object) -> None:
        self.handlers.run(handler, *arguments)

    def _handle_each(self, handler: Handler, batch: MessageBatch) -> None:
        for message in batch:
            self.handlers.run(handler, message)

    def _deliver_shared(self, effect: effects.DeliverShared) -> None:
        handled: list[HandledPart] = []
        for sink, share, rows in effect.parts:
            if type(sink) is HandlerReceiver:
                handled.append((sink, share, rows))
            else:
                sink.push(share)
        if handled:
            push_all(effect.shared.bodies(), handled, self.handlers.caught)
            takings = [(sink.request, share.cost) for sink, share, _ in handled]
            with self.lock:
                self.core.consumed_all(takings)
                connection, later = self.connection, self._take_sends()
            self._carry_out(connection, later)

    def _order_together(self, sinks: Sequence[effects.Sink]) -> None:
        """Do nothing: all handlers run on the receive thread, in the order of the messages."""

    def _begin_telling_loss(self, pending: Sequence[effects.Effect]) -> None:
        """Hook, under the lock: the connection is lost, and this thread performs the effects next."""

    def _end_telling_loss(self) -> None:
        """Hook: the loss is reported, or the disconnect handler is next, which may reconnect."""

    def _connection_lost(self, lost: effects.ConnectionDown) -> None:  # noqa: ARG002 - for overrides
        handler = self._disconnect_handler
        if handler is not None:
            with self._handling_loss:
                self._loss_handled_on = get_ident()
                self.handlers.run(handler)
                self._loss_handled_on = NO_OWNER

    def _read_answer(
        self,
        connection: SocketConnection | None,
        call: ThreadWaiter,
        deadline: float | None,
        query: SubscribeRequest | None = None,
    ) -> None:
        """Read the answer to a call on this thread, which saves two thread switches. `query`: it starts this
        query. Returns early if another thread reads, or must read."""
        if connection is not None and not call.settled:
            connection.read_until(lambda: call.settled or not self._reads_answers(query), deadline)

    def _reads_answers(self, query: SubscribeRequest | None) -> bool:
        # Handlers run on the receive thread, so that thread reads if a handler may be called.
        return self._failed_write_handler is None and self.subscriptions.has_only(query)

    def check_may_wait(self, what: str) -> None:
        if self._on_receive_thread():
            raise UsageError(
                f"Cannot wait for {what} on the receive thread (in a handler). "
                "Make the call on another thread."
            )
