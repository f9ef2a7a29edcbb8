"""Spill reader: reads spilled blocks back, and keeps them until their subscriptions had their turn.

Invariants:
- No block is kept for a connection without room.
- At most `spill_read_bytes_max` are read or kept at a time, unless it is one block.
"""

from __future__ import annotations

from collections import deque

from tickertape.engine.limits import spill_read_bytes_max
from tickertape.engine.sessions.session import Session
from tickertape.engine.transient.backlog import BacklogBlock, TransientFeed
from tickertape.engine.transient.spill import Spill


class SpillReader:
    """Blocks that are read back, and those that are in memory and on disk."""

    def __init__(self, spill: Spill) -> None:
        self.pinned_bytes = 0
        """Blocks that wait for the turn of their subscriptions."""
        self.clean: dict[BacklogBlock, None] = {}
        """Blocks in memory that are on disk too and not pinned, the least recently used first."""
        self._spill = spill
        self._wanted: deque[BacklogBlock] = deque()
        self._pins: dict[Session, dict[TransientFeed, BacklogBlock]] = {}

    def load(self, sub: TransientFeed) -> None:
        """Read the next block of `sub` back, in its turn."""
        block = sub.block
        assert block is not None
        block.readers[sub] = None
        if not block.wanted:
            block.wanted = True
            self._wanted.append(block)
            self.read_on()

    def arrived(self, block: BacklogBlock) -> list[TransientFeed]:
        """Return the subscriptions that wait for a block, which is in memory again; pin it for those whose
        connection has room."""
        assert block.place is not None
        self.clean[block] = None
        readers, block.readers = block.readers, {}
        for sub in readers:
            if sub.session.writable:
                self._pins.setdefault(sub.session, {})[sub] = block
                if not block.pins:
                    del self.clean[block]
                    self.pinned_bytes += block.place.size
                block.pins += 1
        return list(readers)

    def unpin(self, sub: TransientFeed) -> None:
        """Unpin the block of a subscription that had its turn, or is over."""
        pins = self._pins.get(sub.session)
        if pins is None or sub not in pins:
            return
        block = pins.pop(sub)
        if not pins:
            del self._pins[sub.session]
        assert block.place is not None
        block.pins -= 1
        if not block.pins:
            self.pinned_bytes -= block.place.size
            if not block.freed:
                self.clean[block] = None
            self.read_on()

    def unpin_all(self, session: Session) -> None:
        """Unpin the blocks of a connection without room."""
        for sub in list(self._pins.get(session, ())):
            self.unpin(sub)

    def read_on(self) -> None:
        """Read wanted blocks, as far as the limit allows."""
        while self._wanted:
            block = self._wanted[0]
            if block.freed or not block.readers:
                block.wanted = False
            else:
                assert block.place is not None
                busy = self._spill.reading_bytes + self.pinned_bytes
                if busy and busy + block.place.size > spill_read_bytes_max:
                    return
                self._spill.read(block)
            self._wanted.popleft()
