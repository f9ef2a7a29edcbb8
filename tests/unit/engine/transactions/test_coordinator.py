"""Transaction coordinator: refusals, waiting order, and visibility."""

from __future__ import annotations

import errno

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.limits import transaction_name_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.transactions import staging_area as staging_module
from tickertape.journal.format.staging_file import StageOpen, StagePrepare, StageWrite
from tickertape.wire.commands import (
    Abort,
    Ack,
    Command,
    Commit,
    Committed,
    Prepare,
    Stage,
    Staged,
    Transaction,
)
from tickertape.wire.settlement import QUEUE_TOPIC

T1 = Transaction(publisher="sink", name="t1")


class Sink:
    """A connection that commits transactions."""

    def __init__(self, world: EngineWorld, name: str = "sink") -> None:
        self.world = world
        self.peer: Peer = world.connect(name)

    def say(self, kind: type[Command], batch: MessageBatch | None = None, **fields: object) -> int:
        """Send a command and return its id."""
        self.peer.ids += 1
        self.peer.send(kind(id=self.peer.ids, **fields), batch)
        return self.peer.ids

    def ask(self, kind: type[Command], batch: MessageBatch | None = None, **fields: object) -> Command:
        """Send a command, do all work, and return the answer."""
        number = self.say(kind, batch, **fields)
        self.world.settle()
        return self.peer.answers.pop(number)

    def code(self, kind: type[Command], batch: MessageBatch | None = None, **fields: object) -> str:
        """Return the code of a refusal, or an empty text."""
        answer = self.ask(kind, batch, **fields)
        return answer.code if isinstance(answer, Ack) else ""

    def stage(self, *bodies: bytes, transaction: Transaction = T1, part: str = "0", topic: str = "a") -> str:
        return self.code(Stage, frame(topic, *bodies), transaction=transaction, part=part)

    def prepared(self, *bodies: bytes, transaction: Transaction = T1, part: str = "0") -> None:
        """Stage and prepare a part."""
        assert self.stage(*bodies, transaction=transaction, part=part) == ""
        answer = self.ask(Prepare, transaction=transaction, part=part)
        assert isinstance(answer, Staged)
        assert answer.messages == len(bodies)

    def commit(self, *parts: str, transaction: Transaction = T1) -> Command:
        return self.ask(Commit, transaction=transaction, parts=parts)


def frame(topic: str, *bodies: bytes) -> MessageBatch:
    return MessageBatch.parse(batch_from_bodies(topic, list(bodies)).encode())


def bodies_of(world: EngineWorld) -> list[bytes]:
    return [heard.body for heard in world.log()]


def numbered(number: int) -> Transaction:
    return Transaction(publisher="sink", space="q", name=str(number))


@pytest.fixture
def world() -> EngineWorld:
    return EngineWorld(1, recorded=frozenset({"a", "b", "v"}), validated={"v": "json"})


@pytest.fixture
def sink(world: EngineWorld) -> Sink:
    return Sink(world)


