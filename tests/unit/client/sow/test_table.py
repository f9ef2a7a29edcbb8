"""Table state: results replace all records at once, and changed keys are reported once."""

from __future__ import annotations

import pytest

from tests.helpers.table_batches import group, key, messages, records
from tickertape.base.errors import BadTopic, Disconnected, LimitReached
from tickertape.client.sow.table import TableKey, TableState


def content(state: TableState) -> dict[TableKey, int]:
    return {found: message.json()["n"] for found, message in state.by_key.items()}


def filled(*rows: tuple[int, int], max_records: int = 100, topic: str = "t") -> TableState:
    """A table after its first result, without changed keys."""
    state = TableState(topic, max_records)
    state.begin(restarted=False)
    if rows:
        state.take(records(rows))
    state.end("7|1|", len(rows))
    state.take_changed()
    return state


@pytest.mark.behaviour(55)
def test_first_result_appears_when_complete() -> None:
    state = TableState("t", 100)
    assert (state.complete, state.as_of) == (False, None)
    state.begin(restarted=False)
    state.take(records([(1, 4), (2, 9)]))
    assert (state.by_key, state.complete, state.is_changed) == ({}, False, False)
    state.end("7|9|", 2)
    assert content(state) == {key(1): 4, key(2): 9}
    assert (state.complete, state.as_of, state.restarts) == (True, "7|9|", 0)
    assert state.take_changed() == {key(1), key(2)}
    assert state.take_changed() == set()


def test_messages_add_and_replace_records() -> None:
    state = filled((1, 1), (2, 2))
    state.take(messages([(2, 3), (3, 4)]))
    assert content(state) == {key(1): 1, key(2): 3, key(3): 4}
    assert state.take_changed() == {key(2), key(3)}


def test_later_message_of_a_batch_wins() -> None:
    state = filled((1, 1))
    state.take(messages([(1, 2), (2, 3), (1, 4)]))
    assert content(state) == {key(1): 4, key(2): 3}


@pytest.mark.behaviour(55)
def test_restart_keeps_the_records_until_the_result_is_complete() -> None:
    state = filled((1, 1), (2, 2), (3, 3))
    state.begin(restarted=True)
    state.take(records([(1, 1), (2, 5)]))
    assert content(state) == {key(1): 1, key(2): 2, key(3): 3}
    assert (state.complete, state.is_changed, state.as_of) == (False, False, "7|1|")
    state.end("7|5|", 2)
    assert content(state) == {key(1): 1, key(2): 5}
    assert state.take_changed() == {key(2), key(3)}
    assert (state.restarts, state.results, state.as_of) == (1, 2, "7|5|")


def test_interrupted_result_has_no_effect() -> None:
    state = filled((1, 1))
    state.begin(restarted=True)
    state.take(records([(8, 5)]))
    state.begin(restarted=True)
    state.take(records([(2, 6)]))
    state.end("7|6|", 1)
    assert content(state) == {key(2): 6}
    assert state.take_changed() == {key(1), key(2)}


def test_end_without_records_after_an_interrupted_result_empties_the_table() -> None:
    state = filled((1, 1))
    state.begin(restarted=True)
    state.take(records([(8, 5)]))
    state.end("7|6|", 0)
    assert content(state) == {}
    assert state.take_changed() == {key(1)}


@pytest.mark.behaviour(56)
def test_record_added_and_removed_between_two_calls_is_not_reported() -> None:
    state = filled((1, 1))
    state.take(messages([(2, 2)]))
    state.begin(restarted=False)
    state.take(records([(1, 1)]))
    state.end("7|9|", 1)
    assert not state.is_changed
    assert state.take_changed() == set()


def test_same_sequence_with_another_body_is_a_change() -> None:
    state = filled((1, 1))
    state.begin(restarted=True)
    state.take(records([(1, 1)]))
    changed = messages([(1, 1)], padding=1, command="sow")
    state.take(changed)
    state.end("7|9|", 1)
    assert state.take_changed() == {key(1)}


def test_group_markers_are_not_records() -> None:
    state = filled()
    for command in ("group_begin", "group_end"):
        state.take(messages([(1, 2)], command=command))
    assert content(state) == {}


def test_message_without_a_key_is_ignored() -> None:
    state = filled()
    state.take(messages([(1, 2)], keys=group(key=("/id/x[",))))
    assert content(state) == {}


