"""Durable end of the log under each sync policy, and requested syncs."""

from __future__ import annotations

import pytest

from tests.unit.journal.commit.test_group_commit import CAPACITY, Bench
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import SyncSegment, WriteCommit


def test_sync_soon_syncs_written_commits_without_blocking_others() -> None:
    bench = Bench(SyncPolicy.NEVER)
    bench.machine.sync_soon(bench.now)
    bench.collect()
    assert bench.asked() == [], "everything is synced"
    bench.append()
    bench.ok(WriteCommit)
    assert (len(bench.persisted), bench.machine.synced_end) == (1, 70)
    bench.append()
    bench.machine.sync_soon(bench.now)
    bench.collect()
    assert bench.asked() == ["WriteCommit"], "one job at a time"
    bench.ok(WriteCommit)
    assert bench.asked() == ["SyncSegment"]
    bench.append()
    bench.machine.sync_soon(bench.now)
    bench.collect()
    bench.ok(SyncSegment)
    assert bench.machine.synced_end == 72
    assert bench.asked() == ["WriteCommit"], "a request with nothing to sync does not delay commits"
    bench.ok(WriteCommit)
    assert (len(bench.persisted), bench.machine.synced_end) == (3, 72)


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_synced_end_follows_the_syncs_of_each_policy(policy: SyncPolicy) -> None:
    bench = Bench(policy)
    bench.append()
    bench.ok(WriteCommit)
    assert bench.machine.synced_end == (71 if policy is SyncPolicy.ALWAYS else 70)
    bench.append(CAPACITY // 2)
    bench.append(CAPACITY // 2)
    while bench.asked():
        bench.ok(next(type(job) for job in bench.waiting))
    assert bench.machine.active is not None
    assert bench.machine.active.header.number == 6
    assert bench.machine.synced_end == (73 if policy is SyncPolicy.ALWAYS else 72), (
        "a roll syncs earlier commits"
    )
