"""Virtual time: a clock that tests advance, and an asyncio loop that runs on it.

Nothing waits for real time, and only modules of this package use the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tickertape.base.interfaces import Now

BEGIN_MONO: Final = 1_000.0
BEGIN_WALL: Final = 1_767_225_600_000_000
"""2026-01-01 00:00 UTC in microseconds."""
_MICROS: Final = 1_000_000
_OUTSIDE: Final = (
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server"),
    *("create_datagram_endpoint", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe"),
    *("sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"),
    *("sock_sendall", "sock_sendto", "sock_sendfile", "add_reader", "add_writer", "remove_reader"),
    *("remove_writer", "subprocess_exec", "subprocess_shell"),
)
"""Methods of a loop that need the operating system."""


class Standstill(RuntimeError):
    """Deadlock of a `VirtualLoop`: all tasks wait, no timer is set and nothing is ready."""


class VirtualClock:
    """A monotonic clock (seconds) and a wall clock (microseconds since 1970) that tests advance.

    Both advance together, except for jumps of the wall clock.

    Args:
        mono: Start of the monotonic clock in seconds. Default 1000.
        wall: Start of the wall clock in microseconds since 1970. Default 2026-01-01 00:00 UTC.

    Example:
        >>> clock = VirtualClock()
        >>> with clock.installed():
        ...     clock.advance(3600)
        >>> clock.mono
        4600.0
    """

    def __init__(self, *, mono: float = BEGIN_MONO, wall: int = BEGIN_WALL) -> None:
        self.mono = mono
        """Monotonic clock in seconds."""
        self._wall_ahead = wall - round(mono * _MICROS)

    @property
    def wall(self) -> int:
        """Wall clock in microseconds since 1970 UTC."""
        return round(self.mono * _MICROS) + self._wall_ahead

    def now(self) -> Now:
        """Return the time of both clocks: `mono` in seconds, `wall` in microseconds since 1970 UTC."""
        return Now(self.mono, self.wall)

    def advance(self, seconds: float) -> None:
        """Advance the monotonic clock and the wall clock. Raises `ValueError` for a negative time."""
        if seconds < 0:
            raise ValueError(
                f"Cannot advance the clock by {seconds} s: time does not run backwards. Use jump() for the "
                "wall clock."
            )
        self.mono += seconds

    def jump(self, seconds: float) -> None:
        """Move only the wall clock forward or back, as NTP and operators do."""
        self._wall_ahead += round(seconds * _MICROS)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install the clock in all loaded modules of `tickertape` until the end of the `with` block.

        All other modules use the real clock. `time.sleep` in the patched modules advances this clock. Raises
        `RuntimeError` at the end of the block if the block loaded further modules of `tickertape` that use
        the module `time`.
        """
        patched = _with_time()
        stand_in: Any = _Time(self)
        for module in patched:
            module.time = stand_in
        try:
            yield
            late = [module.__name__ for module in _with_time()]
        finally:
            for module in patched:
                module.time = time
        if late:
            raise RuntimeError(
                f"Cannot use a virtual clock for {', '.join(late)}: loaded after the clock was installed. "
                "Import these modules before the `with` block."
            )


def _with_time() -> list[Any]:
    """Return the modules of `tickertape` that use the real clock."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("tickertape.") and name != __name__ and getattr(module, "time", None) is time
    ]


class _Time:
    """Replacement of the module `time`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.sleep = clock.advance

    def monotonic(self) -> float:
        return self._clock.mono

    perf_counter = monotonic

    def time(self) -> float:
        return self._clock.wall / _MICROS

    def time_ns(self) -> int:
        return self._clock.wall * 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop without waiting: if nothing is ready, its clock advances to the next timer.

    The loop has no sockets, processes or threads, because the clock would skip to the next timeout while
    they work. The loop methods for them (such as `create_connection` and `run_in_executor`) raise
    `NotImplementedError`. A subclass can implement these methods.

    Ready callbacks run in the order in which they became ready, so a run is deterministic. If nothing is
    ready and no timer is set, the loop raises `Standstill`.

    Args:
        clock: The clock of the loop. Default: a new `VirtualClock`.

    Example:
        >>> loop = VirtualLoop()
        >>> loop.run_until_complete(asyncio.sleep(3600, "done"))
        'done'
        >>> loop.close()
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        super().__init__()
        self.clock = VirtualClock() if clock is None else clock
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Heap of timers. Callbacks with the same time run in the order in which they were scheduled."""
        self._timers_made = 0

    def time(self) -> float:
        """Return the monotonic clock in seconds."""
        return self.clock.mono

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule `callback` at the time `when` of the virtual clock."""
        self._check_closed()  # type: ignore[attr-defined]
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def handles(self) -> list[asyncio.Handle]:
        """Return all ready and scheduled callbacks."""
        return [*self._ready, *(timer for _, _, timer in self._timers)]  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the loop and drop pending callbacks."""
        super().close()
        self._timers.clear()

    def _run_once(self) -> None:
        """Run ready callbacks, or advance the clock if none is ready. The base class calls it repeatedly."""
        ready, timers, clock = self._ready, self._timers, self.clock  # type: ignore[attr-defined]
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Standstill("All tasks wait forever: nothing is ready, and no timer is set.")
            clock.advance(max(0.0, timers[0][0] - clock.mono))
        while timers and timers[0][0] <= clock.mono:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _write_to_self(self) -> None:
        """Do nothing, because no other thread uses the loop."""


def _refusal(text: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise NotImplementedError(text)

    return refuse


def _refuse_all() -> None:
    thread = (
        "A VirtualLoop runs nothing in a thread: it does not wait for threads, so its time would run ahead "
        "of them and every timeout would expire. Call the function directly, or use a real loop."
    )
    setattr(VirtualLoop, "run_in_executor", _refusal(thread))  # noqa: B010 - mypy lets no other way pass
    for name in _OUTSIDE:
        text = (
            f"A VirtualLoop has no {name}: the operating system does not use its clock. Derive a loop that "
            f"implements {name} in memory, or use a real loop with running_server() and FaultProxy."
        )
        setattr(VirtualLoop, name, _refusal(text))


_refuse_all()
