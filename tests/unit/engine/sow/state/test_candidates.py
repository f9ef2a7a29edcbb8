"""Candidates of a key: the record after each kind of row, and when candidates are forgotten."""

from __future__ import annotations

import pytest

from tickertape.engine.sow.state.candidates import (
    Candidate,
    Candidates,
    Decision,
    DecisionKind,
    Rank,
    StateRow,
)

KEY = b"k"
HERE, THERE = b"a" * 16, b"b" * 16
P, Q, R = 1, 2, 3
"""Publishers."""
NONE, RECORD, RESTATED, REMOVED = DecisionKind


class Topic:
    """One key of a topic, with its record column, controlled by the test."""

    def __init__(self) -> None:
        self.candidates = Candidates[str]()
        self.current: Candidate[str] | None = None
        self.position = 0

    def publish(self, publisher: int, sequence: int, stamp: int, log: bytes = HERE) -> DecisionKind:
        row = self._row(publisher, sequence, stamp, log)
        content = f"{publisher}|{sequence}|"
        return self._decided(self.candidates.publish(KEY, row, content, self.current))

    def delete(
        self, publisher: int, sequence: int, named: Rank | None, stamp: int = 1000, log: bytes = HERE
    ) -> DecisionKind:
        row = self._row(publisher, sequence, stamp, log)
        return self._decided(self.candidates.delete(KEY, row, named, self.current))

    def delete_here(self, publisher: int, sequence: int) -> DecisionKind:
        """Delete with this instance as the origin."""
        return self.delete(publisher, sequence, self.candidates.highest(KEY, self.current))

    def expire(self, publisher: int, sequence: int) -> DecisionKind:
        return self._decided(self.candidates.expire(KEY, publisher, sequence, self.current))

    def forget(self, stable: int | None = None) -> None:
        self.candidates.forget(self.position if stable is None else stable)

    @property
    def record(self) -> str | None:
        return self.current.content if self.current is not None else None

    def _row(self, publisher: int, sequence: int, stamp: int, log: bytes) -> StateRow:
        self.position += 1
        return StateRow(self.position - 1, publisher, sequence, stamp, log)

    def _decided(self, decision: Decision[str]) -> DecisionKind:
        if decision.kind is DecisionKind.NONE:
            assert decision.record is self.current
        self.current = decision.record
        return decision.kind


def rank(publisher: int, sequence: int, stamp: int, log: bytes = HERE) -> Rank:
    return Rank(stamp, log, publisher, sequence)


# -- the record ---------------------------------------------------------------------------------------


def test_record_is_the_message_with_the_highest_rank() -> None:
    topic = Topic()
    assert topic.publish(P, 1, 20) is RECORD
    assert topic.publish(Q, 1, 10) is NONE
    assert topic.record == "1|1|"
    assert topic.publish(Q, 2, 20, THERE) is RECORD, "of equal stamps the log id decides"
    assert topic.record == "2|2|"


def test_candidate_of_a_publisher_has_the_highest_sequence() -> None:
    topic = Topic()
    topic.publish(P, 2, 10)
    assert topic.publish(P, 1, 20) is NONE, "late"
    assert topic.publish(P, 3, 5) is RECORD, "a clock behind"
    assert topic.record == "1|3|"


def test_newer_message_of_lower_rank_restates_the_record_of_another_publisher() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 20)
    assert topic.publish(Q, 2, 5) is RESTATED
    assert topic.record == "1|1|"


def test_newer_message_of_lower_rank_than_a_delete_removes_the_record() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.delete_here(R, 1)
    topic.publish(Q, 1, 20)
    assert topic.publish(Q, 2, 5) is REMOVED


def test_repeated_row_changes_nothing() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    assert topic.publish(P, 1, 10) is NONE
    assert topic.record == "1|1|"
    assert not len(topic.candidates)


def test_copy_with_the_lower_stamp_counts() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 20)
    assert topic.publish(Q, 1, 30, THERE) is NONE
    assert topic.publish(Q, 1, 5, THERE) is RESTATED
    assert topic.record == "1|1|"
    found = topic.candidates.candidate(KEY, Q, topic.current)
    assert found is not None
    assert found.rank == rank(Q, 1, 5, THERE)


