"""Sender of the blocking client: steps of the protocol under one lock, and the frames that they send.

Sends are performed in order under the lock, all other effects after its release. Two kinds of helper threads
exist because a handler of the application may keep the receive thread busy. The asyncio client uses the
timers and callbacks of its event loop instead.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

from tickertape.base.errors import Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.client.api.driver import ClientDriver, DriverSettings, Step
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.client.common import effects
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import now
from tickertape.client.limits import acknowledger_idle_seconds
from tickertape.client.protocol.core import ClientProtocol

_END: Final = 0


class TimerThread(Thread):
    """Thread that calls `look()` at the time (monotonic seconds) that the previous call returned.

    `changed` causes an immediate call. The thread ends when `look()` returns None.
    """

    def __init__(self, look: Callable[[], float | None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._look = look
        self._changed = Event()

    def changed(self) -> None:
        """Call `look()` now. Never waits."""
        self._changed.set()

    def run(self) -> None:
        """Call `look()` until it returns None."""
        while (deadline := self._look()) is not None:
            self._changed.wait(max(0.0, deadline - time.monotonic()))
            self._changed.clear()


class WriteNotifier(Thread):
    """Thread that calls `notify(frame)` for the newest written publish frame, until `end`.

    A publisher thread cannot do this: it does not return to the client after its last message. A publisher
    that holds the GIL delays this thread by some milliseconds. Messages accumulate meanwhile, which makes
    frames large.
    """

    def __init__(self, notify: Callable[[int], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._notify = notify
        self._frames: SimpleQueue[int] = SimpleQueue()  # reentrant: a signal handler may interrupt `put`
        self._reported = _END

    def report(self, frame: int) -> None:
        """Report that `frame` was passed to the socket. Never waits."""
        if frame != self._reported:
            self._frames.put(frame)
            self._reported = frame  # after `put`: an exception between them causes a second report

    def end(self) -> None:
        """End the thread soon. Never waits."""
        self._frames.put(_END)

    def run(self) -> None:
        """Process reports until `end`."""
        frames = self._frames
        while (frame := frames.get()) != _END:
            while not frames.empty() and frame != _END:
                frame = frames.get()
            if frame == _END:
                return
            self._notify(frame)


class ThreadSender(ClientDriver):
    """Base of the driver of a `Client`: publishes, acknowledges and sends. Any number of threads may call."""

    lock: threading.RLock

    def __init__(self, core: ClientProtocol, settings: DriverSettings) -> None:
        super().__init__(core, settings)
        self.lock = threading.RLock()
        # The same private method that `threading.Condition` uses. A public one does not exist.
        self.owns_lock: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.connection: SocketConnection | None = None
        self._room = threading.Condition(self.lock)
        self._notifier: WriteNotifier | None = None
        self._ack_timer: TimerThread | None = None
        self._ack_timer_at = inf
        """Next deadline of that thread, monotonic seconds."""
        self._acks_idle = False
        self._due_states: deque[ConnectionState] = deque()
        """States that are not reported to the listeners yet, in order."""
        self._telling = threading.Lock()

    # -- steps ------------------------------------------------------------------------------------------

    def send_only(self, begin: Callable[[ThreadWaiter], None]) -> None:
        self.take_step(lambda: begin(ThreadWaiter()))

    def take_step(self, step: Step) -> None:
        """Run a step of the protocol and send the resulting frames."""
        with self.lock:
            step()
            connection, later = self.connection, self._take_sends()
        self._carry_out(connection, later)

    def drive(self) -> None:
        """Perform the effects of the protocol, sends first."""
        with self.lock:
            connection, later = self.connection, self._take_sends()
        self._carry_out(connection, later)

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Report consumed flow-control credit of a stream.

        If a signal handler raises during this call, either nothing was reported, or the connection ends
        because the reported amount is unknown. The stream then ends with that error.
        """
        if self.owns_lock():
            raise UsageError(
                "Cannot read a stream: the signal handler interrupted a call of this client. Read outside of "
                "signal handlers."
            )
        if request.context.sub_id not in self.subscriptions:
            return  # An ended subscription needs no credit.
        begun = False
        try:
            self.lock.acquire()
            begun = True
            self.core.consumed(request.context.sub_id, cost, request)
            connection = self.connection
            later = self._take_sends() if self.effects else ()
            self.lock.release()
            self._carry_out(connection, later)
        except BaseException:
            if (begun or self.owns_lock()) and (connection := self.connection) is not None:
                connection.hang_up(Disconnected("Cannot continue: a read was interrupted. Connect again."))
            if self.owns_lock():
                self.lock.release()
            raise

    # -- publishing -------------------------------------------------------------------------------------

    def publish_when_room(
        self, seconds: float | None, publish: Callable[..., int | None], *arguments: object
    ) -> int | None:
        """Run a step of publishing as soon as the store and the socket have space, within `seconds`."""
        connection = self.connection
        if connection is not None and connection.blocked and connection.congested:
            self._wait_for_socket(connection, seconds)
        deadline: float | None = None
        while True:
            try:
                return self._step(publish, *arguments)
            except StoreFull as full:
                store = self.publishing.store
                if store is None or store.when_full == "raise" or self._on_receive_thread():
                    raise
                if seconds is not None and deadline is None:
                    deadline = time.monotonic() + seconds
                self._wait_for_store(full, seconds, deadline)

    def _step(self, step: Callable[..., int | None], *arguments: object) -> int | None:
        """Run one step of the publisher and send the resulting frames.

        A signal handler may raise between any two of these lines. Then the owner releases the lock, and the
        connection ends if frames were started. The next connection sends the messages of the store again.
        """
        if self.owns_lock():
            raise UsageError(
                "Cannot publish: the signal handler interrupted another publish. Publish outside of signal "
                "handlers."
            )
        connection = self.connection
        try:
            self.lock.acquire()
            sequence = step(*arguments)
            connection = self.connection
            later = self._take_sends() if self.effects else ()
            if self.publishing.unfinished:
                self.publishing.finished()
            self.lock.release()
            self._carry_out(connection, later)
        except BaseException as error:
            self.give_back(connection, refused=isinstance(error, TickertapeError))
            raise
        return sequence

    def give_back(self, connection: SocketConnection | None, *, refused: bool) -> None:
        """Release the lock after an exception in a step.

        `refused`: the publisher raised it and is consistent. Otherwise a signal handler raised it.
        """
        later: Sequence[effects.Effect] = ()
        if self.owns_lock():
            if refused:
                connection, later = self.connection, self._take_sends()
                self.publishing.finished()
            elif self.publishing.unfinished or self.effects:
                if connection is not None:
                    connection.hang_up(
                        Disconnected("Cannot continue: a publish was interrupted. Connect again.")
                    )
                self.publishing.interrupted()
            self.lock.release()
        self._carry_out(connection, later)

    def _wait_for_socket(self, connection: SocketConnection, seconds: float | None) -> None:
        if not self._on_receive_thread() and not connection.wait_room(seconds):
            raise TimedOut(
                f"Cannot publish: the server accepted no data {within(seconds)}. Check the server, or "
                "pass a longer timeout."
            )

    def _wait_for_store(self, full: StoreFull, seconds: float | None, deadline: float | None) -> None:
        """Wait until the publish store may have space again after the error `full`.

        `deadline`: the end of the timeout of `seconds`. Raises `TimedOut`, and `Disconnected` if no
        connection can free space.
        """
        with self.lock:
            if not self.publishing.starved:
                return
            self._check_worth_waiting(full, reconnects=self.reconnects(seconds))
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                raise TimedOut(
                    f"Cannot publish: the publish store got no free space {within(seconds)}. {full}"
                ) from full
            self._room.wait(rest)

    def _wake_publishers(self) -> None:
        with self.lock:
            self._room.notify_all()

    # -- acknowledgements -------------------------------------------------------------------------------

    def configure_acks(self, step: Step) -> None:
        """Change the settings of acknowledgements, then send the collected ones."""
        self._step(step)
        self.settle_now(self.acks.flush)

    def settle_now(self, step: Step) -> None:
        """Run a step of the acknowledgements and send the resulting frames."""
        self._step(step)
        deadline = self.acks.next_deadline()
        if deadline is not None and deadline < self._ack_timer_at:
            self._keep_acknowledging(deadline)

    def _keep_acknowledging(self, deadline: float) -> None:
        """Schedule the acknowledgement timer for `deadline`."""
        with self.lock:
            self._ack_timer_at = min(deadline, self._ack_timer_at)
            timer = self._ack_timer
            if timer is None:
                name = f"tickertape acknowledgements {self.core.name}"
                self._ack_timer = TimerThread(self._look_at_settlements, name)
                self._ack_timer.start()
            else:
                timer.changed()

    def _look_at_settlements(self) -> float | None:
        """Send due acknowledgements, on the timer thread. Returns the next deadline."""
        later: Sequence[effects.Effect] = ()
        with self.lock:
            connection, moment = self.connection, now()
            deadline = self.acks.next_deadline()
            if deadline is not None and deadline <= moment.mono:
                self.core.wake(moment)
                later = self._take_sends()
                deadline = self.acks.next_deadline()
            over = connection is None or (deadline is None and self._acks_idle)
            self._acks_idle = deadline is None
            at = moment.mono + acknowledger_idle_seconds if deadline is None else deadline
            self._ack_timer_at = inf if over else at
            if over:
                self._ack_timer = None
        self._carry_out(connection, later)
        return None if over else at

    def _unsettled(self) -> bool:
        with self.lock:
            return self.acks.unsettled()

    # -- inside -----------------------------------------------------------------------------------------

    def _take_sends(self) -> list[effects.Effect]:
        # Under the lock, so that frames are sent in their order.
        later: list[effects.Effect] = []
        if not self.effects:
            return later
        for effect in self.core.effects():
            if type(effect) is effects.Send:
                if self.connection is not None:
                    self.connection.add(effect.buffers)
            elif type(effect) is effects.State:
                self._due_states.append(effect.state)
            else:
                later.append(effect)
        return later

    def _carry_out(self, connection: SocketConnection | None, pending: Sequence[effects.Effect]) -> None:
        if connection is not None:
            connection.push()
            if (frame := self.publishing.unwritten_frame) and self._notifier is not None:
                self._notifier.report(frame)
        if self._due_states:
            self._tell_states()
        if pending:
            self._perform(pending, connection)

    def _tell_states(self) -> None:
        # A thread leaves its states to another thread that is reporting: listeners run one at a time.
        while self._due_states and self._telling.acquire(blocking=False):
            try:
                while self._due_states:
                    self._report_state(self._due_states.popleft())
            finally:
                self._telling.release()

    def _on_receive_thread(self) -> bool:
        connection = self.connection
        return connection is not None and connection.thread is threading.current_thread()
