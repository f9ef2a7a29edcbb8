"""Inbound budget: bounds the memory of incomplete large frames over all connections.

A large frame is read into memory of its own, of its whole size. That size is counted before the memory is
taken. A frame that does not fit waits, in the order in which the frames began, and its connection is not
read; the frame that began first is always read, so one can always proceed. A frame that is read while others
wait must proceed: `stalled` names one that does not, so that its room goes to the next.

Pure: times are arguments, and answers say which connections to read.
"""

from __future__ import annotations

from collections import OrderedDict

from tickertape.server.limits import inbound_bytes_max, inbound_progress_bytes_min, inbound_stall_seconds_max


class _InboundFrame:
    """A frame that is read on."""

    __slots__ = ("bytes", "marked", "since")

    def __init__(self, size: int, received: int, since: float) -> None:
        self.bytes = size
        self.marked = received
        """Bytes received at `since`."""
        self.since = since
        """Time of its last progress, or of its admission."""


class InboundBudget:
    """The unfinished large frames of all connections, by number. Times are monotonic seconds.

    `bytes_max`: bound of all frames that are being read. `stall_seconds`, `progress_bytes`: while others
    wait, each frame must progress by so many bytes, or end, in this time."""

    def __init__(
        self,
        bytes_max: int = inbound_bytes_max,
        stall_seconds: float = inbound_stall_seconds_max,
        progress_bytes: int = inbound_progress_bytes_min,
    ) -> None:
        self.bytes = 0
        """Bytes of all frames that are being read; above `bytes_max` only for a single frame."""
        self._bytes_max = bytes_max
        self._stall_seconds = stall_seconds
        self._progress_bytes = progress_bytes
        self._read: OrderedDict[int, _InboundFrame] = OrderedDict()  # longest without progress first
        self._waiting: OrderedDict[int, int] = OrderedDict()  # whose frame began longest ago is first
        self._contended = 0.0  # time from which stalls count

    @property
    def waiting(self) -> int:
        """Number of connections that are not read for lack of room."""
        return len(self._waiting)

    def came(self, conn: int, size: int, received: int, now: float) -> bool:
        """Note the received bytes of an unfinished frame of `size` bytes; returns whether its connection may
        be read."""
        frame = self._read.get(conn)
        if frame is not None:
            if received - frame.marked >= self._progress_bytes:
                frame.marked = received
                self._restart(conn, frame, now)
            return True
        if conn in self._waiting:
            return False  # bytes that were on their way
        if not self._waiting:
            if self._fits(size):
                self._take(conn, size, received, now)
                return True
            self._contended = now
        self._waiting[conn] = size
        return False

    def ended(self, conn: int, now: float) -> list[int]:
        """The frame is complete, or its connection is gone; connections that are read on from now on."""
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
        """The server itself did not let it come on: its time begins again."""
        frame = self._read.get(conn)
        if frame is not None:
            self._restart(conn, frame, now)

    def excuse_all(self, now: float) -> None:
        """Restart the time of all frames: the server itself stalled."""
        self._contended = now

    def deadline(self) -> float | None:
        """Return the time at which a frame has stalled without progress; None while no frame waits."""
        if not self._waiting:
            return None
        oldest = next(iter(self._read.values()))
        return max(oldest.since, self._contended) + self._stall_seconds

    def stalled(self, now: float) -> int | None:
        """Return the connection to end now, if any. Call it again after that."""
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
