"""Test toolkit for users: the pytest fixture, and a server that restarts."""

from __future__ import annotations

import tickertape as tt
from tickertape.testing import RunningServer


def test_pytest_fixture_server_keeps_acknowledged_messages_after_a_kill(
    tickertape_server: RunningServer,
) -> None:
    with tt.Client("user", tickertape_server.uri) as client:
        client.publish("orders", {"id": 1})
        client.publish_flush(timeout=10)
    tickertape_server.kill()
    tickertape_server.restart()
    with tt.Client("user", tickertape_server.uri) as client:
        assert [message.json() for message in client.replay("orders")] == [{"id": 1}]
