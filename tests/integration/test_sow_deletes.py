"""Deletes of records and deltas on a real server, with both clients and all publish stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import BOTH_FRONTS, Front, front_fixture
from tickertape.testing.server import RunningServer, running_server

CONFIG = """
[[sow]]
name = "positions"
key = ["/id"]

[[sow]]
name = "named"

[[queue]]
name = "work"
underlying = "positions"

[[queue]]
name = "jobs"
"""
KINDS = (
    "none",
    pytest.param("memory", marks=pytest.mark.full),
    "file",
    pytest.param("hybrid", marks=pytest.mark.full),
)


front = front_fixture(*BOTH_FRONTS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as running:
        yield running


def store_of(kind: str, path: Path) -> tt.PublishStore | None:
    if kind == "memory":
        return tt.MemoryPublishStore()
    if kind == "file":
        return tt.FilePublishStore(path / "store")
    return tt.HybridPublishStore(path / "store") if kind == "hybrid" else None


def connected(front: Front, server: RunningServer, kind: str, path: Path, *, ha: bool = False) -> tt.Client:
    if not ha:
        return front.connect("a", server.uri, publish_store=store_of(kind, path))
    client = front.make_ha("a", servers=server.uri, publish_store=store_of(kind, path))
    client.connect_and_logon()
    return client


def ids(server: RunningServer, topic: str = "positions") -> list[Any]:
    with tt.Client("reader", server.uri) as reader:
        return [record.json()["id"] for record in reader.sow(topic)]


@pytest.mark.parametrize("kind", KINDS)
def test_deletes_and_publishes_of_a_client_keep_the_order(
    front: Front, server: RunningServer, kind: str, tmp_path: Path
) -> None:
    client = connected(front, server, kind, tmp_path)
    for number in range(10):
        client.publish("positions", {"id": number})
    assert client.sow_delete("positions", filter="/id > 6")[:2] == (3, 3)
    client.publish("positions", {"id": 8})
    client.sow_delete("positions", filter="/id < 5", wait=False)
    client.publish("positions", {"id": 2})
    client.publish_flush()
    assert ids(server) == [5, 6, 8, 2]


def test_position_of_a_delete_compares_with_the_position_of_a_query(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    client = connected(front, server, "none", tmp_path)
    client.publish_batch("positions", [{"id": number} for number in range(5)])
    client.publish_flush()
    with tt.Client("reader", server.uri) as reader:
        before = -1
        for number in range(3):
            result = reader.sow("positions")
            assert sorted(record.json()["id"] for record in result) == [*range(number, 5)]
            deleted = client.sow_delete("positions", data={"id": number})
            assert result.as_of_position is not None
            assert deleted is not None
            assert deleted.position is not None
            assert before < result.as_of_position <= deleted.position
            before = deleted.position
        with reader.sow_and_subscribe("positions") as stream:
            assert stream.as_of_position is not None
            assert stream.as_of_position > before


@pytest.mark.parametrize("ha", [False, True], ids=["plain", "ha"])
def test_delete_by_keys_and_by_data_counts_records(
    front: Front, server: RunningServer, tmp_path: Path, ha: bool
) -> None:
    client = connected(front, server, "memory", tmp_path, ha=ha)
    client.publish_batch("positions", [{"id": number} for number in range(5)])
    client.publish_flush()
    with tt.Client("reader", server.uri) as reader:
        keys = [record.sow_key or "" for record in reader.sow("positions", top_n=2)]
    assert client.sow_delete("positions", keys=[*keys, "unknown"]).records == 2
    assert client.sow_delete("positions", data={"id": 3})[:3] == (1, 1, 3)
    assert client.sow_delete("positions", data={"id": 77}).records == 0
    client.publish("named", {"id": "x"}, sow_key="k1")
    client.publish("named", {"id": "y"}, sow_key="k2")
    assert client.sow_delete("named", keys=("k1",)).records == 1
    assert (ids(server), ids(server, "named")) == ([2, 4], ["y"])


@pytest.mark.parametrize("kind", ["none", "file"])
def test_invalid_deletes_raise_in_the_call_and_change_nothing(
    front: Front, server: RunningServer, kind: str, tmp_path: Path
) -> None:
    client = connected(front, server, kind, tmp_path)
    client.publish("positions", {"id": 1})
    wrong: list[tuple[type[tt.TickertapeError], dict[str, Any]]] = [
        (tt.BadTopic, {"topic": "orders", "filter": "TRUE"}),
        (tt.BadTopic, {"topic": "work", "keys": ["a"]}),
        (tt.BadTopic, {"topic": "a\0b", "filter": "TRUE"}),
        (tt.BadFilter, {"filter": "/id ="}),
        (tt.BadFilter, {"filter": " "}),
        (tt.BadFilter, {"filter": "x" * 20_000}),
        (tt.BadSowKey, {"data": {"qty": 1}}),
        (tt.BadSowKey, {"data": b"no JSON"}),
        (tt.BadCommand, {"keys": ["k"] * 100_001}),
        (tt.BadCommand, {"keys": ["k" * 2_000_000]}),
        (tt.UsageError, {}),
        (tt.UsageError, {"keys": ["a"], "filter": "TRUE"}),
        (tt.UsageError, {"data": b"1", "filter": "TRUE"}),
        (tt.UsageError, {"keys": []}),
        (tt.UsageError, {"keys": "abc"}),
        (tt.UsageError, {"keys": ["a"], "options": "cancel"}),
        (tt.BadOption, {"filter": "TRUE", "timeout": "soon"}),
    ]
    for error, arguments in wrong:
        with pytest.raises(error):
            client.sow_delete(**{"topic": "positions", **arguments})
    client.publish_flush()
    assert ids(server) == [1]
    assert client.unpersisted_count() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_deltas_are_merged_in_order_with_publishes(
    front: Front, server: RunningServer, kind: str, tmp_path: Path
) -> None:
    client = connected(front, server, kind, tmp_path)
    client.publish("positions", {"id": 1, "a": {"x": 1}, "list": [1, 2]})
    client.delta_publish("positions", {"id": 1, "a": {"y": 2}, "list": [3]}, correlation_id="c")
    client.publish("positions", {"id": 2, "a": 1})
    client.delta_publish("positions", b'{"id": 2, "b": 2}')
    client.delta_publish("positions", {"id": 3, "new": True})
    client.publish("named", {"a": 1}, sow_key="k")
    client.delta_publish("named", {"b": 1}, sow_key="k")
    client.delta_publish("plain", {"b": 1})
    client.publish_flush()
    with tt.Client("reader", server.uri) as reader:
        found = [record.json() for record in reader.sow("positions")]
        assert [record.json() for record in reader.sow("named")] == [{"a": 1, "b": 1}]
        assert [message.json() for message in reader.replay("plain")] == [{"b": 1}]
        labels = [message.correlation_id for message in reader.replay("positions")]
    assert found == [
        {"id": 1, "a": {"x": 1, "y": 2}, "list": [3]},
        {"id": 2, "a": 1, "b": 2},
        {"id": 3, "new": True},
    ]
    assert labels == [None, "c", None, None, None]


def test_delta_without_key_is_rejected_and_the_record_remains(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    client = connected(front, server, "file", tmp_path)
    client.publish("positions", {"id": 1, "a": 1})
    for body in (b"{}", b"[]", b'"x"', b'{"a": 2}', b"["):
        client.delta_publish("positions", body)
        with pytest.raises(tt.PublishRejected) as caught:
            client.publish_flush()
        assert isinstance(caught.value.__cause__, tt.BadSowKey)
    client.delta_publish("positions", {"id": 1, "a": 3})
    client.publish_flush()
    with tt.Client("reader", server.uri) as reader:
        assert [record.json() for record in reader.sow("positions")] == [{"id": 1, "a": 3}]


def test_commands_delete_and_publish_deltas(front: Front, server: RunningServer, tmp_path: Path) -> None:
    client = connected(front, server, "none", tmp_path)
    client.publish_batch("positions", [{"id": number} for number in range(4)])
    assert client.execute(tt.Command("sow_delete", "positions", filter="/id = 1")).end_reason == "complete"
    client.execute(tt.Command("sow_delete", "positions", data={"id": 2}))
    client.execute(tt.Command("delta_publish", "positions", data={"id": 3, "a": 1}))
    client.execute(tt.Command("flush"))
    with tt.Client("reader", server.uri) as reader:
        assert [record.json() for record in reader.sow("positions")] == [{"id": 0}, {"id": 3, "a": 1}]
    with pytest.raises(tt.UsageError, match="without a selection"):
        client.execute(tt.Command("sow_delete", "positions"))
    with pytest.raises(tt.UsageError, match="'delta_publish' requires data"):
        client.execute(tt.Command("delta_publish", "positions"))
    with pytest.raises(tt.BadOption, match="does not use"):
        client.execute(tt.Command("delta_publish", "positions", data=b"{}", filter="TRUE"))


def test_handler_deletes_without_waiting(server: RunningServer) -> None:
    errors: list[BaseException] = []
    handled = threading.Event()
    with tt.Client("a", server.uri) as client:
        client.set_exception_listener(errors.append)
        client.publish_batch("positions", [{"id": 1}, {"id": 2}])
        client.publish_flush()

        def handle(message: tt.Message) -> None:
            try:
                client.sow_delete("positions", filter="/id = 1", wait=False)
                client.sow_delete("positions", filter="/id = 2")
            finally:
                handled.set()

        client.subscribe("orders", on_message=handle)
        client.publish("orders", b"{}")
        assert handled.wait(20)
        client.publish_flush()
    (error,) = errors
    assert isinstance(error, tt.UsageError)
    assert ids(server) == [2]


# -- queues over a SOW topic --------------------------------------------------------------------------


def taken(client: tt.Client, queue: str, count: int) -> list[Any]:
    """Consume and acknowledge messages of a queue."""
    with client.subscribe(queue, max_backlog=10) as stream:
        found = []
        for _ in range(count):
            message = stream.get(timeout=20)
            found.append(message.json())
            message.ack()
    client.publish_flush()
    return found


def depth(server: RunningServer, queue: str) -> int:
    with tt.Client("browser", server.uri) as browser, browser.subscribe(queue, browse=True) as stream:
        return len([*stream])


@pytest.mark.behaviour(45)
def test_queue_over_a_sow_topic_delivers_each_publish_once_and_no_delete(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    client = connected(front, server, "memory", tmp_path)
    bodies = [{"id": 1, "a": 1}, {"id": 2}, {"id": 1, "a": 2}]
    for body in bodies:
        client.publish("positions", body)
    client.delta_publish("positions", {"id": 1, "b": 3})
    assert client.sow_delete("positions", filter="/id = 2").records == 1
    client.publish("work", {"id": 4})
    client.publish_flush()
    expected = [*bodies, {"id": 1, "a": 2, "b": 3}, {"id": 4}]
    with tt.Client("worker", server.uri) as worker:
        assert taken(worker, "work", 5) == expected
    assert depth(server, "work") == 0
    assert ids(server) == [1, 4]


def test_sow_delete_settles_queue_messages_or_deletes_records_by_the_topic(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    client = connected(front, server, "memory", tmp_path)
    client.publish_batch("positions", [{"id": number} for number in range(6)])
    client.publish_flush()
    assert client.sow_delete("work", filter="/id < 2") is None
    client.publish_flush()
    assert depth(server, "work") == 4
    assert ids(server) == [0, 1, 2, 3, 4, 5], "records remain"
    deleted = client.sow_delete("positions", filter="/id < 4")
    assert deleted is not None
    assert deleted.records == 4
    assert depth(server, "work") == 4, "queue messages remain"
    assert ids(server) == [4, 5]
    with tt.Client("worker", server.uri) as worker:
        assert taken(worker, "work", 4) == [{"id": number} for number in range(2, 6)]
    assert depth(server, "work") == 0


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_rejection_after_the_timeout_of_a_delete_is_reported_by_the_next_flush(
    front: Front, server: RunningServer, kind: str, tmp_path: Path
) -> None:
    client = connected(front, server, kind, tmp_path)
    with pytest.raises(tt.TimedOut):
        client.sow_delete("positions", filter="/id = (", timeout=1e-5)
    with pytest.raises(tt.PublishRejected, match="Invalid filter"):
        client.publish_flush()
    client.publish_flush()


def test_delete_while_disconnected_is_stored_and_sent_after_the_reconnect(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    client = connected(front, server, "file", tmp_path, ha=True)
    client.publish_batch("positions", [{"id": number} for number in range(3)])
    client.publish_flush()
    server.stop()
    client.publish("positions", {"id": 3})
    with pytest.raises(tt.TimedOut):
        client.sow_delete("positions", filter="/id > 1", timeout=0.2)
    client.publish("positions", {"id": 4})
    server.start()
    client.publish_flush(timeout=20)
    assert ids(server) == [0, 1, 4]


def test_delete_while_disconnected_without_a_store_changes_nothing(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    client = connected(front, server, "none", tmp_path, ha=True)
    client.publish("positions", {"id": 1})
    client.publish_flush()
    server.stop()
    with pytest.raises(tt.TimedOut):
        client.sow_delete("positions", filter="TRUE", timeout=0.2)
    server.start()
    client.publish_flush(timeout=20)
    assert ids(server) == [1]
