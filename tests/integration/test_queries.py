"""Queries of records on a real server: both clients, both HA clients, lost connections and failover."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.testing.fault_proxy import FaultProxy

CONFIG = """
[[sow]]
name = "positions"
key = ["/id"]
[[sow]]
name = "labelled"
[[sow]]
name = "regions"
key = ["/id"]
pattern = "^region/"
[[topic]]
name = "positions"
message_type = "json"
[admin]
listen = "off"
"""
SECONDS = 20.0


def fill(client: tt.Client, space: str, count: int, value: object = 0, topic: str = "positions") -> None:
    """Publish `count` records whose ids start with `space`."""
    client.publish_batch(topic, [{"id": f"{space}-{n:05}", "n": n, "v": value} for n in range(count)])
    client.publish_flush()


def of(space: str) -> str:
    """Return the filter of the records of a test."""
    return f"/id LIKE '^{space}-'"


def numbers(messages: Any) -> list[int]:
    return [message.json()["n"] for message in messages]


# -- results --------------------------------------------------------------------------------------------


@pytest.mark.behaviour(49)
def test_query_returns_the_last_message_of_each_key(client: tt.Client) -> None:
    fill(client, "last", 50)
    fill(client, "last", 10, "new")
    result = client.sow("positions", of("last"), order_by="/n")
    assert result.as_of is not None
    records = list(result)
    assert numbers(records) == list(range(50))
    assert [record.json()["v"] for record in records] == ["new"] * 10 + [0] * 40
    assert {record.command for record in records} == {"sow"}
    assert (result.matches, result.records_returned, result.end_reason) == (50, 50, "complete")
    assert result.topic_matches is not None
    assert result.topic_matches >= 50


@pytest.mark.behaviour(54)
def test_order_part_and_keys_select_records(client: tt.Client) -> None:
    fill(client, "part", 20)
    part = client.sow("positions", of("part"), order_by="/n DESC", top_n=3, skip_n=2)
    records = list(part)
    assert numbers(records) == [17, 16, 15]
    assert (part.matches, part.records_returned) == (20, 3)
    keys = [record.sow_key for record in records if record.sow_key]
    assert sorted(numbers(client.sow("positions", keys=keys))) == [15, 16, 17]
    assert numbers(client.sow("positions", "/n = 16", keys=keys)) == [16]
    assert list(client.sow("positions", of("part"), top_n=0)) == []


def test_record_shows_the_values_of_the_last_message_of_the_key(client: tt.Client) -> None:
    client.set_publish_store(tt.MemoryPublishStore())
    sequence = client.publish("positions", {"id": "mark-1"})
    client.publish_flush()
    (record,) = client.sow("positions", of("mark"), timestamp=True, query_id="q")
    assert (record.sequence, record.query_id, record.sub_id) == (sequence, "q", "q")
    (message,) = client.replay("positions", filter=of("mark"))
    assert (record.bookmark, record.timestamp, record.data) == (
        message.bookmark,
        message.timestamp,
        message.data,
    )
    (record,) = client.sow("positions", of("mark"))
    assert record.timestamp is None


def test_explicit_keys_and_patterns(client: tt.Client) -> None:
    client.publish("labelled", {"id": 1}, sow_key="a")
    client.publish("labelled", {"id": 2}, sow_key="b")
    client.publish("region/eu", {"id": 1})
    client.publish("region/us", {"id": 1})
    client.publish_flush()
    assert [record.sow_key for record in client.sow("labelled")] == ["a", "b"]
    assert [record.json() for record in client.sow("labelled", keys=["b"])] == [{"id": 2}]
    eu, us = client.sow("regions")
    assert (eu.topic, us.topic) == ("region/eu", "region/us")
    assert eu.sow_key != us.sow_key
    assert [r.topic for r in client.sow("regions", keys=[str(us.sow_key)])] == ["region/us"]
    assert [record.topic for record in client.sow("region/us")] == ["region/us"]
    both = list(client.sow("^(labelled|regions)$"))
    assert [record.topic for record in both] == ["labelled", "labelled", "region/eu", "region/us"]
    assert [record.sow_key for record in both] == ["a", "b", eu.sow_key, us.sow_key]


@pytest.mark.behaviour(54)
def test_select_without_key_fields_gives_no_key(client: tt.Client) -> None:
    fill(client, "select", 1)
    (record,) = client.sow("positions", of("select"), options="select=[-/,+/n]")
    assert (record.json(), record.sow_key) == ({"n": 0}, None)
    (record,) = client.sow("positions", of("select"), options="select=[-/,+/id]")
    assert record.sow_key is not None


def test_result_as_batches_and_as_a_table(client: tt.Client) -> None:
    fill(client, "table", 1000)
    batches = list(client.sow("positions", of("table"), batch_size=100).batches())
    assert [len(batch) for batch in batches] == [100] * 10
    table = client.sow("positions", of("table"), order_by="/n").to_arrow(["sow_key", "data"])
    assert table.num_rows == 1000
    assert len(set(table.column("sow_key").to_pylist())) == 1000


def test_command_executes_queries(client: tt.Client) -> None:
    fill(client, "command", 3)
    result = client.execute(tt.Command("sow", "positions", filter=of("command"), order_by="/n DESC", top_n=2))
    assert isinstance(result, tt.SowResult)
    assert numbers(result) == [2, 1]
    got: queue.SimpleQueue[tt.Message] = queue.SimpleQueue()
    command = tt.Command("sow_and_subscribe", "positions", filter=of("command"), order_by="/n")
    with client.execute_async(command, got.put):
        client.publish("positions", {"id": "command-00001", "n": 9})
        messages = [got.get(timeout=SECONDS) for _ in range(6)]
    assert [m.command for m in messages] == ["group_begin", "sow", "sow", "sow", "group_end", "publish"]
    assert messages[-1].sow_key == messages[2].sow_key
    with pytest.raises(tt.BadOption, match="does not use sub_id"):
        client.execute(tt.Command("sow", "positions", sub_id="x"))


@pytest.mark.parametrize(
    ("kind", "topic", "given"),
    [
        (tt.BadTopic, "unknown", {}),
        (tt.BadTopic, "$sow", {}),
        (tt.BadFilter, "positions", {"filter": "/id ="}),
        (tt.BadOrderBy, "positions", {"order_by": "id"}),
        (tt.BadOption, "positions", {"skip_n": 1}),
        (tt.NotBuilt, "positions", {"bookmark": tt.EPOCH}),
        (tt.BadOption, "positions", {"options": "conflation=1s"}),
    ],
)
def test_invalid_query_raises_at_the_call(
    client: tt.Client, kind: type[Exception], topic: str, given: dict[str, Any]
) -> None:
    with pytest.raises(kind):
        client.sow(topic, **given)
    assert list(client.sow("positions", "/id = 'nothing'")) == [], "the client is still usable"


@pytest.mark.behaviour(50)
def test_closed_result_and_unsubscribed_query_end(client: tt.Client) -> None:
    fill(client, "closed", 500)
    with client.sow("positions", of("closed"), batch_size=1, depth=1000) as result:
        assert next(result).command == "sow"
    assert list(result) == []
    result = client.sow("positions", of("closed"), batch_size=1, depth=1000, query_id="long")
    client.unsubscribe("long")
    assert len(list(result)) < 500
    assert (result.end_reason, result.matches) == ("unsubscribed", None)


@pytest.mark.behaviour(49)
def test_slow_reader_gets_the_same_result_in_bounded_memory(client: tt.Client) -> None:
    fill(client, "slow", 3000)
    result = client.sow("positions", of("slow"), order_by="/n", batch_size=1, depth=2000)
    fill(client, "slow", 3000, "later")
    buffer = result._buffer
    got: list[Any] = []
    most = 0
    for record in result:
        waiting = [batch for batch in buffer._batches if isinstance(batch, tt.MessageBatch)]
        most = max(most, sum([batch.cost for batch in waiting]))
        got.append(record.json())
    assert [record["n"] for record in got] == list(range(3000))
    assert {record["v"] for record in got} == {0}, "changes after the position are not in the result"
    assert 0 < most <= 2000


def test_timeout_bounds_the_wait_for_records(server: RunningServer, client: tt.Client) -> None:
    fill(client, "stall", 1000)
    with FaultProxy(server.uri) as proxy, tt.Client("stalled", proxy.uri) as other:
        result = other.sow("positions", of("stall"), batch_size=1, depth=1000, timeout="300ms")
        next(result)
        proxy.stall()
        with pytest.raises(tt.TimedOut):
            for _ in result:
                pass


# -- records, then messages -----------------------------------------------------------------------------


@pytest.mark.behaviour(51)
def test_messages_follow_the_records_without_gap_or_duplicate(
    client: tt.Client, server: RunningServer
) -> None:
    fill(client, "follow", 200)
    stop = threading.Event()

    def update() -> None:
        with tt.Client("follow-publisher", server.uri) as publisher:
            value = 0
            while not stop.is_set():
                value += 1
                publisher.publish(
                    "positions", {"id": f"follow-{value % 200:05}", "n": value % 200, "v": value}
                )

    thread = threading.Thread(target=update)
    thread.start()
    try:
        for _ in range(5):
            with client.sow_and_subscribe("positions", of("follow")) as stream:
                last = 0
                records = [next(stream) for _ in range(200)]
                assert {record.command for record in records} == {"sow"}
                assert len({record.sow_key for record in records}) == 200
                last = max(record.json()["v"] for record in records)
                for _ in range(500):
                    message = next(stream)
                    assert (message.command, message.json()["v"]) == ("publish", last + 1)
                    last += 1
    finally:
        stop.set()
        thread.join()


def test_wait_snapshot_waits_for_all_records(client: tt.Client) -> None:
    fill(client, "wait", 300)
    with client.sow_and_subscribe("positions", of("wait"), depth=1000, groups=True) as stream:
        stream.wait_snapshot()
        as_of = stream.as_of
        messages = [stream.get(timeout=0) for _ in range(302)]
        assert [messages[0].command, messages[-1].command] == ["group_begin", "group_end"]
        assert [messages[0].bookmark, messages[-1].bookmark] == [as_of, as_of]
        with pytest.raises(tt.TimedOut):
            stream.get(timeout=0.01)
        assert stream.recovery_point == as_of
        with client.bookmark_subscribe("positions", str(stream.recovery_point), filter=of("wait")) as rest:
            client.publish("positions", {"id": "wait-x", "n": 1})
            assert rest.get(timeout=SECONDS).data == stream.get(timeout=SECONDS).data
    with client.subscribe("positions") as plain, pytest.raises(tt.UsageError, match="has no query"):
        plain.wait_snapshot()


def test_top_n_limits_the_records_only(client: tt.Client) -> None:
    fill(client, "top", 10)
    with client.sow_and_subscribe("positions", of("top"), order_by="/n DESC", top_n=2) as stream:
        assert numbers([stream.get(), stream.get()]) == [9, 8]
        client.publish("positions", {"id": "top-00000", "n": 0})
        assert numbers([stream.get(timeout=SECONDS)]) == [0]


def test_replacement_starts_with_records_of_the_new_filter(client: tt.Client) -> None:
    fill(client, "replace", 4)
    stream = client.sow_and_subscribe("positions", of("replace"), sub_id="r")
    stream.wait_snapshot()
    new = client.sow_and_subscribe("positions", f"{of('replace')} AND /n > 2", sub_id="r", options="replace")
    assert numbers([new.get()]) == [3]
    assert len(list(stream)) == 4
    assert stream.end_reason == "replaced"


# -- asyncio --------------------------------------------------------------------------------------------


def test_asyncio_client_queries_and_follows(server: RunningServer, client: tt.Client) -> None:
    fill(client, "aio", 300)

    async def run() -> None:
        async with tt.AsyncClient("aio-reader", server.uri, timeout=SECONDS) as reader:
            result = await reader.sow("positions", of("aio"), order_by="/n", depth=1000)
            assert isinstance(result, tt.AsyncSowResult)
            assert result.as_of is not None
            assert [record.json()["n"] async for record in result] == list(range(300))
            assert (result.matches, result.records_returned) == (300, 300)
            table = await (await reader.sow("positions", of("aio"))).to_arrow(["sow_key"])
            assert table.num_rows == 300
            with pytest.raises(tt.BadOrderBy):
                await reader.sow("positions", order_by="n")
            got: asyncio.Queue[tt.Message] = asyncio.Queue()
            stream = await reader.sow_and_subscribe("positions", of("aio"), on_message=got.put)
            await stream.wait_snapshot()
            await reader.publish("positions", {"id": "aio-00007", "n": 7})
            messages = [await asyncio.wait_for(got.get(), SECONDS) for _ in range(303)]
            commands = [message.command for message in messages]
            assert commands == ["group_begin"] + ["sow"] * 300 + ["group_end", "publish"]
            assert stream.as_of == messages[0].bookmark

    asyncio.run(run())


# -- lost connections -----------------------------------------------------------------------------------


@pytest.mark.behaviour(50)
@pytest.mark.parametrize("make", [tt.Client, lambda name, uri: tt.HAClient(name, servers=[uri])])
def test_result_of_a_lost_connection_raises(
    server: RunningServer, client: tt.Client, make: Callable[[str, str], tt.Client]
) -> None:
    fill(client, "lost", 500)
    with FaultProxy(server.uri) as proxy, make("lost-reader", proxy.uri) as reader:
        result = reader.sow("positions", of("lost"), batch_size=1, depth=1000)
        next(result)
        proxy.cut()
        with pytest.raises(tt.Disconnected):
            list(result)
        assert result.matches is None


class Recorder:
    """Handler that records messages, and the state of their topic."""

    def __init__(self) -> None:
        self.messages: list[tt.Message] = []
        self.state: dict[str, Any] = {}
        self.records = 0

    def __call__(self, message: tt.Message) -> None:
        self.messages.append(message)
        if message.command == "group_begin":
            self.state = {}
        elif message.command in ("sow", "publish"):
            self.state[str(message.sow_key)] = message.json()["v"]

    def commands(self) -> list[str]:
        """Return the distinct commands in a row."""
        found: list[str] = []
        for message in self.messages:
            if found[-1:] != [message.command]:
                found.append(message.command)
        return found


@pytest.mark.full
@pytest.mark.behaviour(52)
def test_ha_client_continues_after_kills_of_the_server(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", CONFIG) as server,
        tt.HAClient("ha-publisher", servers=[server.uri], timeout=SECONDS) as publisher,
        tt.HAClient("ha-reader", servers=[server.uri], timeout=SECONDS) as reader,
    ):
        fill(publisher, "ha", 100)
        seen = Recorder()
        stream = reader.sow_and_subscribe("positions", of("ha"), sub_id="s", on_message=seen)
        stream.wait_snapshot()
        for value in range(1, 4):
            server.kill()
            for n in range(30):
                publisher.publish("positions", {"id": f"ha-{n:05}", "n": n, "v": value})
            server.restart()
            publisher.publish_flush(timeout=SECONDS)
            publisher.publish("positions", {"id": "ha-last", "n": -1, "v": value})
            wait_until(lambda value=value: value in list(seen.state.values())[100:], SECONDS)
        assert seen.commands() == ["group_begin", "sow", "group_end", "publish"]
        published = [message.json()["v"] for message in seen.messages if message.command == "publish"]
        assert published == [1] * 31 + [2] * 31 + [3] * 31
        assert stream.restarts == 0


@pytest.mark.behaviour(52)
def test_ha_client_repeats_the_query_at_a_server_with_another_log(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "a", CONFIG) as first,
        running_server(tmp_path / "b", CONFIG) as second,
        tt.Client("pub", first.uri) as a,
        tt.Client("pub", second.uri) as b,
        tt.HAClient("ha-reader", servers=[first.uri, second.uri], timeout=SECONDS) as reader,
    ):
        fill(a, "x", 10, "a")
        fill(b, "x", 5, "b")
        seen = Recorder()
        stream = reader.sow_and_subscribe("positions", on_message=seen)
        stream.wait_snapshot()
        assert list(seen.state.values()) == ["a"] * 10
        first.kill()
        wait_until(lambda: seen.commands().count("group_end") == 2, SECONDS)
        fill(b, "x", 1, "later")
        wait_until(lambda: seen.commands()[-1] == "publish", SECONDS)
        assert list(seen.state.values()) == ["later", "b", "b", "b", "b"]
        assert stream.restarts == 1


@pytest.mark.behaviour(52)
def test_ha_client_repeats_the_query_after_retention_removed_the_place(tmp_path: Path) -> None:
    config = CONFIG + '[journal]\nsegment_size = "1MB"\nretain_size = "3MB"\nsync = "never"\n'
    body = "x" * 20_000
    with (
        running_server(tmp_path / "data", config) as server,
        tt.Client("pub", server.uri, timeout=SECONDS) as publisher,
        FaultProxy(server.uri) as proxy,
        tt.HAClient("ha-reader", servers=[proxy.uri], timeout=SECONDS) as reader,
    ):
        fill(publisher, "old", 3)
        seen = Recorder()
        stream = reader.sow_and_subscribe("positions", on_message=seen)
        stream.wait_snapshot()
        proxy.refuse()
        proxy.cut()
        oldest = stream.recovery_point
        assert oldest is not None

        def is_gone() -> bool:
            for n in range(20):
                publisher.publish("positions", {"id": f"new-{n}", "n": n, "v": 1, "text": body})
            publisher.publish_flush()
            try:
                publisher.bookmark_subscribe("positions", oldest).close()
            except tt.BookmarkExpired:
                return True
            return False

        wait_until(is_gone, 60)
        proxy.accept()
        wait_until(lambda: seen.commands().count("group_end") == 2, SECONDS)
        assert sorted(seen.state.values()) == [0] * 3 + [1] * 20
        assert stream.restarts == 1
        assert "publish" not in seen.commands()


def test_asyncio_ha_client_continues_after_a_kill(tmp_path: Path) -> None:
    async def run(server: RunningServer) -> None:
        async with tt.AsyncHAClient("ha", servers=[server.uri], timeout=SECONDS) as client:
            await client.publish("positions", {"id": 1, "v": 0})
            await client.publish_flush()
            seen = Recorder()
            stream = await client.sow_and_subscribe("positions", on_message=seen)
            await stream.wait_snapshot()
            await asyncio.to_thread(server.kill)
            await client.publish("positions", {"id": 2, "v": 1})
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(wait_until, lambda: seen.commands()[-1:] == ["publish"], SECONDS)
            assert seen.commands() == ["group_begin", "sow", "group_end", "publish"]
            assert list(seen.state.values()) == [0, 1]

    with running_server(tmp_path / "data", CONFIG) as server:
        asyncio.run(run(server))


def test_subscription_manager_restores_a_query_with_a_new_result(
    server: RunningServer, client: tt.Client
) -> None:
    fill(client, "manager", 5)
    first, second = Recorder(), Recorder()

    class Manager(tt.MemorySubscriptionManager):
        def bind(self, subscription: tt.StoredSubscription) -> tt.Handler | None:
            return second

    manager = Manager()
    with tt.HAClient("m", servers=[server.uri], subscription_manager=manager) as reader:
        stream = reader.sow_and_subscribe(
            "positions", of("manager"), sub_id="s", order_by="/n DESC", top_n=2, on_message=first
        )
        stream.wait_snapshot()
    (stored,) = manager.stored()
    assert (stored.command, stored.order_by, stored.top_n) == ("sow_and_subscribe", "/n DESC", 2)
    with tt.HAClient("m", servers=[server.uri], subscription_manager=manager):
        wait_until(lambda: second.commands()[-1:] == ["group_end"], SECONDS)
    assert numbers(m for m in second.messages if m.command == "sow") == [4, 3]
