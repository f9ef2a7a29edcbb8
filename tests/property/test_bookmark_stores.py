"""Bookmark stores against a model of lists and sets.

A store never skips an undiscarded message. A discarded message is not redelivered unless a file that recorded
it was cut short.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tickertape as tt
from tickertape.client.bookmark_store import log_format

Entry = tuple[int, int]
SUB = "s"
Store = tt.MemoryBookmarkStore | tt.LoggedBookmarkStore | tt.RingBookmarkStore


class Machine(RuleBasedStateMachine):
    """A server's log of entries, a subscription that reads it, and an application that discards."""

    on_disk: ClassVar[bool] = False
    filters_after_restart: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="bookmarks-"))
        self.store = self.opened()
        self.log: list[Entry] = []
        self.cursor = self.since = 0
        """The next message to deliver, and the first one of this connection."""
        self.held: list[Entry] = []
        """Handed to the application on this connection, not discarded."""
        self.discarded: set[Entry] = set()
        self.may_repeat: set[Entry] = set()
        """Discarded, but a file may have forgotten it."""
        self.known: set[Entry] = set()
        """Discarded, and the store knows."""
        self.was_cut = False

    def opened(self) -> Store:
        return tt.MemoryBookmarkStore()

    @property
    def path(self) -> Path:
        return self.directory / "store"

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @initialize(start=st.integers(0, 5))
    def begin(self, start: int) -> None:
        self.log = [(1, number) for number in range(1, start + 1)]
        self.cursor = self.since = start
        self.discarded.update(self.log)
        self.known.update(self.log)
        if start:
            self.store.started(SUB, [tt.Bookmark(*self.log[-1])])
        self.store.resumed(SUB)

    @rule(publishers=st.lists(st.integers(1, 4), min_size=1, max_size=40), step=st.integers(1, 3))
    def publish(self, publishers: list[int], step: int) -> None:
        for publisher in publishers:
            last = max((s for p, s in self.log if p == publisher), default=0)
            self.log.append((publisher, last + step))

    @rule(count=st.integers(1, 60), alone=st.booleans())
    def deliver(self, count: int, alone: bool) -> None:
        batch = self.log[self.cursor : self.cursor + count]
        if alone and batch:
            end = next((n for n, (p, _) in enumerate(batch) if p != batch[0][0]), len(batch))
            batch = batch[:end]
        if not batch:
            return
        self.cursor += len(batch)
        publishers = batch[0][0] if alone else np.array([p for p, _ in batch], np.uint64)
        keep = self.store.log(SUB, publishers, np.array([s for _, s in batch], np.uint64))
        flags = [True] * len(batch) if keep is None else keep.tolist()
        for entry, kept in zip(batch, flags, strict=True):
            if kept:
                assert entry not in self.discarded or entry in self.may_repeat, (
                    "a discarded message was redelivered"
                )
                assert entry not in self.held, "it came twice on one connection"
                self.held.append(entry)
            else:
                assert entry in self.discarded, "an undiscarded one was dropped"

    @precondition(lambda self: self.cursor > self.since)
    @rule(place=st.integers(0, 1_000), everything=st.booleans())
    def deliver_again(self, place: int, everything: bool) -> None:
        """Deliver duplicates on the same connection."""
        came = self.log[self.since : self.cursor]
        for publisher, sequence in came if everything else [came[place % len(came)]]:
            keep = self.store.log(SUB, publisher, np.array([sequence], np.uint64))
            assert keep is not None
            assert not keep.any(), "a duplicate was delivered"

    @rule(publishers=st.lists(st.integers(1, 3), min_size=1, max_size=12), done=st.integers(0, 14))
    def work(self, publishers: list[int], done: int) -> None:
        """Deliver new messages, and discard the first held ones, or every other."""
        self.publish(publishers, 1)
        self.deliver(len(self.log), alone=False)
        for entry in self.held[:done] if done < 10 else self.held[1::2]:
            self.take(self.held.index(entry))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), in_order=st.booleans())
    def discard(self, data: st.DataObject, in_order: bool) -> None:
        self.take(0 if in_order else data.draw(st.integers(0, len(self.held) - 1)))

    def take(self, at: int) -> None:
        entry = self.held.pop(at)
        assert self.store.discard(SUB, *entry)
        assert not self.store.discard(SUB, *entry)
        self.discarded.add(entry)
        self.known.add(entry)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def discard_many(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.held) - 1))
        high = data.draw(st.integers(low + 1, len(self.held)))
        some, self.held[low:high] = self.held[low:high], []
        publishers, sequences = (np.array(column, np.uint64) for column in zip(*some, strict=True))
        assert self.store.discard_all(SUB, publishers, sequences) == len(some)
        self.discarded.update(some)
        self.known.update(some)

    @precondition(lambda self: self.cursor)
    @rule()
    def notice(self) -> None:
        self.store.persisted(SUB, tt.Bookmark(*self.log[self.cursor - 1]))

    @rule(publishers=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def leave_one(self, publishers: list[int]) -> None:
        """Deliver a notice while one message is undiscarded: it must not take effect yet."""
        self.publish(publishers, 1)
        self.deliver(len(self.log), alone=False)
        while len(self.held) > 1:
            self.take(0)
        self.notice()
        self.reconnect(forget=False)

    @rule(forget=st.booleans())
    def reconnect(self, forget: bool) -> None:
        points = self.store.most_recent(SUB)
        assert len({p for p, _ in points}) == len(points)
        places = [self.log.index(point) + 1 for point in points]
        assert self.was_cut or max(places, default=0) == self.prefix(), "the recovery point is not the prefix"
        start = min(places, default=0)
        for entry in self.log[:start]:
            assert entry in self.discarded, f"{entry} is before the recovery point and was never discarded"
        self.store.resumed(SUB, forget_beyond=forget)
        if forget:
            self.forgotten()
        self.cursor = self.since = start
        self.held.clear()

    def prefix(self) -> int:
        """Return the number of messages at the start of the log that the store knows as discarded."""
        return next((n for n, entry in enumerate(self.log) if entry not in self.known), len(self.log))

    def forgotten(self) -> None:
        """Forget everything but the prefix."""
        self.may_repeat |= self.discarded
        self.known = set(self.log[: self.prefix()])

    @precondition(lambda self: self.on_disk)
    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()
        if not self.filters_after_restart:
            self.forgotten()
        self.reconnect(forget=False)

    @precondition(lambda self: self.on_disk)
    @rule()
    def killed(self) -> None:
        """Kill the process: state in memory is lost."""
        content = self.path.read_bytes()
        self.store.close()
        self.path.write_bytes(content)
        self.store = self.opened()
        if not self.filters_after_restart:
            self.forgotten()
        self.reconnect(forget=False)

    @invariant()
    def counts_agree(self) -> None:
        assert self.store.undiscarded_count(SUB) >= len(self.held)


class Logged(Machine):
    on_disk = True

    def opened(self) -> tt.LoggedBookmarkStore:
        return tt.LoggedBookmarkStore(self.path, prune_size=4096)

    @rule(again=st.booleans(), gaps=st.booleans())
    def prune(self, again: bool, gaps: bool) -> None:
        if gaps:
            self.work([1, 2, 1, 3, 1], 10)
        assert isinstance(self.store, tt.LoggedBookmarkStore)
        before = self.store.most_recent(SUB), self.store.undiscarded_count(SUB)
        self.store.prune()
        assert (self.store.most_recent(SUB), self.store.undiscarded_count(SUB)) == before
        if again:
            self.reopen()
            self.deliver(len(self.log), alone=False)

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Cut the file anywhere: within a record, or before all of them."""
        content = self.path.read_bytes().rstrip(b"\0")
        self.store.close()
        end = data.draw(st.integers(min(log_format.HEADER_BYTES, len(content)), len(content)))
        self.path.write_bytes(content[:end].ljust(log_format.HEADER_BYTES, b"\0"))
        self.store = self.opened()
        self.may_repeat |= self.discarded
        self.was_cut = True
        self.reconnect(forget=False)


class Ring(Machine):
    on_disk = True
    filters_after_restart = False

    def opened(self) -> tt.RingBookmarkStore:
        return tt.RingBookmarkStore(self.path, subscriptions=2, publishers=3)


TestMemory = Machine.TestCase
TestLogged = pytest.mark.slow(Logged.TestCase)
TestRing = pytest.mark.slow(Ring.TestCase)
TestMemory.settings = TestLogged.settings = TestRing.settings = settings(stateful_step_count=30)
