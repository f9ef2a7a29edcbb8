"""Owns what is to be written to disk next: the blocks of backlogs in which somebody offline waits, in order.

Must never name a block of a backlog in which nobody offline waits, or one that still grows unless it is asked
to.
"""

from __future__ import annotations

from tickertape.engine.transient.backlog import Backlog, BacklogBlock


class SpillOrder:
    """Backlogs with blocks to be written, who came first is written first."""

    def __init__(self) -> None:
        self._closed: dict[Backlog, None] = {}
        """Those that may have blocks that grow no more."""
        self._tails: dict[Backlog, None] = {}
        """Those of which only the block that still grows is not written."""

    def closed(self, backlog: Backlog) -> None:
        """One of its blocks grows no more, or somebody offline waits in it now."""
        if backlog.offline and backlog.head is not None:
            self._closed[backlog] = None

    def grown(self, backlog: Backlog) -> None:
        """It has a new block."""
        if backlog.offline:
            self._tails[backlog] = None

    def forget(self, backlog: Backlog) -> None:
        """Nothing of it is to be written any more."""
        self._closed.pop(backlog, None)
        self._tails.pop(backlog, None)

    def next(self, *, tails: bool) -> BacklogBlock | None:
        """The next block to be written; one that still grows only with `tails`."""
        while self._closed:
            backlog = next(iter(self._closed))
            block = backlog.next_to_write()
            if block is not None and not block.open:
                return block
            del self._closed[backlog]
            if block is not None:
                self._tails[backlog] = None
        while tails and self._tails:
            backlog = next(iter(self._tails))
            del self._tails[backlog]
            block = backlog.next_to_write()
            if block is not None:
                return block
        return None
