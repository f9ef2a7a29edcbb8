"""Inbound budget: limits the memory of incomplete large frames over all connections.

Each large frame has a buffer of its full size. The size is counted before the buffer is allocated. Frames
that exceed the budget wait in FIFO order, and the server does not read their connections. A frame is always
admitted if no other frame is being read, so one frame always makes progress. While frames wait, an admitted
frame must make progress: `stalled` returns a connection to close, so that the next frame gets its memory.

Sans-I/O: times are arguments, and results are the connections to read.
"""

from __future__ import annotations

from collections import OrderedDict

from tickertape.server.limits import inbound_bytes_max, inbound_progress_bytes_min, inbound_stall_seconds_max


class _InboundFrame:
    """An admitted frame."""

    __slots__ = ("bytes", "marked", "since")

    def __init__(self, size: int, received: int, since: float) -> None:
        self.bytes = size
        self.marked = received
        """Bytes received at `since`."""
        self.since = since
        """Time of its last progress, or of its admission."""


class InboundBudget:
    """The incomplete large frames of all connections, by connection number. Times are monotonic seconds.

    `bytes_max`: limit of all admitted frames. `stall_seconds`, `progress_bytes`: while other frames wait,
    each admitted frame must progress by `progress_bytes`, or complete, within `stall_seconds`."""

    def __init__(
        self,
        bytes_max: int = inbound_bytes_max,
        stall_seconds: float = inbound_stall_seconds_max,
        progress_bytes: int = inbound_progress_bytes_min,
    ) -> None:
        self.bytes = 0
        """Bytes of all admitted frames. Above `bytes_max` only for a single frame."""
        self._bytes_max = bytes_max
        self._stall_seconds = stall_seconds
        self._progress_bytes = progress_bytes
        self._read: OrderedDict[int, _InboundFrame] = OrderedDict()  # by last progress, oldest first
        self._waiting: OrderedDict[int, int] = OrderedDict()  # by start of the frame, oldest first
        self._contended = 0.0  # time since which stalls count

    @property
    def waiting(self) -> int:
        """Number of connections that wait for memory."""
        return len(self._waiting)

    def came(self, conn: int, size: int, received: int, now: float) -> bool:
        """Record the received bytes of an incomplete frame of `size` bytes.

        Return whether the server may read its connection."""
        frame = self._read.get(conn)
        if frame is not None:
            if received - frame.marked >= self._progress_bytes:
                frame.marked = received
                self._restart(conn, frame, now)
            return True
        if conn in self._waiting:
            return False  # bytes received before reading stopped
        if not self._waiting:
            if self._fits(size):
                self._take(conn, size, received, now)
                return True
            self._contended = now
        self._waiting[conn] = size
        return False

    def ended(self, conn: int, now: float) -> list[int]:
        """Remove a complete frame, or the frame of a closed connection. Return the connections to read
        again."""
        frame = self._read.pop(conn, None)
        if frame is not None:
            self.bytes -= frame.bytes
        elif self._waiting.pop(conn, None) is None:
            return []
        admitted = []
        while self._waiting:
            first, size = next(iter(self._waiting.items()))
            if not self._fits(size):
                break
            del self._waiting[first]
            self._take(first, size, 0, now)
            admitted.append(first)
        return admitted

    def excuse(self, conn: int, now: float) -> None:
        """Restart the time of a frame whose connection the server itself did not read."""
        frame = self._read.get(conn)
        if frame is not None:
            self._restart(conn, frame, now)

    def excuse_all(self, now: float) -> None:
        """Restart the time of all frames, after the server itself stalled."""
        self._contended = now

    def deadline(self) -> float | None:
        """Return the time at which the next admitted frame counts as stalled. None while no frame waits."""
        if not self._waiting:
            return None
        oldest = next(iter(self._read.values()))
        return max(oldest.since, self._contended) + self._stall_seconds

    def stalled(self, now: float) -> int | None:
        """Return a connection to close now, if any. Call it again after the close."""
        deadline = self.deadline()
        return None if deadline is None or now < deadline else next(iter(self._read))

    def _fits(self, size: int) -> bool:
        return not self._read or self.bytes + size <= self._bytes_max

    def _take(self, conn: int, size: int, received: int, now: float) -> None:
        self.bytes += size
        self._read[conn] = _InboundFrame(size, received, now)

    def _restart(self, conn: int, frame: _InboundFrame, now: float) -> None:
        frame.since = now
        self._read.move_to_end(conn)
