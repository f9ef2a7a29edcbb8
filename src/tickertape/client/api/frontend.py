"""Owns what every front of a client does with the machine's effects, and what it knows of the application.

Must never wait, lock or touch a connection: that is what tells the fronts apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Final, Protocol

from tickertape.base.errors import Closed, Disconnected, NameInUse, StoreFull, TickertapeError, UsageError
from tickertape.base.version import __version__
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.address import Address, parse_uri
from tickertape.client.common.connection_state import ConnectionState, StateListener, StateListeners
from tickertape.client.common.credentials import DEFAULT_WAYS, Credentials
from tickertape.client.common.effects import (
    CaughtUp,
    ConnectionDown,
    DeliverBatch,
    DeliverShared,
    DuplicatesDropped,
    Effect,
    End,
    EndConnection,
    FailedWrite,
    Notice,
    OrderTogether,
    ReportError,
    ResolveCall,
    SinkEffect,
    Started,
    State,
    StoreHasRoom,
)
from tickertape.client.common.handlers import ExceptionListener, Handler, HandlerRunner
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.protocol.core import ClientProtocol
from tickertape.wire.commands import LoggedOn

SOFTWARE: Final = f"tickertape-python {__version__}"

DisconnectHandler = Callable[[Any], object]
FailedWriteHandler = Callable[[TickertapeError, MessageBatch | None], object]


class Connected(Protocol):
    """The connection on which effects are carried out."""

    def hang_up(self) -> None:
        """End it."""


class ClientFrontend(ABC):
    """The base of a client's front: its machine, its handlers, and effects that need no connection."""

    _core: ClientProtocol
    _handlers: HandlerRunner
    _timeout: float | None
    _reconnects_by_itself = False

    def __init__(
        self,
        name: str,
        uri: str,
        user: str | None,
        password: str | None,
        timeout: float | str | None,
        credentials: Credentials = DEFAULT_WAYS,
    ) -> None:
        self._credentials = credentials
        self._address = self._first_address(uri)
        self._core = ClientProtocol(
            name,
            user=user if user is not None else self._address.user,
            password=password if password is not None else self._address.password,
            software=SOFTWARE,
            reconnects=self._reconnects_by_itself,
        )
        self._publishing = self._core.publishing
        self._publish: Callable[..., int | None] = self._publishing.publish
        self._waiting = self._core.waiting
        self._handlers = HandlerRunner()
        self._states = StateListeners()
        self._timeout = seconds_of(timeout)
        self._failed_write_handler: FailedWriteHandler | None = None
        self._duplicate_handler: Handler | None = None
        self._disconnect_handler: DisconnectHandler | None = None
        self._made_ids: Iterator[int] = count(1)
        self._forked = False
        self._unsent = 0
        """Messages without an answer, as far as no file keeps them, when the client closed."""

    # -- what an application may ask any time -----------------------------------------------------------

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
        return self._core.connected

    def set_ack_conflation(self, interval: float | str | None) -> None:
        """Ask the server, with the next logon, for at most one persisted acknowledgement in each `interval`.

        `interval`: seconds or text (`"100ms"`), 1 ms to a day; None (default): one with every commit. Fewer
        acknowledgements cost a publisher of large batches less. Each `publish` is sent in a frame of its own,
        so use `publish_batch` for throughput. A publish store holds messages for up to an interval longer,
        unless it is full. `publish_flush` does not wait for the interval. Raises `BadOption`.
        """
        self._core.set_ack_conflation(interval)

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Call `listener(exception)` for what handlers raise; None (default): print it on standard error."""
        self._handlers.listener = listener

    def set_duplicate_message_handler(self, handler: Handler | None) -> None:
        """Call `handler(message)` for each message that duplicate detection drops; None (default): for none.

        These are messages of bookmark subscriptions that arrive again, after a reconnection for instance, and
        were discarded before, or delivered where no bookmark store keeps account. They do not come out of the
        stream. The handler runs where other handlers run; its exceptions go to the exception listener.
        """
        self._duplicate_handler = handler
        self._core.subscriptions.report_duplicates(enabled=handler is not None)

    def add_connection_state_listener(self, listener: StateListener) -> None:
        """Call `listener(state)` with each `ConnectionState` that the connection comes to, in order.

        It runs where other handlers run, before the disconnect handler, and must not wait. One that is added
        twice is called once. Raises `UsageError` for what cannot be called.
        """
        self._states.add(listener)

    def remove_connection_state_listener(self, listener: StateListener) -> None:
        """Call it no more; nothing happens when it is not called."""
        self._states.remove(listener)

    def forked(self) -> None:
        """Internal: this is a forked child."""
        self._forked = True
        self._core.forked()
        self._publish = forks.refuse

    # -- effects ----------------------------------------------------------------------------------------

    def _settle(self, effects: Iterable[Effect], connected: Connected | None) -> None:
        """Carry out effects, all but `Send`, in order."""
        for effect in effects:
            if isinstance(effect, DeliverBatch):
                effect.sink.push(effect.batch)
            elif isinstance(effect, DeliverShared):
                self._hand_all(effect)
            elif isinstance(effect, ResolveCall):
                effect.token.settle(effect.outcome)
            elif isinstance(effect, SinkEffect):
                self._tell_sink(effect)
            elif isinstance(effect, OrderTogether):
                self._joined(effect.sinks)
            elif isinstance(effect, ReportError):
                self._handlers.tell(effect.error)
            elif isinstance(effect, FailedWrite | DuplicatesDropped):
                self._tell_handler(effect)
            elif isinstance(effect, StoreHasRoom):
                self._room_again()
            elif isinstance(effect, EndConnection):
                if connected is not None:
                    connected.hang_up()
            elif isinstance(effect, ConnectionDown):
                self._down(effect)
            elif isinstance(effect, State):
                self._tell(effect.state)

    def _tell_sink(self, effect: SinkEffect) -> None:
        sink: Any = effect.sink
        if isinstance(effect, Started):
            sink.started(effect.after, effect.found)
        elif isinstance(effect, CaughtUp):
            sink.caught_up()
        elif isinstance(effect, Notice):
            sink.noticed(effect.bookmark)
        elif isinstance(effect, End):
            sink.end(effect.reason, effect.error)
        else:
            sink.again()

    def _tell(self, state: ConnectionState) -> None:
        for listener in self._states.listeners:
            self._handle(listener, state)

    def _tell_handler(self, effect: FailedWrite | DuplicatesDropped) -> None:
        if isinstance(effect, DuplicatesDropped):
            if self._duplicate_handler is not None:
                self._handle_each(self._duplicate_handler, effect.batch)
        elif self._failed_write_handler is not None:
            self._handle(self._failed_write_handler, effect.error, effect.batch)

    def _take_failed_write_handler(self, handler: FailedWriteHandler | None) -> None:
        self._failed_write_handler = handler
        self._publishing.report_rejections(enabled=handler is None)

    @abstractmethod
    def _hand_all(self, effect: DeliverShared) -> None:
        """Give each sink its share of a batch; handlers are called in the order of the batch."""

    @abstractmethod
    def _joined(self, sinks: Sequence[object]) -> None:
        """These sinks were resumed together: their handlers keep one order from now on."""

    @abstractmethod
    def _handle(self, handler: Callable[..., object], *arguments: object) -> None:
        """Run a handler of the application; what it raises is told to the exception listener."""

    @abstractmethod
    def _handle_each(self, handler: Handler, batch: MessageBatch) -> None:
        """Run a handler of the application for each message, in order."""

    @abstractmethod
    def _room_again(self) -> None:
        """The publish store has room: whoever waits may try again."""

    @abstractmethod
    def _down(self, lost: ConnectionDown) -> None:
        """A connection is lost, and not because the application closed the client."""

    # -- decisions both fronts make ---------------------------------------------------------------------

    @property
    def _heartbeat_is_fixed(self) -> bool:
        """Whether it is too late to choose another heartbeat."""
        return False

    def _check_heartbeat(self) -> None:
        if self._heartbeat_is_fixed:
            raise UsageError(
                "the heartbeat of an HA client is chosen before it connects: heartbeat=, or set_heartbeat "
                "before connect_and_logon()"
            )

    def _first_address(self, uri: str) -> Address:
        address = parse_uri(uri)
        self._credentials.check(address)
        return address

    def _reconnects(self, seconds: float | None) -> bool:
        """Whether somebody is expected to connect again while a call waits for so long.

        Without a handler nobody is; without a deadline waiting lasts as long as the connection.
        """
        return self._disconnect_handler is not None and seconds is not None

    def _seconds(self, timeout: Timeout) -> float | None:
        if timeout is DEFAULT:
            return self._timeout
        return seconds_of(timeout)

    def _check_worth_waiting(self, full: StoreFull, *, reconnects: bool) -> None:
        """Raise unless somebody may make room. `reconnects`: a handler may connect again in time."""
        if self._core.closed:
            raise Closed("the client was closed") from full
        if self._core.logged_on is None and not reconnects:
            lost = self._core.loss
            why = "" if lost is None else f" ({lost.__cause__})"
            raise Disconnected(f"there is no connection{why}, and {full}") from full

    def _tell_unanswered(self) -> None:
        """The client closes without the answers to what was published: say how much that is."""
        count = self._unsent = self._unanswered_count()
        if count:
            self._handlers.tell(
                Disconnected(
                    f"Cannot send everything before client {self.name!r} closes: {count} message(s) have no "
                    "answer from a server. Call publish_flush() first, give close() more time, or use a "
                    "FilePublishStore"
                )
            )

    def _unanswered_count(self) -> int:
        return self._publishing.unanswered_count()

    def _may_end(self) -> bool:
        """Whether the end of the program, or of the loop, finds something to be closed."""
        if self._core.closed or self._forked:
            return False
        publishing = self._publishing
        waits = publishing.unanswered_count() or publishing.unpersisted_count()
        return self._core.logged_on is not None or waits > 0

    def _at_most(self, seconds: float) -> float:
        """The client's own timeout, or `seconds` if that is less."""
        return seconds if self._timeout is None else min(seconds, self._timeout)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Closing at the end of the program: only a listener of the application hears each error. What a
        publish store has in memory goes to its files."""
        listener, told = self._handlers.listener, list[BaseException]()
        self._handlers.listener = told.append
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the program ends: there is nobody left to raise it to
            told.append(error)
        finally:
            self._handlers.listener = listener
        store = self._publishing.store
        if store is not None:
            with suppress(Exception):
                store.close()
        if listener is not None:
            for failure in told:
                self._handlers.tell(failure)

    def _not_in_a_fight(self, *, handling_loss: bool) -> None:
        # Two clients of one name whose handlers connect again would throw each other out for ever.
        if handling_loss and self._core.displaced is not None:
            raise NameInUse(
                f"another process took over the client name {self.name!r}, and would be thrown out in turn: "
                "give each process a name of its own, or call connect() outside of the disconnect handler"
            ) from self._core.displaced
