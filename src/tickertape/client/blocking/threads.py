"""Helper threads of a blocking client: a timer thread, and a notifier of written frames.

They exist because a handler of the application may keep the receive thread busy. The asyncio client uses the
timers and callbacks of its event loop instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

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
