"""Thread of a blocking client that notifies the client when its publish frames were written.

The receive thread cannot do it: handlers of the application run there. The thread of a publisher cannot do
it either: after its last message it does not come back. Only the blocking client has one; an event loop calls
the driver of an asyncio client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

_END: Final = 0


class WriteNotifier:
    """Calls `notify(frame)` on its own thread for the newest frame that was reported, until `end`.

    A publisher that holds Python's global lock keeps the thread waiting, for some milliseconds at most.
    Meanwhile messages are gathered: this is what makes frames large.
    """

    def __init__(self, notify: Callable[[int], None], name: str) -> None:
        self._notify = notify
        self._frames: SimpleQueue[int] = SimpleQueue()  # a signal handler may call `put` inside `put`
        self._reported = _END
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def report(self, frame: int) -> None:
        """Report that `frame` was handed to the socket. Never waits."""
        if frame != self._reported:
            self._frames.put(frame)
            self._reported = frame  # after `put`: an exception between them costs one more report

    def end(self) -> None:
        """End the thread soon. Never waits."""
        self._frames.put(_END)

    def _run(self) -> None:
        frames = self._frames
        while (frame := frames.get()) != _END:
            while not frames.empty() and frame != _END:
                frame = frames.get()
            if frame == _END:
                return
            self._notify(frame)
