"""Work of a start: each step grows at most as n log n with the size of the log."""

from __future__ import annotations

from math import log2
from pathlib import Path

import pytest

from tests.helpers.start_work import KINDS, Work, work_behind
from tickertape.base.limits import MIB

CALLS_EACH = {"recover_journal": 4, "load_publishers": 50, "first_message": 30, "Broker": 8, "open_staged": 0}
"""Calls of Python functions for each publish, transaction or record."""
CALLS_ONCE = 20_000
BYTES_EACH = 3_000
"""Three times the bytes of the largest one in the log."""
BYTES_ONCE = 24 * MIB
"""The search includes the reserved bytes behind the last commit."""
READS_ONCE = 100
READ_BYTES = 16_000
"""Least bytes of a read that is larger than one commit."""

pytestmark = pytest.mark.slow


def check_growth(few: dict[str, Work], count: int, many: dict[str, Work], larger: int) -> None:
    """Check that each step grows at most as n log n."""
    factor = larger * log2(larger) / (count * log2(count))
    for step, work in many.items():
        for name, low, high in zip(("calls", "reads", "bytes"), few[step].row(), work.row(), strict=True):
            what = f"{name} of {step}: {low} for {count}, {high} for {larger}"
            assert high <= 1.2 * factor * low + 200, what


def check_bounds(work: dict[str, Work], count: int) -> None:
    """Check that each step stays below its limit."""
    assert set(work) == set(CALLS_EACH)
    for step, done in work.items():
        assert done.calls <= CALLS_EACH[step] * count + CALLS_ONCE, (step, done.row())
        assert done.bytes <= BYTES_EACH * count + BYTES_ONCE, (step, done.row())
        assert done.reads <= READS_ONCE + done.bytes // READ_BYTES, (step, done.row())


@pytest.mark.parametrize(
    ("count", "larger"),
    [(250, 2_000), pytest.param(1_000, 100_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("kind", KINDS)
def test_start_work_grows_at_most_as_n_log_n(kind: str, count: int, larger: int, tmp_path: Path) -> None:
    few = work_behind(kind, count, tmp_path / "few")
    many = work_behind(kind, larger, tmp_path / "many")
    check_growth(few, count, many, larger)
    check_bounds(few, count)
    check_bounds(many, larger)
