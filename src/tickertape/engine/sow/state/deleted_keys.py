"""Deleted keys: the keys that lost their records since the last file of a checkpoint.

Invariant: a key with a delete at or above `lost_below` is listed, until it is forgotten.
"""

from __future__ import annotations

from itertools import islice

from tickertape.engine.limits import sow_deleted_keys_bytes_max, sow_forget_keys_step_max

_ENTRY_BYTES = 160
"""Approximate memory of a key beside its bytes: two objects and an entry of the dict."""


class DeletedKeys:
    """Keys by the position of their last delete, in the order of these positions."""

    def __init__(self, bytes_max: int = sow_deleted_keys_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._positions: dict[bytes, int] = {}
        self.nbytes = 0
        self.lost_below = 0
        """Deletes below this position are not listed, because they exceeded the memory. 0: all are listed."""
        self._forget_below = 0
        self.has_forgettable = False
        """Whether `forget_step` has work."""

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, keys: list[bytes], position: int) -> None:
        """List keys that a record at `position` deleted."""
        for key in keys:
            if self._positions.pop(key, None) is None:
                self.nbytes += len(key) + _ENTRY_BYTES
            self._positions[key] = position
        if self.nbytes > self._bytes_max:
            self._positions.clear()
            self.nbytes = 0
            self.lost_below = position + 1

    def keys_from(self, since: int) -> list[bytes]:
        """Return the keys that were deleted at or above a position."""
        return [key for key, position in self._positions.items() if position >= since]

    def forget(self, below: int) -> None:
        """Forget deletes below a position: files have them. `forget_step` does the work."""
        self._forget_below = below
        self.has_forgettable = True
        if self.lost_below <= below:
            self.lost_below = 0

    def forget_step(self) -> None:
        """Forget a bounded number of keys."""
        first = [*islice(self._positions.items(), sow_forget_keys_step_max)]
        for key, position in first:
            if position >= self._forget_below:
                self.has_forgettable = False
                return
            del self._positions[key]
            self.nbytes -= len(key) + _ENTRY_BYTES
        self.has_forgettable = bool(first)
