"""Which transactions are known as committed: numbers of spaces, names in a ring, and what retention keeps."""

from __future__ import annotations

import msgspec
import pytest

from tickertape.base.errors import BadOption, LimitReached
from tickertape.engine import transaction_records
from tickertape.engine.registry import Registry
from tickertape.engine.transaction_records import (
    CommittedTransactions,
    check_transaction,
    record_batch,
)
from tickertape.journal.retired import with_records
from tickertape.wire.commands import Transaction


def named(name: str, publisher: str = "p") -> Transaction:
    return Transaction(publisher=publisher, name=name)


def numbered(number: int, space: str = "s", publisher: str = "p") -> Transaction:
    return Transaction(publisher=publisher, space=space, name=str(number))


def commit(known: CommittedTransactions, transaction: Transaction) -> bytes:
    """Take it in as committed; its record as it stands in the log."""
    record = known.record(transaction, 1)
    known.take(record)
    return bytes(record_batch(record).body(0))


def test_numbers_at_or_below_the_highest_of_their_space_were_committed() -> None:
    known = CommittedTransactions()
    assert numbered(0) not in known
    commit(known, numbered(5))
    assert all(numbered(n) in known for n in (0, 4, 5))
    assert numbered(6) not in known
    assert numbered(5, "other") not in known
    assert numbered(5, publisher="q") not in known
    assert named("5") not in known
    commit(known, numbered(3))
    assert numbered(5) in known


def test_names_are_known_for_so_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_records, "transaction_names_max", 3)
    known = CommittedTransactions()
    bodies = [commit(known, named(f"n{n}")) for n in range(5)]
    assert [named(f"n{n}") in known for n in range(5)] == [False, False, True, True, True]
    assert named("n4", "q") not in known
    matters = [msgspec.msgpack.decode(body)["latest_of"] for body in bodies]
    assert matters == ["name 0", "name 1", "name 2", "name 0", "name 1"]


def test_a_start_goes_on_where_the_ring_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_records, "transaction_names_max", 3)
    before = CommittedTransactions()
    registry = Registry()
    for n in range(5):
        registry.apply(commit(before, named(f"n{n}")))
    registry.apply(commit(before, numbered(7)))
    after = CommittedTransactions(registry.latest.values())
    assert numbered(7) in after
    assert [named(f"n{n}") in after for n in range(5)] == [False, False, True, True, True]
    commit(after, named("n5"))
    assert [named(f"n{n}") in after for n in range(6)] == [False, False, False, True, True, True]


def test_two_spaces_are_two_matters_whatever_they_are_called() -> None:
    before = CommittedTransactions()
    registry = Registry()
    pairs = [("a", "b c"), ("a b", "c"), ("a b c", "1"), ("1 a", "b"), ("1", "a b")]
    for publisher, space in pairs:
        registry.apply(commit(before, numbered(7, space, publisher)))
    after = CommittedTransactions(registry.latest.values())
    assert [numbered(7, space, publisher) in after for publisher, space in pairs] == [True] * len(pairs)


def test_retention_keeps_the_last_record_of_each_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_records, "transaction_names_max", 2)
    known = CommittedTransactions()
    first = [commit(known, numbered(1)), commit(known, named("a")), b"other", commit(known, named("b"))]
    second = [commit(known, numbered(2)), commit(known, numbered(3)), commit(known, named("c"))]
    kept = with_records(with_records((), first), second)
    assert kept == (b"other", first[3], second[1], second[2])
    registry = Registry()
    for body in kept:
        if body != b"other":
            registry.apply(body)
    after = CommittedTransactions(registry.latest.values())
    assert numbered(3) in after
    assert [named(name) in after for name in "abc"] == [False, True, True]


def test_spaces_are_bounded_but_known_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_records, "transaction_spaces_max", 2)
    known = CommittedTransactions()
    commit(known, numbered(1, "a"))
    commit(known, numbered(1, "b"))
    with pytest.raises(LimitReached, match="2 spaces of transactions are known"):
        known.check_space(numbered(1, "c"))
    known.check_space(named("c"))
    commit(known, numbered(2, "a"))
    assert numbered(2, "a") in known


def test_other_records_are_passed_over() -> None:
    body = msgspec.msgpack.encode({"type": "later", "latest_of": "x", "name": 5})
    assert named("x") not in CommittedTransactions([body])


@pytest.mark.parametrize(
    ("transaction", "what"),
    [
        (named(""), "without a name"),
        (named("ä" * 128), "the name of a transaction has at most 255 bytes"),
        (Transaction(publisher="p", space="ä" * 128, name="1"), "the space of a transaction has at most"),
        *[
            (Transaction(publisher="p", space="s", name=name), "are named by numbers")
            for name in ("x", "-1", "1.0", "+1", " 1", "²", "1" * 19)
        ],
    ],
)
def test_texts_that_name_no_transaction(transaction: Transaction, what: str) -> None:
    with pytest.raises(BadOption, match=what):
        check_transaction(transaction)


@pytest.mark.parametrize("name", ["0", "007", "9" * 18])
def test_numbers_of_a_space(name: str) -> None:
    check_transaction(Transaction(publisher="p", space="s", name=name))
