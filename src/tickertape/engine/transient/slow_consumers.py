"""Slow consumers: backlogs of connections, under limits of memory, disk and age.

The connections with most waiting are written to disk first (offline), and closed beyond the limits. One is
offline until nothing waits for it.

Invariants:
- At most `memory_bytes` are held beside reads of spilled blocks and one publish.
- Nothing is dropped silently, and no connection pays for a slower one.
- At most `spill_read_bytes_max` are read back or kept for their turn at a time, unless it is one block.
- No block is kept for a connection without room.
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
"""How often, in the time that something may wait, it is looked who has waited too long."""


class SlowConsumerLimits(NamedTuple):
    """Limits of what waits for slow consumers."""

    memory_bytes: int = slow_memory_bytes_default
    """In memory, for all connections together."""
    connection_bytes: int = slow_connection_bytes_default
    """For one connection, before it is written to disk (or the connection ended, without a disk)."""
    disk_bytes: int = slow_disk_bytes_default
    """On disk, for all connections together; 0: nothing."""
    age_seconds: float | None = None
    """How long; None: as long as it likes."""


class ConnectionBacklog:
    """What waits for one connection, and whose turn it is there."""

    __slots__ = ("bytes", "offline_since", "pins", "ready", "subs")

    def __init__(self) -> None:
        self.bytes = 0
        """Cost; what several of its subscriptions wait for counts for each."""
        self.offline_since: float | None = None
        self.subs: dict[TransientFeed, None] = {}
        self.ready: dict[TransientFeed, None] = {}
        """Those that wait for nothing but the connection, and their turn there."""
        self.pins: dict[TransientFeed, BacklogBlock] = {}
        """Blocks that were read back for them, until they had their turn."""


class NewestFrames(NamedTuple):
    """What is being handed on, once somebody waits for it: it begins with a message of a block."""

    frames: SharedFrames
    block: BacklogBlock
    start: int


class SlowConsumerBuffers:
    """Backlogs of all connections. `end(session, why)` closes one, which ends its subscriptions."""

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
        """Memory of all that waits, and of what is known of what waits on disk."""
        self.dirty_bytes = 0
        """Memory of what is not on disk."""
        self.idle_bytes = 0
        """What of it nobody has ordered to be written."""
        self.pinned_bytes = 0
        """Blocks that were read back and wait for the turn of their subscriptions."""
        self.offline_starts = 0
        """Since the start, how often a connection went offline, and how often that was over."""
        self.offline_stops = 0
        self.waiting: dict[Session, ConnectionBacklog] = {}
        """What connections wait for, by session."""
        self.newest: NewestFrames | None = None
        self._outbox = outbox
        self._clock = clock
        self._end = end
        self._orders = SpillOrder()
        self._clean: dict[BacklogBlock, None] = {}
        """Blocks in memory that are on disk too and not pinned, the least recently used first."""
        self._wanted: deque[BacklogBlock] = deque()
        """Blocks to be read back."""
        self._next_age_check = 0.0

    @property
    def offline_connections(self) -> int:
        """How many connections' backlogs are written to disk."""
        return self.offline_starts - self.offline_stops

    # -- coming and going -----------------------------------------------------------------------------

    def hold(self, sub: TransientFeed, frames: SharedFrames, message: int = 0) -> int:
        """`sub` waits for `frames` from a message on, behind all that it waits for; it may be over
        afterwards. Returns the bytes that this took. `fanned_out` comes after all who share its backlog were
        given the same `frames`."""
        taken = 0
        if self.newest is None:
            taken = -self.held_bytes
            self.newest = self._append(sub.backlog, frames)
            taken += self.held_bytes
        waiting = self.waiting.get(sub.session)
        if waiting is None:
            waiting = self.waiting[sub.session] = ConnectionBacklog()
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
        if taken:  # who waits for the same takes nothing more
            self._relieve()
        return taken

    def fanned_out(self) -> None:
        """What was handed on has been given to everybody."""
        if self.newest is not None:
            block, self.newest = self.newest.block, None
            self._leave(block)
            self._settle()

    def advance(self, sub: TransientFeed, count: int, cost: int) -> None:
        """`sub` was sent the next messages that wait for it, all of its block."""
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
        """Nothing waits for it any more."""
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

    @staticmethod
    def _enter(sub: TransientFeed, block: BacklogBlock, message: int) -> None:
        block.cursors += 1
        sub.block, sub.message = block, message

    def _leave(self, block: BacklogBlock) -> None:
        """One less is at a block: those that nobody needs any more are freed."""
        block.cursors -= 1
        backlog = block.backlog
        while backlog.head is not None and not backlog.head.cursors:
            self._free(backlog.shrink())

    # -- memory ---------------------------------------------------------------------------------------

    def _append(self, backlog: Backlog, frames: SharedFrames) -> NewestFrames:
        """All of `frames` comes at the end of a backlog, and stays until it was handed on."""
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
        """A block takes so many bytes more in memory."""
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
        """Keep the bound of memory, whatever it takes. What is being handed on cannot be let go of, so that
        must be over, or somebody would be ended for it."""
        self._relieve()
        memory = self.limits.memory_bytes
        if self.held_bytes - self.pinned_bytes > memory:
            self._end_until(
                lambda: self.held_bytes - self.pinned_bytes <= memory,
                f"memory_limit ({memory} bytes) of [slow_clients] is reached",
            )

    def _relieve(self) -> None:
        """Drop from memory what is on disk too, and write on."""
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
        """End the connections that wait for most until it is enough."""
        # What one waits for does not change when another is ended, so one look at all of them will do.
        for session in self._by_size():
            if enough():
                return
            waiting = self.waiting.get(session)
            if waiting is not None:
                self._end(session, f"{waiting.bytes} bytes wait for it, more than for others, and {why}")

    def _by_size(self) -> list[Session]:
        return sorted(self.waiting, key=lambda session: self.waiting[session].bytes, reverse=True)

    # -- offline --------------------------------------------------------------------------------------

    def _too_much(self, session: Session, waiting: ConnectionBacklog) -> None:
        """More waits for a connection than may in memory."""
        if self.limits.disk_bytes:
            self._go_offline(session, waiting)
            self._write_on()
        else:
            bound = f"connection_limit ({self.limits.connection_bytes} bytes) of [slow_clients]"
            self._end(session, f"{waiting.bytes} bytes wait for it, above {bound}")

    def _spill_largest(self, idle_bytes: int) -> None:
        """Those who wait for most go offline, until no more than this is not being written."""
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
        """So many more who wait in it are offline: while any are, it is written to disk."""
        backlog.offline += more
        if not backlog.offline:
            self.idle_bytes += backlog.dirty_bytes
            self._orders.forget(backlog)
        elif backlog.offline == more:
            self.idle_bytes -= backlog.dirty_bytes
            self._orders.put(backlog)

    # -- writing --------------------------------------------------------------------------------------

    def _write_on(self) -> None:
        """Write what is to be written, as much at a time as may be."""
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
        """Until a block fits, or need not be written any more."""
        self._end_until(
            lambda: self.spill.has_room(size) or not block.backlog.offline,
            f"disk_limit ({self.limits.disk_bytes} bytes) of [slow_clients] is reached",
        )

    def spill_done(self, token: int, data: Buffer | OSError | None) -> list[TransientFeed]:
        """Take the answer to a `SpillWrite` (None, or an error) or a `SpillRead`; return subscriptions whose
        next messages are in memory again."""
        ready: list[TransientFeed] = []
        block = self.spill.done(token, data)
        if block.on_disk:
            assert data is not None
            ready = self._read_back(block, data)
        elif block.place is NOWHERE and not block.freed:
            self._not_written(block.backlog, f"what waits for it could not be written to disk: {data!s}")
        elif not block.freed:
            memory_bytes = block.memory_bytes
            self._count(block, -memory_bytes)
            block.on_disk = True
            self._count(block, memory_bytes)
            self._clean[block] = None
        self._relieve()
        return ready

    def _not_written(self, backlog: Backlog, why: str) -> None:
        """Who waits for most of what could not be written is ended; for the others it is tried again."""
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
        """Read the next block of `sub` back, in its turn."""
        block = sub.block
        assert block is not None
        block.readers[sub] = None
        if not block.wanted:
            block.wanted = True
            self._wanted.append(block)
            self._read_on()

    def _read_on(self) -> None:
        """Read wanted blocks, as far as the limit allows."""
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
        """Take in a block, and pin it for those whose connection has room; return all who wait for it."""
        block.wanted = False
        readers: list[TransientFeed] = []
        if not block.freed:
            piece = self.spill.piece(block, data)
            readers, block.readers = list(block.readers), {}
            if isinstance(piece, str):
                for sub in readers:
                    if sub.left:
                        self._end(sub.session, piece)
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
        """Unpin the block of a subscription that had its turn, or is over."""
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
        """Unpin the blocks of a connection without room."""
        for sub in list(waiting.pins):
            self.unpin(sub)

    # -- age ------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `check_age` is wanted, monotonic seconds."""
        return self._next_age_check if self.waiting and self.limits.age_seconds is not None else None

    def check_age(self) -> None:
        """End those for whom something has waited too long."""
        age = self.limits.age_seconds
        if age is None or not self.waiting or self._clock.mono < self._next_age_check:
            return
        self._next_age_check = self._clock.mono + min(age / _AGE_CHECKS, slow_age_check_seconds_max)
        for session, waiting in list(self.waiting.items()):
            blocks = [(sub.waits_since, sub.block) for sub in waiting.subs if sub.block is not None]
            if any(max(since, block.since) + age <= self._clock.mono for since, block in blocks):
                why = f"something has waited for it for {age:g} seconds, the age_limit of [slow_clients]"
                self._end(session, why)
