"""Timer thread: calls a function in time while the receive thread is busy, in a handler for example.

Only the blocking client has one; an event loop has timers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TimerThread:
    """Calls `look()` at the moment (monotonic seconds) that the last call gave, or when `changed` is called;
    ends when it gives None."""

    def __init__(self, look: Callable[[], float | None], name: str) -> None:
        self._look = look
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def changed(self) -> None:
        """Look now: something is different. Never waits."""
        self._changed.set()

    def _run(self) -> None:
        while (deadline := self._look()) is not None:
            self._changed.wait(max(0.0, deadline - time.monotonic()))
            self._changed.clear()
