"""The publish store checks reject stores that lose messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tickertape.base.errors import StoreFull
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.publish_store import (
    FilePublishStore,
    HybridPublishStore,
    MemoryPublishStore,
    PublishStore,
    Stored,
)
from tickertape.testing import check_publish_store

Found = tuple[str, int, list[tuple[int, int, bytes]]]


class Shelf:
    """State of a store between two openings."""

    def __init__(self) -> None:
        self.found: Found = ("", 0, [])
        self.claim = 0, 0
        """Highest persisted sequence, and number of the last logon."""


class Shelved(MemoryPublishStore):
    """Writes its whole state to a shelf with each change."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__("64KB")
        self._shelf = shelf
        name, last_sequence, batches = shelf.found
        for first, last, encoded in batches:
            super().put(Stored(first, last, MessageBatch.parse(encoded)))
        self._name, self._last_sequence = name, last_sequence
        self.persisted_sequence, self._session = shelf.claim

    def attach(self, name: str) -> None:
        super().attach(name)
        self.changed()

    def put(self, stored: Stored) -> None:
        super().put(stored)
        self.changed()

    def discard(self, sequence: int) -> None:
        super().discard(sequence)
        self.changed()

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        super().replace(first, last, rest)
        self.changed()

    def next_session(self, clock: int) -> int:
        session = super().next_session(clock)
        self.changed()
        return session

    def changed(self) -> None:
        self.write()

    def write(self) -> None:
        self._shelf.found = (self._name, self.last_sequence, self.kept())
        self._shelf.claim = self.claim()

    def claim(self) -> tuple[int, int]:
        return self.persisted_sequence, self._session

    def kept(self) -> list[tuple[int, int, bytes]]:
        return [(first, last, batch.encode()) for first, last, batch in self.held()]


def nothing(_: PublishStore) -> None:
    """The end of a process, for a store that may be opened twice."""


def test_check_publish_store_accepts_store_that_writes_each_change() -> None:
    check_publish_store(partial(Shelved, Shelf()), survives=True, killed=nothing)
    check_publish_store(partial(Shelved, Shelf()), killed=nothing)


class WritesWhenClosed(Shelved):
    def changed(self) -> None:
        """Nothing yet."""

    def close(self) -> None:
        self.write()


class KeepsTheNewest(Shelved):
    def kept(self) -> list[tuple[int, int, bytes]]:
        return super().kept()[-1:]


