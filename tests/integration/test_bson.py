"""BSON topic on a real server: validation, filters, select lists, replay and queues."""

from __future__ import annotations

from datetime import UTC, datetime

import bson
import pytest

import tickertape as tt
from tickertape.testing import RunningServer

SECONDS = 30.0
NAMES = ["o0", "o1", "o2", "o3", "o4", "selected", "refused", "work"]
CONFIG = "".join(
    f'[[topic]]\nname = "bson/{name}"\nmessage_type = "bson"\nvalidate = true\n' for name in NAMES
)
CONFIG += """
[[queue]]
name = "bson/work"
filter = "/qty >= 100"
priority = "/qty"
"""
ORDERS = [
    {"n": bson.Int64(0), "symbol": "IBM", "qty": 100, "at": datetime(2026, 11, 20, 9, tzinfo=UTC)},
    {
        "n": bson.Int64(1),
        "symbol": "MSFT",
        "qty": 2.5,
        "price": bson.Decimal128("10.50"),
        "id": bson.ObjectId(),
    },
    {"n": bson.Int64(2), "symbol": "IBM", "qty": 300, "legs": [{"px": None}, {"px": 7}], "raw": b"\xff"},
]
BODIES = [*map(bson.encode, ORDERS)]


def _taken(stream: tt.MessageStream, count: int) -> list[bytes]:
    return [bytes(stream.get(timeout=SECONDS).data) for _ in range(count)]


@pytest.mark.parametrize(
    ("topic", "text", "expected"),
    [
        ("bson/o0", "/symbol = 'IBM'", [0, 2]),
        ("bson/o1", "/at > '2026-11-20' AND /at < '2026-11-21'", [0]),
        ("bson/o2", "/price * 2 = 21 AND LENGTH(/id) = 24", [1]),
        ("bson/o3", "/legs/px = 7 AND /legs/px IS NULL", [2]),
        ("bson/o4", "/raw IS NOT NULL", [2]),
    ],
)
def test_filters_select_live_and_replayed_bson(
    server: RunningServer, topic: str, text: str, expected: list[int]
) -> None:
    with tt.Client("publisher", server.uri) as publisher, tt.Client("reader", server.uri) as reader:
        live = reader.subscribe(topic, filter=text)
        for body in BODIES:
            publisher.publish(topic, body)
        publisher.publish_flush(timeout=SECONDS)
        replayed = reader.bookmark_subscribe(topic, tt.EPOCH, filter=text)
        wanted = [BODIES[n] for n in expected]
        assert _taken(live, len(wanted)) == _taken(replayed, len(wanted)) == wanted


def test_select_list_keeps_bson_types(server: RunningServer) -> None:
    with tt.Client("select", server.uri) as client:
        stream = client.subscribe("bson/selected", select="[-/,+/n,+/price,+/legs/px]")
        for body in BODIES:
            client.publish("bson/selected", body)
        found = [bson.decode(body) for body in _taken(stream, 3)]
    assert [type(one["n"]) for one in found] == [bson.Int64] * 3
    assert found[1] == {"n": 1, "price": bson.Decimal128("10.50")}
    assert found[2] == {"n": 2, "legs": [{"px": None}, {"px": 7}]}


@pytest.mark.parametrize("body", [b"", BODIES[0][:-1], BODIES[0] + b"\0", b"{}"])
def test_bodies_that_are_not_bson_are_refused(server: RunningServer, body: bytes) -> None:
    with tt.Client("damaged", server.uri) as client:
        client.publish("bson/refused", body)
        with pytest.raises(tt.PublishRejected, match="bson"):
            client.publish_flush(timeout=SECONDS)


def test_bson_queue_applies_filter_and_priority(server: RunningServer) -> None:
    with tt.Client("source", server.uri) as source, tt.Client("worker", server.uri) as worker:
        for body in BODIES:
            source.publish("bson/work", body)
        source.publish_flush(timeout=SECONDS)
        assert _taken(worker.subscribe("bson/work", options="max_backlog=9"), 2) == [BODIES[2], BODIES[0]]
