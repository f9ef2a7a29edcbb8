"""Owns one step of publishing in a blocking client: the lock around it, what it sends, and waiting for room.

Must never decide what is sent or kept: that is the machine's (`publishing.py`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf

from tickertape.base.errors import Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.blocking.timer_thread import TimerThread
from tickertape.client.common.effects import Effect
from tickertape.client.common.waiting import now
from tickertape.client.limits import acknowledger_idle_seconds
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publishing.publisher import Publisher


class PublishSteps(ABC):
    """The half of `Client` that takes the publishing machine a step further."""

    _core: ClientProtocol
    _publishing: Publisher
    _waiting: Sequence[Effect]
    _link: SocketConnection | None
    _lock: threading.RLock
    _owns_lock: Callable[[], bool]

    @abstractmethod
    def _sends(self) -> list[Effect]:
        """Take the effects, put what is to be sent on the link, and return the others; under the lock."""

    @abstractmethod
    def _carry_out(self, link: SocketConnection | None, effects: Sequence[Effect]) -> None:
        """Write what waits, and carry out the other effects; not under the lock."""

    @abstractmethod
    def _on_receive_thread(self) -> bool:
        """Whether the caller must not wait for an answer."""

    @abstractmethod
    def _wait_for_store(self, full: StoreFull, seconds: float | None, deadline: float | None) -> None:
        """Wait until there may be room; raise where nobody makes it."""

    def _publish_when_room(
        self, seconds: float | None, publish: Callable[..., int | None], *arguments: object
    ) -> int | None:
        link = self._link
        if link is not None and link.blocked and link.congested:
            self._wait_for_socket(link, seconds)
        deadline: float | None = None
        while True:
            try:
                return self._step(publish, *arguments)
            except StoreFull as full:
                store = self._publishing.store
                if store is None or store.when_full == "raise" or self._on_receive_thread():
                    raise
                if seconds is not None and deadline is None:
                    deadline = time.monotonic() + seconds
                self._wait_for_store(full, seconds, deadline)

    def _step(self, step: Callable[..., int | None], *arguments: object) -> int | None:
        """One step of the publishing machine and what it sends.

        A signal handler may raise between any two of these lines. Then the lock is given back by its owner,
        and the connection ends if frames were begun; what the store has is sent again on the next one.
        """
        if self._owns_lock():
            raise UsageError("a signal handler called publish in the middle of a publish that it interrupted")
        link = self._link
        try:
            self._lock.acquire()
            sequence = step(*arguments)
            link = self._link
            later = self._sends() if self._waiting else ()
            self._publishing.unfinished = False
            self._lock.release()
            self._carry_out(link, later)
        except BaseException as error:
            self._give_back(link, refused=isinstance(error, TickertapeError))
            raise
        return sequence

    def _give_back(self, link: SocketConnection | None, *, refused: bool) -> None:
        """After an exception in `_step`: `refused` by the machine, which is whole then, or out of nowhere."""
        later: Sequence[Effect] = ()
        if self._owns_lock():
            if refused:
                link, later = self._link, self._sends()
                self._publishing.unfinished = False
            elif self._publishing.unfinished or self._waiting:
                if link is not None:
                    link.hang_up(Disconnected("publishing was interrupted"))
                self._publishing.interrupted()
            self._lock.release()
        self._carry_out(link, later)

    def _wait_for_socket(self, link: SocketConnection, seconds: float | None) -> None:
        if not self._on_receive_thread() and not link.wait_room(seconds):
            raise TimedOut(f"the server took no more {within(seconds)}; the message was not published")


class QueueSteps(PublishSteps, QueueCalls[None]):
    """The half of `Client` that settles messages of queues. Any thread may call it."""

    _acknowledger: TimerThread | None = None
    _looks_at = inf
    """When that thread looks again, monotonic seconds."""
    _idle = False

    def _settle_now(self, step: Callable[[], None]) -> None:
        self._step(_without_sequence, step)
        deadline = self._core.acks.next_deadline()
        if deadline is not None and deadline < self._looks_at:
            self._keep_acknowledging(deadline)

    def _choose(self, step: Callable[[], None]) -> None:
        self._settle_now(step)
        self._settle_now(self._core.acks.flush)

    def _settle_call(self, step: Callable[[], None]) -> None:
        self._settle_now(step)

    def _keep_acknowledging(self, deadline: float) -> None:
        """See to it that somebody looks at `deadline`."""
        with self._lock:
            self._looks_at = min(deadline, self._looks_at)
            acknowledger = self._acknowledger
            if acknowledger is None:
                name = f"tickertape acknowledgements {self._core.name}"
                self._acknowledger = TimerThread(self._look_at_settlements, name)
                self._acknowledger.start()
            else:
                acknowledger.changed()

    def _look_at_settlements(self) -> float | None:
        """On the thread for it: send what is due; when to look again."""
        later: Sequence[Effect] = ()
        with self._lock:
            link, moment = self._link, now()
            deadline = self._core.acks.next_deadline()
            if deadline is not None and deadline <= moment.mono:
                self._core.wake(moment)
                later = self._sends()
                deadline = self._core.acks.next_deadline()
            over = link is None or (deadline is None and self._idle)
            self._idle = deadline is None
            at = moment.mono + acknowledger_idle_seconds if deadline is None else deadline
            self._looks_at = inf if over else at
            if over:
                self._acknowledger = None
        self._carry_out(link, later)
        return None if over else at


def _without_sequence(step: Callable[[], None]) -> None:
    step()
