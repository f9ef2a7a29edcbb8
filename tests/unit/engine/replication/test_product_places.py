"""Product subscribers that move between engines with links: places, holes and late messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

import msgspec
import pytest

from tests.helpers.linked import join, run
from tests.simulation.linked_engine import LinkedEngine
from tests.simulation.linked_engines import link_to
from tests.simulation.product_publisher import ProductPublisher
from tests.simulation.product_subscriber import SUB_ID, ProductSubscriber
from tickertape.base.bookmarks import Bookmark, is_place, position_of_place
from tickertape.base.names import publisher_id
from tickertape.batch import MessageBatch
from tickertape.client.bookmark_store.base import MemoryBookmarkStore
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.engine.delivery import progress_notices


class OpenEngine(LinkedEngine):
    """An engine for messages of product clients, which choose their sequences."""

    def _keep(self, first: int, batch: MessageBatch) -> None:
        """Ignore the keys of messages."""


def pair() -> tuple[OpenEngine, OpenEngine]:
    """Return two engines with links to each other that are not connected."""
    counts: Counter[str] = Counter()
    return OpenEngine(1, 0, (link_to(1),), counts), OpenEngine(2, 1, (link_to(0),), counts)


def connected(first: LinkedEngine, second: LinkedEngine) -> None:
    join(first, second)
    join(second, first)


def cut(*engines: LinkedEngine) -> None:
    """End all connections of links."""
    for engine in engines:
        for end in [*engine.ends.values()]:
            engine.broker.disconnected(end.conn)
            engine.collect()
            end.hang_up()


def publisher(engine: LinkedEngine, name: str) -> ProductPublisher:
    made = ProductPublisher(engine, name, MemoryPublishStore())
    made.connect(engine)
    return made


def subscriber(engine: LinkedEngine, name: str = "risk") -> ProductSubscriber:
    return ProductSubscriber(engine, name, MemoryBookmarkStore(), "orders", Random(1), Counter())


def read(reader: ProductSubscriber, *engines: LinkedEngine) -> None:
    """Deliver everything, with a notice, and discard it."""
    for _ in range(4):
        reader.send_all()
        run(*engines)
        reader.discard(1_000)
        for engine in engines:
            engine.wake(1.1)
    reader.discard(1_000)


def work(engine: LinkedEngine) -> None:
    """Do all work without the disk."""
    while engine.broker.has_work:
        engine.work()


def got(reader: ProductSubscriber, name: str) -> list[int]:
    """Return the sequences of a publisher that were delivered, with repetitions."""
    return sorted(s for (p, s), n in reader.delivered.items() for _ in range(n) if p == publisher_id(name))


def test_subscriber_gets_a_message_that_is_low_in_the_log_of_the_other_server() -> None:
    """Case C11: bookmarks alone start above the message."""
    first, second = pair()
    connected(first, second)
    one = publisher(first, "p")
    sent = one.publish_each(*[b"x"] * 10)
    run(first, second)
    cut(first, second)
    other = publisher(second, "q").publish_each(b"y")
    run(first, second)
    sent += one.publish_each(*[b"x"] * 5)
    run(first, second)
    reader = subscriber(first)
    reader.connect(first)
    read(reader, first, second)
    assert (got(reader, "p"), got(reader, "q")) == (sent, [])
    reader.lose()
    connected(first, second)
    run(first, second)
    reader.connect(second)
    read(reader, first, second)
    assert (got(reader, "p"), got(reader, "q")) == (sent, other)


def test_notices_name_the_logs_of_both_servers() -> None:
    first, second = pair()
    connected(first, second)
    publisher(second, "q").publish_each(b"y")
    run(first, second)
    reader = subscriber(first)
    reader.connect(first)
    read(reader, first, second)
    places = [one for one in reader.store.most_recent(SUB_ID) if is_place(one)]
    ends = [first.broker.journal.commits.persisted_end, second.broker.journal.commits.persisted_end]
    assert len(places) == 2
    assert all(0 < position_of_place(one) <= max(ends) for one in places)


def test_subscription_without_a_place_of_the_log_starts_at_the_first_row() -> None:
    first, second = pair()
    one = publisher(first, "p")
    sent = one.publish_each(*[b"x"] * 3)
    run(first)
    reader = subscriber(first)
    reader.connect(first)
    read(reader, first)
    other = publisher(second, "q").publish_each(*[b"y"] * 3)
    run(second)
    reader.connect(second)
    read(reader, second)
    assert (got(reader, "p"), got(reader, "q")) == (sent, other)
    reader.connect(first)
    read(reader, first)
    assert not reader.twice


def test_subscriber_gets_late_messages_at_a_server_behind() -> None:
    first, second = pair()
    connected(first, second)
    one = publisher(first, "p")
    sent = one.publish_each(*[b"x"] * 10)
    run(first, second)
    cut(first, second)
    sent += one.publish_each(*[b"x"] * 5)
    run(first, second)
    one.connect(second)
    sent += one.publish_each(b"x")
    run(second)
    reader = subscriber(second)
    reader.connect(second)
    read(reader, second)
    late = sent[10:15]
    assert got(reader, "p") == [sequence for sequence in sent if sequence not in late]
    first_hole = Bookmark(publisher_id("p"), late[0] - 1)
    assert first_hole in reader.store.most_recent(SUB_ID)
    connected(first, second)
    run(first, second)
    read(reader, first, second)
    assert got(reader, "p") == sent
    assert reader._counts["late to subscribers"] == len(late)
    assert first_hole not in reader.store.most_recent(SUB_ID)


def test_live_subscriber_gets_late_messages_after_a_notice_before_messages_are_persisted() -> None:
    first, second = pair()
    connected(first, second)
    one = publisher(first, "p")
    sent = one.publish_each(*[b"x"] * 10)
    run(first, second)
    cut(first, second)
    sent += one.publish_each(*[b"x"] * 5)
    run(first, second)
    reader = subscriber(second)
    reader._request = msgspec.structs.replace(reader._request, options="live")
    reader.connect(second)
    read(reader, second)
    other = publisher(second, "q")
    run(second)
    for _ in range(2):  # the notice of the second message is due later
        other.publish_each(b"y")
        run(second)
    reader.send_all()
    one.connect(second)
    work(second)
    sent += one.publish_each(b"x")
    work(second)
    assert second.jobs, "the last message is not persisted"
    assert got(reader, "p")[-1] == sent[-1], "and delivered"
    second.wake(1.1)
    work(second)
    read(reader, second)
    connected(first, second)
    run(first, second)
    read(reader, first, second)
    assert got(reader, "p") == sent


def test_waiting_notices_name_no_holes_of_a_later_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """More notices than one step sends, to a subscriber without credit for late messages."""
    first, second = pair()
    connected(first, second)
    one = publisher(first, "p")
    sent = one.publish_each(*[b"x"] * 10)
    run(first, second)
    cut(first, second)
    sent += one.publish_each(*[b"x" * 900] * 5)
    run(first, second)
    one.connect(second)
    sent += one.publish_each(b"x")
    run(second)
    reader = subscriber(second)
    reader._request = msgspec.structs.replace(reader._request, depth_bytes=2_000)
    reader.connect(second)
    read(reader, second)
    notices = second.broker._delivery._notices
    other = publisher(second, "q")
    with monkeypatch.context() as patched:
        patched.setattr(progress_notices, "notices_step_max", 0)
        other.publish_each(b"y")
        while not notices._waiting:
            second.wake(0.1)
            while second.jobs:
                second.run_job()
            second.work()
    waiting = [*notices._waiting]
    notices._waiting.clear()
    connected(first, second)
    run(first, second)
    assert not set(got(reader, "p")) >= {*sent}, "late messages wait for credit"
    notices._waiting.extend(waiting)
    read(reader, first, second)
    assert got(reader, "p") == sent


def test_notices_of_one_step_encode_the_same_holes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = pair()
    sent = publisher(engine, "p").publish_each(b"x")
    run(engine)
    facts = engine.broker._persisted_facts
    assert facts is not None
    encoded: Counter[int] = Counter()
    holes_since = facts.holes_since

    def counting(change: int, publishers: Collection[int]) -> bytes:
        encoded[change] += 1
        return holes_since(change, publishers)

    monkeypatch.setattr(facts, "holes_since", counting)
    readers = [subscriber(engine, name) for name in ("a", "b", "c", "d")]
    for reader in readers:
        reader.connect(engine)
    run(engine)
    for reader in readers:
        reader.send_all()
    run(engine)
    engine.wake(1.1)
    run(engine)
    assert [got(reader, "p") for reader in readers] == [sent] * 4
    assert encoded == {0: 1}
