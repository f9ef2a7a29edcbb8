"""The toolkit that users get: the fixture that pytest finds by itself, and a server that comes back."""

from __future__ import annotations

import tickertape as tt
from tickertape.testing import RunningServer


def test_the_fixture_is_found_and_its_server_keeps_what_was_acknowledged(
    tickertape_server: RunningServer,
) -> None:
    with tt.Client("user", tickertape_server.uri) as client:
        client.publish("orders", {"id": 1})
        client.publish_flush(timeout=10)
    tickertape_server.kill()
    tickertape_server.restart()
    with tt.Client("user", tickertape_server.uri) as client:
        assert [message.json() for message in client.replay("orders")] == [{"id": 1}]
