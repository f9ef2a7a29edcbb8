"""Owns the blocking HA client: one thread that carries out its session, and calls that wait for a connection.

Must never decide what comes next (`session.py`), nor hold the client's lock while it asks the application's
objects, connects or waits for a server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from threading import current_thread, get_ident
from typing import Any, Self

from tickertape.base.errors import (
    Closed,
    Disconnected,
    TickertapeError,
    TimedOut,
    UsageError,
)
from tickertape.client.api.ha_frontend import Consulting, HAFrontend
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.blocking.streams import HandledStream, MessageStream
from tickertape.client.bookmark_store import BookmarkStore
from tickertape.client.common import fork_safety as forks
from tickertape.client.common import waiting
from tickertape.client.common.effects import ConnectionDown, Effect, End, SinkEffect, State
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, Waiter, now
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.policies import as_failure, request_of, stored_of
from tickertape.client.ha.reconnect import Action, ReconnectStep
from tickertape.client.ha.subscription_manager import StoredSubscription
from tickertape.client.publish_store import PublishStore
from tickertape.client.publishing.send_buffer import NOBODY


class HAClient(HAFrontend, Client):
    """A `Client` that gets itself a connection to one of several servers, and another one when it is lost.

    `servers`: one address or several, in the order of preference, or `server_chooser`: an object that says
    where to connect (`ServerChooser`). `user`, `password`, `token`, `tls`: as in `Client`; an authenticator
    of the chooser may give another password. `publish_store`: `"memory"` (default), a store, or None: what is
    in flight when a connection is lost has an unknown outcome then, and nothing can be published while there
    is none.
    `bookmark_store`: for those who discard messages; None (default): what a handler was given is done with.
    `reconnect_delay`: seconds or text for the same wait each time, a `DelayStrategy`, or None (default) for
    an `ExponentialDelayStrategy` that never gives up. `heartbeat`: seconds or text; see `set_heartbeat`.
    `subscription_manager`: remembers the subscriptions of handlers (`SubscriptionManager`; by default in
    memory). `timeout`: as in `Client`, and for one attempt.

    `connect_and_logon` (or `with`) makes the first connection. From then on, whenever the connection is lost,
    a thread of its own connects again: it asks the chooser, waits as the delay strategy says, connects, logs
    on, reports to the chooser, sends again what the publish store holds and the server lacks, and places the
    subscriptions that have handlers again, in their order. Streams that are read end with their connection.
    What is published meanwhile goes into the store; calls that need a server wait for it, as long as their
    timeout. A call that was sent when the connection was lost raises `Disconnected`.

    A client whose name another connection takes over comes back once, and gives up when that happens again:
    the two would throw each other out for ever. Raises `BadName`, `BadOption`, `StoreError`.
    """

    def _make_front(
        self,
        name: str,
        publish_store: PublishStore | None,
        bookmark_store: BookmarkStore | None,
        timeout: float | str | None,
    ) -> None:
        Client.__init__(
            self,
            name,
            "",
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            timeout=timeout,
            connect=False,
        )
        self._keeper: threading.Thread | None = None
        self._dialling = False
        self._restoring = False
        self._placing: Waiter | None = None
        """What the thread that connects waits for while it resubscribes; None once the client is closed."""
        self._beginners: dict[Waiter, int] = {}
        """Who waits in `connect_and_logon`, and for which beginning of the session."""
        self._changed = threading.Condition(self._lock)
        """The session has something to do, or has come where calls may be made, or nowhere."""
        self._loss_told_on = NOBODY
        """The thread on which the application is being told of a loss."""
        self._managing = threading.Lock()

    # -- connection -------------------------------------------------------------------------------------

    def connect_and_logon(self, timeout: Timeout = None) -> None:
        """Connect to one of the servers, and keep a connection from then on, until `close`.

        It returns when everything may be called; at once when that is so. `timeout` in seconds or text; None
        (default) = try until the chooser has no server or the delay strategy gives up, which raises
        `Disconnected`; the client is as before the call then, and the same holds for `TimedOut`. Raises
        `Closed`, and `NameInUse` when another connection took over the client name twice.
        """
        seconds = self._seconds(timeout)
        self._not_on_receive_thread("connect_and_logon")
        call = Waiter()
        with self._lock:
            if self._core.closed:
                raise Closed("the client was closed")
            if self._session.ready:
                return
            self._feed(machine.Start())
            self._beginners[call] = self._session.begun
        try:
            call.wait(seconds, "connect_and_logon")
        except BaseException as error:
            if call.settled:
                raise
            if not isinstance(error, TimedOut):
                self._abandon_beginning(call, Disconnected("connecting was interrupted"))
                raise
            late = self._not_in_time(seconds)
            self._abandon_beginning(call, late)
            raise late from None

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """As `connect_and_logon`, by default for as long as the client's own timeout says."""
        self.connect_and_logon(self._seconds(timeout))

    def disconnect(self, *, timeout: Timeout = DEFAULT) -> None:
        """The reference's name for `close`."""
        self.close(timeout=timeout)

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """As that of `Client`. With a publish store it goes on through lost connections, as long as `timeout`
        (None = until the client stops): the store has everything, and the client connects again."""
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                super().publish_flush(waiting.remaining(deadline), level)
            except Disconnected:
                if self._publishing.store is None or not self._session.trying:
                    raise
                self._wait_for_loss(waiting.remaining(deadline))
            else:
                return

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect for good.

        While there is no connection nothing is sent: a publish store on disk keeps it for the next process.
        `timeout` bounds the waiting, in seconds: a handler that still runs then ends by itself. Never raises:
        what went wrong is told to the exception listener. In a forked child nothing happens.
        """
        if self._core.closed or self._forked:
            return
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        apart = not self._on_receive_thread()
        with self._lock:
            keeper = self._keeper
            self._feed(machine.CloseRequested())
        super().close(timeout=seconds)
        if (placing := self._placing) is not None:
            # Its answer would have to wait for the handler that keeps the receive thread.
            placing.settle(Closed("the client was closed"))
        # It may be waiting for a connection or an object of the application, which nobody can cut short.
        if keeper is not None and apart and not self._dialling:
            keeper.join(waiting.remaining(deadline))
        self._close_own()

    def __enter__(self) -> Self:
        try:
            self.connect_and_logon()
        except BaseException:
            self.close()
            raise
        return self

    def forked(self) -> None:
        """Internal: this is a forked child, where the keeping thread does not exist."""
        super().forked()
        refusing: Any = forks.ForkedLock()
        self._changed = self._managing = refusing

    # -- inside: the callers ----------------------------------------------------------------------------

    def _abandon_beginning(self, call: Waiter, error: TickertapeError) -> None:
        """Nobody waits for `call` any more, because of `error`."""
        with self._lock:
            self._beginners.pop(call, None)
            if not self._beginners:
                self._feed(machine.Cancelled(error))
            link = None if self._session.trying else self._link
        if link is not None:
            link.hang_up(Disconnected(str(error)))

    def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        session = self._session
        while session.trying and not session.ready and self._keeper is not current_thread():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self._not_in_time(seconds, f" for {what}")
            self._changed.wait(left)

    def _on_receive_thread(self) -> bool:
        # These are the threads without which nobody would connect again.
        return (
            self._keeper is current_thread()
            or self._loss_told_on == get_ident()
            or super()._on_receive_thread()
        )

    def _not_on_receive_thread(self, what: str) -> None:
        if self._keeper is current_thread():
            if self._restoring:
                return
            raise UsageError(f"{what} would wait for the thread that connects, which it was called on")
        super()._not_on_receive_thread(what)

    def _open(
        self,
        request: SubscribeRequest,
        timeout: Timeout,
        on_message: Handler | None,
        *,
        limited: bool = False,
    ) -> MessageStream:
        stream = super()._open(request, timeout, on_message, limited=limited)
        if on_message is not None and not limited:
            self._remember(stored_of(request), stream)
        return stream

    def _name(self, command: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        if self._drops_kept(command, sub_ids):
            self._post(lambda call: self._core.unsubscribe(call, sub_ids))
        else:
            super()._name(command, sub_ids, timeout)

    def _remember(self, stored: StoredSubscription, stream: MessageStream) -> None:
        with self._managing:
            if stream.end_reason in (None, "closed"):  # else it is over, or replaced, and that was told
                self._policies.subscribed(stored)

    def _tell_sink(self, effect: SinkEffect) -> None:
        super()._tell_sink(effect)
        if isinstance(effect, End) and type(effect.sink) is HandledStream:
            with self._managing:
                if self._is_over(effect.sink.sub_id, effect.reason):
                    self._policies.unsubscribed(effect.sink.sub_id)

    def _begin_telling_loss(self, effects: Sequence[Effect]) -> None:
        # Before anybody hears of the loss: whoever calls because of it then waits for the next connection.
        self._loss_told_on = get_ident()
        for effect in effects:
            if isinstance(effect, ConnectionDown) and self._concerns_session(effect):
                self._feed(machine.ConnectionLost(effect.error))

    def _end_telling_loss(self) -> None:
        with self._lock:
            if self._loss_told_on == get_ident():
                self._loss_told_on = NOBODY
                self._changed.notify_all()

    def _down(self, lost: ConnectionDown) -> None:
        self._end_telling_loss()
        super()._down(lost)

    # -- inside: the thread that connects ---------------------------------------------------------------

    def _feed(self, happened: machine.Event) -> None:
        """Tell the session, under the lock or for a moment under it, and have it carried out."""
        with self._lock:
            self._take_in(happened)
            if self._keeper is None and self._session.trying:
                name = f"tickertape {self.name}"
                self._keeper = threading.Thread(target=self._keep, name=name, daemon=True)
                self._keeper.start()
            self._changed.notify_all()

    def _keep(self) -> None:
        try:
            while effects := self._next_effects():
                for effect in effects:
                    self._carry(effect)
        except BaseException as error:
            # Nothing should come here; if it does, nobody is left waiting.
            failure = Disconnected(f"the thread that connects failed: {error!r}")
            with self._lock:
                self._take_in(machine.DriverFailed(failure))
                self._keeper = None
                link = self._link
            if link is not None:
                link.hang_up(failure)
            for effect in self._session.effects():
                self._carry(effect)
            raise

    def _next_effects(self) -> Sequence[Action]:
        """What is to be done next, when it is time; nothing when the session is over."""
        session = self._session
        with self._lock:
            while True:
                # What a sink is told of a loss must not come between messages of the next connection.
                while session.trying and self._loss_told_on != NOBODY:
                    self._changed.wait()
                effects = session.effects()
                if effects:
                    return effects
                if not session.trying:
                    self._keeper = None
                    return ()
                deadline = session.next_deadline()
                left = None if deadline is None else deadline - time.monotonic()
                if left is None or left > 0:
                    self._changed.wait(left)
                self._wake_session()

    def _carry(self, effect: Action) -> None:
        if isinstance(effect, Consulting):
            self._consult(effect)
        elif isinstance(effect, machine.Connect):
            self._feed(self._attempt(effect))
        elif isinstance(effect, machine.ResumePublishing):
            with self._lock:
                self._core.resume_publishing(now())
                link, later = self._link, self._sends()
            self._carry_out(link, later)
        elif isinstance(effect, machine.Resubscribe):
            self._feed(self._resubscribe(effect.attempt))
        elif isinstance(effect, machine.Disconnect):
            link = self._link
            if link is not None:
                link.hang_up(effect.error)
        elif isinstance(effect, State):
            self._due_states.append(effect.state)
            self._tell_states()
        elif isinstance(effect, machine.Established):
            self._ready()
        else:
            self._stopped(effect)

    def _attempt(self, effect: machine.Connect) -> machine.Event:
        link = self._link
        try:
            if link is not None:
                self._abandon(link, Disconnected("another connection is made"))
            address, user, password = self._policies.begin_attempt(effect.uri)
            if not (password is None or isinstance(password, str)):
                raise UsageError(f"an authenticator gives a password, not {type(password).__name__}")
            self._address = address
            with self._lock:
                if self._session.step is not ReconnectStep.CONNECTING:
                    return machine.AttemptFailed(effect.attempt, Disconnected("it is not wanted any more"))
                self._core.set_credentials(user, password)
                self._dialling = True
            self._policies.uses(user, password)
            self._instance = self._log_on(self._attempt_seconds).instance
        except Exception as error:  # noqa: BLE001 - an authenticator and a resolver may raise anything
            return machine.AttemptFailed(effect.attempt, as_failure(error, effect.uri))
        finally:
            self._dialling = False
        return machine.LogonSucceeded(effect.attempt)

    def _dial(self, seconds: float | None) -> SocketConnection:
        try:
            return super()._dial(seconds)
        finally:
            self._dialling = False

    def _resubscribe(self, attempt: int) -> machine.Event:
        try:
            if not self._restored:
                self._restore()
                self._restored = True
            call = Waiter()
            with self._lock:
                self._core.resubscribe(call)
                link, later = self._link, self._sends()
            self._carry_out(link, later)
            self._answer(call, None, self._attempt_seconds, "resubscribing")
        except TickertapeError as error:
            return machine.Resubscribed(attempt, error)
        return machine.Resubscribed(attempt)

    def _answer(self, call: Waiter, deadline: float | None, seconds: float | None, what: str) -> object:
        if self._keeper is not current_thread() or seconds is None:
            return super()._answer(call, deadline, seconds, what)
        # Subscriptions that were placed already have their handlers called before the next answer is read.
        with self._lock:
            link = self._link
            self._placing = None if self._core.closed else call
        try:
            if self._placing is None:
                raise Closed("the client was closed")
            return call.wait_idle(seconds, what, lambda: link is not None and link.busy)
        finally:
            self._placing = None

    def _restore(self) -> None:
        """Place what the subscription manager brings back, where it is not there already."""
        self._restoring = True
        try:
            for stored, handler in self._policies.to_restore():
                if stored.sub_id in self._core.subscriptions:
                    continue
                try:
                    request = request_of(stored, self.bookmark_store)
                    stream = super()._open(request, self._attempt_seconds, handler)
                except (Disconnected, TimedOut):
                    raise
                except TickertapeError as error:
                    self._handlers.tell(error)
                else:
                    self._remember(stored, stream)
        finally:
            self._restoring = False

    def _ready(self) -> None:
        with self._lock:
            beginners, self._beginners = self._beginners, {}
            self._changed.notify_all()
            self._room.notify_all()
        for call in beginners:
            call.settle(None)

    def _stopped(self, effect: machine.Stopped) -> None:
        with self._lock:
            beginners = [call for call, begun in self._beginners.items() if begun <= effect.begun]
            for call in beginners:
                del self._beginners[call]
            self._changed.notify_all()
            self._room.notify_all()
        for call in beginners:
            call.settle(effect.error)
        if not beginners and not effect.known:
            self._handlers.tell(effect.error)
