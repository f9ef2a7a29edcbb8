"""No space for records: a full disk during a checkpoint, and the memory limit `sow_bytes_max`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.namespaces import run_inside, why_no_small_disk
from tickertape.testing import RunningServer, running_server, wait_until

pytestmark = pytest.mark.slow

SECONDS: Final = 30.0
CONFIG: Final = """
[[sow]]
name = "positions"
key = ["/id"]
[limits]
sow_bytes_max = "64MB"
"""
TEXT: Final = "x" * 250_000


@pytest.mark.full
def test_checkpoint_on_a_full_disk_fails_and_is_repeated_with_space(tmp_path: Path) -> None:
    if reason := why_no_small_disk():
        pytest.skip(reason)
    output = run_inside("tests.faults.full_checkpoints", str(tmp_path), seconds=60)
    assert output.splitlines() == ["failed\tcheckpoint", "written\tcheckpoint"]


def ids(server: RunningServer) -> list[int]:
    with tt.Client("reader", server.uri, timeout=SECONDS) as reader:
        return [record.json()["id"] for record in reader.sow("positions", order_by="/id")]


def fill(server: RunningServer) -> int:
    """Publish records until one is refused with `sow_full`, and return their number."""
    with tt.Client("writer", server.uri, timeout=SECONDS) as client:
        for number in range(1_000):
            client.publish("positions", {"id": number, "text": TEXT})
            try:
                client.publish_flush(timeout=SECONDS)
            except tt.PublishRejected as error:
                if isinstance(error.__cause__, tt.SowFull):
                    return number
                raise
    raise AssertionError("the memory is not limited")


def test_full_memory_refuses_new_records_until_others_are_deleted(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", CONFIG) as server:
        count = fill(server)
        assert 100 < count < 300
        assert ids(server) == list(range(count))
        server.kill()
        server.start()
        assert ids(server) == list(range(count))
        keeper = tt.HAClient.memory_backed(
            "keeper", servers=server.uri, reconnect_delay=0.05, timeout=SECONDS
        )
        keeper.connect_and_logon()
        keeper.publish("positions", {"id": 5_000, "text": TEXT})
        keeper.publish("positions", {"id": 5_001, "text": TEXT})
        wait_until(lambda: "sow_full" in server.errors(), SECONDS)
        with tt.Client("writer", server.uri, timeout=SECONDS) as client:
            client.publish("positions", {"id": 0, "text": "small"})
            client.publish_flush(timeout=SECONDS)
            assert keeper.unpersisted_count() == 2
            result = client.sow_delete("positions", filter="/id < 100", timeout=SECONDS)
            assert result is not None
            assert result.records == 100
            client.publish("positions", {"id": 6_000, "text": TEXT})
            client.publish_flush(timeout=SECONDS)
        wait_until(lambda: keeper.unpersisted_count() == 0, SECONDS)
        keeper.close()
        expected = [*range(100, count), 5_000, 5_001, 6_000]
        assert ids(server) == expected
        assert stats_of(server).sow is not None
        server.stop()
        server.start()
        assert ids(server) == expected