@pytest.mark.parametrize("in_result", [False, True])
def test_records_beyond_the_limit_are_refused_before_the_table_grows(in_result: bool) -> None:
    state = filled((1, 1), max_records=2)
    if in_result:
        state.begin(restarted=True)
        state.take(records([(1, 1)]))
    state.take(messages([(2, 2), (2, 3)]))
    with pytest.raises(LimitReached, match=r"more than max_records \(2\)\. Pass a filter, or a larger"):
        state.take(messages([(2, 4), (3, 5)]))
    if in_result:
        state.end("7|9|", 1)
    assert content(state) == {key(1): 1, key(2): 3}


def test_pattern_has_the_topic_in_the_key() -> None:
    state = TableState("^t", 100)
    state.begin(restarted=False)
    state.take(records([(1, 1)], topic="t1"))
    state.take(records([(1, 2)], topic="t2"))
    state.end("7|9|", 1)
    assert content(state) == {("t1", key(1)): 1, ("t2", key(1)): 2}


def test_explicit_keys_of_several_topics_need_a_pattern() -> None:
    keys = group(topic="all", pattern="^t", explicit=True)
    state = TableState("all", 100)
    state.begin(restarted=False)
    with pytest.raises(BadTopic, match=r"unique only within each topic\. Pass the pattern '\^all\$'"):
        state.take(records([(1, 1)], topic="t1", keys=keys))
    for topic in ("t1", "^t"):
        state = TableState(topic, 100)
        state.begin(restarted=False)
        state.take(records([(1, 1)], topic="t1", keys=keys))
    generated = group(topic="all", pattern="^t")
    state = TableState("all", 100)
    state.begin(restarted=False)
    state.take(records([(1, 1)], topic="t1", keys=generated))
    state.take(records([(1, 2)], topic="t2", keys=generated))
    state.end("7|9|", 1)
    assert len(state.by_key) == 2


def test_only_the_first_end_counts() -> None:
    error, second = Disconnected("first"), Disconnected("second")
    state = filled((1, 1))
    state.fail(error)
    state.fail(second)
    assert (state.error, state.over, state.closed) == (error, True, False)
    state = filled((1, 1))
    state.close()
    state.fail(error)
    assert (state.error, state.over, state.closed) == (None, True, True)
    assert content(state) == {key(1): 1}


def test_batch_is_replaced_when_half_of_the_messages_are_not_records() -> None:
    state = filled(*[(number, 3 * number) for number in range(10)])
    (whole,) = {message.batch for message in state.by_key.values()}
    for number in range(5):
        state.take(messages([(number, 30 + number)]))
    assert state.by_key[key(7)].batch is whole
    state.take(messages([(5, 35)]))
    kept = [state.by_key[key(number)] for number in range(6, 10)]
    (rest,) = {message.batch for message in kept}
    assert rest is not whole
    assert rest.count == 4
    assert [(message.json()["id"], message.sequence, message.bookmark) for message in kept] == [
        (number, 3 * number, f"7|{3 * number}|") for number in range(6, 10)
    ]
    assert [message.sow_key for message in kept] == [key(number) for number in range(6, 10)]
    assert state.kept_batches == 7
    assert state.take_changed() == {key(number) for number in range(6)}


def test_batch_is_replaced_when_half_of_the_bodies_are_not_records() -> None:
    state = filled()
    whole = messages([(1, 3), (2, 4), (3, 5)])  # the third body has more than half of the bytes
    state.take(whole)
    state.take(messages([(1, 6)]))
    assert state.by_key[key(2)].batch is whole
    state = filled()
    state.take(whole)
    state.take(messages([(3, 6)]))
    (rest,) = {state.by_key[key(number)].batch for number in (1, 2)}
    assert rest is not whole
    assert [message.sequence for message in state.by_key.values()] == [3, 4, 6]


def test_replaced_batch_does_not_reference_the_bodies_of_the_whole_batch() -> None:
    state = filled(*[(number, number) for number in range(100)])
    for number in range(60):
        state.take(messages([(number, 100 + number)]))
    rest = state.by_key[key(99)].batch
    assert rest.bodies.obj is not None
    assert memoryview(rest.bodies.obj).nbytes < 2 * rest.nbytes