class ForgetsThePart(Shelved):
    """Restores partly settled batches as a whole after a restart."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf)
        self.whole = {last: (first, last, batch.encode()) for first, last, batch in self.held()}

    def put(self, stored: Stored) -> None:
        first, last, batch = stored
        self.whole[last] = (first, last, batch.encode())
        super().put(stored)

    def kept(self) -> list[tuple[int, int, bytes]]:
        return [self.whole[last] for _, last, _ in self.held()]


class ForgetsTheRest(Shelved):
    """Keeps the rest of a replaced batch in memory only."""

    def replace(self, first: int, last: int, rest: MessageBatch | None) -> None:
        self.rest = rest
        super().replace(first, last, rest)

    def kept(self) -> list[tuple[int, int, bytes]]:
        rest = getattr(self, "rest", None)
        return [(first, last, batch.encode()) for first, last, batch in self.held() if batch is not rest]


class ForgetsTheNumber(Shelved):
    def write(self) -> None:
        super().write()
        self._shelf.found = (self._name, 0, self.kept())


class ForgetsTheClaim(Shelved):
    def claim(self) -> tuple[int, int]:
        return 0, self._session


class ClaimsItsLastMessage(Shelved):
    """Counts all of its messages as persisted after a restart."""

    def claim(self) -> tuple[int, int]:
        return self.last_sequence, self._session


class ForgetsTheSession(Shelved):
    def claim(self) -> tuple[int, int]:
        return self.persisted_sequence, 0


class ForgetsTheName(Shelved):
    def write(self) -> None:
        super().write()
        self._shelf.found = ("", self.last_sequence, self.kept())


@pytest.mark.parametrize(
    ("kind", "killed", "text"),
    [
        (WritesWhenClosed, nothing, "it lost messages when its process was killed: .*sequence="),
        (KeepsTheNewest, None, "messages survive close"),
        (ForgetsTheRest, None, "messages survive close"),
        (ForgetsThePart, None, "messages survive close"),
        (ForgetsTheNumber, None, "an empty store lost its highest sequence when it was closed"),
        (ForgetsTheName, None, "accepts a client of another name"),
        (ForgetsTheClaim, None, "persisted_sequence survives close"),
        (ClaimsItsLastMessage, None, "persisted_sequence survives close"),
        (ForgetsTheSession, None, "next_session returned .* when it was closed"),
    ],
)
def test_check_publish_store_rejects_store_that_loses_state_over_a_restart(
    kind: type[Shelved], killed: Callable[[PublishStore], None] | None, text: str
) -> None:
    with pytest.raises(AssertionError, match=text):
        check_publish_store(partial(kind, Shelf()), survives=True, killed=killed)


def test_check_publish_store_without_killed_accepts_store_that_writes_at_close() -> None:
    check_publish_store(partial(WritesWhenClosed, Shelf()), survives=True)


class ClaimsAtPut(MemoryPublishStore):
    """Counts messages as persisted when they are stored."""

    def put(self, stored: Stored) -> None:
        super().put(stored)
        self.persisted_sequence = stored.last


class ClaimsForeignMessages(MemoryPublishStore):
    """Counts the messages of another process as persisted."""

    def discard(self, sequence: int) -> None:
        super().discard(sequence)
        self.persisted_sequence = max(self.persisted_sequence, sequence)


class FollowsTheClock(MemoryPublishStore):
    """Numbers logons by the clock alone."""

    def next_session(self, clock: int) -> int:
        return clock


class Unlabelled(MemoryPublishStore):
    """Keeps numbers and bodies, and nothing else."""

    def put(self, stored: Stored) -> None:
        first, last, batch = stored
        bodies = batch.bodies_list()
        kept = batch_from_bodies("orders", bodies, publisher=batch.publisher(0), first_sequence=first)
        super().put(Stored(first, last, kept))


class Nameless(MemoryPublishStore):
    """Forgets the publishers of messages."""

    def put(self, stored: Stored) -> None:
        first, last, batch = stored
        super().put(
            Stored(first, last, batch_from_bodies("orders", batch.bodies_list(), first_sequence=first))
        )


class NeverFull(MemoryPublishStore):
    """Reports too small a size."""

    @property
    def size_bytes(self) -> int:
        return min(super().size_bytes, len(self.held()))


class NeverQuiteFull(MemoryPublishStore):
    """Counts bodies only."""

    @property
    def size_bytes(self) -> int:
        return sum(stored.batch.body_bytes for stored in self.held())


class DropsTheOldest(MemoryPublishStore):
    """Drops its oldest messages unasked."""

    def held(self) -> Sequence[Stored]:
        return super().held()[-20:]

    def unpersisted_count(self) -> int:
        return sum(stored.batch.count for stored in self.held())


class FullTooSoon(MemoryPublishStore):
    def put(self, stored: Stored) -> None:
        if self.size_bytes > 2_000:
            raise StoreFull("no more")
        super().put(stored)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Unlabelled, "with topics and labels: .*topic='orders'"),
        (Nameless, r"the publishers of the stored messages: \{0\}"),
        (NeverFull, "it holds bodies of 1024 bytes with size_bytes=1: it is never full"),
        (NeverQuiteFull, "with bytes_max=65536 and is not full"),
        (DropsTheOldest, "it lost messages after"),
        (FullTooSoon, "it raises StoreFull with size_bytes=.* of 65536"),
        (ClaimsAtPut, "put does not change persisted_sequence"),
        (ClaimsForeignMessages, "persisted_sequence is at most last_sequence"),
        (FollowsTheClock, "next_session returned 1759999999000000 after 1760000000000000"),
    ],
)
def test_check_publish_store_rejects_lost_fields_and_wrong_sizes(
    kind: type[MemoryPublishStore], text: str
) -> None:
    with pytest.raises(AssertionError, match=text):
        check_publish_store(lambda: kind("64KB"))


def test_check_publish_store_rejects_small_limits_and_missing_methods() -> None:
    with pytest.raises(AssertionError, match="it has bytes_max=100, and the checks need 4,096"):
        check_publish_store(lambda: MemoryPublishStore(100))
    with pytest.raises(AssertionError, match="it lacks methods of PublishStore"):
        check_publish_store(object)  # type: ignore[arg-type]


def hybrid_killed(store: PublishStore) -> None:
    assert isinstance(store, HybridPublishStore)
    store._file._refuse_in_child()


def file_killed(store: PublishStore) -> None:
    assert isinstance(store, FilePublishStore)
    store._refuse_in_child()


@pytest.mark.parametrize("sync", ["never", "always"])
def test_file_store_passes_check_publish_store_with_killed_process(tmp_path: Path, sync: str) -> None:
    make = partial(FilePublishStore, tmp_path / "file", "64KB", sync=sync)  # type: ignore[arg-type]
    check_publish_store(make, survives=True, killed=file_killed)


def test_hybrid_store_fails_check_publish_store_with_killed_process(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it lost messages when its process was killed"):
        check_publish_store(partial(HybridPublishStore, tmp_path / "hybrid"), killed=hybrid_killed)
