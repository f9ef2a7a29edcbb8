"""Topics of a journal pattern on a real server: publishers, replays and statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tickertape.testing import running_server

CONFIG = """
[[journal.topic]]
name = "orders"
[[journal.topic]]
pattern = "^fx/"
"""


def test_topics_of_a_journal_pattern_are_stored_and_replayed_after_a_restart(tmp_path: Path) -> None:
    config = tmp_path / "tickertape.toml"
    config.write_text(CONFIG)
    with running_server(tmp_path / "data", config) as server:
        with tt.Client("p", server.uri, publish_store=tt.MemoryPublishStore()) as client:
            stream = client.subscribe("u+")  # found in fx/eur and in rumours
            sequences = [client.publish(topic, topic) for topic in ("fx/eur", "rumours", "orders", "fx/usd")]
            client.publish_flush(timeout=20)
            assert [sequence is None for sequence in sequences] == [False, True, False, False]
            assert {stream.get(timeout=20).data for _ in range(3)} == {b"fx/eur", b"rumours", b"fx/usd"}
            with pytest.raises(tt.TopicNotRecorded):
                client.bookmark_subscribe("rumours", tt.EPOCH)
        topics = {topic.name: topic.recorded for topic in stats_of(server).topics}
        assert topics == {"orders": True, "fx/eur": True, "fx/usd": True, "rumours": False}
        server.restart()
        with tt.Client("r", server.uri) as client:
            assert [m.data for m in client.replay("fx/usd")] == [b"fx/usd"]
            assert [m.data for m in client.replay("^fx/")] == [b"fx/eur", b"fx/usd"]
