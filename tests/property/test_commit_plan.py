"""Commits of accepted batches against a plain rule: each takes as many batches as fit, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.reserved_batches import with_reserved
from tickertape.batch import BatchBuilder, MessageBatch, Stamp
from tickertape.journal.commit import accumulator
from tickertape.journal.commit.accumulator import CommitAccumulator, NextCommit

BYTES_MAX, MESSAGES_MAX, BATCHES_MAX = 1_500, 12, 4


class Step(NamedTuple):
    """A batch to accept, or the start of the next commit (`messages` is 0)."""

    messages: int
    body_bytes: int
    topic: str
    keyed: bool
    stamped: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from((0, 0, 1, 1, 2, 5)),
        st.sampled_from((0, 10, 100, 2_000)),
        st.sampled_from(("t", "t", "u")),
        st.booleans(),
        st.booleans(),
    ),
    max_size=30,
)


def batch_of(step: Step) -> MessageBatch:
    builder = BatchBuilder()
    for _ in range(step.messages):
        builder.add(step.topic, bytes(step.body_bytes), key="k" if step.keyed else "")
    batch = builder.build(1, 1, 1)
    return with_reserved(batch, order_stamps=[5]) if step.stamped else batch


@contextmanager
def small_limits() -> Iterator[None]:
    with (
        patch.object(accumulator, "commit_bytes_max", BYTES_MAX),
        patch.object(accumulator, "commit_messages_max", MESSAGES_MAX),
        patch.object(accumulator, "commit_batches_max", BATCHES_MAX),
    ):
        yield


def size_of(batches: list[MessageBatch]) -> int:
    """Return the bytes that a commit of several batches counts, by the widths of the merged columns."""
    count = sum(batch.count for batch in batches)
    total = sum(batch.nbytes for batch in batches)
    total += 4 * count * any(batch.topics != batches[0].topics for batch in batches)
    total += 4 * count * any(batch.keys is not None for batch in batches)
    return total + 8 * len(batches) * any(batch.order_stamps is not None for batch in batches)


def taken(waiting: list[MessageBatch]) -> int:
    """Return how many waiting batches the next commit has."""
    count = 1
    while count < min(len(waiting), BATCHES_MAX):
        more = waiting[: count + 1]
        if size_of(more) > BYTES_MAX or sum(batch.count for batch in more) > MESSAGES_MAX:
            break
        count += 1
    return count


@given(STEPS)
def test_commits_have_as_many_batches_as_fit(steps: list[Step]) -> None:
    pending, waiting, stamp = CommitAccumulator(), list[MessageBatch](), 10
    with small_limits():
        for step in [*steps, *[Step(0, 0, "", False, False)] * len(steps)]:
            if step.messages:
                stamp += 1
                batch = batch_of(step)
                pending.append(batch, Stamp(1, stamp * 100, stamp))
                waiting.append(batch)
            elif waiting:
                check(pending.gather(), waiting[: taken(waiting)])
                del waiting[: taken(waiting)]
            assert [one.batch for one in pending.batches] == waiting


def check(commit: NextCommit, parts: list[MessageBatch]) -> None:
    assert commit.batch.run_count == len(parts)
    assert np.array_equal(commit.batch.runs["count"], [part.count for part in parts])
    assert commit.batch.bodies_list() == [body for part in parts for body in part.bodies_list()]
    assert commit.pending_bytes == sum(part.nbytes for part in parts)
