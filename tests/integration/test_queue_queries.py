"""Queries of the available messages of queues on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tickertape as tt
from tickertape.testing import RunningServer, wait_until

CONFIG = """
[[sow]]
name = "stock"
key = ["/id"]
[[topic]]
name = "jobs"
message_type = "json"
[[topic]]
name = "quotes"
message_type = "nvfix"
[[queue]]
name = "work"
underlying = "jobs"
[[queue]]
name = "mixed"
underlying = "^(jobs|quotes)$"
[[queue]]
name = "stock-work"
underlying = "stock"
[admin]
listen = "off"
"""
SECONDS = 20.0


@pytest.fixture
def client(client: tt.Client) -> tt.Client:
    """Return a client of the test's name, with empty queues."""
    for queue in ("work", "mixed", "stock-work"):
        client.sow_delete(queue, filter="TRUE")
    client.sow_delete("stock", filter="TRUE")
    client.publish_flush()
    return client


def fill(client: tt.Client, count: int, topic: str = "jobs") -> None:
    client.publish_batch(topic, [{"id": n, "v": n % 3} for n in range(count)])
    client.publish_flush()


def ids(messages: Any) -> list[int]:
    return [message.json()["id"] for message in messages]


def browsed(client: tt.Client, queue: str) -> list[tt.Message]:
    with client.subscribe(queue, browse=True) as stream:
        return list(stream)


def test_query_of_a_queue_returns_the_available_messages(client: tt.Client) -> None:
    fill(client, 6)
    with client.subscribe("work", max_backlog=2) as consumer:
        held = [next(consumer), next(consumer)]
        result = client.sow("work", timestamp=True)
        messages = list(result)
        assert (ids(held), ids(messages)) == ([0, 1], [2, 3, 4, 5])
        assert (result.matches, result.topic_matches, result.records_returned) == (4, 4, 4)
        assert [m.bookmark for m in messages] == [m.bookmark for m in browsed(client, "work")]
        first = messages[0]
        assert (first.command, first.topic, first.underlying_topic) == ("sow", "work", "jobs")
        assert (first.sow_key, first.timestamp is None) == (None, False)
        with pytest.raises(tt.UsageError, match="brows"):
            first.ack()
    wait_until(lambda: ids(client.sow("work")) == [0, 1, 2, 3, 4, 5], SECONDS)


def test_query_of_a_queue_filters_sorts_and_cuts_messages(client: tt.Client) -> None:
    fill(client, 9)
    result = client.sow("work", "/id > 0", order_by="/v DESC, /id", top_n=3, skip_n=1, batch_size=2)
    assert [batch.count for batch in result.batches()] == [2, 1]
    assert (result.matches, result.topic_matches, result.records_returned) == (8, 9, 3)
    assert ids(client.sow("work", "/id > 0", order_by="/v DESC, /id", top_n=3, skip_n=1)) == [5, 8, 1]
    assert ids(client.sow("work", top_n=2, skip_n=3)) == [3, 4]
    (chosen,) = client.sow("work", "/id = 4", options="select=[-/,+/v]")
    assert chosen.json() == {"v": 1}
    assert ids(client.sow("work", "/id > 100")) == []


def test_query_of_an_empty_queue_is_empty(client: tt.Client) -> None:
    result = client.sow("work", order_by="/id")
    assert list(result) == []
    assert (result.matches, result.topic_matches, result.as_of) == (0, 0, tt.EPOCH)


def test_query_of_a_queue_filters_and_returns_correlation_ids(client: tt.Client) -> None:
    labels = [None, "order-1", "order-é", "order-1"]
    for n, label in enumerate(labels):
        client.publish("jobs", {"id": n}, correlation_id=label)
    client.publish("stock", {"id": 9})
    client.publish_flush()
    assert ids(client.sow("work", "CORRELATION_ID() = 'order-1'")) == [1, 3]
    assert [message.correlation_id for message in client.sow("work")] == labels
    found = list(client.sow("^(work|stock)$", order_by="/id DESC"))
    assert [message.correlation_id for message in found] == [None, *reversed(labels)]


def test_query_of_a_queue_over_several_topics_reads_each_message_type(client: tt.Client) -> None:
    client.publish("jobs", {"id": 7})
    client.publish("quotes", b"id=8\x01")
    client.publish_flush()
    result = list(client.sow("mixed", order_by="/id DESC"))
    assert [(m.topic, m.underlying_topic) for m in result] == [("mixed", "quotes"), ("mixed", "jobs")]


def test_pattern_covers_queues_and_records_in_one_order(client: tt.Client) -> None:
    for n in (2, 0, 1):
        client.publish("stock", {"id": n})
        client.publish("stock", {"id": n})
    client.publish_flush()
    assert len(list(client.sow("^stock"))) == 9
    found = list(client.sow("^stock", order_by="/id", top_n=100))
    assert [message.json()["id"] for message in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [message.topic for message in found].count("stock-work") == 6
    assert all((message.sow_key is None) == (message.topic == "stock-work") for message in found)
    keys = [str(message.sow_key) for message in client.sow("stock")]
    assert len(list(client.sow("^stock", keys=keys))) == 3, "messages of queues have no keys"
    with client.sow_and_subscribe("^stock", order_by="/id") as stream:
        assert [next(stream).topic for _ in range(3)] == ["stock"] * 3


def test_query_of_a_queue_refuses_terms_without_a_meaning(client: tt.Client) -> None:
    with pytest.raises(tt.BadOption, match=r"Cannot query queue 'work' by keys: .* Use a filter."):
        client.sow("work", keys=["6Gemf7avP2ika6hNimIFkA"])
    with pytest.raises(tt.BadOption, match=r"Cannot query and follow queue 'work': .* with subscribe."):
        client.sow_and_subscribe("work")
    with pytest.raises(tt.BadOrderBy):
        client.sow("work", order_by="/id UP")
    assert list(client.sow("work")) == [], "the client is still usable"


def test_query_of_a_queue_includes_the_last_published_message(client: tt.Client) -> None:
    for n in range(30):
        client.publish("jobs", {"id": n})
        client.publish_flush()
        assert ids(client.sow("work"))[-1] == n


def test_asyncio_client_queries_a_queue(server: RunningServer, client: tt.Client) -> None:
    fill(client, 3)

    async def query() -> list[int]:
        async with tt.AsyncClient("query-queue", server.uri, timeout=SECONDS) as other:
            return [message.json()["id"] async for message in await other.sow("work")]

    assert asyncio.run(query()) == [0, 1, 2]
