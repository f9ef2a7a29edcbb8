"""Simulated process: owns everything that it started, so that it can be killed.

Must never let a killed process run another line: no `finally`, no timer, no late answer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from tickertape.testing.clock import VirtualLoop

T = TypeVar("T")

_RUNNING: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("running", default=None)


class Mortal(Protocol):
    """An object outside of a process that is notified of its end."""

    def process_ended(self) -> None:
        """Handle the end of the process."""


class Process:
    """A client or a server. Calls through `run` and `spawn`, and everything that they start, belong to it."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.alive = True
        self.holds: dict[Mortal, None] = {}
        """Connections, which the system closes when it ends."""
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(_RUNNING.set, self)
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` in this process, but not while another of its functions runs."""
        assert self.alive, f"{self.name} is dead"
        return self._context.copy().run(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        assert self.alive, f"{self.name} is dead"
        task = self._loop.create_task(work, context=self._context.copy())
        self._tasks.append(task)
        return task

    def kill(self) -> None:
        """End it between two steps."""
        self.alive = False
        for handle in self._loop.handles():
            if handle._context.get(_RUNNING) is self:  # type: ignore[attr-defined]
                handle.cancel()
        for task in asyncio.all_tasks(self._loop):
            if _process_of(task) is self:
                # The task never runs again, and asyncio must not complain about that.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._tasks.append(task)
                _forget_wakeup(task)
        for mortal in list(self.holds):
            mortal.process_ended()
        self.holds.clear()


def _forget_wakeup(task: Any) -> None:
    """Detach a task from the future it awaits, which other processes may still complete."""
    waiter = task._fut_waiter
    for callback, context in [] if waiter is None else list(waiter._callbacks or ()):
        if context.get(_RUNNING) is _process_of(task):
            waiter.remove_done_callback(callback)


def running() -> Process | None:
    """Return the process of the running function. None: the simulation itself."""
    return _RUNNING.get()


def _process_of(task: asyncio.Task[Any]) -> Process | None:
    return getattr(task, "process", None)


class OwnedTask(asyncio.Task[Any]):
    """A task that knows its process."""

    process: Process | None = None


def make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """Create a task: the task factory of a simulation's loop."""
    task = OwnedTask(work, loop=loop, context=context)
    task.process = context.get(_RUNNING) if context is not None else _RUNNING.get()
    return task
