"""Deleted keys: the keys that lost their records since the last file of a checkpoint.

Invariants:
- A key with a delete at or above `lost_below` is listed, until it is forgotten.
- A scan returns all keys that are listed at its start. Nothing is removed until it ends.
- No call visits more than `sow_forget_keys_step_max` keys, besides its arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from tickertape.engine.limits import sow_deleted_keys_bytes_max, sow_forget_keys_step_max

_ENTRY_BYTES = 160
"""Approximate memory of a key beside its bytes: two objects and an entry of the dict."""


class DeletedKeys:
    """Keys by the position of their last delete. A scan starts a new part, so a key may be in several."""

    def __init__(self, bytes_max: int = sow_deleted_keys_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._parts: deque[dict[bytes, int]] = deque([{}])
        """Each in the order of positions. Keys are added to the last one."""
        self._dropped: deque[dict[bytes, int]] = deque()
        """Parts that are emptied in steps."""
        self._scans = 0
        self.nbytes = 0
        self.lost_below = 0
        """Deletes below this position are not listed, because they exceeded the memory. 0: all are listed."""
        self._forget_below = 0
        self._forgets = False

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def has_forgettable(self) -> bool:
        """Whether `forget_step` has work."""
        return (self._forgets or bool(self._dropped)) and not self._scans

    def add(self, keys: list[bytes], position: int) -> None:
        """List keys that a record at `position` deleted."""
        positions = self._parts[-1]
        for key in keys:
            if positions.pop(key, None) is None:
                self.nbytes += len(key) + _ENTRY_BYTES
            positions[key] = position
        if self.nbytes > self._bytes_max:
            self._dropped += self._parts
            self._parts = deque([{}])
            self.nbytes = 0
            self.lost_below = position + 1

    def scan(self, since: int) -> Iterator[list[bytes]]:
        """Return pieces of the keys that were deleted at or above a position. Keys of a piece are distinct.

        Until the iterator ends or is dropped, nothing is forgotten."""
        if self._parts[-1]:
            self._parts.append({})
        pieces = self._pieces([*self._parts][:-1], since)
        next(pieces)
        return pieces

    def _pieces(self, parts: list[dict[bytes, int]], since: int) -> Iterator[list[bytes]]:
        self._scans += 1
        try:
            yield []
            for part in parts:
                items = iter(part.items())
                while piece := [*islice(items, sow_forget_keys_step_max)]:
                    yield [key for key, position in piece if position >= since]
        finally:
            self._scans -= 1

    def forget(self, below: int) -> None:
        """Forget deletes below a position: files have them. `forget_step` does the work."""
        self._forget_below = below
        self._forgets = True
        if self.lost_below <= below:
            self.lost_below = 0

    def forget_step(self) -> None:
        """Forget a bounded number of keys."""
        if self._dropped:
            part = self._dropped[0]
            for _ in range(min(len(part), sow_forget_keys_step_max)):
                part.popitem()
            if not part:
                self._dropped.popleft()
            return
        part = self._parts[0]
        for key, position in [*islice(part.items(), sow_forget_keys_step_max)]:
            if position >= self._forget_below:
                self._forgets = False
                return
            del part[key]
            self.nbytes -= len(key) + _ENTRY_BYTES
        if not part:
            if len(self._parts) == 1:
                self._forgets = False
            else:
                self._parts.popleft()
