"""Slow consumers: backlogs of connections, within limits for memory, disk and age.

The largest backlogs are spilled to disk first (offline). Connections beyond the limits are closed. A
connection is offline until its backlog is empty.

Invariants:
- At most `memory_bytes` are held, in addition to blocks that are read back and one publish.
- No message is dropped silently, and no connection is closed instead of one with a larger backlog.
- At most `spill_read_bytes_max`, or one block, are being read back or wait to be sent.
- No block is pinned for a connection that is not writable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import (
    block_memory_bytes,
    slow_age_check_seconds_max,
    slow_connection_bytes_default,
    slow_disk_bytes_default,
    slow_memory_bytes_default,
    spill_read_bytes_max,
    spill_write_bytes_max,
)
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import OfflineStart, OfflineStop
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.session import Session
from tickertape.engine.transient.backlog import NOWHERE, Backlog, BacklogBlock, TransientFeed
from tickertape.engine.transient.shared_frames import SharedFrames
from tickertape.engine.transient.spill import Spill, SpillOrder

_AGE_CHECKS: Final = 8
"""Number of age checks within the maximum age."""
_DISK_CURE: Final = "Check the disk of the server."
"""Cure for a backlog that could not be written to disk or read back."""


class SlowConsumerLimits(NamedTuple):
    """Limits of the backlogs of slow consumers."""

    memory_bytes: int = slow_memory_bytes_default
    """Maximum memory of all backlogs together."""
    connection_bytes: int = slow_connection_bytes_default
    """Maximum backlog of a connection in memory, before it is spilled (or closed, without a disk)."""
    disk_bytes: int = slow_disk_bytes_default
    """Maximum disk space of all backlogs together. 0 disables spilling."""
    age_seconds: float | None = None
    """Maximum age of a waiting message, in seconds. None: no maximum."""


class ConnectionBacklog:
    """The backlog of one connection, and the order of its ready subscriptions."""

    __slots__ = ("bytes", "offline_since", "pins", "ready", "subs")

    def __init__(self) -> None:
        self.bytes = 0
        """Total cost. A message counts once for each subscription that waits for it."""
        self.offline_since: float | None = None
        self.subs: dict[TransientFeed, None] = {}
        self.ready: dict[TransientFeed, None] = {}
        """Subscriptions that wait only for the connection, in the order of service."""
        self.pins: dict[TransientFeed, BacklogBlock] = {}
        """Blocks that were read back for subscriptions that were not served yet."""


class NewestFrames(NamedTuple):
    """Position of the frames that are being delivered, once a subscription waits for them."""

    frames: SharedFrames
    block: BacklogBlock
    start: int


class SlowConsumerBuffers:
    """Backlogs of all connections. `end(session, why)` closes a connection and ends its subscriptions.

    `why` is the cause and the cure, for the error text."""

    def __init__(
        self,
        outbox: Outbox,
        clock: EngineClock,
        limits: SlowConsumerLimits,
        end: Callable[[Session, str], None],
    ) -> None:
        self.limits = limits
        self.spill = Spill(outbox, limits.disk_bytes)
        self.held_bytes = 0
        """Memory of all backlogs, including the overhead of blocks on disk."""
        self.dirty_bytes = 0
        """Memory of blocks that are not on disk."""
        self.idle_bytes = 0
        """Memory of blocks that are neither on disk nor scheduled for writing."""
        self.pinned_bytes = 0
        """Size of blocks that were read back and wait to be sent."""
        self.offline_starts = 0
        """How often a connection went offline since the start. `offline_stops` counts how often that
        ended."""
        self.offline_stops = 0
        self.waiting: dict[Session, ConnectionBacklog] = {}
        """Backlogs of connections, by session."""
        self.newest: NewestFrames | None = None
        self._outbox = outbox
        self._clock = clock
        self._end = end
        self._orders = SpillOrder()
        self._clean: dict[BacklogBlock, None] = {}
        """Unpinned blocks in memory that are also on disk, least recently used first."""
        self._wanted: deque[BacklogBlock] = deque()
        """Blocks to read back."""
        self._next_age_check = 0.0

    @property
    def offline_connections(self) -> int:
        """Number of connections whose backlogs are spilled to disk."""
        return self.offline_starts - self.offline_stops

    # -- adding and removing --------------------------------------------------------------------------

    def hold(self, sub: TransientFeed, frames: SharedFrames, message: int = 0) -> int:
        """Append `frames`, starting at `message`, to the backlog of `sub`. Return the additional bytes of
        memory.

        This may close the connection of `sub`. Call `fanned_out` after all subscriptions that share the
        backlog received the same `frames`."""
        taken = 0
        if self.newest is None:
            taken = -self.held_bytes
            self.newest = self._append(sub.backlog, frames)
            taken += self.held_bytes
        waiting = self.waiting.get(sub.session)
        if waiting is None:
            waiting = self.waiting[sub.session] = ConnectionBacklog()
            self._clock.announce(self)
        if not sub.left:
            sub.waits_since = self._clock.mono
            block, at = self.newest.block, self.newest.start + message
            while at >= block.count:
                assert block.next is not None
                block, at = block.next, at - block.count
            self._enter(sub, block, at)
            waiting.subs[sub] = None
            if waiting.offline_since is not None:
                self._offline(sub.backlog, 1)
        cost = frames.cost_from(message) if message else frames.cost
        sub.left += frames.count - message
        sub.backlog_bytes += cost
        waiting.bytes += cost
        if waiting.bytes > self.limits.connection_bytes and waiting.offline_since is None:
            self._too_much(sub.session, waiting)
        if taken:  # further subscriptions of the same backlog take no memory
            self._relieve()
        return taken

    def fanned_out(self) -> None:
        """End the delivery of the current frames, after all subscriptions received them."""
        if self.newest is not None:
            block, self.newest = self.newest.block, None
            self._leave(block)
            self._settle()

    def advance(self, sub: TransientFeed, count: int, cost: int) -> None:
        """Advance `sub` by sent messages, all of its current block."""
        block = sub.block
        assert block is not None
        sub.message += count
        sub.left -= count
        sub.backlog_bytes -= cost
        self.waiting[sub.session].bytes -= cost
        if not sub.left:
            self.drop(sub)
        elif sub.message == block.count:
            assert block.next is not None
            self._enter(sub, block.next, 0)
            self._leave(block)

    def drop(self, sub: TransientFeed) -> None:
        """Remove all waiting messages of a subscription."""
        block = sub.block
        if block is None:
            return
        self.unpin(sub)
        block.readers.pop(sub, None)
        waiting = self.waiting[sub.session]
        waiting.bytes -= sub.backlog_bytes
        sub.block, sub.message, sub.left, sub.backlog_bytes = None, 0, 0, 0
        del waiting.subs[sub]
        waiting.ready.pop(sub, None)
        if waiting.offline_since is not None:
            self._offline(sub.backlog, -1)
        if not waiting.subs:
            del self.waiting[sub.session]
            if waiting.offline_since is not None:
                self.offline_stops += 1
                self._outbox.put(OfflineStop(sub.session.conn, self._clock.mono - waiting.offline_since))
        self._leave(block)

    def drop_session(self, session: Session) -> None:
        """Remove all waiting messages of a connection."""
        waiting = self.waiting.get(session)
        if waiting is not None:
            for sub in [*waiting.subs]:
                self.drop(sub)

    @staticmethod
    def _enter(sub: TransientFeed, block: BacklogBlock, message: int) -> None:
        block.cursors += 1
        sub.block, sub.message = block, message

    def _leave(self, block: BacklogBlock) -> None:
        """Release a reference to a block, and free blocks that are not needed any more."""
        block.cursors -= 1
        backlog = block.backlog
        while backlog.head is not None and not backlog.head.cursors:
            self._free(backlog.shrink())

    # -- memory ---------------------------------------------------------------------------------------

    def _append(self, backlog: Backlog, frames: SharedFrames) -> NewestFrames:
        """Append `frames` to a backlog. They remain at least until their delivery ends."""
        newest = None
        for piece in frames.pieces:
            block = backlog.tail
            if block is None or not block.takes(piece, self._clock.mono):
                if block is not None and block.open:
                    self._close(block)
                block = backlog.grow(self._clock.mono)
                self.held_bytes += block_memory_bytes
                self._orders.put(backlog)
            newest = newest or NewestFrames(frames, block, block.count)
            block.append(piece)
            self._count(block, piece.memory_bytes)
        assert newest is not None
        newest.block.cursors += 1
        return newest

    def _close(self, block: BacklogBlock) -> None:
        before = block.memory_bytes
        block.close()
        self._count(block, block.memory_bytes - before)
        self._orders.put(block.backlog)

    def _count(self, block: BacklogBlock, more: int) -> None:
        """Add a change of the memory of a block."""
        self.held_bytes += more
        if not block.on_disk:
            self.dirty_bytes += more
            block.backlog.dirty_bytes += more
            if not block.backlog.offline:
                self.idle_bytes += more

    def _free(self, block: BacklogBlock) -> None:
        self._count(block, -block.memory_bytes)
        self.held_bytes -= block_memory_bytes
        block.pieces = []
        block.freed = True
        self._clean.pop(block, None)
        if block.on_disk:
            self.spill.release(block)
        if block.backlog.head is None:
            self._orders.forget(block.backlog)

    def _settle(self) -> None:
        """Enforce the memory limit.

        Frames that are being delivered cannot be freed. Their delivery must end first, otherwise a connection
        would be closed because of them."""
        self._relieve()
        memory = self.limits.memory_bytes
        if self.held_bytes - self.pinned_bytes > memory:
            self._end_until(
                lambda: self.held_bytes - self.pinned_bytes <= memory,
                f"memory_limit ({memory} bytes) of [slow_clients] is reached. {_cure('memory_limit')}",
            )

    def _relieve(self) -> None:
        """Evict blocks that are also on disk, and continue writing."""
        memory = self.limits.memory_bytes
        while self.held_bytes > memory and self._clean:
            block = next(iter(self._clean))
            del self._clean[block]
            self._count(block, -block.memory_bytes)
            block.pieces = []
        if self.idle_bytes > memory // 2 and self.limits.disk_bytes:
            self._spill_largest(memory * 3 // 8)
        self._write_on()

    def _end_until(self, enough: Callable[[], bool], why: str) -> None:
        """Close the connections with the largest backlogs until `enough` returns True."""
        # Closing a connection does not change the backlogs of others, so they are sorted once.
        for session in self._by_size():
            if enough():
                return
            waiting = self.waiting.get(session)
            if waiting is not None:
                self._end(session, f"its backlog of {waiting.bytes} bytes is the largest, and {why}")

    def _by_size(self) -> list[Session]:
        return sorted(self.waiting, key=lambda session: self.waiting[session].bytes, reverse=True)

    # -- offline --------------------------------------------------------------------------------------

    def _too_much(self, session: Session, waiting: ConnectionBacklog) -> None:
        """Handle a connection whose backlog exceeds the limit for memory."""
        if self.limits.disk_bytes:
            self._go_offline(session, waiting)
            self._write_on()
        else:
            bound = f"connection_limit ({self.limits.connection_bytes} bytes) of [slow_clients]"
            cure = _cure("connection_limit or disk_limit")
            self._end(session, f"its backlog of {waiting.bytes} bytes exceeds {bound}. {cure}")

    def _spill_largest(self, idle_bytes: int) -> None:
        """Spill the largest backlogs until at most `idle_bytes` are not scheduled for writing."""
        for session in self._by_size():
            if self.idle_bytes <= idle_bytes:
                return
            waiting = self.waiting[session]
            if waiting.offline_since is None:
                self._go_offline(session, waiting)

    def _go_offline(self, session: Session, waiting: ConnectionBacklog) -> None:
        waiting.offline_since = self._clock.mono
        self.offline_starts += 1
        self._outbox.put(OfflineStart(session.conn, waiting.bytes))
        for sub in waiting.subs:
            self._offline(sub.backlog, 1)

    def _offline(self, backlog: Backlog, more: int) -> None:
        """Change the number of offline subscriptions of a backlog. While it has any, it is written to
        disk."""
        backlog.offline += more
        if not backlog.offline:
            self.idle_bytes += backlog.dirty_bytes
            self._orders.forget(backlog)
        elif backlog.offline == more:
            self.idle_bytes -= backlog.dirty_bytes
            self._orders.put(backlog)

    # -- writing --------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        """Write scheduled blocks, up to the limit of concurrent writes."""
        while self.spill.writing_bytes < spill_write_bytes_max:
            crowded = self.dirty_bytes - self.spill.writing_bytes > self.limits.memory_bytes // 2
            block = self._orders.next(tails=crowded)
            if block is None:
                return
            if block.open:
                self._close(block)
            size = block.pieces[0].batch.nbytes
            if not self.spill.has_room(size):
                self._make_room_on_disk(block, size)
            if not block.freed and block.backlog.offline and self.spill.has_room(size):
                self.spill.write(block)
            elif not self.waiting:
                return

    def _make_room_on_disk(self, block: BacklogBlock, size: int) -> None:
        """Close connections until a block fits on disk, or need not be written any more."""
        self._end_until(
            lambda: self.spill.has_room(size) or not block.backlog.offline,
            f"disk_limit ({self.limits.disk_bytes} bytes) of [slow_clients] is reached. "
            f"{_cure('disk_limit')}",
        )

    def spill_done(self, token: int, data: Buffer | OSError | None) -> list[TransientFeed]:
        """Handle the answer to a `SpillWrite` (None, or an error) or a `SpillRead`. Return the subscriptions
        whose next messages are in memory again."""
        ready: list[TransientFeed] = []
        block = self.spill.done(token, data)
        if block.on_disk:
            assert data is not None
            ready = self._read_back(block, data)
        elif block.place is NOWHERE and not block.freed:
            self._not_written(block.backlog, f"its backlog cannot be written to disk: {data!s}. {_DISK_CURE}")
        elif not block.freed:
            memory_bytes = block.memory_bytes
            self._count(block, -memory_bytes)
            block.on_disk = True
            self._count(block, memory_bytes)
            self._clean[block] = None
        self._relieve()
        return ready

    def _not_written(self, backlog: Backlog, why: str) -> None:
        """Close the connection with the largest backlog after a failed write, and retry for the others."""
        backlog.to_write = backlog.head
        offline = [
            (waiting.bytes, session.conn, session)
            for session, waiting in self.waiting.items()
            if waiting.offline_since is not None and any(sub.backlog is backlog for sub in waiting.subs)
        ]
        if offline:
            self._end(max(offline)[-1], why)
        self._orders.put(backlog)

    # -- reading back ---------------------------------------------------------------------------------

    def load(self, sub: TransientFeed) -> None:
        """Read the next block of `sub` back as soon as the limit permits."""
        block = sub.block
        assert block is not None
        block.readers[sub] = None
        if not block.wanted:
            block.wanted = True
            self._wanted.append(block)
            self._read_on()

    def _read_on(self) -> None:
        """Read blocks back, up to the limit."""
        while self._wanted:
            block = self._wanted[0]
            if block.freed or not block.readers:
                block.wanted = False
            else:
                busy = self.spill.reading_bytes + self.pinned_bytes
                if busy and busy + block.place.size > spill_read_bytes_max:
                    return
                self.spill.read(block)
            self._wanted.popleft()

    def _read_back(self, block: BacklogBlock, data: Buffer | OSError) -> list[TransientFeed]:
        """Handle a block that was read back, and pin it for writable connections. Return its waiting
        readers."""
        block.wanted = False
        readers: list[TransientFeed] = []
        if not block.freed:
            piece = self.spill.piece(block, data)
            readers, block.readers = list(block.readers), {}
            if isinstance(piece, str):
                for sub in readers:
                    if sub.left:
                        self._end(sub.session, f"{piece}. {_DISK_CURE}")
            else:
                block.put(piece)
                self._count(block, piece.memory_bytes)
                pinned = [sub for sub in readers if sub.session.writable]
                for sub in pinned:
                    self.waiting[sub.session].pins[sub] = block
                block.pins = len(pinned)
                if pinned:
                    self.pinned_bytes += piece.batch.nbytes
                else:
                    self._clean[block] = None
        self._read_on()
        return readers

    def unpin(self, sub: TransientFeed) -> None:
        """Unpin the block of a subscription that was served or has ended."""
        waiting = self.waiting.get(sub.session)
        block = None if waiting is None else waiting.pins.pop(sub, None)
        if block is None:
            return
        block.pins -= 1
        if not block.pins:
            self.pinned_bytes -= block.place.size
            if not block.freed:
                self._clean[block] = None
            self._read_on()

    def unpin_all(self, waiting: ConnectionBacklog) -> None:
        """Unpin the blocks of a connection that is not writable."""
        for sub in list(waiting.pins):
            self.unpin(sub)

    # -- age ------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `check_age`, or None."""
        return self._next_age_check if self.waiting and self.limits.age_seconds is not None else None

    def check_age(self) -> None:
        """Close connections with messages that have waited too long."""
        age = self.limits.age_seconds
        if age is None or not self.waiting or self._clock.mono < self._next_age_check:
            return
        self._next_age_check = self._clock.mono + min(age / _AGE_CHECKS, slow_age_check_seconds_max)
        for session, waiting in list(self.waiting.items()):
            blocks = [(sub.waits_since, sub.block) for sub in waiting.subs if sub.block is not None]
            if any(max(since, block.since) + age <= self._clock.mono for since, block in blocks):
                why = f"a message has waited for {age:g} seconds, the age_limit of [slow_clients]"
                self._end(session, f"{why}. {_cure('age_limit')}")


def _cure(limit: str) -> str:
    """Return the cure for a connection that is closed because of a configured limit."""
    return f"Read messages faster, use conflation, or raise {limit}."
