"""Owns the sequence of what a store held at a moment, whose batches are made when they are asked for.

Must never keep a batch: a backlog on disk may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from tickertape.client.publish_store.protocol import Stored


class UnpersistedView(Sequence[Stored]):
    """The batches with the numbers `chosen`; `stored` gives the one with a number."""

    def __init__(self, stored: Callable[[int], Stored], chosen: range) -> None:
        self._stored = stored
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, at: int) -> Stored: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Stored]: ...
    def __getitem__(self, at: int | slice) -> Stored | Sequence[Stored]:
        if isinstance(at, slice):
            return UnpersistedView(self._stored, self._chosen[at])
        return self._stored(self._chosen[at])
