"""Threads of a blocking client beside its receive thread: a timer, and one for written frames.

The receive thread may be busy with a handler of the application. Only the blocking client has them: an event
loop has timers, and calls the driver of an asyncio client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

_END: Final = 0


class TimerThread(Thread):
    """Calls `look()` at the moment (monotonic seconds) that the last call gave, or when `changed` is called;
    ends when it gives None."""

    def __init__(self, look: Callable[[], float | None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._look = look
        self._changed = Event()

    def changed(self) -> None:
        """Look now: something is different. Never waits."""
        self._changed.set()

    def run(self) -> None:
        """Look until there is no next time."""
        while (deadline := self._look()) is not None:
            self._changed.wait(max(0.0, deadline - time.monotonic()))
            self._changed.clear()


class WriteNotifier(Thread):
    """Calls `notify(frame)` for the newest publish frame that was reported as written, until `end`.

    The thread of a publisher cannot do it: after its last message it does not come back. A publisher that
    holds Python's global lock keeps this thread waiting, for some milliseconds at most. Meanwhile messages
    are gathered: this is what makes frames large.
    """

    def __init__(self, notify: Callable[[int], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._notify = notify
        self._frames: SimpleQueue[int] = SimpleQueue()  # a signal handler may call `put` inside `put`
        self._reported = _END

    def report(self, frame: int) -> None:
        """Report that `frame` was handed to the socket. Never waits."""
        if frame != self._reported:
            self._frames.put(frame)
            self._reported = frame  # after `put`: an exception between them costs one more report

    def end(self) -> None:
        """End the thread soon. Never waits."""
        self._frames.put(_END)

    def run(self) -> None:
        """Notify until `end`."""
        frames = self._frames
        while (frame := frames.get()) != _END:
            while not frames.empty() and frame != _END:
                frame = frames.get()
            if frame == _END:
                return
            self._notify(frame)
