"""Verification beside a running server and after crashes: valid data is never reported as damaged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tests.helpers.tiers import parts
from tests.unit.journal.written import Written
from tickertape.journal.offline.verify import survey, verify
from tickertape.testing.disk import StrictDisk


class ConcurrentDisk:
    """A disk on which a server writes between the reads of the verifier."""

    def __init__(self, disk: StrictDisk, work: Callable[[], None]) -> None:
        self._disk = disk
        self._work = work

    def read(self, handle: int, offset: int, size: int) -> bytes:
        self._work()
        return self._disk.read(handle, offset, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


@pytest.mark.parametrize("seed", parts(8, 3))
def test_verify_of_a_working_server_reports_no_damage(seed: int) -> None:
    written = Written(seed)
    left = 60

    def work() -> None:
        nonlocal left
        if left:
            left -= 1
            if written.rng.random() < 0.8:
                written.publish(count=written.rng.randrange(1, 6))
            else:
                written.rest()

    work()
    disk: Any = ConcurrentDisk(written.disk, work)
    while left:
        report = verify(disk)
        assert report.damage == []
        assert survey(disk).damage == []
    assert sum(segment.messages for segment in verify(disk).segments) == written.messages


@pytest.mark.parametrize("seed", parts(12, 4))
def test_verify_after_a_crash_reports_no_damage(seed: int) -> None:
    written = Written(seed)
    rng = Random(seed)
    for _ in range(rng.randrange(1, 25)):
        written.publish(count=rng.randrange(1, 9))
    for _ in range(6):
        crashed = written.disk.crash_clone(rng)
        report = verify(crashed)
        assert report.damage == []
        assert sum(segment.messages for segment in report.segments) == written.messages
