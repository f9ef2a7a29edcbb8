"""Outcomes of a publish with every publish store: persisted, rejected, and unconfirmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tickertape.batch.message_batch import MessageBatch
from tickertape.testing import RunningServer, running_server, wait_until

CONFIG = '[[topic]]\nname = "orders"\nmessage_type = "json"\nvalidate = true\n'
SECONDS = 20.0
Store = tt.MemoryPublishStore | tt.FilePublishStore | tt.HybridPublishStore
Make = Callable[[], Store]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("data"), config=CONFIG) as running:
        yield running


@pytest.fixture(params=["memory", "file", "hybrid"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that opens the same file store, or a new store in memory."""
    kinds: dict[str, Make] = {
        "memory": tt.MemoryPublishStore,
        "file": lambda: tt.FilePublishStore(tmp_path / "s"),
        "hybrid": lambda: tt.HybridPublishStore(tmp_path / "s", "1KB"),
    }
    return kinds[request.param]


def client(server: RunningServer, store: Store, name: str = "pricing") -> tt.Client:
    return tt.Client(name, server.uri, publish_store=store, timeout=SECONDS)


def held(store: Store) -> list[bytes]:
    return [body for stored in store.held() for body in stored.batch.bodies_list()]


def check_empty(again: Store) -> None:
    assert held(again) == [], "messages with an outcome are not in the reopened store"
    again.close()


@pytest.mark.slow
def test_persisted_messages_leave_the_publish_store(server: RunningServer, make: Make) -> None:
    store = make()
    with client(server, store) as publisher:
        sequences = [publisher.publish("orders", {"n": n}) for n in range(500)]
        sequences.append(publisher.publish_batch("orders", [{"n": n} for n in range(500)]))
        publisher.publish_flush()
        assert publisher.unpersisted_count() == 0
        assert held(store) == []
        stream = publisher.bookmark_subscribe("orders", tt.EPOCH)
        numbers = set(sequences)
        while numbers:
            numbers.discard(stream.get(SECONDS).sequence)
    store.close()
    check_empty(make())


@pytest.mark.slow
def test_rejected_message_is_reported_with_a_reason(server: RunningServer, make: Make) -> None:
    store = make()
    failures: list[tuple[tt.TickertapeError, MessageBatch | None]] = []
    with client(server, store) as publisher:
        publisher.publish("orders", b'{"good": 1}')
        bad = publisher.publish("orders", b"{bad")
        publisher.publish("orders", b'{"good": 2}')
        with pytest.raises(tt.PublishRejected, match="The server rejected 1 message"):
            publisher.publish_flush()
        assert publisher.unpersisted_count() == 0
        publisher.set_failed_write_handler(lambda error, batch: failures.append((error, batch)))
        bad = publisher.publish_batch("orders", [b'{"good": 3}', b"{worse"])
        publisher.publish_flush()
        wait_until(lambda: failures, SECONDS)
        ((error, batch),) = failures
        assert isinstance(error, tt.PublishRejected)
        assert "orders" in str(error)
        assert batch is not None
        assert (batch.bodies_list(), batch.sequences.tolist()) == ([b"{worse"], [bad])
        assert publisher.unpersisted_count() == 0
    store.close()
    check_empty(make())


@pytest.mark.slow
def test_unconfirmed_messages_are_persisted_after_the_server_resumes(
    server: RunningServer, make: Make
) -> None:
    store = make()
    with client(server, store) as publisher:
        publisher.publish("orders", b"{}")
        publisher.publish_flush()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for n in range(30):
                publisher.publish("orders", b'{"n": %d}' % n)
            with pytest.raises(tt.TimedOut):
                publisher.publish_flush(timeout=0.05)
            assert publisher.unpersisted_count() == 30
        finally:
            os.kill(server.pid, signal.SIGCONT)
        publisher.publish_flush()
        assert publisher.unpersisted_count() == 0


@pytest.mark.slow
def test_unconfirmed_messages_are_persisted_on_the_next_connection(make: Make, tmp_path: Path) -> None:
    store = make()
    with running_server(tmp_path / "data") as mine, client(mine, store) as publisher:
        publisher.publish("orders", b"first")
        publisher.publish_flush()
        os.kill(mine.pid, signal.SIGSTOP)
        publisher.publish_batch("orders", [b"%d" % n for n in range(30)])
        mine.kill()
        wait_until(lambda: not publisher.connected, SECONDS)
        publisher.publish("orders", b"while it is away")
        assert publisher.unpersisted_count() == 31
        with pytest.raises(tt.Disconnected):
            publisher.publish_flush()
        mine.start()
        publisher.connect()
        publisher.publish_flush()
        assert publisher.unpersisted_count() == 0
        with publisher.bookmark_subscribe("orders", tt.EPOCH) as stream:
            received = [stream.get(SECONDS).data for _ in range(32)]
    assert received == [b"first", *[b"%d" % n for n in range(30)], b"while it is away"]
    store.close()


@pytest.mark.slow
def test_stored_messages_of_non_persistent_topics_drain_after_a_reconnect(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store"
    first = (
        "import os, sys, tickertape as tt\n"
        "client = tt.HAClient('pricing', servers=['tcp://127.0.0.1:1'],"
        " publish_store=tt.FilePublishStore(sys.argv[1]))\n"
        "client.publish('ticks', b'unrecorded')\n"
        "client.publish('orders', b'recorded')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", first, str(path)], check=True)
    with (
        running_server(tmp_path / "data", config='[[journal.topic]]\nname = "orders"\n') as mine,
        tt.FilePublishStore(path) as store,
        tt.Client("reader", mine.uri, timeout=SECONDS) as reader,
        reader.subscribe("ticks") as ticks,
        tt.HAClient("pricing", servers=[mine.uri], publish_store=store, timeout=SECONDS) as publisher,
    ):
        publisher.publish_flush()
        assert publisher.unpersisted_count() == 0
        assert ticks.get(SECONDS).data == b"unrecorded"
        with publisher.bookmark_subscribe("orders", tt.EPOCH) as orders:
            assert orders.get(SECONDS).data == b"recorded"
    check_empty(tt.FilePublishStore(path))
