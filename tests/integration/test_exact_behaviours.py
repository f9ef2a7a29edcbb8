"""Numbered behaviours that require a real server and a real disk."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import tickertape as tt
from tickertape.testing import running_server
from tickertape.testing.server import ServerNotReady

SECONDS = 20.0

pytestmark = pytest.mark.slow


@pytest.mark.behaviour(9)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_checksum_failure_never_truncates_the_log(tmp_path: Path, how: str) -> None:
    data = tmp_path / "data"
    with running_server(data) as server, tt.Client("p", server.uri, timeout=SECONDS) as client:
        for number in range(20):
            client.publish("orders", b"body %03d " % number + bytes(2000))
            client.publish_flush()
        if how == "killed":
            server.kill()
    (segment,) = [path for path in (data / "journal").iterdir() if b"body 010" in path.read_bytes()]
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"body 010")] ^= 1
    segment.write_bytes(damaged)
    if how == "killed":
        with pytest.raises(ServerNotReady, match="journal_corrupt"), running_server(data):
            pass
    else:
        read_damaged(data, segment.name)
    used = len(damaged.rstrip(b"\x00"))
    assert segment.read_bytes()[:used] == damaged[:used], "every byte is unchanged"


def read_damaged(data: Path, segment: str) -> None:
    """Read a damaged log. Sealed segments are checked by the read, others by the start."""
    with pytest.raises((tt.TickertapeError, ServerNotReady), match=segment):  # noqa: SIM117
        with running_server(data) as server, tt.Client("r", server.uri, timeout=SECONDS) as reader:
            list(reader.replay("orders"))


@pytest.mark.behaviour(10)
def test_flush_waits_for_persistence_and_a_timeout_keeps_the_store(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        client = tt.Client("p", server.uri, publish_store=tt.MemoryPublishStore(), timeout=SECONDS)
        client.publish("orders", b"first")
        client.publish_flush()
        os.kill(server.pid, signal.SIGSTOP)
        for number in range(10):
            client.publish("orders", b"%d" % number)
        for level in ("persisted", "processed"):
            with pytest.raises(tt.TimedOut):
                client.publish_flush(timeout=0.2, level=level)
        assert client.unpersisted_count() == 10, "the store is as it was"
        os.kill(server.pid, signal.SIGCONT)
        client.publish_flush(level="processed")
        client.publish_flush()
        assert client.unpersisted_count() == 0
        assert len(list(client.replay("orders"))) == 11, "nothing twice"
        client.close()


@pytest.mark.behaviour(10)
def test_flush_without_a_store_waits_for_persistence(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server, tt.Client("p", server.uri, timeout=SECONDS) as client:
        for number in range(1000):
            client.publish("orders", b"%d" % number)
        client.publish_flush()
        server.kill()
        server.start()
        with tt.Client("r", server.uri, timeout=SECONDS) as reader:
            assert len(list(reader.replay("orders"))) == 1000


@pytest.mark.behaviour(11)
def test_message_properties_are_stored_and_delivered(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        client = tt.Client("p", server.uri, timeout=SECONDS)
        live = client.subscribe("orders")
        client.publish("orders", b"1", expiration=60, correlation_id="c-1", sow_key="k-1")
        client.publish("orders", b"2")
        client.publish_flush()
        seen = [live.get(SECONDS) for _ in range(2)]
        client.close()
        server.kill()
        server.start()
        with tt.Client("r", server.uri, timeout=SECONDS) as reader:
            first, second = reader.replay("orders")
            for message in (seen[0], first):
                assert (message.correlation_id, message.sow_key) == ("c-1", "k-1")
                assert message.expiration == 60_000
            for message in (seen[1], second):
                assert not message.correlation_id
                assert not message.sow_key
                assert message.expiration is None
            (batch,) = list(reader.replay("orders").batches(SECONDS))
            assert batch.expirations is not None
            assert batch.expirations.tolist() == [60_000, 0]
