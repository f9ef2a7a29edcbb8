"""Owns one step of publishing in a blocking client: the lock around it, what it sends, and waiting for room.

Must never decide what is sent or kept: that is the machine's (`publishing.py`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from tickertape.base.errors import Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.common.effects import Effect
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
