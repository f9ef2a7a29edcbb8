"""Tests of the oracle of the state: each part of the rule by a small set of messages, and queries."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.helpers.sow_model import (
    Deleted,
    Expired,
    Message,
    Published,
    RankTuple,
    query,
    record,
    state,
    state_at,
)

P, Q, R = 1, 2, 3
LOG, OTHER = b"a", b"b"


def put(publisher: int, sequence: int, stamp: int, log: bytes = LOG, **body: float | str) -> Published:
    return Published(b"k", publisher, sequence, stamp, log, body)


def delete(publisher: int, sequence: int, named: RankTuple | None, stamp: int = 100) -> Deleted:
    return Deleted(publisher, sequence, stamp, LOG, {b"k": named})


P5, Q7, R9 = put(P, 1, 5), put(Q, 1, 7), put(R, 1, 9)

CASES: dict[str, tuple[list[Message], Message | None]] = {
    "highest rank": ([P5, Q7], Q7),
    "highest sequence of a publisher": ([P5, put(P, 2, 3), Q7], Q7),
    "newer message of lower rank": ([P5, Q7, put(Q, 2, 3)], P5),
    "delete of the record": ([P5, delete(Q, 1, P5.rank)], None),
    "delete and unseen update": ([P5, R9, delete(Q, 1, P5.rank)], R9),
    "repeated delete, counterexample of ADR 44": ([P5, delete(Q, 1, P5.rank), delete(Q, 2, None)], None),
    "delete without candidates ends its publisher": ([P5, Q7, delete(Q, 2, None)], None),
    "delete without candidates and other publisher": ([P5, delete(Q, 2, None)], P5),
    "expired record": ([P5, Q7, Expired(b"k", Q, 1)], None),
    "expired message that lost": ([P5, Q7, Expired(b"k", P, 1)], Q7),
    "expired message that was replaced": ([P5, R9, put(R, 2, 4), Expired(b"k", R, 1)], P5),
    "lower copy": ([Q7, R9, put(R, 1, 6, OTHER)], Q7),
    "other key": ([P5, Deleted(Q, 1, 100, LOG, {b"other": P5.rank})], P5),
}


@pytest.mark.parametrize("name", CASES)
def test_oracle_is_a_function_of_the_set(name: str) -> None:
    messages, expected = CASES[name]
    for order in permutations(messages):
        assert record(b"k", order) == expected
        assert state(order) == ({b"k": expected} if expected is not None else {})


def test_oracle_at_a_position_has_the_messages_below() -> None:
    log: list[Message] = [P5, Q7, delete(R, 1, Q7.rank)]
    assert [state_at(log, position) for position in range(4)] == [{}, {b"k": P5}, {b"k": Q7}, {}]


def test_oracle_query_filters_sorts_and_cuts() -> None:
    bodies: list[dict[str, float | str]] = [{"a": "x"}, {"a": 2.0}, {}, {"a": 1.0}, {"a": 2.0, "b": 1.0}]
    records = {b"%d" % n: Published(b"%d" % n, n + 1, 1, n, LOG, body) for n, body in enumerate(bodies)}

    def keys(found: list[Published]) -> str:
        return "".join(message.key.decode() for message in found)

    assert keys(query(records)) == "01234"
    assert keys(query(records, order_by=[("a", False)])) == "23140"
    assert keys(query(records, order_by=[("a", True)])) == "01432"
    assert keys(query(records, order_by=[("a", False), ("b", True)])) == "23410"
    assert keys(query(records, lambda body: "a" in body, top_n=2, skip_n=1)) == "13"
    assert query(records, top_n=0) == []
    assert query(records, top_n=3, skip_n=9) == []
