"""Ranked fold against the oracle: rows of several logs in any order, copies, deletes and expiries."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import sow_model
from tests.helpers.ranked_rows import RankedRows, as_records
from tests.helpers.sow_model import Expired, Message, keys_of
from tests.property.test_sow_candidates import Operation, arrivals, decides, operations


def check(rows: RankedRows, messages: Sequence[Message]) -> None:
    """Compare records and stream with the oracle."""
    expected = as_records(sow_model.state(messages))
    assert rows.records() == expected
    assert rows.stream == {key: body for key, (_, _, body) in expected.items()}


@given(operations)
def test_records_and_stream_equal_the_oracle_after_each_row(of: list[Operation]) -> None:
    rows, log = RankedRows(), arrivals(of)
    for position, message in enumerate(log):
        rows.enter(message, position)
        check(rows, log[: position + 1])


@given(operations, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_change_the_records(of: list[Operation], random: Random) -> None:
    log = [message for message in arrivals(of) if not isinstance(message, Expired)]
    random.shuffle(log)
    rows = RankedRows()
    for position, message in enumerate(log):
        rows.enter(message, position)
    check(rows, log)


@given(operations, st.integers(0, 400))
def test_forgetting_stable_candidates_changes_no_record(of: list[Operation], stamp: int) -> None:
    log = arrivals(of)
    needed = [
        max((m for m in range(f + 1, len(log)) if decides(log[f], log[m])), default=f)
        for f in range(len(log))
    ]
    rows = RankedRows()
    for position, message in enumerate(log):
        rows.enter(message, position)
        stable = next((f for f, last in enumerate(needed) if last > position), len(log))
        later = [one.stamp for one in log[position + 1 :] if not isinstance(one, Expired)]
        rows.fold.forget(stable, min([stamp, *(one - 1 for one in later)]))
        check(rows, log[: position + 1])
    rows.fold.forget(len(log), 1_000)
    check(rows, log)
    assert not rows.fold.unsettled


@given(operations)
def test_deletes_name_the_highest_rank_of_the_oracle(of: list[Operation]) -> None:
    rows, log = RankedRows(), arrivals(of)
    for position, message in enumerate(log):
        rows.enter(message, position)
    for key in {key for message in log for key in keys_of(message)}:
        record = sow_model.record(key, log)
        if record is not None:
            assert rows.fold.highest(key) == record.rank
