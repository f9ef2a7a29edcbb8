"""Which transactions are known as committed: numbers of spaces, names of publishers, what is kept."""

from __future__ import annotations

import msgspec
import pytest

from tickertape.base.errors import LimitReached
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.transactions import records as transaction_names
from tickertape.engine.transactions import records as transaction_records
from tickertape.engine.transactions.records import (
    CommittedTransactions,
    record_batch,
)
from tickertape.journal.format.retired_state import with_records
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


def bounds(monkeypatch: pytest.MonkeyPatch, *, each: int, altogether: int, publishers: int) -> None:
    """Small ones."""
    monkeypatch.setattr(transaction_names, "transaction_names_each_max", each)
    monkeypatch.setattr(transaction_names, "transaction_names_max", altogether)
    monkeypatch.setattr(transaction_names, "transaction_publishers_max", publishers)


def known_of(known: CommittedTransactions, publisher: str, count: int) -> list[int]:
    """Which of the names n0, n1 ... of a publisher are known."""
    return [n for n in range(count) if named(f"n{n}", publisher) in known]


def test_a_fast_publisher_makes_no_name_of_another_forgotten() -> None:
    known = CommittedTransactions()
    commit(known, named("n0", "slow"))
    for n in range(20_000):
        known.take(known.record(named(f"n{n}", "fast"), 1))
    assert named("n0", "slow") in known
    assert known_of(known, "fast", 20_000) == list(range(20_000 - 16_384, 20_000))


def test_names_of_a_publisher_are_known_for_so_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, each=3, altogether=9, publishers=3)
    known = CommittedTransactions()
    bodies = [commit(known, named(f"n{n}")) for n in range(5)]
    assert known_of(known, "p", 5) == [2, 3, 4]
    assert named("n4", "q") not in known
    bodies += [commit(known, named("n0", "q")), commit(known, named("n5"))]
    matters = [msgspec.msgpack.decode(body)["latest_of"] for body in bodies]
    assert matters == ["name 0", "name 1", "name 2", "name 0", "name 1", "name 3", "name 2"]
    assert (known_of(known, "p", 6), known_of(known, "q", 6)) == ([3, 4, 5], [0])


def test_who_knows_most_gives_a_place_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, each=5, altogether=8, publishers=4)
    known = CommittedTransactions()
    for n in range(5):
        commit(known, named(f"n{n}", "a"))
    for n in range(3):
        commit(known, named(f"n{n}", "b"))
    commit(known, named("n3", "b"))
    assert (known_of(known, "a", 9), known_of(known, "b", 9)) == ([1, 2, 3, 4], [0, 1, 2, 3])
    commit(known, named("n4", "b"))
    assert (known_of(known, "a", 9), known_of(known, "b", 9)) == ([1, 2, 3, 4], [1, 2, 3, 4]), "as many"
    for n in range(100):
        commit(known, named(f"n{n}", "c"))
    assert len(known_of(known, "a", 9)) + len(known_of(known, "b", 9)) == 5
    commit(known, named("n0", "d"))
    for n in range(100):
        commit(known, named(f"m{n}", "c"))
    assert [known_of(known, name, 9)[-1] for name in "abd"] == [4, 4, 0], "an equal share is nobody else's"


def test_publishers_are_bounded_but_known_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, each=3, altogether=4, publishers=2)
    known = CommittedTransactions()
    commit(known, named("n0", "a"))
    commit(known, named("n0", "b"))
    with pytest.raises(LimitReached, match="of 2 publishers are stored, and this publisher is new"):
        known.check_room(named("n0", "c"))
    known.check_room(numbered(0, publisher="c"))
    for n in range(1, 9):
        known.check_room(named(f"n{n}", "a"))
        commit(known, named(f"n{n}", "a"))
    assert (known_of(known, "a", 9), known_of(known, "b", 9)) == ([6, 7, 8], [0])


def test_a_start_goes_on_with_the_names_that_were_known(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, each=3, altogether=5, publishers=3)
    before = CommittedTransactions()
    registry = PublisherDirectory()
    for n in range(5):
        for publisher in "pq":
            registry.apply(commit(before, named(f"n{n}", publisher)))
    registry.apply(commit(before, numbered(7)))
    after = CommittedTransactions(registry.latest.values())
    assert numbered(7) in after
    assert known_of(after, "p", 5) == known_of(before, "p", 5) == [3, 4]
    assert known_of(after, "q", 5) == known_of(before, "q", 5) == [2, 3, 4]
    for publisher in "pqr":
        assert after.record(named("n5", publisher), 1) == before.record(named("n5", publisher), 1)


def test_a_log_whose_names_shared_one_ring_is_read_and_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = PublisherDirectory()
    for n in range(7):  # of four places, as all publishers together had once
        publisher = "pq"[n % 2]
        made = {"type": "transaction", "latest_of": f"name {n % 4}", "publisher": publisher, "name": f"n{n}"}
        registry.apply(msgspec.msgpack.encode({**made, "messages": 1}))
    bounds(monkeypatch, each=3, altogether=6, publishers=2)
    known = CommittedTransactions(registry.latest.values())
    assert (known_of(known, "p", 9), known_of(known, "q", 9)) == ([4, 6], [3, 5])
    for n in (7, 8):
        commit(known, named(f"n{n}", "p"))
    assert (known_of(known, "p", 9), known_of(known, "q", 9)) == ([6, 7, 8], [3, 5])


def test_a_place_that_a_damaged_log_left_out_is_used_and_none_taken_from_anybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds(monkeypatch, each=3, altogether=4, publishers=4)
    made = CommittedTransactions()
    bodies = [commit(made, named("n0", publisher)) for publisher in "abc"]
    known = CommittedTransactions([bodies[0], bodies[2]])
    for publisher in "de":
        commit(known, named("n0", publisher))
    assert [named("n0", publisher) in known for publisher in "abcde"] == [True, False, True, True, True]


def test_two_spaces_are_two_matters_whatever_they_are_called() -> None:
    before = CommittedTransactions()
    registry = PublisherDirectory()
    pairs = [("a", "b c"), ("a b", "c"), ("a b c", "1"), ("1 a", "b"), ("1", "a b")]
    for publisher, space in pairs:
        registry.apply(commit(before, numbered(7, space, publisher)))
    after = CommittedTransactions(registry.latest.values())
    assert [numbered(7, space, publisher) in after for publisher, space in pairs] == [True] * len(pairs)


def test_retention_keeps_the_last_record_of_each_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds(monkeypatch, each=2, altogether=4, publishers=2)
    known = CommittedTransactions()
    first = [commit(known, numbered(1)), commit(known, named("a")), b"other", commit(known, named("b"))]
    second = [commit(known, numbered(2)), commit(known, numbered(3)), commit(known, named("c"))]
    kept = with_records(with_records((), first), second)
    assert kept == (b"other", first[3], second[1], second[2])
    registry = PublisherDirectory()
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
    with pytest.raises(LimitReached, match="2 transaction spaces are stored"):
        known.check_room(numbered(1, "c"))
    known.check_room(named("c"))
    commit(known, numbered(2, "a"))
    assert numbered(2, "a") in known


def test_other_records_are_passed_over() -> None:
    body = msgspec.msgpack.encode({"type": "later", "latest_of": "x", "name": 5})
    assert named("x") not in CommittedTransactions([body])
