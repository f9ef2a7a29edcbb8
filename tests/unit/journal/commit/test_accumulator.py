"""Batches that wait for a commit always fit the space reserved for them."""

from __future__ import annotations

import pytest

from tests.unit.journal.commit.test_group_commit import Bench
from tickertape.batch import BatchBuilder, batch_from_bodies
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.commit.jobs import WriteCommit


@pytest.mark.parametrize("waiting", ["nothing", "rich", "plain"])
def test_batch_accepted_on_a_full_disk_is_persisted_without_a_new_segment(waiting: str) -> None:
    """A batch that needs another segment would block its publisher, and all later ones, without a limit."""
    builder = BatchBuilder()
    builder.add("rich", b"", key="k", correlation_id="c", expiration_ms=1, kind=1)
    rich, plain = builder.build(first_sequence=1), batch_from_bodies("plain", [b""] * 40, first_sequence=1)
    taken = 0
    for short in range(0, 2_000, 7):
        bench = Bench()
        while "PrepareSegment" not in bench.asked():
            bench.append(3000)
            bench.ok(WriteCommit)
        bench.full()
        if waiting != "nothing":
            bench.append(10)  # is in flight while later batches accumulate
        for batch in {"rich": (rich,), "plain": (plain,)}.get(waiting, ()):
            bench.put(batch)
        last = batch_from_bodies("t", [bytes(bench.active.room - short)], first_sequence=1)
        if bench.machine.can_accept(encoded_size(last)):
            bench.put(last)
            taken += 1
        while "WriteCommit" in bench.asked():
            bench.ok(WriteCommit)
        assert bench.machine.persisted_end == bench.machine.accepted_end, f"{short} bytes short"
    assert 0 < taken < len(range(0, 2_000, 7)), "cases on both sides of the limit were tried"
