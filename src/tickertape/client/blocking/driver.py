"""Owns how the blocking client runs its machine: one lock, one link, and callers that wait.

Must never decide what the protocol says (`core.py`), nor read or write a socket (`link.py`). What the machine
asks for is carried out here: sends in order under the lock, everything else after the lock is free again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from tickertape.base.errors import Closed, Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.api import exit_flush as exits
from tickertape.client.api.frontend import ClientFrontend, DisconnectHandler
from tickertape.client.blocking.connection import SocketConnection, open_socket
from tickertape.client.blocking.timer_thread import TimerThread
from tickertape.client.blocking.tls_connection import TlsConnection, shake
from tickertape.client.blocking.write_notifier import WriteNotifier
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.credentials import DEFAULT_WAYS, Credentials
from tickertape.client.common.effects import ConnectionDown, Effect, ResolveCall, Send, State
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, Waiter, now, remaining
from tickertape.client.protocol.core import BytesReceived, ConnectionEnded, ConnectionOpened
from tickertape.client.protocol.heartbeat import Interval
from tickertape.client.publishing.send_buffer import NOBODY
from tickertape.security.channel import Channel
from tickertape.wire.commands import LoggedOn


class ThreadDriver(ClientFrontend):
    """The half of `Client` that connects, waits and carries out. Any number of threads may call it."""

    def __init__(
        self,
        name: str,
        uri: str,
        user: str | None,
        password: str | None,
        timeout: float | str | None,
        credentials: Credentials = DEFAULT_WAYS,
    ) -> None:
        super().__init__(name, uri, user, password, timeout, credentials)
        self._lock = threading.RLock()
        # Python's own conditions ask a lock this way; there is no public name for it.
        self._owns_lock: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._room = threading.Condition(self._lock)
        self._link: SocketConnection | None = None
        self._timer: TimerThread | None = None
        self._notifier: WriteNotifier | None = None
        self._connecting = threading.Lock()
        self._handling_loss = threading.RLock()
        self._loss_handled_on = NOBODY
        self._due_states: deque[ConnectionState] = deque()
        """What listeners are still to be told, in the order in which it came about."""
        self._telling = threading.Lock()
        forks.register(self)
        exits.register(self)

    # -- connection -------------------------------------------------------------------------------------

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on; nothing happens when the client is connected.

        `timeout` in seconds, None = wait for ever. What the publish store holds and the server lacks is
        sent again. Raises `Disconnected` (nobody answers), `TimedOut`, `Closed`, and what the server
        refuses the logon with:
        `Refused`, `NameInUse`, `BadVersion`, ...
        """
        seconds = self._seconds(timeout)
        self._not_on_receive_thread("connect")
        self._not_in_a_fight(handling_loss=self._loss_handled_on == get_ident())
        with self._connecting:
            self._wait_for_loss(seconds)
            if self._link is not None and self._core.logged_on is None:
                # A second Ctrl-C came before the first one had ended it.
                self._abandon(self._link, Disconnected("connecting was interrupted"))
            if self._core.logged_on is not None:
                self._keep_beating()
                self._keep_notifying()
                return
            self._log_on(seconds)

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect. Further calls raise
        `Closed`; calls of `publish` on other threads do from the beginning on.

        `timeout` bounds the waiting, in seconds: a handler that still runs then ends by itself. Never raises:
        the exception listener is told what went wrong, and how many messages have no answer. A publish store
        keeps what is not persisted. In a forked child nothing happens.
        """
        if self._core.closed or self._forked:
            return
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        apart = not self._on_receive_thread()
        with self._lock:
            self._publishing.end()
            self._room.notify_all()
        answered = False
        if apart and self.connected and self._unsettled():
            try:
                self.publish_flush(timeout=seconds, level="processed")
                answered = True
            except TickertapeError as error:
                self._handlers.tell(error)
        if not answered:
            self._tell_unanswered()
        with self._lock:
            link = self._link
            refused = self._publishing.rejections.take()
            self._core.close()
            later = self._sends()
            self._room.notify_all()
        if refused is not None:
            self._handlers.tell(refused)
        self._carry_out(link, later)
        if link is not None and apart:
            if link.discard():  # another thread was just about to let it receive
                self.lost(Disconnected("the client was closed"))
            else:
                link.thread.join(remaining(deadline))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_heartbeat(self, interval: Interval | None, idle: Interval | None = None) -> None:
        """Have both sides show that they live, so that a dead connection ends instead of standing still.

        From now on, also on later connections, each side says something every `interval` (seconds or text,
        0.1 to 3,600 seconds; None: no heartbeat, the default). The server ends the connection when nothing
        came from this client for two intervals; the client ends it, with `HeartbeatMissed` as the reason,
        when nothing came from the server for `idle` (seconds or text, above `interval`, default twice as
        much). What has arrived counts, read or not: a handler that takes long does not cost the connection.
        Raises `BadOption`, and `UsageError` on an HA client that is connected or connecting.
        """
        with self._lock:
            self._check_heartbeat()
            self._core.set_heartbeat(interval, idle, now())
            link, later = self._link, self._sends()
        self._keep_beating()
        self._carry_out(link, later)

    def set_disconnect_handler(self, handler: DisconnectHandler | None) -> None:
        """Call `handler(client)` once for each connection that is lost, not for `close`.

        It runs on a thread of its own and may call `connect`; losses are handled one after the other. When
        another process took over the client name, `connect` raises `NameInUse` there: the two would throw
        each other out for ever.
        """
        self._disconnect_handler = handler

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until everything sent on this connection is persisted, with or without a publish store.

        `level="processed"`: until the server has it. `timeout` in seconds, None = as long as the connection
        lasts. A settlement that has no room in the publish store is waited for. Raises `TimedOut` (the store
        is as it was), `Disconnected`, `Closed`, `PublisherTakenOver` (another process published under this
        name), and, unless there is a failed-write handler, `PublishRejected` when the server refused messages
        since the last flush.
        """
        what = f"publish_flush ({level})"
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        self._not_on_receive_thread(what)
        call = Waiter()
        link = self._begin_flush(call, level, deadline, seconds, what)
        if link is not None and not call.settled:
            link.read_until(lambda: call.settled or not self._reads_answers(), deadline)
        call.wait(remaining(deadline), what, seconds)
        if self._publishing.rejections.count:
            with self._lock:
                refused = self._publishing.rejections.take()
            if refused is not None:
                raise refused

    def _begin_flush(
        self, call: Waiter, level: str, deadline: float | None, seconds: float | None, what: str
    ) -> SocketConnection | None:
        """Ask for it, as soon as the publish store has room for what is to be sent before."""
        while True:
            full: StoreFull | None = None
            with self._lock:
                self._until_ready(deadline, seconds, what)
                try:
                    self._core.flush(call, level)
                except StoreFull as error:
                    full = error
                link, later = self._link, self._sends()
            self._carry_out(link, later)
            if full is None:
                return link
            self._wait_for_store(full, seconds, deadline)

    # -- the receive thread -----------------------------------------------------------------------------

    def buffer(self) -> memoryview:
        """Internal: where the link reads into."""
        return self._core.buffer()

    def arrived(self, count: int) -> float | None:
        """Internal: bytes came, or time has passed."""
        moment = now()
        with self._lock:
            if count:
                self._core.receive(BytesReceived(count), moment)
            deadline = self._core.next_deadline()
            if deadline is not None and deadline <= moment.mono:
                self._core.wake(moment)
            link, later = self._link, self._sends()
        try:
            self._carry_out(link, later)
        except BaseException:
            for effect in later:  # a Ctrl-C in a caller that reads: others still get their answers
                if isinstance(effect, ResolveCall):
                    effect.token.settle(effect.outcome)
            raise
        return self._core.next_deadline()

    def lost(self, error: Disconnected) -> None:
        """Internal: the connection is gone."""
        timer, notifier, later = None, None, list[Effect]()
        try:
            with self._lock:
                try:
                    self._core.receive(ConnectionEnded(error), now())
                finally:  # whatever comes in between: there is no link, and the loss is told
                    self._link = None
                    timer, self._timer = self._timer, None
                    notifier, self._notifier = self._notifier, None
                    later = self._sends()
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
        """Internal: the program ends, and nobody closed it."""
        if self._core.closed or self._forked:
            return None
        if not self._lock.acquire(timeout=seconds):  # by a daemon thread that will never go on
            return (
                exits.ProgramEnd(self.name, self._publishing.unanswered_count()) if self._may_end() else None
            )
        try:
            if not self._may_end():
                return None
        finally:
            self._lock.release()
        with self._ending():
            self.close(timeout=self._at_most(seconds))
        return exits.ProgramEnd(self.name, self._unsent)

    def forked(self) -> None:
        """Internal: this is a forked child, where the receive thread does not exist and locks may be held."""
        super().forked()
        refusing: Any = forks.ForkedLock()
        self._lock = self._room = self._connecting = refusing
        self._owns_lock = forks.refuse
        link, self._link = self._link, None
        if link is not None:
            link.let_go()

    def _unanswered_count(self) -> int:
        with self._lock:  # answers may be arriving
            return super()._unanswered_count()

    # -- heartbeats -------------------------------------------------------------------------------------

    def _keep_beating(self) -> None:
        """See to it that the connection is looked at when it wants to be."""
        with self._lock:
            link, timer = self._link, self._timer
            if timer is not None:
                timer.changed()
            elif link is not None and self._core.next_heartbeat() is not None:
                name = f"tickertape beats {self._address.uri}"
                timer = self._timer = TimerThread(lambda: self._look(link), name)
                timer.start()

    def _look(self, link: SocketConnection) -> float | None:
        """On the thread for it: do what is due; when to look again."""
        later: list[Effect] = []
        with self._lock:
            if self._link is not link:
                return None
            deadline = self._core.next_heartbeat()
            moment = now()
            if deadline is not None and deadline <= moment.mono:
                self._core.check_heartbeat(link.liveness(), moment)
                later = self._sends()
                deadline = self._core.next_heartbeat()
            if deadline is None:
                self._timer = None
        link.try_again()
        self._carry_out(link, later)
        return deadline

    # -- written frames ---------------------------------------------------------------------------------

    def _keep_notifying(self) -> None:
        """Start the thread that reports written frames, where the machine wants these reports."""
        with self._lock:
            link = self._link
            if link is not None and self._publishing.eager and self._notifier is None:
                name = f"tickertape writes {self._address.uri}"
                notifier = WriteNotifier(lambda frame: self._written(link, frame), name)
                notifier.start()
                self._notifier = notifier

    def _written(self, link: SocketConnection, frame: int) -> None:
        """On the thread for it: `frame` was handed to the socket of `link`."""
        link.wait_unblocked()
        with self._lock:
            if self._link is not link:
                return
            self._core.written(frame)
            later = self._sends()
            self._publishing.unfinished = False
        self._carry_out(link, later)

    # -- inside -----------------------------------------------------------------------------------------

    def _dial(self, seconds: float | None) -> SocketConnection:
        """A connection to `_address`, and with TLS the handshake, within `seconds`."""
        address = self._address
        if not address.tls:
            return SocketConnection(open_socket(address, seconds), address.uri, self)
        deadline = None if seconds is None else time.monotonic() + seconds
        channel = Channel(self._credentials.context(), server_name=self._credentials.name_of(address))
        connection = open_socket(address, seconds)
        try:
            shake(connection, channel, address.uri, deadline, seconds)
            connection.setblocking(False)
            return TlsConnection(connection, address.uri, self, channel)
        except BaseException:
            connection.close()
            raise

    def _log_on(self, seconds: float | None) -> LoggedOn:
        """Connect to `_address` and log on; where that fails, there is no connection afterwards."""
        deadline = None if seconds is None else time.monotonic() + seconds
        call = Waiter()
        link = self._dial(seconds)
        try:
            with self._lock:
                if self._core.closed:
                    raise Closed("the client was closed")
                self._link = link
                self._core.receive(ConnectionOpened(call), now())
                later = self._sends()
            link.start()
            self._keep_beating()
            self._keep_notifying()
            self._carry_out(link, later)
            answer = call.wait(remaining(deadline), "the logon", seconds)
        except BaseException as error:
            why = str(error) if isinstance(error, TimedOut) else "connecting was interrupted"
            self._abandon(link, Disconnected(why))
            raise
        assert isinstance(answer, LoggedOn)
        return answer

    def _wait_for_loss(self, seconds: float | None) -> None:
        """Wait until a connection that is over is lost: its receive thread may be busy with a handler."""
        with self._lock:
            if not self._room.wait_for(lambda: self._core.ending is None, seconds):
                raise TimedOut(f"a handler did not let go of the connection that was lost {within(seconds)}")

    def _abandon(self, link: SocketConnection, why: Disconnected) -> None:
        """End a connection that nobody got to use, so that another one can be made; not one that logged on.

        It waits for the loss, not for the thread, which may have to wait for the caller's handler.
        """
        if link.discard():
            if self._link is link:
                self.lost(why)
            return
        if self._core.logged_on is not None and not link.hung_up:
            return  # just before the exception: connecting again finds it
        link.hang_up(why)
        with self._lock:
            while self._link is link:
                self._room.wait()

    def _sends(self) -> list[Effect]:
        # Under the lock, so that frames leave in the order in which they were made.
        later: list[Effect] = []
        if not self._waiting:
            return later
        for effect in self._core.effects():
            if type(effect) is Send:
                if self._link is not None:
                    self._link.add(effect.buffers)
            elif type(effect) is State:
                self._due_states.append(effect.state)
            else:
                later.append(effect)
        return later

    def _carry_out(self, link: SocketConnection | None, effects: Sequence[Effect]) -> None:
        if link is not None:
            link.push()
            if (frame := self._publishing.unwritten_frame) and self._notifier is not None:
                self._notifier.report(frame)
        if self._due_states:
            self._tell_states()
        if effects:
            self._settle(effects, link)

    def _tell_states(self) -> None:
        # Whoever comes while another thread tells leaves it to that one: listeners hear one after the other.
        while self._due_states and self._telling.acquire(blocking=False):
            try:
                while self._due_states:
                    self._tell(self._due_states.popleft())
            finally:
                self._telling.release()

    def _handle(self, handler: Callable[..., object], *arguments: object) -> None:
        self._handlers.run(handler, *arguments)

    def _handle_each(self, handler: Handler, batch: MessageBatch) -> None:
        for message in batch:
            self._handlers.run(handler, message)

    def _room_again(self) -> None:
        with self._lock:
            self._room.notify_all()

    def _wait_for_store(self, full: StoreFull, seconds: float | None, deadline: float | None) -> None:
        """Wait until there may be room for what was refused with `full`; `deadline` is where `seconds` end.
        Raises `TimedOut`, and `Disconnected` where nobody makes room."""
        with self._lock:
            if not self._publishing.starved:
                return
            self._check_worth_waiting(full, reconnects=self._reconnects(seconds))
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                raise TimedOut(f"no room {within(seconds)}: {full}") from full
            self._room.wait(rest)

    def _begin_telling_loss(self, effects: Sequence[Effect]) -> None:
        """Under the lock: the connection is gone, and this thread is about to carry out these effects."""

    def _end_telling_loss(self) -> None:
        """That is done, or the disconnect handler is next, who may connect again."""

    def _down(self, lost: ConnectionDown) -> None:  # noqa: ARG002 - for those who override it
        handler = self._disconnect_handler
        if handler is not None:
            with self._handling_loss:
                self._loss_handled_on = get_ident()
                self._handlers.run(handler, self)
                self._loss_handled_on = NOBODY

    def _call(self, begin: Callable[[Waiter], None], timeout: Timeout, what: str) -> object:
        seconds = self._seconds(timeout)
        self._not_on_receive_thread(what)
        deadline = None if seconds is None else time.monotonic() + seconds
        call = Waiter()
        with self._lock:
            self._until_ready(deadline, seconds, what)
            begin(call)
            link, later = self._link, self._sends()
        self._carry_out(link, later)
        return self._answer(call, deadline, seconds, what)

    def _answer(self, call: Waiter, deadline: float | None, seconds: float | None, what: str) -> object:
        """Wait for the answer to the call `what`; `deadline` is where its `seconds` end."""
        return call.wait(remaining(deadline), what, seconds)

    def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        """Wait, under the lock, while somebody is connecting; `deadline` is where the `seconds` of the call
        `what` end. Here nobody is: a call on a lost connection raises."""

    def _post(self, begin: Callable[[Waiter], None]) -> None:
        with self._lock:
            begin(Waiter())
            link, later = self._link, self._sends()
        self._carry_out(link, later)

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Internal: report what a stream owes.

        When a signal handler raises in here, nothing was reported, or the
        connection ends, as nobody knows what of it was; the stream then says so.
        """
        if self._owns_lock():
            raise UsageError("a signal handler read a stream in the middle of a call that it interrupted")
        begun = False
        try:
            self._lock.acquire()
            begun = True
            self._core.consumed(request.context.sub_id, cost, request)
            link = self._link
            later = self._sends() if self._waiting else ()
            self._lock.release()
            self._carry_out(link, later)
        except BaseException:
            if (begun or self._owns_lock()) and (link := self._link) is not None:
                link.hang_up(Disconnected("reading a stream was interrupted"))
            if self._owns_lock():
                self._lock.release()
            raise

    def _unsettled(self) -> bool:
        with self._lock:
            return self._core.acks.unsettled()

    def _reads_answers(self) -> bool:
        # Handlers run on the receive thread, so it reads as soon as there may be something for one.
        return self._failed_write_handler is None and not self._core.subscriptions

    def _on_receive_thread(self) -> bool:
        link = self._link
        return link is not None and link.thread is threading.current_thread()

    def _not_on_receive_thread(self, what: str) -> None:
        if self._on_receive_thread():
            raise UsageError(f"{what} would wait for the receive thread, which it was called on")
