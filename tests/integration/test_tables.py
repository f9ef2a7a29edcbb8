"""Tables of both clients with a real server: deletes, refreshes, lost connections, kills of the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

import tickertape as tt
from tests.conformance.fronts import BOTH_FRONTS, Front, front_fixture
from tests.helpers.forking import exit_code_of_child
from tests.helpers.relay import Relay
from tickertape.client.api.table import TableFeed
from tickertape.client.common.effects import Waiter
from tickertape.testing import RunningServer, running_server, wait_until

pytestmark = pytest.mark.slow

CONFIG: Final = """
[[sow]]
name = "positions"
key = ["/id"]
[[sow]]
name = "desks"
pattern = "^desk/"
key = ["/id"]
[[sow]]
name = "settings"
pattern = "^setting/"
[admin]
listen = "off"
"""
SECONDS: Final = 30.0
Content = dict[Any, int]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as running:
        yield running


front = front_fixture(*BOTH_FRONTS)


@pytest.fixture
def writer(server: RunningServer) -> Iterator[tt.HAClient]:
    """A client that changes the records, also after a restart of the server."""
    client = tt.HAClient.memory_backed("writer", servers=[server.uri], reconnect_delay=0.05)
    with client:
        client.connect_and_logon()
        yield client


def publish(writer: tt.Client, *rows: tuple[int, int], topic: str = "positions") -> None:
    writer.publish_batch(topic, [{"id": identifier, "qty": qty} for identifier, qty in rows])
    writer.publish_flush(timeout=SECONDS)


def content(table: tt.Table[None]) -> Content:
    return {message.json()["id"]: message.json()["qty"] for message in table.values()}


def changed(table: tt.Table[None]) -> set[int]:
    """The ids of changed records, which must still exist."""
    return {table[key].json()["id"] for key in table.changed()}


def wait_for(table: tt.Table[None], wanted: Content) -> None:
    wait_until(lambda: content(table) == wanted, SECONDS)


def ha_client(front: Front, uri: str) -> tt.HAClient:
    client = front.make_ha("screen", servers=[uri], reconnect_delay=0.05, timeout=SECONDS)
    client.connect_and_logon()
    return client


def test_table_has_the_records_and_follows_messages(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, *((number, number) for number in range(5000)))
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions", "/qty >= 10")
    assert content(table) == {number: number for number in range(10, 5000)}
    assert len(table) == 4990
    assert changed(table) == set(range(10, 5000))
    assert table.changed() == set()
    publish(writer, (3, 30), (12, 1), (13, 14))
    table.wait(timeout=SECONDS)
    wait_for(table, {number: number for number in range(10, 5000)} | {3: 30, 13: 14})
    assert changed(table) == {3, 13}
    writer.delta_publish("positions", {"id": 13, "note": "x"})
    writer.publish_flush()
    table.wait(timeout=SECONDS)
    (key,) = table.changed()
    message = table[key]
    assert message.json() == {"id": 13, "qty": 14, "note": "x"}
    assert (message.sow_key, message.command, key in table, "x" in table) == (key, "publish", True, False)
    assert set(table) == set(table.keys()) == set(table.copy())


def test_refresh_removes_deleted_and_unmatched_records(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, *((number, 5) for number in range(10)))
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions", "/qty > 0")
    keys = {message.json()["id"]: key for key, message in table.items()}
    table.changed()
    writer.sow_delete("positions", filter="/id < 3")
    publish(writer, (3, 0), (4, 6))
    wait_for(table, dict.fromkeys(range(10), 5) | {4: 6})
    table.refresh(timeout=SECONDS)
    assert content(table) == dict.fromkeys(range(5, 10), 5) | {4: 6}
    assert table.changed() == {keys[number] for number in (0, 1, 2, 3, 4)}
    assert table.restarts == 0
    publish(writer, (0, 7))
    table.wait(timeout=SECONDS)
    assert changed(table) == {0}


def test_refreshes_while_records_change_equal_queries(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, *((number, 0) for number in range(200)))
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions")
    stop = threading.Event()

    def change() -> None:
        with tt.Client("changer", server.uri) as changer:
            count = 0
            while not stop.is_set():
                count += 1
                changer.publish_batch(
                    "positions", [{"id": (count * 7 + n) % 200, "qty": count} for n in range(20)]
                )
                changer.sow_delete("positions", filter=f"/id % 50 = {count % 50}")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            writer.sow_delete("positions", filter="/id >= 190")
            table.refresh(timeout=SECONDS)
            assert table.as_of is not None
    finally:
        stop.set()
        thread.join()
    table.refresh(timeout=SECONDS)
    assert content(table) == {one.json()["id"]: one.json()["qty"] for one in writer.sow("positions")}


def test_records_deleted_during_an_outage_vanish_with_the_new_result(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, *((number, 1) for number in range(10)))
    with Relay(server.uri) as relay:
        table = front.table(ha_client(front, relay.uri), "positions")
        table.changed()
        keys = {message.json()["id"]: key for key, message in table.items()}
        relay.hold()
        relay.cut()
        writer.sow_delete("positions", filter="/id < 3")
        publish(writer, (7, 2))
        assert content(table) == dict.fromkeys(range(10), 1)
        relay.release()
        wait_until(lambda: table.restarts >= 1, SECONDS)
        table.wait_snapshot(timeout=SECONDS)
        assert content(table) == dict.fromkeys(range(3, 10), 1) | {7: 2}
        assert table.changed() == {keys[number] for number in (0, 1, 2, 7)}


def test_table_of_an_ha_client_is_exact_after_kills_of_the_server(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    table = front.table(ha_client(front, server.uri), "positions")
    for kill in range(1, 4):
        publish(writer, *((number, kill) for number in range(50)))
        server.kill()
        server.restart()
        writer.sow_delete("positions", filter=f"/id % 10 = {kill}", timeout=SECONDS)
        table.refresh(timeout=SECONDS)
        assert content(table) == {number: kill for number in range(50) if number % 10 != kill}
    assert table.restarts >= 1


def test_refresh_during_an_outage_waits_for_the_result_of_the_next_connection(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, (1, 1), (2, 2))
    with Relay(server.uri) as relay:
        table = front.table(ha_client(front, relay.uri), "positions")
        relay.hold()
        call = threading.Thread(target=lambda: table.refresh(timeout=SECONDS))
        call.start()
        writer.sow_delete("positions", filter="/id = 1")
        relay.cut()
        relay.release()
        call.join(SECONDS)
        assert not call.is_alive()
        assert content(table) == {2: 2}


def test_concurrent_refreshes_all_return(front: Front, server: RunningServer, writer: tt.HAClient) -> None:
    publish(writer, *((number, 1) for number in range(300)))
    table = front.table(front.connect("screen", server.uri, timeout=SECONDS), "positions")
    writer.sow_delete("positions", filter="/id >= 100")
    done: list[int] = []

    def refresh() -> None:
        table.refresh()
        done.append(len(table))

    threads = [threading.Thread(target=refresh) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    assert done == [100] * 4


def test_refresh_before_the_replaced_subscription_of_another_has_ended(
    server: RunningServer, writer: tt.HAClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(writer, (1, 1), (2, 2))
    ask, end, asked = TableFeed.ask, TableFeed.end, threading.Event()

    def ask_and_note(feed: TableFeed, call: Waiter) -> None:
        ask(feed, call)
        if threading.current_thread() is second:
            asked.set()

    def end_later(feed: TableFeed, reason: str, error: tt.TickertapeError | None) -> None:
        if second.ident is None:
            second.start()
            assert asked.wait(SECONDS)
        end(feed, reason, error)

    with tt.Client("screen", server.uri, timeout=SECONDS) as client, tt.Table(client, "positions") as table:
        second = threading.Thread(target=table.refresh)
        monkeypatch.setattr(TableFeed, "ask", ask_and_note)
        monkeypatch.setattr(TableFeed, "end", end_later)
        table.refresh()
        second.join(SECONDS)
        publish(writer, (2, 3))
        wait_for(table, {1: 1, 2: 3})
        writer.sow_delete("positions", filter="/id = 1")
        table.refresh()
        assert content(table) == {2: 3}


def test_late_results_raise_and_leave_no_subscription(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, (1, 1), (2, 2))
    with Relay(server.uri) as relay:
        client = front.connect("screen", relay.uri)
        table = front.table(client, "positions")
        writer.sow_delete("positions", filter="/id = 1")
        relay.hold()
        with pytest.raises(tt.TimedOut, match="the query of a table: no answer"):
            _ = front.table(client, "positions", timeout="100ms")
        with pytest.raises(tt.TimedOut, match="the query of a table: no answer"):
            table.refresh(timeout="100ms")
        assert content(table) == {1: 1, 2: 2}
        relay.release()
        wait_for(table, {2: 2})
        publish(writer, (3, 3))
        wait_for(table, {2: 2, 3: 3})
        table.refresh(timeout=SECONDS)
        with pytest.raises(tt.SubscriptionUnknown):
            client.unsubscribe("screen-2")


def test_lost_connection_of_a_client_without_reconnect_ends_the_table(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, (1, 1))
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions")
    errors: list[BaseException] = []

    def wait() -> None:
        table.changed()
        try:
            table.wait()
        except tt.TickertapeError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    server.kill()
    waiting.join(SECONDS)
    assert [type(error) for error in errors] == [tt.Disconnected]
    for read in (lambda: len(table), lambda: list(table), table.copy, table.changed, table.wait_snapshot):
        with pytest.raises(tt.Disconnected):
            read()
    with pytest.raises(tt.Disconnected):
        table.refresh()
    table.close()
    server.restart()


def test_closed_table_keeps_records_and_refuses_waits(
    front: Front, server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, (1, 1))
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions")
    table.close()
    table.close()
    publish(writer, (1, 2))
    assert content(table) == {1: 1}
    for call in (table.wait, table.refresh, table.wait_snapshot):
        with pytest.raises(tt.StreamEnded, match=r"it is closed\. Create a new table\."):
            call()
    again = front.table(client, "positions")
    assert content(again) == {1: 2}


def test_closed_client_ends_the_table(front: Front, server: RunningServer) -> None:
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions")
    client.close()
    with pytest.raises(tt.Closed):
        table.copy()
    with pytest.raises(tt.Closed):
        _ = front.table(client, "positions")


def test_record_limit_ends_the_table(front: Front, server: RunningServer, writer: tt.HAClient) -> None:
    publish(writer, (1, 1), (2, 2))
    client = front.connect("screen", server.uri)
    with pytest.raises(tt.LimitReached, match="more than max_records"):
        _ = front.table(client, "positions", max_records=1)
    table = front.table(client, "positions", max_records=2)
    publish(writer, (2, 3))
    wait_for(table, {1: 1, 2: 3})
    table.changed()
    publish(writer, (3, 3))
    with pytest.raises(tt.LimitReached):
        table.wait(timeout=SECONDS)
    with pytest.raises(tt.LimitReached):
        table.copy()
    assert content(front.table(client, "positions", max_records=3)) == {1: 1, 2: 3, 3: 3}


def test_keys_over_patterns(front: Front, server: RunningServer, writer: tt.HAClient) -> None:
    publish(writer, (1, 1), topic="desk/a")
    publish(writer, (1, 2), topic="desk/b")
    for topic, qty in (("setting/a", 3), ("setting/b", 4)):
        writer.publish(topic, {"id": 1, "qty": qty}, sow_key="k")
    writer.publish_flush(timeout=SECONDS)
    client = front.connect("screen", server.uri)
    by_topic = front.table(client, "^desks$")
    found: Content = {key: message.json()["qty"] for key, message in by_topic.items()}
    assert {(topic, qty) for (topic, _), qty in found.items()} == {("desk/a", 1), ("desk/b", 2)}
    by_name = front.table(client, "desks")
    assert sorted(message.json()["qty"] for message in by_name.values()) == [1, 2]
    assert set(by_name) == {key for _, key in found}
    settings = front.table(client, "^settings$")
    wanted = {("setting/a", "k"): 3, ("setting/b", "k"): 4}
    assert {key: message.json()["qty"] for key, message in settings.items()} == wanted
    one = front.table(client, "setting/b")
    assert {key: message.topic for key, message in one.items()} == {"k": "setting/b"}
    with pytest.raises(tt.BadTopic, match=r"Pass the pattern '\^settings\$', so that the keys"):
        _ = front.table(client, "settings")
    publish(writer, (1, 5), topic="desk/a")
    (key,) = (key for key in found if key[0] == "desk/a")
    wait_until(lambda: by_topic[key].json()["qty"] == 5, SECONDS)


def test_pattern_without_sow_topics_is_refused(front: Front, server: RunningServer) -> None:
    client = front.connect("screen", server.uri)
    with pytest.raises(tt.BadTopic, match=r"no SOW topic of this server matches the pattern\."):
        _ = front.table(client, "^desk/")


def test_invalid_arguments(front: Front, server: RunningServer) -> None:
    client = front.connect("screen", server.uri)
    with pytest.raises(tt.BadTopic, match="not a SOW topic"):
        _ = front.table(client, "orders")
    with pytest.raises(tt.BadFilter):
        _ = front.table(client, "positions", "/qty >")
    with pytest.raises(tt.BadOption, match=r"Invalid max_records 0\. Use a number of records, 1 or more\."):
        _ = front.table(client, "positions", max_records=0)
    with pytest.raises(tt.TimedOut, match=r"no record changed within 0\.05 s\. Pass a longer timeout\."):
        _ = front.table(client, "positions").wait(timeout="50ms")
    with pytest.raises(tt.UsageError, match=r"Invalid client of type int\. Use a client\."):
        _ = tt.Table(cast("tt.Client", 5), "positions")


def test_unsubscribed_table_raises(front: Front, server: RunningServer) -> None:
    client = front.connect("screen", server.uri)
    table = front.table(client, "positions")
    client.unsubscribe("screen-1")
    with pytest.raises(tt.StreamEnded, match=r"its subscription has ended \(unsubscribed\)"):
        table.wait(timeout=SECONDS)


def test_timestamps_are_shown_on_request(front: Front, server: RunningServer, writer: tt.HAClient) -> None:
    publish(writer, (1, 1))
    client = front.connect("screen", server.uri)
    for timestamp in (False, True):
        (message,) = front.table(client, "positions", timestamp=timestamp).values()
        assert (message.timestamp is not None) is timestamp


def test_table_is_read_while_the_receive_thread_changes_the_records(
    server: RunningServer, writer: tt.HAClient
) -> None:
    publish(writer, *((number, 0) for number in range(500)))
    with tt.Client("screen", server.uri) as client, tt.Table(client, "positions") as table:
        stop = threading.Event()
        errors: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    items = table.items()
                    assert all(message.sow_key == key for key, message in items)
                    assert len(items) >= 500
                    table.changed()
            except Exception as error:  # noqa: BLE001 - checked below
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for turn in range(1, 30):
            publish(writer, *((number, turn) for number in range(500 + 10 * turn)))
            if turn % 10 == 0:
                table.refresh()
        stop.set()
        for reader in readers:
            reader.join()
        assert errors == []
        wait_for(table, dict.fromkeys(range(790), 29))


def test_blocking_table_refuses_waits_in_handlers(server: RunningServer, writer: tt.HAClient) -> None:
    errors: list[BaseException] = []
    with tt.Client("screen", server.uri) as client, tt.Table(client, "positions") as table:

        def handle(_: tt.Message) -> None:
            for call in (table.wait, table.refresh, lambda: tt.Table(client, "positions")):
                try:
                    call()
                except tt.UsageError as error:
                    errors.append(error)

        client.subscribe("positions", on_message=handle)
        publish(writer, (1, 1))
        wait_until(lambda: len(errors) == 3, SECONDS)
        assert all("on the receive thread" in str(error) for error in errors)


def test_forked_child_refuses_the_table(server: RunningServer, writer: tt.HAClient) -> None:
    publish(writer, (1, 1))
    with tt.Client("screen", server.uri) as client, tt.Table(client, "positions") as table:

        def use() -> int:
            for call in (lambda: len(table), table.copy, table.changed, table.wait):
                with pytest.raises(tt.Forked):
                    call()
            table.close()
            return 0

        assert exit_code_of_child(use) == 0
        assert content(table) == {1: 1}


def test_forked_child_closes_a_table_that_has_ended(server: RunningServer) -> None:
    with tt.Client("screen", server.uri) as client, tt.Table(client, "positions") as table:
        client.unsubscribe("screen-1")
        with pytest.raises(tt.StreamEnded):
            table.wait(timeout=SECONDS)

        def use() -> int:
            table.close()
            return 0

        assert exit_code_of_child(use) == 0


def test_asyncio_table_must_be_opened(server: RunningServer) -> None:
    asyncio.run(use_unopened_table(server))


async def use_unopened_table(server: RunningServer) -> None:
    async with tt.AsyncClient("screen", server.uri) as client:
        table = tt.Table(client, "positions")
        with pytest.raises(tt.UsageError, match=r"it is not open\. Use `async with`, or await the table\."):
            len(table)
        with pytest.raises(tt.UsageError, match="it is not open"):
            await table.wait()
        with pytest.raises(tt.UsageError, match=r"Use `async with`\."), table:  # type: ignore[misc]
            pass
        async with table:
            assert len(table) == 0
        assert repr(table) == "<Table of 'positions', 0 records, closed>"


def test_blocking_table_cannot_be_awaited(server: RunningServer) -> None:
    with tt.Client("screen", server.uri) as client, tt.Table(client, "positions") as table:
        with pytest.raises(tt.UsageError, match=r"its client is a blocking client\. Use `with`\."):
            table.__await__().send(None)  # type: ignore[misc]
        assert repr(table) == "<Table of 'positions', 0 records>"