def test_parts_are_committed_in_the_given_order(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1", b"2", part="x")
    sink.prepared(b"3", part="y")
    sink.prepared(b"left out", part="z")
    answer = sink.commit("y", "x")
    assert isinstance(answer, Committed)
    assert (answer.messages, answer.repeated) == (3, False)
    assert bodies_of(world) == [b"3", b"1", b"2"]
    last = world.log()[-1]
    assert (answer.publisher, answer.sequence) == (last.publisher, last.sequence)
    assert world.broker.transactions.staging.count == world.broker.transactions.staging.bytes == 0
    assert sink.commit("y", "x") == Committed(id=sink.peer.ids, repeated=True)
    counts = world.broker.transactions
    assert (counts.committed, counts.repeated, counts.waiting) == (1, 1, 0)


def test_an_empty_transaction_is_committed_once_too(world: EngineWorld, sink: Sink) -> None:
    assert sink.commit() == Committed(id=sink.peer.ids)
    assert sink.commit() == Committed(id=sink.peer.ids, repeated=True)
    assert bodies_of(world) == []


def test_empty_commit_with_a_high_number_does_not_exhaust_a_space(world: EngineWorld, sink: Sink) -> None:
    end = 10**18 - 1
    assert sink.code(Commit, transaction=numbered(end), parts=()) == "bad_option"
    assert sink.code(Commit, transaction=numbered(10**17), parts=()) == "bad_option"
    sink.prepared(b"7", transaction=numbered(7))
    assert sink.commit("0", transaction=numbered(7)) != Committed(id=sink.peer.ids, repeated=True)
    assert sink.commit(transaction=numbered(10**17 - 1)) == Committed(id=sink.peer.ids)
    sink.prepared(b"end", transaction=numbered(end))
    assert isinstance(sink.commit("0", transaction=numbered(end)), Committed), "with parts"
    assert sink.commit(transaction=numbered(end)) == Committed(id=sink.peer.ids, repeated=True, highest=end)
    assert bodies_of(world) == [b"7", b"end"]


# -- refusals ----------------------------------------------------------------------------------------


def test_unstaged_or_unprepared_part_is_unknown(world: EngineWorld, sink: Sink) -> None:
    other = Sink(world, "other")
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "transaction_unknown"
    assert sink.code(Prepare, transaction=T1, part="0") == "transaction_unknown"
    assert sink.stage(b"1") == ""
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "transaction_unknown"
    assert other.code(Prepare, transaction=T1, part="0") == "transaction_unknown"
    assert isinstance(sink.ask(Prepare, transaction=T1, part="0"), Staged)
    assert sink.code(Prepare, transaction=T1, part="0") == "transaction_unknown"
    assert sink.code(Commit, transaction=T1, parts=("0", "1")) == "transaction_unknown"
    assert isinstance(other.commit("0"), Committed), "any client may commit"
    assert bodies_of(world) == [b"1"]


def test_aborted_transaction_is_unknown(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    assert sink.ask(Abort, transaction=T1) == Ack(id=sink.peer.ids)
    assert sink.ask(Abort, transaction=T1) == Ack(id=sink.peer.ids)
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "transaction_unknown"
    assert world.broker.transactions.aborted == 1
    assert bodies_of(world) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transaction": Transaction(publisher="sink", name="")}, "bad_option"),
        ({"transaction": Transaction(publisher="sink", name="x" * 256)}, "bad_option"),
        ({"transaction": Transaction(publisher="sink", space="s" * 256, name="1")}, "bad_option"),
        ({"transaction": Transaction(publisher="sink", space="s", name="one")}, "bad_option"),
        ({"transaction": Transaction(publisher="", name="x")}, "bad_name"),
        ({"transaction": Transaction(publisher="x" * 257, name="x")}, "bad_name"),
        ({"part": "x" * 256}, "bad_option"),
        ({"topic": "unrecorded"}, "bad_topic"),
        ({"topic": "^a"}, "bad_topic"),
        ({"topic": QUEUE_TOPIC}, "bad_topic"),
        ({"topic": "$control"}, "bad_topic"),
        ({"topic": "v", "body": b"no json"}, "bad_body"),
    ],
)
def test_invalid_stage_is_refused_and_the_connection_continues(
    world: EngineWorld, sink: Sink, fields: dict[str, object], code: str
) -> None:
    topic, body = str(fields.pop("topic", "a")), fields.pop("body", b"{}")
    assert isinstance(body, bytes)
    said: dict[str, object] = {"transaction": T1, "part": "0", **fields}
    assert sink.code(Stage, frame(topic, body), **said) == code
    assert world.broker.transactions.staging.count == 0
    sink.prepared(b"1")
    assert isinstance(sink.commit("0"), Committed), "the connection continues"


@pytest.mark.parametrize("parts", [("0", "0"), tuple(map(str, range(1025)))], ids=["duplicate", "too many"])
def test_commit_with_duplicate_or_too_many_parts_is_refused(sink: Sink, parts: tuple[str, ...]) -> None:
    assert sink.code(Commit, transaction=T1, parts=parts) == "bad_option"


def test_a_stage_without_a_batch_is_refused(sink: Sink) -> None:
    assert sink.code(Stage, transaction=T1, part="0") == "bad_option"


def test_long_part_name_is_shown_with_the_size(sink: Sink) -> None:
    answer = sink.ask(Stage, frame("a", b"1"), transaction=T1, part="x" * 256)
    assert isinstance(answer, Ack)
    assert answer.text == (
        f"Invalid part name '{'x' * 77}...': it has 256 bytes. "
        f"Use at most {transaction_name_bytes_max} bytes."
    )


