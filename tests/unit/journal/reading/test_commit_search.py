"""Commit search: each end of a commit, positions between ends, and damage."""

from __future__ import annotations

import pytest

from tests.simulation.journal_world import drive
from tests.unit.journal.written import Written
from tickertape.base.errors import JournalCorrupt
from tickertape.journal.format.segment import segment_path
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.commit_search import find_commit


def ends_of(world: Written, sizes: list[int]) -> dict[int, tuple[int, int, int]]:
    """Publish commits of 3 messages of these sizes. Return number, epoch and checksum of each by its end."""
    found = {}
    take = world.journal.take_persisted

    def taking() -> list[object]:
        commits = take()
        for commit in commits:
            found[commit.first_position + commit.batch.count] = (commit.number, commit.epoch, commit.checksum)
        return list(commits)

    world.journal.take_persisted = taking  # type: ignore[method-assign, assignment]
    for size in sizes:
        world.publish(size=size)
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_commit_search_finds_the_commit_of_each_end_and_no_other(restart: bool) -> None:
    world = Written(segment_bytes=1 << 16)
    ends = ends_of(world, [100, 5_000, 40, 1_000, 100, 100, 7_000, 3_000, 10] * 4)
    ends_before = ends | {0: (0, 0, 0)}
    if restart:
        world.start()
    view = world.journal.view
    assert len(view.segments) > 2
    for position in range(-1, view.end_position + 2):
        header = drive(world.disk, find_commit(view, position))
        if position in ends:
            assert header is not None
            assert (header.number, header.epoch, header.crc) == ends_before[position]
        else:
            assert header is None
    assert len({epoch for _, epoch, _ in ends.values()}) == 1


def test_commit_search_reads_only_headers_of_large_commits() -> None:
    world = Written(segment_bytes=1 << 22)
    ends = ends_of(world, [read_bytes_target] * 3 + [10] * 3)
    for position, expected in ends.items():
        header = drive(world.disk, find_commit(world.journal.view, position))
        assert header is not None
        assert (header.number, header.epoch, header.crc) == expected


def test_commit_search_in_a_damaged_segment_raises_journal_corrupt() -> None:
    world = Written()
    world.publish()
    handle = world.disk.open(segment_path(1))
    world.disk.write(handle, 530, [b"?"])
    with pytest.raises(JournalCorrupt, match="no valid commit header"):
        drive(world.disk, find_commit(world.journal.view, 3))
    world.disk.truncate(handle, 520)
    with pytest.raises(JournalCorrupt, match="ends before the persisted end"):
        drive(world.disk, find_commit(world.journal.view, 3))
