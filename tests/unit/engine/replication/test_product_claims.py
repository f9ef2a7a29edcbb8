"""Product clients that fail over between engines with links: claims, holes and late messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.linked import events, join, run
from tests.simulation.journal_world import read_log
from tests.simulation.linked_engine import LinkedEngine, PipeEnd
from tests.simulation.linked_engines import link_to
from tests.simulation.product_publisher import ProductPublisher
from tickertape.base.names import publisher_id
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from tickertape.engine.runtime.exact_append import ExactAppend, LinkedRun
from tickertape.journal.format.replication_records import after

NAME = "pricing-1"
PUBLISHER = publisher_id(NAME)
OTHER_LOG = bytes(range(16))


class BodiesEngine(LinkedEngine):
    """An engine that keeps the bodies of messages in the order of the log."""

    bodies: list[bytes]

    def _keep(self, first: int, batch: MessageBatch) -> None:
        """Ignore the keys of messages: product clients choose their sequences."""

    def texts(self) -> list[bytes]:
        """Return the bodies of the messages in the log."""
        return [
            bytes(batch.body(index))
            for _, batch in read_log(self.broker.journal, self.disk)
            for index in range(batch.count)
            if batch.topic(index) == "orders"
        ]

    def exact(self) -> ExactAppend:
        exact = self.broker._writer.exact
        assert exact is not None
        return exact

    def holes(self) -> list[tuple[int, int, bool]]:
        """Return first and last sequence of each open hole, and whether it is proven."""
        found = self.exact().known.holes(PUBLISHER)
        return [(hole.first, hole.last, hole.proven) for hole in found]


def pair() -> tuple[BodiesEngine, BodiesEngine]:
    """Return two engines with links to each other that are not connected."""
    counts: Counter[str] = Counter()
    return BodiesEngine(1, 0, (link_to(1),), counts), BodiesEngine(2, 1, (link_to(0),), counts)


def connected(first: LinkedEngine, second: LinkedEngine) -> tuple[PipeEnd, PipeEnd]:
    return join(first, second), join(second, first)


def client(engine: LinkedEngine, store: PublishStore | None = None) -> ProductPublisher:
    return ProductPublisher(engine, NAME, store or MemoryPublishStore())


def test_acknowledged_messages_arrive_late_after_a_failover_to_an_engine_behind() -> None:
    """Case C1: the first server has messages that links have not brought."""
    first, second = pair()
    publisher = client(first)
    assert not publisher.connect(first).behind
    numbers = publisher.publish_each(b"1", b"2", b"3")
    first.settle()
    assert publisher.store.unpersisted_count() == 0
    found = publisher.connect(second)
    assert (found.behind, found.group) == (True, "group")
    assert publisher.logons[-1].persisted == numbers[-1]
    publisher.publish_each(b"4")
    second.settle()
    assert second.holes() == [(1, numbers[-1], True)]
    (event,) = events(second, "publisher_behind")
    assert event == {"client": NAME, "sequences": numbers[-1], "first": 1, "last": numbers[-1]}
    connected(first, second)
    run(first, second)
    assert second.texts() == [b"4", b"1", b"2", b"3"]
    assert first.texts() == [b"1", b"2", b"3", b"4"]
    assert second.holes() == [(1, numbers[0] - 1, True)], "sequences that no message has"
    assert publisher.connect(second).behind
    for _ in range(8):
        for engine in (first, second):
            engine.wake(1.5)
        run(first, second)
    assert second.holes() == [], "all servers reported the row of the hole"
    assert not publisher.connect(second).behind


def test_stored_messages_in_a_hole_are_resent_and_late() -> None:
    """Case C3: a link brings a later message, and no other server has the messages in the hole."""
    engine, dead = pair()
    publisher = client(engine)
    publisher.connect(engine)
    numbers = publisher.publish_each(b"1")
    engine.settle()
    publisher.connect(dead)
    numbers += publisher.publish_whole(b"2", b"3", b"4")  # lost with their acknowledgement
    publisher.lose()
    link_brings(engine, numbers[3], b"4")
    assert engine.holes() == [(1, numbers[0] - 1, False), (numbers[1], numbers[2], True)]
    found = publisher.connect(engine)
    assert not found.behind, "the claim is below the hole"
    assert publisher.logged_on is not None
    assert publisher.logged_on.last_persisted == numbers[3]
    engine.settle()
    assert engine.texts() == [b"1", b"4", b"2", b"3"]
    assert engine.holes() == [(1, numbers[0] - 1, False)]
    assert publisher.store.unpersisted_count() == 0


def link_brings(engine: BodiesEngine, sequence: int, body: bytes) -> None:
    """A link brings the record of a hole, and the message after the hole."""
    exact = engine.exact()
    exact.append_after([after(OTHER_LOG, PUBLISHER, 1, sequence - 1)], more=True)
    builder = BatchBuilder()
    builder.add("orders", body, sequence=sequence)
    batch = builder.build(PUBLISHER)
    split = exact.known.split(PUBLISHER, batch.sequences, from_link=True)
    exact.append_linked(batch, split, LinkedRun(0, 5))
    exact.write_soon()
    engine.wake(0.1)
    engine.settle()


def test_fresh_store_opens_an_unproven_hole_that_a_link_fills() -> None:
    """Case C10: the store was lost, and the messages of the old one are at the other server."""
    first, second = pair()
    old = client(first)
    old.connect(first)
    numbers = old.publish_each(b"1", b"2")
    first.settle()
    old.lose()
    second.wall += 10_000_000
    fresh = client(second)
    assert not fresh.connect(second).behind
    (first_number,) = fresh.publish_each(b"3")
    second.settle()
    assert first_number > numbers[-1]
    assert second.holes() == [(1, first_number - 1, False)]
    assert events(second, "publisher_behind") == []
    connected(first, second)
    run(first, second)
    assert second.texts() == [b"3", b"1", b"2"]
    assert sorted(first.texts()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("sync", ["never", "always"])
def test_next_process_of_a_file_store_claims_at_another_engine(tmp_path: Path, sync: str) -> None:
    first, second = pair()
    store = FilePublishStore(tmp_path / "s", sync=sync)  # type: ignore[arg-type]
    publisher = client(first, store)
    publisher.connect(first)
    numbers = publisher.publish_each(b"1", b"2")
    first.settle()
    publisher.lose()
    store.close()
    store = FilePublishStore(tmp_path / "s", sync=sync)  # type: ignore[arg-type]
    again = client(second, store)
    second.wall = 1_000_000_000  # a clock far behind
    assert again.connect(second).behind
    assert again.logons[-1].persisted == numbers[-1]
    assert again.logons[-1].session > publisher.logons[-1].session
    again.publish_each(b"3")
    second.settle()
    assert second.holes() == [(1, numbers[-1], True)]
    connected(first, second)
    run(first, second)
    assert second.texts() == [b"3", b"1", b"2"]
    store.close()


def test_failovers_back_and_forth_keep_each_message_once() -> None:
    first, second = pair()
    publisher = client(first)
    texts = []
    for turn in range(6):
        engine = (first, second)[turn % 2]
        publisher.connect(engine)
        body = b"%d" % turn
        texts += [body, body + b"!"]
        publisher.publish_each(body)
        engine.settle()
        publisher.publish_each(body + b"!")  # no answer arrives before the failover
    publisher.connect(first)
    first.settle()
    assert publisher.store.unpersisted_count() == 0
    connected(first, second)
    run(first, second)
    for engine in (first, second):
        assert sorted(engine.texts()) == sorted(texts)
    sessions = [logon.session for logon in publisher.logons]
    assert sessions == sorted(set(sessions))