def test_copy_of_an_expired_message_is_expired() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.expire(P, 1)
    assert topic.publish(P, 1, 5, THERE) is NONE
    assert topic.record is None


# -- deletes ------------------------------------------------------------------------------------------


def test_delete_repeated_by_one_publisher_does_not_restore_the_record() -> None:
    """ADR 44: P publishes, Q deletes, and Q deletes without a record. The record of P must not return."""
    for forgotten in (False, True):
        origin, destination = Topic(), Topic()
        for topic in (origin, destination):
            topic.publish(P, 1, 5)
        named = origin.candidates.highest(KEY, origin.current)
        assert [topic.delete(Q, 1, named) for topic in (origin, destination)] == [REMOVED, REMOVED]
        if forgotten:
            origin.forget()
        named = origin.candidates.highest(KEY, origin.current)
        assert (named is None) == forgotten
        for topic in (origin, destination):
            assert topic.delete(Q, 2, named) is NONE
            assert topic.record is None


def test_delete_after_an_expired_replacement_does_not_restore_the_older_record() -> None:
    topic = Topic()
    topic.publish(P, 1, 5)
    topic.publish(Q, 1, 10)
    assert topic.expire(Q, 1) is REMOVED
    assert topic.delete(Q, 2, None) is NONE
    assert topic.record is None


def test_delete_leaves_an_update_unseen_by_the_origin() -> None:
    origin, destination = Topic(), Topic()
    for topic in (origin, destination):
        topic.publish(P, 1, 10)
    assert destination.publish(R, 1, 20, THERE) is RECORD
    named = origin.candidates.highest(KEY, origin.current)
    assert destination.delete(Q, 1, named, stamp=30) is NONE
    assert destination.record == "3|1|"
    assert origin.delete(Q, 1, named, stamp=30) is REMOVED
    assert origin.publish(R, 1, 20, THERE) is RECORD
    assert origin.record == "3|1|"


def test_delete_between_two_messages_of_a_run_leaves_the_second() -> None:
    """A link can cut a run, and its messages have one order stamp."""
    topic = Topic()
    topic.publish(P, 1, 10)
    assert topic.delete_here(Q, 1) is REMOVED
    assert topic.publish(P, 2, 10) is RECORD
    assert topic.delete_here(Q, 2) is REMOVED


def test_delete_names_the_highest_candidate_dead_or_alive() -> None:
    topic = Topic()
    assert topic.candidates.highest(KEY, topic.current) is None
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 5)
    assert topic.candidates.highest(KEY, topic.current) == rank(P, 1, 10)
    topic.delete_here(R, 1)
    assert topic.candidates.highest(KEY, topic.current) == rank(P, 1, 10)
    topic.forget()
    assert topic.candidates.highest(KEY, topic.current) is None


def test_delete_replaces_the_message_of_the_same_publisher() -> None:
    topic = Topic()
    topic.publish(R, 1, 10)
    topic.publish(Q, 1, 20)
    assert topic.delete(Q, 2, rank(P, 1, 5)) is RESTATED
    assert topic.record == "3|1|"


def test_delete_without_candidates_ends_only_older_messages_of_the_publisher() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    assert topic.delete(Q, 5, None) is NONE
    assert topic.publish(Q, 4, 20) is REMOVED, "it is late, ended, and above the record"
    assert topic.publish(Q, 6, 30) is RECORD
    assert topic.delete(Q, 7, None) is REMOVED, "its message keeps its rank"
    assert topic.record is None


# -- expiry -------------------------------------------------------------------------------------------


def test_expiry_ends_only_the_named_message() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(P, 2, 20)
    assert topic.expire(P, 1) is NONE
    assert topic.expire(Q, 2) is NONE
    assert topic.record == "1|2|"
    assert topic.expire(P, 2) is REMOVED
    assert topic.expire(P, 2) is NONE


