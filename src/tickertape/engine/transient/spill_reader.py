"""Spill reader: reads spilled blocks back, and keeps them until their subscriptions had their turn.

Invariants:
- No block is kept for a connection without room.
- At most `spill_read_bytes_max` are read or kept at a time, unless it is one block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tickertape.base.errors import SpillFailed
from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import spill_read_bytes_max
from tickertape.engine.sessions.session import Session
from tickertape.engine.transient.backlog import BacklogBlock, BacklogPosition, TransientFeed
from tickertape.engine.transient.shared_frames import SharedFrame
from tickertape.engine.transient.spill import Spill


class SpillReader:
    """Blocks on their way back. `take(block, piece)` is called with what was read; `idle(block, whether)`
    says whether its memory may be taken again; `end(session, why)` ends a connection whose messages cannot be
    read; `go_on(sub)` says that what comes next for a subscription is in memory."""

    def __init__(
        self,
        spill: Spill,
        take: Callable[[BacklogBlock, SharedFrame], None],
        idle: Callable[[BacklogBlock, bool], None],
        end: Callable[[Session, str], None],
        go_on: Callable[[TransientFeed], None],
    ) -> None:
        self.pinned_bytes = 0
        """Blocks that wait for the turn of those who are to be sent of them."""
        self._spill = spill
        self._take = take
        self._idle = idle
        self._end = end
        self._go_on = go_on
        self._wanted: deque[BacklogBlock] = deque()
        self._pins: dict[Session, dict[TransientFeed, BacklogBlock]] = {}

    def load(self, sub: TransientFeed) -> None:
        """Read back what comes next for `sub`, in its turn; `go_on` is called then, or it is ended."""
        block = sub.block
        assert block is not None
        block.readers[sub] = None
        if not block.wanted:
            block.wanted = True
            self._wanted.append(block)
            self._read_on()

    def done(self, block: BacklogBlock, place: BacklogPosition, data: Buffer | OSError) -> None:
        """The answer to a read."""
        block.wanted = False
        if not block.freed:
            try:
                piece = self._spill.piece(place, data)
            except SpillFailed as failed:
                self._lost(block, str(failed))
            else:
                self._take(block, piece)
                self._idle(block, True)
                self._deal_out(block)
        self._read_on()

    def unpin(self, sub: TransientFeed) -> None:
        """It had its turn, or will have none."""
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
                self._idle(block, True)
            self._read_on()

    def unpin_all(self, session: Session) -> None:
        """A connection has no room: what was read back for it need not stay."""
        for sub in list(self._pins.get(session, ())):
            self.unpin(sub)

    def _deal_out(self, block: BacklogBlock) -> None:
        """Those who wait for a block go on; it stays for those whose connection has room."""
        assert block.place is not None
        readers, block.readers = block.readers, {}
        for sub in readers:
            if sub.session.writable:
                self._pins.setdefault(sub.session, {})[sub] = block
                if not block.pins:
                    self._idle(block, False)
                    self.pinned_bytes += block.place.size
                block.pins += 1
            self._go_on(sub)

    def _lost(self, block: BacklogBlock, why: str) -> None:
        for sub in list(block.readers):
            if not sub.over:
                self._end(sub.session, why)

    def _read_on(self) -> None:
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
