"""Known committed transactions: numbers in spaces, names of publishers, and retained records."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tests.simulation.journal_world import drive
from tickertape.base.errors import LimitReached
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.transactions import records as transaction_names
from tickertape.engine.transactions import records as transaction_records
from tickertape.engine.transactions.records import (
    CommittedTransactions,
    record_batch,
)
from tickertape.journal.format.retired_state import ControlRecord, with_records
from tickertape.testing.disk import StrictDisk
from tickertape.wire.commands import Transaction


def named(name: str, publisher: str = "p") -> Transaction:
    return Transaction(publisher=publisher, name=name)


def numbered(number: int, space: str = "s", publisher: str = "p") -> Transaction:
    return Transaction(publisher=publisher, space=space, name=str(number))


def commit(known: CommittedTransactions, transaction: Transaction) -> bytes:
    """Mark a transaction as committed and return its log record."""
    record = known.record(transaction, 1)
    known.take(record)
    return bytes(record_batch(record).body(0))


def test_numbers_up_to_the_highest_of_a_space_count_as_committed() -> None:
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


def set_limits(monkeypatch: pytest.MonkeyPatch, *, each: int, altogether: int, publishers: int) -> None:
    """Set small limits."""
    monkeypatch.setattr(transaction_names, "transaction_names_each_max", each)
    monkeypatch.setattr(transaction_names, "transaction_names_max", altogether)
    monkeypatch.setattr(transaction_names, "transaction_publishers_max", publishers)


def known_of(known: CommittedTransactions, publisher: str, count: int) -> list[int]:
    """Return the numbers of the known names n0, n1, ... of a publisher."""
    return [n for n in range(count) if named(f"n{n}", publisher) in known]


def test_fast_publisher_does_not_evict_names_of_another_publisher() -> None:
    known = CommittedTransactions()
    commit(known, named("n0", "slow"))
    for n in range(20_000):
        known.take(known.record(named(f"n{n}", "fast"), 1))
    assert named("n0", "slow") in known
    assert known_of(known, "fast", 20_000) == list(range(20_000 - 16_384, 20_000))


def test_names_of_a_publisher_are_known_for_a_limited_number_of_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_limits(monkeypatch, each=3, altogether=9, publishers=3)
    known = CommittedTransactions()
    bodies = [commit(known, named(f"n{n}")) for n in range(5)]
    assert known_of(known, "p", 5) == [2, 3, 4]
    assert named("n4", "q") not in known
    bodies += [commit(known, named("n0", "q")), commit(known, named("n5"))]
    latest_keys = [msgspec.msgpack.decode(body)["latest_of"] for body in bodies]
    assert latest_keys == ["name 0", "name 1", "name 2", "name 0", "name 1", "name 3", "name 2"]
    assert (known_of(known, "p", 6), known_of(known, "q", 6)) == ([3, 4, 5], [0])


def test_publisher_with_most_names_yields_a_slot_when_all_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, each=5, altogether=8, publishers=4)
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
    assert [known_of(known, name, 9)[-1] for name in "abd"] == [4, 4, 0], "an equal share is never taken"


def test_new_publisher_above_the_limit_is_refused_and_known_ones_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_limits(monkeypatch, each=3, altogether=4, publishers=2)
    known = CommittedTransactions()
    commit(known, named("n0", "a"))
    commit(known, named("n0", "b"))
    with pytest.raises(LimitReached, match="names of at most 2 publishers, and this publisher is new"):
        known.check_room(named("n0", "c"))
    known.check_room(numbered(0, publisher="c"))
    for n in range(1, 9):
        known.check_room(named(f"n{n}", "a"))
        commit(known, named(f"n{n}", "a"))
    assert (known_of(known, "a", 9), known_of(known, "b", 9)) == ([6, 7, 8], [0])


def test_start_restores_the_known_transaction_names(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, each=3, altogether=5, publishers=3)
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


def test_log_with_a_shared_name_ring_of_an_earlier_version_is_read_and_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = PublisherDirectory()
    for n in range(7):  # four slots shared by all publishers, as in earlier versions
        publisher = "pq"[n % 2]
        made = {"type": "transaction", "latest_of": f"name {n % 4}", "publisher": publisher, "name": f"n{n}"}
        registry.apply(msgspec.msgpack.encode({**made, "messages": 1}))
    set_limits(monkeypatch, each=3, altogether=6, publishers=2)
    known = CommittedTransactions(registry.latest.values())
    assert (known_of(known, "p", 9), known_of(known, "q", 9)) == ([4, 6], [3, 5])
    for n in (7, 8):
        commit(known, named(f"n{n}", "p"))
    assert (known_of(known, "p", 9), known_of(known, "q", 9)) == ([6, 7, 8], [3, 5])


def test_slot_missing_in_a_damaged_log_is_used_before_any_eviction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_limits(monkeypatch, each=3, altogether=4, publishers=4)
    made = CommittedTransactions()
    bodies = [commit(made, named("n0", publisher)) for publisher in "abc"]
    known = CommittedTransactions([bodies[0], bodies[2]])
    for publisher in "de":
        commit(known, named("n0", publisher))
    assert [named("n0", publisher) in known for publisher in "abcde"] == [True, False, True, True, True]


def test_spaces_with_similar_names_have_separate_records() -> None:
    before = CommittedTransactions()
    registry = PublisherDirectory()
    pairs = [("a", "b c"), ("a b", "c"), ("a b c", "1"), ("1 a", "b"), ("1", "a b")]
    for publisher, space in pairs:
        registry.apply(commit(before, numbered(7, space, publisher)))
    after = CommittedTransactions(registry.latest.values())
    assert [numbered(7, space, publisher) in after for publisher, space in pairs] == [True] * len(pairs)


def test_retention_keeps_the_last_record_of_each_space_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, each=2, altogether=4, publishers=2)
    known = CommittedTransactions()
    first = [commit(known, numbered(1)), commit(known, named("a")), b"other", commit(known, named("b"))]
    second = [commit(known, numbered(2)), commit(known, numbered(3)), commit(known, named("c"))]
    kept: tuple[ControlRecord, ...] = ()
    for bodies in (first, second):
        kept = drive(StrictDisk(Random(1)), with_records(kept, [*bodies]))
    assert kept == (b"other", first[3], second[1], second[2])
    registry = PublisherDirectory()
    for body in kept:
        if body != b"other":
            assert isinstance(body, bytes)
            registry.apply(body)
    after = CommittedTransactions(registry.latest.values())
    assert numbered(3) in after
    assert [named(name) in after for name in "abc"] == [False, True, True]


def test_new_space_above_the_limit_is_refused_and_known_ones_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_records, "transaction_spaces_max", 2)
    known = CommittedTransactions()
    commit(known, numbered(1, "a"))
    commit(known, numbered(1, "b"))
    with pytest.raises(LimitReached, match="at most 2 values of `space`"):
        known.check_room(numbered(1, "c"))
    known.check_room(named("c"))
    commit(known, numbered(2, "a"))
    assert numbered(2, "a") in known


def test_committed_transactions_skips_unknown_record_types() -> None:
    body = msgspec.msgpack.encode({"type": "later", "latest_of": "x", "name": 5})
    assert named("x") not in CommittedTransactions([body])


def test_transaction_record_of_another_log_commits_nothing() -> None:
    registry = PublisherDirectory()
    for transaction in (named("n1"), numbered(7)):
        record = msgspec.msgpack.decode(commit(CommittedTransactions(), transaction))
        registry.apply(msgspec.msgpack.encode(record | {"log": bytes(16)}))
    known = CommittedTransactions(registry.latest.values())
    assert named("n1") not in known
    assert numbered(7) not in known
