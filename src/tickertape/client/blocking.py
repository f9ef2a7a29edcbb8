"""Owns the blocking client: the public calls of `tickertape.Client`, one lock, and the waiting.

Must never decide what the protocol says (`core.py`), nor read or write a socket (`link.py`). What the machine
asks for is carried out here: sends in order under the lock, everything else after the lock is free again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from types import TracebackType
from typing import Self

from tickertape.base.errors import (
    Closed,
    Disconnected,
    NameInUse,
    TickertapeError,
    TimedOut,
    UsageError,
)
from tickertape.base.limits import client_timeout_seconds
from tickertape.base.ports import Now
from tickertape.base.units import parse_interval
from tickertape.batch.layout import MessageBatch
from tickertape.batch.payload import encode
from tickertape.client.chunks import chunks_of_messages
from tickertape.client.core import Arrived, ClientCore, Lost, Opened
from tickertape.client.effects import (
    CaughtUp,
    Down,
    Effect,
    End,
    FailedWrite,
    Hand,
    Hangup,
    Resolve,
    Room,
    Send,
)
from tickertape.client.handlers import ExceptionListener, Handlers
from tickertape.client.lane import NOBODY
from tickertape.client.link import Link, dial, parse_uri
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.steps import PublishSteps
from tickertape.client.subscribing import SubscribingClient
from tickertape.client.waiting import DEFAULT, Call, Timeout
from tickertape.wire.commands import LoggedOn

SOFTWARE = "tickertape-python"

DisconnectHandler = Callable[["Client"], object]
FailedWriteHandler = Callable[[TickertapeError, MessageBatch | None], object]


class Client(PublishSteps, SubscribingClient):
    """A connection to one server that blocks its callers; any number of threads may use it.

    `name`: the client name; the same name gives the same publisher id on every run and instance.
    `uri`: `tcp://host:port` (with `user:password@` if need be) or `unix:///path`.
    `user`, `password`: the logon's; they win over those in the URI.
    `publish_store`: keeps what is not yet persisted (`MemoryPublishStore`); messages then carry sequences
    and are sent again on reconnection. None (default): what is in flight when a connection is lost has an
    unknown outcome.
    `timeout`: seconds or text (`"500ms"`), default 10: for every call that is not given its own; None = wait
    as long as the connection lasts.
    `connect`: connect and log on at once (default True).

    It does not reconnect by itself: call `connect` again, from the disconnect handler for instance. As a
    context manager it closes itself. Raises `BadName`, `BadOption`, and what `connect` raises.
    """

    def __init__(
        self,
        name: str,
        uri: str,
        *,
        user: str | None = None,
        password: str | None = None,
        publish_store: PublishStore | None = None,
        timeout: float | str | None = client_timeout_seconds,
        connect: bool = True,
    ) -> None:
        self._address = parse_uri(uri)
        self._timeout = None if timeout is None else parse_interval(timeout)
        self._core = ClientCore(
            name,
            user=user if user is not None else self._address.user,
            password=password if password is not None else self._address.password,
            software=SOFTWARE,
        )
        self._lock = threading.RLock()
        # Python's own conditions ask a lock this way; there is no public name for it.
        self._owns_lock: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._room = threading.Condition(self._lock)
        self._publishing = self._core.publishing
        self._publish = self._publishing.publish
        self._waiting = self._core.waiting
        self._link: Link | None = None
        self._connecting = threading.Lock()
        self._handling_loss = threading.RLock()
        self._loss_handled_on = NOBODY
        self._disconnect_handler: DisconnectHandler | None = None
        self._failed_write_handler: FailedWriteHandler | None = None
        self._handlers = Handlers()
        self._last_sub_id = 0
        if publish_store is not None:
            self._core.set_store(publish_store, _now())
        if connect:
            self.connect()

    # -- connection -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The client name."""
        return self._core.name

    @property
    def server(self) -> LoggedOn | None:
        """What the server said at logon (instance, journal, publisher, ...); None while disconnected."""
        return self._core.logged_on

    @property
    def connected(self) -> bool:
        """Whether the client is logged on, as far as it knows."""
        return self._core.logged_on is not None

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on; nothing happens when the client is connected.

        `timeout` in seconds, None = wait for ever. What the publish store holds and the server lacks is
        sent again. Raises `Disconnected` (nobody answers), `TimedOut`, `Closed`, and what the server
        refuses the logon with:
        `Refused`, `NameInUse`, `BadVersion`, ...
        """
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        self._not_on_receive_thread("connect")
        self._not_in_a_fight()
        with self._connecting:
            if self._core.logged_on is not None:
                return
            connection = dial(self._address, seconds)
            link = Link(connection, self._address.uri, self)
            call = Call()
            with self._lock:
                if self._core.closed:
                    link.discard()
                    raise Closed("the client was closed")
                self._link = link
                self._core.receive(Opened(call), _now())
                later = self._sends()
            link.start()
            self._carry_out(link, later)
            try:
                call.wait(None if deadline is None else max(0.0, deadline - time.monotonic()), "the logon")
            except TimedOut as error:
                link.hang_up(Disconnected(str(error)))
                link.thread.join()
                raise

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect. Further calls raise
        `Closed`.

        `timeout` bounds the waiting, in seconds. Never raises: what went wrong is told to the exception
        listener. A publish store keeps what is not persisted.
        """
        if self._core.closed:
            return
        apart = not self._on_receive_thread()
        if apart and self.connected and self._publishing.unsettled():
            try:
                self.publish_flush(timeout=timeout, level="processed")
            except TickertapeError as error:
                self._handlers.tell(error)
        with self._lock:
            link = self._link
            refused = self._publishing.take_rejection()
            self._core.close()
            later = self._sends()
            self._room.notify_all()
        if refused is not None:
            self._handlers.tell(refused)
        self._carry_out(link, later)
        if link is not None and apart:
            link.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set_disconnect_handler(self, handler: DisconnectHandler | None) -> None:
        """Call `handler(client)` once for each connection that is lost, not for `close`.

        It runs on a thread of its own and may call `connect`; losses are handled one after the other. When
        another process took over the client name, `connect` raises `NameInUse` there: the two would throw
        each other out for ever.
        """
        self._disconnect_handler = handler

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Call `listener(exception)` for what handlers raise; None (default): print it on standard error."""
        self._handlers.listener = listener

    # -- publishing -------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        data: object,
        *,
        expiration: float | str | None = None,
        correlation_id: str | None = None,
        sow_key: str | None = None,
    ) -> int | None:
        """Publish one message: bytes as they are, str as UTF-8, anything else as JSON.

        `expiration`: the message's life, in seconds or text (`"5m"`). `correlation_id`, `sow_key`: handed on.
        Returns the sequence it gave the message, or None without a publish store or where the topic is not
        recorded. It never waits for the network unless a bound is reached, and then as long as the client's
        `timeout`; through a lost connection too when there is a disconnect handler, which may connect again.
        Raises `BadTopic`, `BadMessage`, `MessageTooLarge`, `Disconnected` (without a publish store, or with
        a full one), `StoreFull`, `TimedOut`, `Closed`, `PublisherTakenOver`; the message is then not
        published.
        """
        body = data if type(data) is bytes else encode(data)
        if expiration is not None or correlation_id is not None or sow_key is not None:
            extra = (_milliseconds(expiration), correlation_id or "", sow_key or "")
            return self._publish_when_room(self._publish, topic, body, *extra)
        publishing = self._publishing
        run = publishing.run
        bodies = run.bodies
        index = len(bodies)
        if (
            index < run.count_max
            and len(body) <= run.body_bytes_max
            and topic == run.topic
            and run.owner == get_ident()
        ):
            bodies.append(body)
            if publishing.run is run:
                return run.base if run.base is None else run.base + index
            return self._publish_when_room(publishing.publish_again, run, index, body)
        return self._publish_when_room(self._publish, topic, body, 0, "", "", get_ident())

    def publish_batch(self, topic: str, messages: Iterable[object]) -> int | None:
        """Publish many messages, each as `publish` does, in batches; returns the sequence of the last, or
        None.

        Raises what `publish` raises; messages before the one that raised may have been published.
        """
        sequence: int | None = None
        publishing = self._publishing
        for chunk in chunks_of_messages(topic, messages, lambda: publishing.chunk_bytes):
            sequence = self._publish_when_room(publishing.publish_whole, topic, *chunk)
        return sequence

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until everything sent on this connection is persisted, with or without a publish store.

        `level="processed"`: until the server has it. `timeout` in seconds, None = as long as the connection
        lasts. Raises `TimedOut` (the store is as it was), `Disconnected`, `Closed`, `PublisherTakenOver`
        (another process published under this name), and, unless there is a failed-write handler,
        `PublishRejected` when the server refused messages since the last flush.
        """
        what = f"publish_flush ({level})"
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        self._not_on_receive_thread(what)
        call = Call()
        with self._lock:
            self._core.flush(call, level)
            link, later = self._link, self._sends()
        self._carry_out(link, later)
        if link is not None and not call.settled:
            link.read_until(lambda: call.settled or not self._reads_answers(), deadline)
        call.wait(None if deadline is None else max(0.0, deadline - time.monotonic()), what)
        if self._publishing.rejected_count:
            with self._lock:
                refused = self._publishing.take_rejection()
            if refused is not None:
                raise refused

    def unpersisted_count(self) -> int:
        """Messages of the publish store that are not known to be persisted; 0 without a store."""
        with self._lock:
            return self._publishing.unpersisted_count()

    def set_publish_store(self, store: PublishStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while the present one still holds messages."""
        with self._lock:
            self._core.set_store(store, _now())
            link, later = self._link, self._sends()
        self._carry_out(link, later)

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Call `handler(error, batch)` for what the server refused; `batch` is None without a publish store.

        It runs on the receive thread. None (default): `publish_flush` raises instead.
        """
        with self._lock:
            self._failed_write_handler = handler
            self._publishing.report_rejections = handler is None

    # -- the receive thread -----------------------------------------------------------------------------

    def buffer(self) -> memoryview:
        """Internal: where the link reads into."""
        return self._core.buffer()

    def arrived(self, count: int) -> float | None:
        """Internal: bytes came, or time has passed."""
        now = _now()
        with self._lock:
            if count:
                self._core.receive(Arrived(count), now)
            deadline = self._core.next_deadline()
            if deadline is not None and deadline <= now.mono:
                self._core.wake(now)
            link, later = self._link, self._sends()
        try:
            self._carry_out(link, later)
        except BaseException:
            for effect in later:  # a Ctrl-C in a caller that reads: others still get their answers
                if isinstance(effect, Resolve):
                    effect.token.settle(effect.outcome)  # type: ignore[attr-defined]
            raise
        return self._core.next_deadline()

    def lost(self, error: Disconnected) -> None:
        """Internal: the connection is gone."""
        with self._lock:
            self._core.receive(Lost(error), _now())
            self._link = None
            later = self._sends()
            self._room.notify_all()
        self._carry_out(None, later)

    # -- inside -----------------------------------------------------------------------------------------

    def _sends(self) -> list[Effect]:
        # Under the lock, so that frames leave in the order in which they were made.
        later: list[Effect] = []
        if not self._waiting:
            return later
        for effect in self._core.effects():
            if type(effect) is Send:
                if self._link is not None:
                    self._link.add(effect.buffers)
            else:
                later.append(effect)
        return later

    def _carry_out(self, link: Link | None, effects: Sequence[Effect]) -> None:
        if link is not None:
            link.push()
        for effect in effects:
            if isinstance(effect, Hand):
                effect.sink.push(effect.batch)  # type: ignore[attr-defined]
            elif isinstance(effect, Resolve):
                effect.token.settle(effect.outcome)  # type: ignore[attr-defined]
            elif isinstance(effect, CaughtUp):
                effect.sink.caught_up()  # type: ignore[attr-defined]
            elif isinstance(effect, End):
                effect.sink.end(effect.reason, effect.error)  # type: ignore[attr-defined]
            elif isinstance(effect, FailedWrite):
                self._failed_write(effect)
            elif isinstance(effect, Room):
                with self._lock:
                    self._room.notify_all()
            elif isinstance(effect, Hangup):
                if link is not None:
                    link.hang_up()
            elif isinstance(effect, Down):
                self._down()

    def _failed_write(self, effect: FailedWrite) -> None:
        if self._failed_write_handler is not None:
            self._handlers.run(self._failed_write_handler, effect.error, effect.batch)

    def _down(self) -> None:
        handler = self._disconnect_handler
        if handler is not None:
            with self._handling_loss:
                self._loss_handled_on = get_ident()
                self._handlers.run(handler, self)
                self._loss_handled_on = NOBODY

    def _not_in_a_fight(self) -> None:
        # Two clients of one name whose handlers connect again would throw each other out for ever.
        if self._core.displaced is not None and self._loss_handled_on == get_ident():
            raise NameInUse(
                f"another process took over the client name {self.name!r}, and would be thrown out in turn: "
                "give each process a name of its own, or call connect() outside of the disconnect handler"
            ) from self._core.displaced

    def _call(self, begin: Callable[[Call], None], timeout: Timeout, what: str) -> object:
        seconds = self._seconds(timeout)
        self._not_on_receive_thread(what)
        call = Call()
        with self._lock:
            begin(call)
            link, later = self._link, self._sends()
        self._carry_out(link, later)
        return call.wait(seconds, what)

    def _post(self, begin: Callable[[Call], None]) -> None:
        with self._lock:
            begin(Call())
            link, later = self._link, self._sends()
        self._carry_out(link, later)

    def _consumed(self, sub_id: str, cost: int) -> None:
        with self._lock:
            self._core.consumed(sub_id, cost)
            if not self._waiting:
                return
            link, later = self._link, self._sends()
        self._carry_out(link, later)

    def _seconds(self, timeout: Timeout) -> float | None:
        if timeout is DEFAULT:
            return self._timeout
        return None if timeout is None else parse_interval(timeout)

    def _reads_answers(self) -> bool:
        # Handlers run on the receive thread, so it reads as soon as there may be something for one.
        return self._failed_write_handler is None and not self._core.subscriptions

    def _on_receive_thread(self) -> bool:
        link = self._link
        return link is not None and link.thread is threading.current_thread()

    def _not_on_receive_thread(self, what: str) -> None:
        if self._on_receive_thread():
            raise UsageError(f"{what} would wait for the receive thread, which it was called on")


def _now() -> Now:
    return Now(time.monotonic(), time.time_ns() // 1000)


def _milliseconds(expiration: float | str | None) -> int:
    return 0 if expiration is None else max(1, round(parse_interval(expiration) * 1000))
