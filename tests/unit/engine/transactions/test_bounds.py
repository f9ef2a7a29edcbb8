"""Limits of transactions: waiting commits, known spaces and publishers."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.transactions.test_coordinator import T1, Sink, bodies_of, numbered, sink, world
from tickertape.engine.transactions import coordinator as transactions_module
from tickertape.engine.transactions import records as transaction_names_module
from tickertape.engine.transactions import records as transaction_records_module
from tickertape.wire.commands import Ack, Commit, Committed, Transaction

__all__ = ["sink", "world"]


def test_number_of_waiting_commits_is_bounded(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "commits_waiting_max", 3)
    sink.prepared(b"1")
    numbers = [sink.say(Commit, transaction=T1, parts=("0",)) for _ in range(4)]
    assert isinstance(refused := sink.peer.answers.pop(numbers[3]), Ack)
    assert refused.code == "limit_reached"
    world.settle()
    assert all(isinstance(sink.peer.answers[number], Committed) for number in numbers[:3])
    assert isinstance(sink.commit("0"), Committed), "capacity is available"


def test_one_connection_cannot_use_all_waiting_commits(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "commits_waiting_each_max", 2, raising=False)
    monkeypatch.setattr(transactions_module, "commits_waiting_max", 3)
    other, third = Sink(world, "other"), Sink(world, "third")
    names = [Transaction(publisher="sink", name=str(n)) for n in range(4)]
    # The last one of `sink` is one more of the first transaction, which counts too.
    numbers = [sink.say(Commit, transaction=names[n], parts=()) for n in (0, 1, 0)]
    assert isinstance(refused := sink.peer.answers[numbers[2]], Ack)
    assert refused.code == "limit_reached"
    theirs = other.say(Commit, transaction=names[2], parts=())
    assert third.code(Commit, transaction=names[3], parts=()) == "limit_reached", "all together"
    assert isinstance(other.peer.answers[theirs], Committed)
    assert all(isinstance(sink.peer.answers[number], Committed) for number in numbers[:2])
    for name in names:
        assert isinstance(sink.commit(transaction=name), Committed), "capacity is available"
    assert world.broker.transactions._asked == {}


def test_new_space_above_the_limit_is_refused_and_known_spaces_continue(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_records_module, "transaction_spaces_max", 1)
    sink.prepared(b"1", transaction=numbered(1))
    assert isinstance(sink.commit("0", transaction=numbered(1)), Committed)
    other = Transaction(publisher="sink", space="other", name="1")
    sink.prepared(b"x", transaction=other)
    assert sink.code(Commit, transaction=other, parts=("0",)) == "limit_reached"
    assert sink.code(Commit, transaction=other, parts=()) == "limit_reached", "without files to open, too"
    sink.prepared(b"2", transaction=numbered(2))
    assert isinstance(sink.commit("0", transaction=numbered(2)), Committed)
    assert bodies_of(world) == [b"1", b"2"]


def test_new_publisher_above_the_limit_is_refused_and_known_publishers_continue(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_names_module, "transaction_publishers_max", 1)
    sink.prepared(b"1")
    assert isinstance(sink.commit("0"), Committed)
    other = Sink(world, "other")
    theirs = Transaction(publisher="other", name="t1")
    assert other.code(Commit, transaction=theirs, parts=()) == "limit_reached"
    assert isinstance(sink.commit(transaction=Transaction(publisher="sink", name="t2")), Committed)
    assert sink.commit("0") == Committed(id=sink.peer.ids, repeated=True)
    assert bodies_of(world) == [b"1"]


def test_thousands_of_waiting_commits_are_refused_when_the_server_stops(
    world: EngineWorld, sink: Sink
) -> None:
    sinks = [sink, Sink(world, "second"), Sink(world, "third")]
    numbers = [
        (one, one.say(Commit, transaction=Transaction(publisher="sink", name=f"{at} {n}"), parts=()))
        for at, one in enumerate(sinks)
        for n in range(1_000)
    ]
    world.broker.close(world.now())
    world.collect()
    world.settle()
    answers = [one.peer.answers[number] for one, number in numbers]
    assert isinstance(answers[0], Committed)
    last = answers[-1]
    assert isinstance(last, Ack)
    assert last.code == "not_ready"
    assert world.broker.transactions.waiting == 0
    assert world.broker.journal.commits.closed
