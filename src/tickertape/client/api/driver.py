"""Base of the client drivers: performs the protocol effects that need no connection.

A driver runs one `ClientProtocol`: it connects, waits and performs effects. This module does not wait, lock
or use a connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, Protocol

from tickertape.base.errors import (
    Closed,
    Disconnected,
    NameInUse,
    StoreError,
    StoreFull,
    TickertapeError,
    UsageError,
)
from tickertape.batch.message_batch import MessageBatch
from tickertape.batch.queue_lease import AckAccumulator, Action, Marks
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common import effects
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.address import NO_ADDRESS, Address
from tickertape.client.common.connection_state import ConnectionState, StateListener
from tickertape.client.common.credentials import Credentials
from tickertape.client.common.handlers import LOG, Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import MadeUpId
from tickertape.client.common.waiting import DEFAULT, Timeout, now, seconds_of
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.protocol.heartbeat import Interval
from tickertape.client.protocol.transactions import ConnectionPin, Make, asking
from tickertape.client.publish_store.protocol import PublishStore

FailedWriteHandler = Callable[[TickertapeError, MessageBatch | None], object]
Step = Callable[[], None]
_LOGGED: Final = {
    ConnectionState.LOGGED_ON: "Client %r is connected to %s.",
    ConnectionState.RESUBSCRIBED: "Client %r has resubscribed at %s.",
}
"""Log texts of states."""


class OpenConnection(Protocol):
    """The connection for the effects."""

    def hang_up(self) -> None:
        """End the connection."""


class DriverSettings(NamedTuple):
    """Settings of a driver: address, credentials, and the default timeout of calls."""

    handlers: HandlerRunner
    address: Address
    credentials: Credentials
    timeout: float | str | None


class ClientDriver(ABC):
    """Base of the blocking and the asyncio driver."""

    lock: AbstractContextManager[object]
    """The lock of the client. The asyncio driver uses a null context."""

    def __init__(self, core: ClientProtocol, settings: DriverSettings) -> None:
        self.core = core
        self.logon = core.logon
        self.publishing = core.publishing
        self.publish: Callable[..., int | None] = core.publishing.publish
        self.rejections = core.publishing.rejections
        self.acks = core.acks
        self.subscriptions = core.subscriptions
        self.handlers = settings.handlers
        self._state_listeners: tuple[StateListener, ...] = ()
        self.timeout = seconds_of(settings.timeout)
        self.effects = core.waiting
        self._address = settings.address
        self._credentials = settings.credentials
        self._failed_write_handler: FailedWriteHandler | None = None
        self._duplicate_handler: Handler | None = None
        self._disconnect_handler: Callable[[], object] | None = None
        self._made_ids: Iterator[int] = count(1)
        self._forked = False
        self._unsent = 0
        """Messages without an answer when the client closed, except those in a file."""
        self.acks.attach(self)

    def set_duplicate_handler(self, handler: Handler | None) -> None:
        """Call `handler` for each message that duplicate detection drops."""
        self._duplicate_handler = handler
        self.subscriptions.report_duplicates(enabled=handler is not None)

    def set_disconnect_handler(self, handler: Callable[[], object] | None) -> None:
        """Call `handler` once for each connection that is lost."""
        self._disconnect_handler = handler

    def set_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        """Call `handler` for rejected publishes. Without a handler, the next flush raises."""
        self._failed_write_handler = handler
        self.rejections.reporting(enabled=handler is None)

    def add_state_listener(self, listener: StateListener) -> None:
        """Call `listener` with each state of the connection. Raises `UsageError`."""
        if not callable(listener):
            raise UsageError(f"Invalid connection-state listener {listener!r}. Pass a callable.")
        if listener not in self._state_listeners:
            self._state_listeners += (listener,)

    def remove_state_listener(self, listener: StateListener) -> None:
        """Remove `listener` if it was added."""
        self._state_listeners = tuple(one for one in self._state_listeners if one != listener)

    def closed_error(self) -> Closed:
        """Return the error of a call on the closed client."""
        return self.logon.closed_error()

    def shown(self, kind: str) -> str:
        """Return the `repr` of a client of class `kind`."""
        state = "closed" if self.logon.closed else "connected" if self.logon.connected else "not connected"
        where = "" if self._address is NO_ADDRESS else f" of {self._address.uri}"
        return f"<{kind} {self.core.name!r}{where}, {state}>"

    def check_not_forked(self) -> None:
        """Raise `Forked` in a forked child."""
        if self._forked:
            raise forks.forked_error()

    def _check_usable(self) -> None:
        """Raise unless the client can be used here."""
        self.check_not_forked()

    def set_heartbeat(self, interval: Interval | None, idle: Interval | None) -> None:
        """Set the heartbeat. Raises `BadOption`, `UsageError`."""
        self._check_usable()

        def step() -> None:
            self._check_heartbeat()
            self.core.set_heartbeat(interval, idle, now())

        self.take_step(step)
        self._arm_beats()

    def set_publish_store(self, store: PublishStore | None) -> None:
        """Replace the publish store. Raises `UsageError` while the current store holds messages."""
        self.take_step(lambda: self.core.set_store(store, now()))

    def set_bookmark_store(self, store: BookmarkStore | None) -> None:
        """Replace the bookmark store. Raises `UsageError` while a bookmark subscription runs."""
        with self.lock:
            self.subscriptions.use_store(store)

    def unpersisted_count(self) -> int:
        """Return the number of messages of the publish store that are not known to be persisted."""
        with self.lock:
            return self.publishing.unpersisted_count()

    def buffer(self) -> memoryview:
        """Return the buffer for the next received bytes."""
        return self.core.buffer()

    # -- calls that may wait (the asyncio driver returns awaitables) ------------------------------------

    @abstractmethod
    def call(self, begin: Callable[[Any], None], timeout: Timeout, what: str) -> Any:
        """Start the call `what` and wait for its outcome."""

    def ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: ConnectionPin | None = None
    ) -> Any:
        """Send a command of a transaction and wait for its answer. `same` requires the same connection."""
        return self.call(asking(self.core, make, batch, same), timeout, "a transaction")

    @abstractmethod
    def delete(self, body: bytes, timeout: Timeout, *, wait: bool) -> Any:
        """Publish a delete of records. With `wait`, wait for the answer and return a `DeleteResult`."""

    def names_queue(self, topic: str) -> bool:
        """Return whether `topic` is a queue, as the server reported last. True before the first logon."""
        queues = self.publishing.server_topics.queues
        return queues is None or topic in queues

    @abstractmethod
    def open_stream(self, request: SubscribeRequest, timeout: Timeout, on_message: Handler | None) -> Any:
        """Send a subscribe, wait until it is accepted, and return its stream."""

    @abstractmethod
    def name_subscriptions(self, what: str, sub_ids: tuple[str, ...], timeout: Timeout) -> Any:
        """Send the command `what` for existing subscriptions and wait for its completion."""

    def _naming(self, what: str, sub_ids: tuple[str, ...]) -> Callable[[effects.Waiter], None]:
        begins = {"pause": self.core.pause, "resume": self.core.resume, "unsubscribe": self.core.unsubscribe}
        return lambda call: begins[what](call, sub_ids)

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _arm_beats(self) -> None:
        """Schedule the next heartbeat check of the connection."""

    @abstractmethod
    def drive(self) -> None:
        """Perform the effects of the protocol, sends first."""

    @abstractmethod
    def take_step(self, step: Step) -> None:
        """Run a step of the protocol and send the resulting frames, without interleaving of other threads."""

    @abstractmethod
    def leave(self, request: SubscribeRequest) -> None:
        """End a subscription whose stream has no consumer any more."""

    @abstractmethod
    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Report consumed flow-control credit of a subscription."""

    def new_sub_id(self) -> str:
        """Generate an id for a subscription."""
        while True:
            made = MadeUpId(f"{self.core.name}-{next(self._made_ids)}")
            if made not in self.subscriptions:  # A subscription manager may have restored it.
                return made

    @property
    def is_open(self) -> bool:
        """Whether the client is not closed, and this process is not a forked child."""
        return not (self.logon.closed or self._forked)

    def forked(self) -> None:
        """Refuse every call from now on: this process is a forked child."""
        self._forked = True
        self.lock = forks.ForkedLock()
        self.core.forked()
        self.publish = forks.refuse

    # -- leases -----------------------------------------------------------------------------------------

    def configure_acks(self, step: Step) -> None:
        """Change the settings of acknowledgements, then send the collected ones."""
        with self.lock:
            step()
        self.settle_now(self.acks.flush)

    @abstractmethod
    def settle_now(self, step: Step) -> None:
        """Run a step of the acknowledgements and send the resulting frames. Any thread may call it."""

    def acknowledged(self, gathering: AckAccumulator) -> None:
        """See `Settling`."""
        self.settle_now(partial(self.acks.acknowledged, gathering, now()))

    def settled(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """See `Settling`."""
        self.settle_now(partial(self.acks.settle, queue, action, marks, extend_ms))

    # -- effects ----------------------------------------------------------------------------------------

    def _perform(self, pending: Iterable[effects.Effect], connection: OpenConnection | None) -> None:
        """Perform effects other than `Send`, in order."""
        for effect in pending:
            if isinstance(effect, effects.DeliverBatch):
                effect.sink.push(effect.batch)
            elif isinstance(effect, effects.DeliverShared):
                self._deliver_shared(effect)
            elif isinstance(effect, effects.ResolveCall):
                effect.token.settle(effect.outcome)
            elif isinstance(effect, effects.SinkEffect):
                effect.inform()
                if isinstance(effect, effects.End):
                    self._subscription_ended(effect.sink, effect.reason)
            elif isinstance(effect, effects.OrderTogether):
                self._order_together(effect.sinks)
            elif isinstance(effect, effects.ReportError):
                self.handlers.report(effect.error)
            elif isinstance(effect, effects.FailedWrite | effects.DuplicatesDropped):
                self._inform_handler(effect)
            elif isinstance(effect, effects.StoreHasRoom):
                self._wake_publishers()
            elif isinstance(effect, effects.EndConnection):
                if connection is not None:
                    connection.hang_up()
            elif isinstance(effect, effects.ConnectionDown):
                name, uri = self.core.name, self._address.uri
                # `loss` also says how this kind of client reconnects. After an error of its store it may not.
                cause = effect.error if isinstance(effect.error, StoreError) else self.logon.loss
                LOG.warning("Client %r lost its connection to %s. Cause: %s", name, uri, cause)
                self._connection_lost(effect)
            elif isinstance(effect, effects.State):
                self._report_state(effect.state)

    def _inform_handler(self, effect: effects.FailedWrite | effects.DuplicatesDropped) -> None:
        if isinstance(effect, effects.DuplicatesDropped):
            if self._duplicate_handler is not None:
                self._handle_each(self._duplicate_handler, effect.batch)
        elif self._failed_write_handler is not None:
            self._handle(self._failed_write_handler, effect.error, effect.batch)

    def _subscription_ended(self, sink: effects.Sink, reason: str) -> None:  # noqa: B027 - for overrides
        """Hook: the subscription of `sink` ended, and the sink knows it."""

    def _report_state(self, state: ConnectionState) -> None:
        message = _LOGGED.get(state)
        if message is not None:
            LOG.info(message, self.core.name, self._address.uri)
        for listener in self._state_listeners:
            self._handle(listener, state)

    @abstractmethod
    def _deliver_shared(self, effect: effects.DeliverShared) -> None:
        """Deliver its part of a batch to each sink. Handlers are called in the order of the batch."""

    @abstractmethod
    def _order_together(self, sinks: Sequence[effects.Sink]) -> None:
        """Call the handlers of these jointly resumed sinks in one common order from now on."""

    @abstractmethod
    def _handle(self, handler: Callable[..., object], *arguments: object) -> None:
        """Run a handler of the application. Its exceptions go to the exception listener."""

    @abstractmethod
    def _handle_each(self, handler: Handler, batch: MessageBatch) -> None:
        """Run a handler of the application for each message, in order."""

    @abstractmethod
    def _wake_publishers(self) -> None:
        """Wake publishers that wait for free space in the publish store."""

    @abstractmethod
    def _connection_lost(self, lost: effects.ConnectionDown) -> None:
        """Handle the loss of a connection that the application did not close."""

    # -- decisions --------------------------------------------------------------------------------------

    @property
    def _heartbeat_is_fixed(self) -> bool:
        """Whether the heartbeat can no longer change."""
        return False

    def _check_heartbeat(self) -> None:
        if self._heartbeat_is_fixed:
            raise UsageError(
                "Cannot change the heartbeat: the HA client is connected or connecting. Pass heartbeat= to "
                "the class, or call set_heartbeat() before connect_and_logon()."
            )

    def reconnects(self, seconds: float | None) -> bool:
        """Return whether a disconnect handler may reconnect during a wait of `seconds`.

        A wait without a deadline ends with the connection.
        """
        return self._disconnect_handler is not None and seconds is not None

    def seconds(self, timeout: Timeout) -> float | None:
        """Return the timeout of a call in seconds. Raises `BadOption`."""
        if timeout is DEFAULT:
            return self.timeout
        return seconds_of(timeout)

    def _check_worth_waiting(self, full: StoreFull, *, reconnects: bool) -> None:
        """Raise if the publish store cannot get free space. `reconnects`: a handler may reconnect in time."""
        if self.logon.closed:
            raise self.closed_error() from full
        if self.logon.logged_on is None and not reconnects:
            lost = self.logon.loss
            why = "" if lost is None else f" ({str(lost.__cause__ or lost).rstrip('.')})"
            raise Disconnected(f"{self.logon.not_connected}{why}. {full}") from full

    def _report_unanswered(self) -> None:
        """Report the number of published messages without an answer while the client closes."""
        with self.lock:  # answers may be arriving
            count = self._unsent = self.publishing.unanswered_count()
        if count:
            self.handlers.report(
                Disconnected(
                    f"Cannot send everything before client {self.core.name!r} closes: {count} message(s) "
                    "have no answer from a server. Call publish_flush() first, give close() more time, or "
                    "use a FilePublishStore."
                )
            )

    def _may_end(self) -> bool:
        """Return whether the client has to be closed at the end of the program or loop."""
        if self.logon.closed or self._forked:
            return False
        publishing = self.publishing
        waits = publishing.unanswered_count() or publishing.unpersisted_count()
        return self.logon.logged_on is not None or waits > 0

    def _at_most(self, seconds: float) -> float:
        """Return the client's own timeout, or `seconds` if that is less."""
        return seconds if self.timeout is None else min(seconds, self.timeout)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Context of a close at the end of the program: errors go only to a listener of the application.

        A publish store writes its buffered messages to its files.
        """
        listener, errors = self.handlers.listener, list[BaseException]()
        self.handlers.set_listener(errors.append)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the program ends, so no caller can catch it
            errors.append(error)
        finally:
            self.handlers.set_listener(listener)
        store = self.publishing.store
        if store is not None:
            with suppress(Exception):
                store.close()
        if listener is not None:
            for failure in errors:
                self.handlers.report(failure)

    def _check_no_takeover(self, *, handling_loss: bool) -> None:
        # Two clients with one name and reconnecting handlers would disconnect each other for ever.
        if handling_loss and self.logon.displaced is not None:
            raise NameInUse(
                f"Cannot reconnect: another connection took over the client name {self.core.name!r}. Use a "
                "unique name. To take the name back from the other connection, call connect() outside of the "
                "disconnect handler."
            ) from self.logon.displaced
