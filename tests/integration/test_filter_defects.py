"""Filter function with a planted defect on a real server: only its subscription is affected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.planted_filters import PlantedServer
from tickertape.testing import running_server

SECONDS = 30.0
CONFIG = """
[[journal.topic]]
pattern = ".*"

[[queue]]
name = "work"
priority = "LENGTH(/t)"

[[queue]]
name = "jobs"
filter = "LENGTH(/t) < 9"
"""
TEXTS = ("abc", "boom", "abcd")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedServer]:
    directory = tmp_path_factory.mktemp("planted")
    config = directory / "tickertape.toml"
    config.write_text(CONFIG)
    made = PlantedServer(directory / "data", config)
    try:
        made.start()
        yield made
        assert made.stop() == 0
    finally:
        made.kill()
        made.release()


def _publish(client: tt.Client, topic: str) -> None:
    for number, text in enumerate(TEXTS):
        client.publish(topic, {"t": text, "n": number})
    client.publish_flush(timeout=SECONDS)


def _numbers(stream: tt.MessageStream, count: int) -> list[int]:
    return [stream.get(timeout=SECONDS).json()["n"] for _ in range(count)]


def test_filter_that_raises_affects_only_subscriptions_with_this_filter(server: PlantedServer) -> None:
    with tt.Client("publisher", server.uri) as publisher, tt.Client("reader", server.uri) as reader:
        plain = reader.subscribe("orders")
        other = reader.subscribe("orders", filter="/n >= 0")
        same = reader.subscribe("orders", filter="LENGTH(/t) < 9")
        own = reader.subscribe("orders", filter="LENGTH(/t) < 9 AND CLIENT_NAME() = 'reader'")
        _publish(publisher, "orders")
        replayed = reader.bookmark_subscribe("orders", tt.EPOCH, filter="NOT LENGTH(/t) > 9")
        assert (_numbers(plain, 3), _numbers(other, 3)) == ([0, 1, 2], [0, 1, 2])
        assert _numbers(same, 2) == _numbers(own, 2) == _numbers(replayed, 2) == [0, 2]
        assert stats_of(server).totals.unreadable_messages >= 3


def test_filter_with_a_constant_that_raises_is_refused(server: PlantedServer) -> None:
    with tt.Client("constant", server.uri) as client:
        for _ in range(2):
            with pytest.raises(tt.BadFilter, match=r"cannot be evaluated .Planted"):
                client.subscribe("orders", filter="LENGTH('boom') > 0")


def test_queue_with_expressions_that_raise_continues(server: PlantedServer) -> None:
    with tt.Client("worker", server.uri) as worker, tt.Client("source", server.uri) as source:
        _publish(source, "work")
        _publish(source, "jobs")
        by_priority = worker.subscribe("work", options="max_backlog=9")
        assert sorted(_numbers(by_priority, 3)) == [0, 1, 2]
        by_filter = worker.subscribe("jobs", options="max_backlog=9")
        assert sorted(_numbers(by_filter, 2)) == [0, 2]
        worker.sow_delete("work", filter="LENGTH(/t) = 3")
        source.publish("work", {"t": "x", "n": 7})
        assert _numbers(by_priority, 1) == [7]


def test_strptime_with_a_repeated_directive_does_not_end_the_server(tmp_path: Path) -> None:
    config = '[[queue]]\nname = "work"\n'
    with running_server(tmp_path / "data", config) as server, tt.Client("a", server.uri) as client:
        for text in ("STRPTIME('2020-2020','%Y-%Y') > 0", "STRPTIME(/t,'%Y-%Y') > 0"):
            with pytest.raises(tt.BadFilter, match="%Y is repeated"):
                client.subscribe("t", filter=text)
            client.sow_delete("work", filter=text)
            with pytest.raises(tt.PublishRejected, match="%Y is repeated"):
                client.publish_flush(timeout=SECONDS)
        stream = client.subscribe("t")
        client.publish("t", {"n": 1, "t": "2020-2020"})
        assert _numbers(stream, 1) == [1]
