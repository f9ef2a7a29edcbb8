"""Queue without consumers on a real server: it retains segments, which the server reports."""

from __future__ import annotations

from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.queues import SECONDS, numbers, queue, take
from tickertape.testing import running_server, wait_until

CONFIG = '[journal]\nsegment_size = "1MB"\nretain_size = "4MB"\nsync = "never"\n' + queue("q")
BODY = b"x" * 20_000

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_segments_retained_for_a_queue_are_reported_until_acknowledged(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", CONFIG) as server, tt.Client("p", server.uri) as client:
        numbers(server, "q", 1)
        for _ in range(20):
            client.publish_batch("other", [BODY] * 20)
            client.publish_flush(timeout=SECONDS)
        retention = stats_of(server).journal.retention
        assert (retention.held_by, retention.removed_segments) == ("queue 'q'", 0)
        assert retention.held_segments >= 3
        assert retention.held_bytes > 2 << 20
        wait_until(lambda: "retention_held" in server.errors())
        (line,) = [line for line in server.errors().splitlines() if "retention_held" in line]
        assert "WARNING" in line
        assert "queue 'q'" in line
        server.kill()
        server.start()
        client.connect()
        (message,) = take(client.subscribe("q"), 1)
        assert message.json() == {"n": 0}
        message.ack()
        for _ in range(4):
            client.publish_batch("other", [BODY] * 20)
            client.publish_flush(timeout=SECONDS)
        wait_until(lambda: stats_of(server).journal.retention.held_by is None, SECONDS)
        wait_until(lambda: stats_of(server).journal.retention.removed_segments >= 3, SECONDS)
