"""Batches that wait for a commit always fit the space reserved for them."""

from __future__ import annotations

import pytest

from tests.helpers.reserved_batches import with_reserved
from tests.unit.journal.commit.test_group_commit import Bench
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies, merge
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.commit.jobs import WriteCommit


@pytest.mark.parametrize("waiting", ["nothing", "rich", "plain"])
def test_batch_accepted_on_a_full_disk_is_persisted_without_a_new_segment(waiting: str) -> None:
    """A batch that needs another segment would block its publisher, and all later ones, without a limit."""
    builder = BatchBuilder()
    builder.add("rich", b"", key="k", correlation_id="c", expiration_ms=1, kind=1)
    rich, plain = builder.build(first_sequence=1), batch_from_bodies("plain", [b""] * 40, first_sequence=1)
    taken = 0
    for short in range(0, 3_000, 7):
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
    assert 0 < taken < len(range(0, 3_000, 7)), "cases on both sides of the limit were tried"


def _with_every_column() -> MessageBatch:
    builder = BatchBuilder()
    builder.add(
        "rich", b"", sequence=1, key="k", correlation_id="c", expiration_ms=1, kind=1, headers=b"\x80"
    )
    builder.add("rich", b"", sequence=3)
    return with_reserved(builder.build(), message_flags=[1, 0], order_stamps=[5])


@pytest.mark.parametrize("messages", [1, 2, 7, 1_000])
@pytest.mark.parametrize("others", [1, 3, 50])
def test_merged_batch_with_every_column_fits_the_space_of_the_parts(messages: int, others: int) -> None:
    plain = batch_from_bodies("plain", [b""] * messages, first_sequence=1, timestamp=7)
    parts = [_with_every_column(), *[plain] * others]
    merged = merge(parts)
    assert merged.columns == 0x1BF
    assert sum(encoded_size(part) for part in parts) >= commit_bytes_of(merged)
