"""Background syncs of the log in a real server: acknowledged messages survive a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tickertape.testing import running_server

MESSAGES = 300
FLUSH_SECONDS = 30


@pytest.mark.parametrize(
    "sync", ['"always"', pytest.param('"interval"\nsync_interval = "5ms"', marks=pytest.mark.full)]
)
def test_acknowledged_messages_of_background_syncs_survive_a_kill(tmp_path: Path, sync: str) -> None:
    config = f"[journal]\nwrite_on_loop = true\nsync = {sync}\n"
    large = bytes(400_000)  # a thread writes it
    with running_server(tmp_path / "data", config) as server:
        with tt.Client("desk", server.uri) as client:
            for number in range(MESSAGES):
                client.publish("orders", b"%d" % number)
                client.publish_flush(timeout=FLUSH_SECONDS)
                if number % 100 == 50:
                    client.publish("orders", large)
                    client.publish_flush(timeout=FLUSH_SECONDS)
            stats = stats_of(server)
            assert stats.journal.syncs.count > 0
        server.kill()
        server.start()
        with tt.Client("reader", server.uri) as client:
            bodies = [message.data for message in client.replay("orders")]
    expected: list[bytes] = []
    for number in range(MESSAGES):
        expected += [b"%d" % number, *([large] if number % 100 == 50 else [])]
    assert bodies == expected