def test_expired_message_keeps_the_rank_until_a_higher_one() -> None:
    topic = Topic()
    topic.publish(P, 1, 20)
    topic.expire(P, 1)
    assert topic.publish(Q, 1, 10) is NONE
    assert topic.record is None
    assert topic.publish(Q, 2, 30) is RECORD


def test_expired_message_that_lost_does_not_return() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 20)
    assert topic.expire(P, 1) is NONE
    assert topic.publish(Q, 2, 5) is REMOVED


# -- forgetting ---------------------------------------------------------------------------------------


def test_message_that_lost_stays_until_the_row_is_stable() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 20)
    topic.forget(0)
    assert KEY in topic.candidates
    assert topic.publish(Q, 2, 5) is RESTATED
    topic.forget()
    assert KEY not in topic.candidates
    assert topic.record == "1|1|"


def test_dead_record_stays_until_no_other_candidate_is_left() -> None:
    topic = Topic()
    topic.publish(P, 1, 20)
    topic.expire(P, 1)
    topic.publish(Q, 1, 10)
    topic.forget(1)
    assert topic.candidates.highest(KEY, None) == rank(P, 1, 20), "the row of Q is not stable"
    assert topic.record is None
    topic.forget()
    assert not len(topic.candidates)


def test_delete_without_candidates_stays_until_the_row_is_stable() -> None:
    topic = Topic()
    topic.delete(Q, 5, None)
    topic.forget(0)
    assert topic.publish(Q, 4, 10) is NONE
    topic.forget()
    assert not len(topic.candidates)


def test_commit_of_one_origin_leaves_no_candidates_when_stable() -> None:
    topic = Topic()
    for sequence in range(1, 6):
        topic.publish(P, sequence, 10 * sequence)
        topic.publish(Q, sequence, 10 * sequence + 1)
        topic.delete_here(R, sequence)
    topic.forget()
    assert not len(topic.candidates)
    assert KEY not in topic.candidates


@pytest.mark.parametrize("others", [1, 5])
def test_forget_drops_only_keys_with_stable_rows(others: int) -> None:
    candidates = Candidates[str]()
    for number in range(others + 1):
        current = None
        for publisher, stamp in ((P, 20), (Q, 10)):
            row = StateRow(2 * number + publisher - 1, publisher, 1, stamp, HERE)
            current = candidates.publish(b"%d" % number, row, "", current).record
    assert len(candidates) == others + 1
    candidates.forget(2)
    assert len(candidates) == others
    candidates.forget(2 * others + 2)
    assert not len(candidates)


# -- several logs -------------------------------------------------------------------------------------


def test_candidate_stays_until_position_and_stamp_are_stable() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 20)
    topic.candidates.forget(0, 100)
    assert KEY in topic.candidates, "another log may lack the row"
    topic.candidates.forget(2, 9)
    assert KEY in topic.candidates, "a row with a lower stamp may arrive"
    topic.candidates.forget(2, 10)
    assert KEY not in topic.candidates
    assert topic.record == "2|1|"


def test_candidate_that_arrives_while_others_wait_is_forgotten_later() -> None:
    topic = Topic()
    topic.publish(P, 1, 10)
    topic.publish(Q, 1, 20)
    topic.candidates.forget(2, 9)
    assert topic.publish(R, 1, 15) is NONE
    topic.candidates.forget(2, 30)
    assert topic.candidates.candidate(KEY, P, None) is not None, "one candidate of the key is not stable"
    topic.candidates.forget(3, 14)
    assert KEY in topic.candidates
    topic.candidates.forget(3, 15)
    assert KEY not in topic.candidates
    assert topic.record == "2|1|"


def test_delete_without_candidates_stays_until_the_stamp_is_stable() -> None:
    topic = Topic()
    topic.delete(P, 2, None, stamp=10)
    topic.candidates.forget(1, 9)
    assert topic.publish(P, 1, 5) is NONE
    assert topic.record is None
    topic.candidates.forget(2, 10)
    assert KEY not in topic.candidates
