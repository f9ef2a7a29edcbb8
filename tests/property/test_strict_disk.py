"""Strict disk against a model of byte strings: a crash shows exactly the possible contents."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.helpers.tiers import parts
from tickertape.testing.disk import StrictDisk

FILE_BYTES = 6_000
SECTOR = 512


@dataclass
class Model:
    """One file of constant size: its readable contents, and every image that a crash may leave, by sector."""

    seen: bytearray = field(default_factory=lambda: bytearray(FILE_BYTES))
    possible: list[set[bytes]] = field(
        default_factory=lambda: [{bytes(min(SECTOR, FILE_BYTES - s))} for s in range(0, FILE_BYTES, SECTOR)]
    )
    dirty: set[int] = field(default_factory=set)

    def image(self, sector: int) -> bytes:
        return bytes(self.seen[sector * SECTOR : (sector + 1) * SECTOR])

    def write(self, offset: int, data: bytes) -> None:
        self.seen[offset : offset + len(data)] = data
        for sector in range(offset // SECTOR, -(-(offset + len(data)) // SECTOR)):
            self.possible[sector].add(self.image(sector))
            self.dirty.add(sector)

    def sync(self) -> None:
        for sector in self.dirty:
            self.possible[sector] = {self.image(sector)}
        self.dirty.clear()

    def fail_sync(self) -> None:
        self.dirty.clear()  # possible images stay possible until the sector is written and synced again


@pytest.mark.parametrize("seed", parts(25, 8))
def test_strict_disk_after_a_crash_has_only_possible_contents(seed: int) -> None:
    rng = Random(seed)
    counts: Counter[str] = Counter()
    disk = StrictDisk(rng, counts=counts)
    handle = disk.open("a", create=True)
    disk.preallocate(handle, FILE_BYTES)
    disk.sync(handle)
    disk.sync_directory("")
    model = Model()
    for _ in range(60):
        step = rng.random()
        if step < 0.6:
            offset = rng.randrange(FILE_BYTES)
            data = rng.randbytes(min(rng.choice((1, 40, 600, 5_000)), FILE_BYTES - offset))
            disk.write(handle, offset, [data])
            model.write(offset, data)
        elif step < 0.7:
            disk.fail("sync", 1, errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                disk.sync(handle)
            model.fail_sync()
        elif step < 0.8:
            disk.sync(handle)
            model.sync()
        elif step < 0.85:
            disk = disk.kill_clone()
            handle = disk.open("a")
        assert disk.read(handle, 0, FILE_BYTES) == model.seen
        for _ in range(3):
            left = disk.crash_clone(Random(rng.random())).contents()["a"]
            assert len(left) == FILE_BYTES
            for sector, possible in enumerate(model.possible):
                assert left[sector * SECTOR : (sector + 1) * SECTOR] in possible, f"sector {sector}"
    for outcome in (
        "sector_kept",
        "sector_lost",
        "sector_zeroed",
        "dropped_sector_kept",
        "dropped_sector_lost",
    ):
        assert counts[outcome] > 0, outcome


def test_strict_disk_crashes_reach_every_possible_image_of_a_sector() -> None:
    disk = StrictDisk(Random(0))
    handle = disk.open("a", create=True)
    disk.preallocate(handle, SECTOR)
    disk.sync(handle)
    disk.sync_directory("")
    model = Model()
    for number in range(4):
        data = bytes([number + 1]) * 100
        disk.write(handle, number * 100, [data])
        model.write(number * 100, data)
    reached = {disk.crash_clone(Random(seed)).contents()["a"] for seed in range(300)}
    assert reached == model.possible[0]
