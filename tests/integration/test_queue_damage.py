"""Damaged log at messages of a queue: only the queues stop."""

from __future__ import annotations

from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.queues import SECONDS, queue
from tickertape.testing import running_server

CONFIG = queue("work", underlying="orders")


@pytest.mark.full
def test_damaged_message_stops_only_the_queues(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", CONFIG) as server, tt.Client("source", server.uri) as source:
        source.publish("orders", b"a body that is damaged then")
        source.publish("other", b"whole")
        source.publish_flush(timeout=SECONDS)
    (segment,) = (tmp_path / "data").rglob("*1.segment")
    content = bytearray(segment.read_bytes())
    content[content.index(b"damaged then")] ^= 1
    segment.write_bytes(content)
    with running_server(tmp_path / "data", CONFIG) as server, tt.Client("worker", server.uri) as worker:
        (snapshot,) = stats_of(server).queues
        assert "does not match its checksum" in (snapshot.failure or "")
        with pytest.raises(tt.JournalCorrupt):
            worker.subscribe("work", max_backlog=1, timeout=SECONDS)
        stream = worker.subscribe("other")
        worker.publish("other", b"served")
        assert stream.get(timeout=SECONDS).data == b"served"