def test_error_of_a_damaged_part_has_single_full_stops(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    number = sink.say(Commit, transaction=T1, parts=("0",))
    (job,) = [job for job in world.staging_jobs if isinstance(job.task, StageOpen)]
    world.staging_jobs.remove(job)
    world.broker.staging_done(job.token, [memoryview(b"damaged")], world.now())
    world.collect()
    world.settle()
    answer = sink.peer.answers.pop(number)
    assert isinstance(answer, Ack)
    assert answer.text.startswith("Cannot read part '0' of transaction 't1' of 'sink': ")
    assert answer.text.endswith(". Stage it again.")
    assert ".." not in answer.text


def sequenced() -> MessageBatch:
    builder = BatchBuilder()
    for sequence in (5, 9):
        builder.add("a", b"1", sequence=sequence)
    return MessageBatch.parse(builder.build(publisher=7).encode())


def with_kinds() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("a", b"1", kind=1)
    return MessageBatch.parse(builder.build().encode())


@pytest.mark.parametrize("batch", [sequenced(), with_kinds()], ids=["sequences", "kinds"])
def test_stage_with_an_invalid_batch_ends_the_connection(sink: Sink, batch: MessageBatch) -> None:
    sink.peer.send(Stage(id=1, transaction=T1, part="0"), batch)
    assert sink.peer.goodbye is not None
    assert sink.peer.goodbye.code == "bad_batch"


def test_staged_bytes_and_parts_are_bounded(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = world.broker.transactions.staging
    staging.limits.transaction_bytes, staging.limits.disk_bytes = 4_000, 6_000
    assert sink.stage(bytes(3_000)) == ""
    assert sink.stage(bytes(1_000)) == "transaction_too_large"
    assert sink.stage(bytes(1_000), part="1") == "transaction_too_large"
    second = Transaction(publisher="sink", name="t2")
    assert sink.stage(bytes(3_000), transaction=second) == "staging_full"
    assert sink.stage(bytes(2_000), transaction=second) == ""
    monkeypatch.setattr(staging_module, "staged_parts_max", 2)
    assert sink.stage(b"", transaction=second, part="1") == "limit_reached"
    assert sink.stage(b"", transaction=second) == "", "more of an existing part"
    assert sink.ask(Abort, transaction=T1) == Ack(id=sink.peer.ids)
    assert sink.stage(b"", transaction=second, part="1") == ""


def test_stage_with_a_publisher_id_collision_is_refused(world: EngineWorld, sink: Sink) -> None:
    derived = "sink"
    registry = world.broker._sessions._publishers
    registry.collides = lambda *_, **__: True  # type: ignore[method-assign]
    assert sink.stage(b"1", transaction=Transaction(publisher=derived, name="x")) == "publisher_collision"


# -- meanwhile ----------------------------------------------------------------------------------------


def test_transaction_in_commit_refuses_changes_as_busy(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    first = sink.say(Commit, transaction=T1, parts=("0",))
    codes = {}
    for kind, batch, fields in (
        (Stage, frame("a", b"2"), {"part": "0"}),
        (Prepare, None, {"part": "0"}),
        (Abort, None, {}),
        (Commit, None, {"parts": ()}),
    ):
        number = sink.say(kind, batch, transaction=T1, **fields)
        answer = sink.peer.answers[number]
        assert isinstance(answer, Ack)
        codes[kind.__name__] = answer.code
    assert set(codes.values()) == {"transaction_busy"}
    again = sink.say(Commit, transaction=T1, parts=("0",))
    assert world.broker.transactions.waiting == 1
    world.settle()
    answers = [sink.peer.answers[number] for number in (first, again)]
    assert [type(answer) for answer in answers] == [Committed, Committed]
    assert bodies_of(world) == [b"1"]


def test_repeated_commit_is_not_answered_before_the_record_is_durable(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    first = sink.say(Commit, transaction=T1, parts=("0",))
    while world.staging_jobs:
        world.run_staging()
    assert world.jobs, "its messages and its record are on their way to the disk"
    again = sink.say(Commit, transaction=T1, parts=("0",))
    assert not {first, again} & set(sink.peer.answers)
    world.settle()
    assert [type(sink.peer.answers[number]) for number in (first, again)] == [Committed, Committed]
    assert bodies_of(world) == [b"1"]


def test_waiting_lower_number_counts_as_committed_after_a_higher_one(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"5", transaction=numbered(5))
    sink.prepared(b"4", transaction=numbered(4))
    high = sink.say(Commit, transaction=numbered(5), parts=("0",))
    low = sink.say(Commit, transaction=numbered(4), parts=("0",))
    world.settle()
    assert isinstance(sink.peer.answers[high], Committed)
    assert sink.peer.answers[low] == Committed(id=low, repeated=True, highest=5)
    assert bodies_of(world) == [b"5"]
    world.disk = world.disk.kill_clone()
    world.open()
    later = Sink(world, "next")
    assert later.commit(transaction=numbered(5)) == Committed(id=1, repeated=True, highest=5)
    assert later.commit(transaction=numbered(3)) == Committed(id=2, repeated=True, highest=5)


def test_stage_is_answered_when_another_client_aborts_the_part(world: EngineWorld, sink: Sink) -> None:
    other = Sink(world, "other")
    number = sink.say(Stage, frame("a", b"1"), transaction=T1, part="0")
    other.say(Abort, transaction=T1)
    world.settle()
    answer = sink.peer.answers[number]
    assert isinstance(answer, Ack)
    assert answer.code == "transaction_unknown"


def test_part_staged_by_another_client_replaces_the_earlier_one(world: EngineWorld, sink: Sink) -> None:
    other = Sink(world, "other")
    sink.prepared(b"first")
    assert other.stage(b"second") == ""
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "transaction_unknown"
    other.ask(Prepare, transaction=T1, part="0")
    assert isinstance(sink.commit("0"), Committed)
    assert bodies_of(world) == [b"second"]


def test_unprepared_part_is_dropped_with_the_connection(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1", part="0")
    assert sink.stage(b"2", part="1") == ""
    world.broker.disconnected(sink.peer.conn)
    world.collect()
    world.settle()
    later = Sink(world, "later")
    assert later.code(Commit, transaction=T1, parts=("0", "1")) == "transaction_unknown"
    assert isinstance(later.commit("0"), Committed)
    assert bodies_of(world) == [b"1"]


def test_commit_of_a_closed_connection_completes(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    sink.say(Commit, transaction=T1, parts=("0",))
    world.broker.disconnected(sink.peer.conn)
    world.collect()
    world.settle()
    assert bodies_of(world) == [b"1"]
    assert Sink(world, "later").commit() == Committed(id=1, repeated=True)


def test_disk_failure_of_a_part_refuses_all_pending_commands_of_the_part(
    world: EngineWorld, sink: Sink
) -> None:
    world.disk.fail("write", 1, errno.ENOSPC)
    numbers = [sink.say(Stage, frame("a", b"%d" % n), transaction=T1, part="0") for n in range(3)]
    world.settle()
    answers = [sink.peer.answers[number] for number in numbers]
    assert all(isinstance(answer, Ack) and answer.code for answer in answers)
    assert world.broker.transactions.staging.count == 0
    sink.prepared(b"again")
    assert isinstance(sink.commit("0"), Committed)
    assert bodies_of(world) == [b"again"]


def test_client_that_stages_faster_than_the_disk_is_paused(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "staging_unwritten_bytes_max", 2_000)
    for _ in range(2):
        sink.say(Stage, frame("a", bytes(1_500)), transaction=T1, part="0")
    assert [pause.why for pause in world.pauses] == ["staging"]
    world.settle()
    assert len(world.pauses) == 2


def test_client_with_too_many_staging_jobs_is_paused(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "staging_jobs_max", 12)
    for number in range(4):  # each a few bytes, and four syncs
        one = Transaction(publisher="sink", name=str(number))
        sink.say(Stage, frame("a", b""), transaction=one, part="0")
        sink.say(Prepare, transaction=one, part="0")
        sink.say(Abort, transaction=one)
    assert world.pauses == []
    sink.say(Stage, frame("a", b""), transaction=T1, part="0")
    assert [type(pause).__name__ for pause in world.pauses] == ["PauseReading"]
    while len(world.pauses) < 2:
        world.run_staging()
    assert type(world.pauses[1]).__name__ == "ResumeReading"
    assert sum(isinstance(job.task, StageWrite | StagePrepare) for job in world.staging_jobs) == 4


def test_batches_of_a_transaction_are_bounded_also_over_a_start(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "transaction_batches_max", 3)
    assert sink.stage(b"1", part="x") == sink.stage(b"2", part="x") == ""
    assert isinstance(sink.ask(Prepare, transaction=T1, part="x"), Staged)
    world.disk = world.disk.kill_clone()
    world.open()
    again = Sink(world)
    assert again.stage(b"3", part="y") == ""
    assert again.stage(b"4", part="y") == again.stage(b"4", part="z") == "transaction_too_large"
    assert again.stage(b"5", transaction=Transaction(publisher="sink", name="t2")) == ""
    assert isinstance(again.ask(Prepare, transaction=T1, part="y"), Staged)
    assert isinstance(again.commit("x", "y"), Committed)
    assert bodies_of(world) == [b"1", b"2", b"3"]


# -- visibility --------------------------------------------------------------------------------------


def test_live_subscribers_see_a_transaction_in_order_after_the_commit(world: EngineWorld, sink: Sink) -> None:
    watcher = world.connect("watcher")
    watcher.subscribe("live", "a", bookmark="0|1|", credit=1 << 20, options="bookmark,live")
    publisher = world.connect("publisher")
    publisher.publish("a", [b"before"])
    world.settle()
    sink.prepared(b"1", b"2", part="0")
    sink.prepared(b"3", part="1")
    number = sink.say(Commit, transaction=T1, parts=("0", "1"))
    while world.staging_jobs:
        world.run_staging()
    publisher.publish("a", [b"behind"])
    world.work()
    seen = []
    while number not in sink.peer.answers:
        seen.append(len(watcher.heard["live"]))
        world.run_job()
        world.work()
    assert set(seen) == {1}
    assert len(seen) >= 3
    world.settle()
    assert [heard.body for heard in watcher.heard["live"]] == [b"before", b"1", b"2", b"3", b"behind"]


def test_start_drops_staged_files_of_committed_transactions_and_keeps_others(
    world: EngineWorld, sink: Sink
) -> None:
    sink.prepared(b"1")
    second = Transaction(publisher="sink", name="t2")
    sink.prepared(b"2", transaction=second)
    sink.say(Commit, transaction=T1, parts=("0",))
    while not sink.world.broker.transactions.committed:
        if world.jobs:
            world.run_job()
        else:
            world.run_staging()
    assert world.staging_jobs, "its file is still there"
    world.disk = world.disk.kill_clone()
    world.open()
    world.collect()
    world.settle()
    assert world.broker.transactions.staging.transactions == [second]
    later = Sink(world, "later")
    assert later.commit("0") == Committed(id=1, repeated=True)
    assert isinstance(later.commit("0", transaction=second), Committed)
    assert bodies_of(world) == [b"1", b"2"]
    assert len(world.disk.names("transactions")) == 0


def test_damaged_staging_file_refuses_only_the_affected_commit(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    (name,) = world.disk.names("transactions")
    handle = world.disk.open(f"transactions/{name}")
    world.disk.write(handle, world.disk.size(handle) - 40, [b"\xff"])
    assert sink.code(Commit, transaction=T1, parts=("0",)) == "staging_failed"
    assert bodies_of(world) == []
    sink.prepared(b"2")
    assert isinstance(sink.commit("0"), Committed)


def test_queues_receive_the_messages_of_a_transaction() -> None:
    world = QueueEngine(QueueDefinition(name="work", underlying="orders"))
    sink = Sink(world)
    assert sink.stage(b"1", topic="orders", part="0") == ""
    assert sink.stage(b"2", topic="work", part="0") == ""
    assert sink.code(Stage, frame(QUEUE_TOPIC, b""), transaction=T1, part="0") == "bad_topic"
    assert isinstance(sink.ask(Prepare, transaction=T1, part="0"), Staged)
    assert world.ready("work") == []
    assert isinstance(sink.commit("0"), Committed)
    assert world.ready("work") == [b"1", b"2"]
    assert {heard.topic for heard in world.log()} == {"orders"}
    assert world.consumed("work", 5) == [b"1", b"2"]
