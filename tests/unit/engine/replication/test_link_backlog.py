"""Age of the oldest row that a destination lacks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickertape.engine.limits import link_backlog_marks_max
from tickertape.engine.replication.levels.backlog import LinkBacklog


def test_backlog_without_missing_rows_has_no_age() -> None:
    backlog = LinkBacklog()
    assert backlog.seconds(0, 5.0) is None
    backlog.note(10, 5.0)
    assert backlog.seconds(10, 9.0) is None


def test_age_is_the_time_since_the_oldest_missing_row_was_persisted() -> None:
    backlog = LinkBacklog()
    backlog.note(10, 100.0)
    backlog.note(20, 101.0)
    backlog.note(30, 102.0)
    assert backlog.seconds(9, 110.0) == 10.0
    assert backlog.seconds(10, 110.0) == 9.0
    assert backlog.seconds(25, 110.0) == 8.0
    assert backlog.seconds(30, 110.0) is None


def test_age_starts_at_zero_when_a_destination_loses_rows() -> None:
    backlog = LinkBacklog()
    backlog.note(10, 100.0)
    assert backlog.seconds(10, 120.0) is None
    assert backlog.seconds(5, 121.0) == 0.0  # persisted earlier, but the time is forgotten
    assert backlog.seconds(5, 123.0) == 2.0


def test_marks_are_bounded_and_keep_the_oldest_age() -> None:
    backlog = LinkBacklog()
    for second in range(10 * link_backlog_marks_max):
        backlog.note(second + 1, float(second))
        assert len(backlog._marks) <= link_backlog_marks_max
    assert backlog.seconds(0, 100_000.0) == 100_000.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.0, 3.0)), max_size=60))
def test_age_is_never_above_the_true_age(steps: list[tuple[int, int, float]]) -> None:
    backlog, times, covered, mono = LinkBacklog(), [], 0, 0.0
    for rows, acknowledged, seconds in steps:
        mono += seconds
        times += [mono] * rows
        backlog.note(len(times), mono)
        covered = min(covered + acknowledged, len(times))
        age = backlog.seconds(covered, mono)
        assert (age is None) == (covered == len(times))
        assert age is None or 0.0 <= age <= mono - times[covered]
