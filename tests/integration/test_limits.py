"""Configured limits: clients learn them at logon and refuse with the numbers of the server."""

from __future__ import annotations

import pytest

import tickertape as tt
from tests.helpers.peer import Peer, frame
from tickertape.batch import BatchBuilder
from tickertape.testing import RunningServer
from tickertape.wire.commands import LoggedOn, Publish, Rejected

SECONDS = 30.0
MOST = 128 * 1024
CONFIG = """
[limits]
message_bytes_max = "128KB"
filter_bytes_max = 100
subscriptions_per_connection_max = 2
"""
LONG_FILTER = "/a = '" + "x" * 100 + "'"


def test_client_refuses_message_above_the_limit_of_the_server(server: RunningServer) -> None:
    with tt.Client("long", server.uri) as client:
        stream = client.bookmark_subscribe("long", tt.NOW)
        with pytest.raises(tt.MessageTooLarge, match=r"131,073 bytes is too large\. Use at most 131,072"):
            client.publish("long", b"x" * (MOST + 1))
        with pytest.raises(tt.MessageTooLarge, match="at most 131,072 bytes"):
            client.publish_batch("long", [b"x" * (MOST + 1)])
        client.publish("long", b"x" * MOST)
        client.publish_batch("long", [b"y" * 1_000] * 200)
        client.publish_flush(timeout=SECONDS)
        assert len(stream.get(timeout=SECONDS).data) == MOST
        assert [stream.get(timeout=SECONDS).data[:1] for _ in range(200)] == [b"y"] * 200


def test_server_rejects_message_above_the_limit(server: RunningServer) -> None:
    with Peer(server.uri, "raw") as raw:
        builder = BatchBuilder()
        builder.add("raw", b"x" * (MOST + 1))
        raw.send(frame(Publish(frame=1), builder.build(0)))
        (rejected,) = [one for one in raw.until(Rejected) if isinstance(one, Rejected)]
        assert (rejected.code, rejected.refused) == ("message_too_large", ())
        assert "at most 131,072 bytes (message_bytes_max)" in rejected.text


def test_client_refuses_filter_above_the_limit_of_the_server(server: RunningServer) -> None:
    with tt.Client("filters", server.uri) as client:
        for bookmark in (None, tt.EPOCH):
            with pytest.raises(tt.BadFilter, match=r"Filter of 107 bytes is too long\. Use at most 100"):
                client.subscribe("t", filter=LONG_FILTER, bookmark=bookmark)
        client.subscribe("t", filter="/a = 1")


def test_subscriptions_are_limited_by_the_configured_number(server: RunningServer) -> None:
    with tt.Client("many", server.uri) as client:
        streams = [client.subscribe("a"), client.subscribe("b")]
        with pytest.raises(tt.LimitReached, match="this connection has 2 subscriptions"):
            client.subscribe("c")
        client.unsubscribe(streams[0].sub_id)
        client.subscribe("c")


def test_transaction_refuses_message_above_the_limit(server: RunningServer) -> None:
    with tt.Client("transactions", server.uri) as client:
        transaction = client.transaction()
        transaction.publish("t", b"x" * (MOST + 1))
        with pytest.raises(tt.MessageTooLarge, match="at most 131,072 bytes"):
            transaction.commit()


def test_logon_answer_has_the_limits_that_differ_from_the_default(server: RunningServer) -> None:
    with tt.Client("told", server.uri) as client:
        answer = client._driver.core.logon.logged_on
        assert isinstance(answer, LoggedOn)
        assert (answer.message_bytes_max, answer.filter_bytes_max) == (MOST, 100)
        assert answer.subscriptions_per_connection_max == 2
