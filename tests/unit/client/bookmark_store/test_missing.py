"""Missing sequences, against sets of delivered sequences."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.bookmarks import Bookmark
from tickertape.client.bookmark_store import missing as module
from tickertape.client.bookmark_store.missing import MissingSequences
from tickertape.wire.link_rows import OpenHoles

P = 7


def ranges_of(sequences: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of consecutive sequences."""
    found: list[tuple[int, int]] = []
    for one in sorted(sequences):
        if found and found[-1][1] == one - 1:
            found[-1] = (found[-1][0], one)
        else:
            found.append((one, one))
    return tuple(found)


class Log:
    """A log, and the subscription that reads it."""

    def __init__(self) -> None:
        self.missing = MissingSequences()
        self.missing.begin()
        self.delivered: set[int] = set()
        self.passed: set[int] = set()
        """Sequences that the log has, or had for others."""

    @property
    def seen(self) -> int:
        return max(self.delivered, default=-1)

    def deliver(self, sequences: list[int], *, is_range: bool) -> None:
        """The server delivers rising sequences."""
        new = [one for one in sequences if one > self.seen]
        late = [
            one
            for one in sequences
            if one <= self.seen and self.missing.is_missing(P, one, self.seen) and one not in self.delivered
        ]
        for part in (new, late):
            if part and is_range and part == list(range(part[0], part[-1] + 1)):
                self.missing.delivered(P, self.seen, range(part[0], part[-1] + 1))
            elif part:
                self.missing.delivered(P, self.seen, array("Q", part))
            self.delivered |= {*part}

    def notice(self, open_holes: set[int], highest: int) -> None:
        """The server sends its open holes."""
        self.missing.noticed([OpenHoles(P, highest, ranges_of(open_holes))], lambda _: self.seen)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.lists(st.integers(1, 60), min_size=1, unique=True).map(sorted), st.booleans()),
            st.sets(st.integers(1, 60), max_size=8),
        ),
        max_size=12,
    )
)
def test_delivered_sequences_are_never_missing(
    steps: list[tuple[list[int], bool] | set[int]],
) -> None:
    log = Log()
    exact = True
    for step in steps:
        if isinstance(step, tuple):
            log.deliver(step[0], is_range=step[1])
        else:
            log.notice(step, max(step, default=0))
            exact = False
        for sequence in range(1, log.seen + 1):
            missing = log.missing.is_missing(P, sequence, log.seen)
            assert not (missing and sequence in log.delivered)
            if exact:
                assert missing == (sequence not in log.delivered)


def test_notice_leaves_only_holes_of_the_log_missing() -> None:
    log = Log()
    log.deliver([1, 2, 3, 10, 11], is_range=False)
    log.notice({5, 6}, 11)
    assert [one for one in range(1, 12) if log.missing.is_missing(P, one, 11)] == [5, 6]
    log.notice({6}, 11)
    assert not log.missing.is_missing(P, 5, 11)


def test_holes_above_the_highest_sequence_of_the_log_stay() -> None:
    log = Log()
    log.deliver([1, 20], is_range=False)
    log.notice({10, 11}, 20)
    log.notice(set(), 10)  # another server, whose log ends at 10
    assert [one for one in range(1, 21) if log.missing.is_missing(P, one, 20)] == [11]


def test_recovery_point_has_holes_and_ends_at_the_last_notice() -> None:
    log = Log()
    log.deliver([1, 2, 3, 10], is_range=False)
    log.notice({5, 6, 8}, 10)
    log.deliver([12], is_range=True)
    bookmarks = log.missing.certain(P, 12)
    assert bookmarks == [Bookmark(P, one) for one in (4, 6, 7, 8, 10)]
    other = MissingSequences()
    assert other.restore(bookmarks) == {P: 10}
    assert other.holes == log.missing.holes
    fresh = MissingSequences()
    fresh.begin()
    fresh.delivered(P, -1, range(5, 9))
    assert fresh.certain(P, 8) == [], "holes before 5 may be unknown"


def test_single_sequences_with_gaps_are_recorded_together() -> None:
    missing = MissingSequences()
    missing.begin()
    for sequence in range(1, 101, 2):
        missing.delivered(P, sequence - 2, range(sequence, sequence + 1))
    assert len(missing.recent[P].parts) == 1, "a search examines each part"
    assert [one for one in range(1, 100) if missing.is_missing(P, one, 99)] == [*range(2, 99, 2)]


def test_sequences_with_gaps_above_the_limit_count_as_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = MissingSequences()
    missing.begin()
    with monkeypatch.context() as patched:
        patched.setattr(module, "recent_numbers_max", 4)
        missing.delivered(P, -1, array("Q", [1, 3, 5, 7, 9]))
    assert not missing.is_missing(P, 4, 9)
    missing.delivered(P, 9, array("Q", [20]))
    assert missing.is_missing(P, 15, 20)
