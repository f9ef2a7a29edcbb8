"""Deletes of records and deltas happen once (R9): the server is killed between the commit and the answer.

Another client changes the same records before the resend. A repeated delete or merge would change them back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import BOTH_FRONTS, Front, front_fixture
from tests.faults.log_on_disk import read_log
from tests.helpers.relay import Relay
from tickertape.testing import RunningServer, running_server, wait_until

CONFIG = '[[sow]]\nname = "positions"\nkey = ["/id"]\n'
SECONDS = 30.0


front = front_fixture(*BOTH_FRONTS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as running:
        yield running


def records(server: RunningServer) -> list[Any]:
    with tt.Client("reader", server.uri) as reader:
        return [record.json() for record in reader.sow("positions", order_by="/id")]


def publish(server: RunningServer, *bodies: dict[str, int]) -> None:
    with tt.Client("other", server.uri) as other:
        other.publish_batch("positions", bodies)
        other.publish_flush()


def kill_and_restart(server: RunningServer, relay: Relay) -> None:
    """Kill the server, so that its held answers are lost, and start it again."""
    server.kill()
    relay.cut()
    relay.release()
    server.restart()


def deletes_in_log(server: RunningServer) -> int:
    """Stop the server and return the number of deletes in its log."""
    server.stop()
    return sum(stored.topic == "$sow" for stored in read_log(server.data))


@pytest.mark.parametrize("kind", ["memory", pytest.param("file", marks=pytest.mark.full)])
def test_waiting_delete_of_an_ha_client_happens_once_after_a_kill(
    front: Front, server: RunningServer, kind: str, tmp_path: Path
) -> None:
    publish(server, *({"id": number} for number in range(5)))
    store = tt.MemoryPublishStore() if kind == "memory" else tt.FilePublishStore(tmp_path / "store")
    with Relay(server.uri) as relay:
        client = front.make_ha("ha", servers=relay.uri, publish_store=store, reconnect_delay=0.05)
        client.connect_and_logon()
        relay.hold()
        found: list[tt.DeleteResult | None] = []
        call = threading.Thread(
            target=lambda: found.append(client.sow_delete("positions", filter="/id > 2", timeout=SECONDS))
        )
        call.start()
        wait_until(lambda: len(records(server)) == 3)
        publish(server, {"id": 4})
        assert not found, "the answer is held back"
        kill_and_restart(server, relay)
        call.join(SECONDS)
        assert [result and result[:3] for result in found] == [(2, 2, 5)]
        client.publish("positions", {"id": 9})
        client.publish_flush(timeout=SECONDS)
        assert records(server) == [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 4}, {"id": 9}]
        assert client.unpersisted_count() == 0
    assert deletes_in_log(server) == 1


def test_delete_without_answer_is_resent_once_by_the_next_process(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    publish(server, *({"id": number} for number in range(5)))
    with Relay(server.uri) as relay:
        store = tt.FilePublishStore(tmp_path / "store")
        client = front.connect("a", relay.uri, publish_store=store)
        client.publish("positions", {"id": 1, "qty": 1})
        client.publish_flush()
        relay.hold()
        client.sow_delete("positions", filter="/id > 2", wait=False)
        client.delta_publish("positions", {"id": 1, "price": 2})
        wait_until(lambda: records(server)[1:] == [{"id": 1, "qty": 1, "price": 2}, {"id": 2}])
        publish(server, {"id": 4}, {"id": 1, "price": 3})
        kill_and_restart(server, relay)
        wait_until(lambda: not client.connected)
        assert client.unpersisted_count() == 2
        client.close()
        store.close()
    with tt.FilePublishStore(tmp_path / "store") as reopened:
        client = front.connect("a", server.uri, publish_store=reopened)
        client.publish_flush(timeout=SECONDS)
        assert client.unpersisted_count() == 0
        client.close()
    assert records(server) == [{"id": 0}, {"id": 1, "price": 3}, {"id": 2}, {"id": 4}]
    assert deletes_in_log(server) == 1


def test_unsent_delete_and_delta_of_a_killed_connection_take_effect_after_the_restart(
    front: Front, server: RunningServer, tmp_path: Path
) -> None:
    publish(server, *({"id": number} for number in range(5)))
    store = tt.FilePublishStore(tmp_path / "store")
    client = front.make_ha("ha", servers=server.uri, publish_store=store, reconnect_delay=0.05)
    client.connect_and_logon()
    server.kill()
    wait_until(lambda: not client.connected)
    client.publish("positions", {"id": 7})
    client.sow_delete("positions", filter="/id > 2", wait=False)
    client.delta_publish("positions", {"id": 1, "qty": 2})
    client.publish("positions", {"id": 8})
    assert client.unpersisted_count() == 4
    server.restart()
    client.publish_flush(timeout=SECONDS)
    assert records(server) == [{"id": 0}, {"id": 1, "qty": 2}, {"id": 2}, {"id": 8}]
    client.close()
    store.close()
    assert deletes_in_log(server) == 1
