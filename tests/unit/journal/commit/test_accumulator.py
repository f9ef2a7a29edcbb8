"""What waits for a commit: the room that is made sure of for it is enough, whatever it is merged with."""

from __future__ import annotations

import pytest

from tests.unit.journal.commit.test_group_commit import Bench
from tickertape.batch import BatchBuilder, batch_from_bodies
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.commit.jobs import WriteCommit


@pytest.mark.parametrize("waits", ["nothing", "a rich one", "a plain one"])
def test_what_is_accepted_on_a_full_disk_does_not_wait_for_a_segment(waits: str) -> None:
    """Nobody could say when it is persisted: its publisher would wait, and all others behind it."""
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
        if waits != "nothing":
            bench.append(10)  # is in flight while what comes gathers
        for batch in {"a rich one": (rich,), "a plain one": (plain,)}.get(waits, ()):
            bench.put(batch)
        last = batch_from_bodies("t", [bytes(bench.active.room() - short)], first_sequence=1)
        if bench.machine.can_accept(encoded_size(last)):
            bench.put(last)
            taken += 1
        while "WriteCommit" in bench.asked():
            bench.ok(WriteCommit)
        assert bench.machine.persisted_end == bench.machine.accepted_end, f"{short} bytes short"
    assert 0 < taken < len(range(0, 2_000, 7)), "both sides of the end of the room were tried"
