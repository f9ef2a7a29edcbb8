"""Slow subscribers of non-persistent topics: bounded memory, no delay for others, and no loss."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.admin import ask, stats_of
from tests.helpers.stalled_subscriber import SECONDS, Stalled
from tickertape.base.limits import MIB
from tickertape.batch import batch_from_bodies
from tickertape.cli.support.command_group import cli
from tickertape.engine.limits import outbox_bytes_max
from tickertape.testing import RunningServer, running_server, wait_until

pytestmark = pytest.mark.slow

_CONFIG = """
[journal]
topic = []
[slow_clients]
memory_limit = "40MB"
connection_limit = "1MB"
"""


class Live(threading.Thread):
    """Subscriber that reads without a pause."""

    def __init__(self, uri: str, name: str, bodies: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._client = tt.Client(name, uri, timeout=SECONDS)
        self._client.connect()
        self._stream = self._client.subscribe("u")
        self._bodies = bodies
        self.taken = 0
        """Messages received in the order of publication."""

    def run(self) -> None:
        for batch in self._stream.batches(SECONDS):
            got = batch.bodies_list()
            if got != self._bodies[self.taken : self.taken + len(got)]:
                break
            self.taken += len(got)
            if self.taken == len(self._bodies):
                break
        self._client.close()


def _publish(uri: str, bodies: list[bytes], per_second: float) -> None:
    with tt.Client("publisher", uri, timeout=SECONDS) as client:
        began = time.monotonic()
        for first in range(0, len(bodies), 100):
            client.publish_batch("u", bodies[first : first + 100])
            time.sleep(max(began + first / per_second - time.monotonic(), 0.0))
        client.publish_flush(level="processed")


@pytest.mark.full
def test_100_stalled_subscribers_do_not_delay_10_reading_ones(full: bool) -> None:
    count, size, per_second = (1_200_000, 200, 20_000.0) if full else (6_000, 8_192, 20_000.0)
    bodies = [b"%08d" % number * (size // 8) for number in range(count)]
    with running_server(config=_CONFIG) as server:
        live = [Live(server.uri, f"live-{number}", bodies) for number in range(10)]
        lagging = [tt.Client(f"lagging-{number}", server.uri, timeout=SECONDS) for number in range(10)]
        for client in lagging:
            client.connect()
        streams = [client.subscribe("u") for client in lagging]
        stalled = [Stalled(server.uri, f"stalled-{number}", "u") for number in range(90)]
        wait_until(lambda: stats_of(server).subscription_count == 110, SECONDS)
        before = stats_of(server).memory.anonymous_bytes
        for reader in live:
            reader.start()
        _publish(server.uri, bodies, per_second)
        for reader in live:
            reader.join(SECONDS)
            assert reader.taken == count
        wait_until(lambda: stats_of(server).slow_clients.offline_connections == 100, SECONDS)
        stats = stats_of(server)
        slow = stats.slow_clients
        assert stats.totals.ended == {}
        assert slow.memory_bytes <= 40 * MIB
        assert 0 < slow.written_bytes < 2 * count * (size + 64), (
            "each message is written once for all waiting subscribers"
        )
        assert sum(session.offline for session in stats.sessions) == 100
        if before is not None and stats.memory.anonymous_bytes is not None:
            grown = stats.memory.anonymous_bytes - before
            assert grown <= 100 * outbox_bytes_max + 64 * MIB, f"{grown} bytes"
        for waking in stalled[:5]:
            assert waking.takes(bodies)
        for stream in streams[:3]:
            assert all(next(stream).data == body for body in bodies)
        for peer in stalled:
            peer.close()
        for client in lagging:
            client.close()
        wait_until(lambda: stats_of(server).slow_clients.waiting_connections == 0, SECONDS)
        slow = stats_of(server).slow_clients
        assert slow.read_bytes > 0
        assert slow.failures == 0
        assert (slow.memory_bytes, slow.disk_bytes) == (0, 0)
        assert slow.offline_starts >= slow.offline_stops >= 100
        assert b"\ntickertape_slow_clients_offline_starts_total " in ask(server, "/metrics")[2]
        wait_until(lambda: " WARNING offline_start conn=" in server.errors())
        wait_until(lambda: " INFO offline_stop conn=" in server.errors())


def _files(data: Path) -> list[Path]:
    return list((data / "spill").iterdir())


def _spilled(server: RunningServer) -> None:
    batch = batch_from_bodies("u", [bytes(4_096)] * 100)
    with tt.Client("publisher", server.uri, timeout=SECONDS) as client:
        for _ in range(30):
            client.publish_batch("u", batch.bodies_list())
        client.publish_flush(level="processed")
    wait_until(lambda: stats_of(server).slow_clients.written_bytes > 0, SECONDS)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_spill_files_are_removed_at_the_next_start(tmp_path: Path, how: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[instance]\ndrain_timeout = "0s"\n{_CONFIG}')
    with running_server(tmp_path / "data", config) as server:
        stalled = Stalled(server.uri, "stalled", "u")
        wait_until(lambda: stats_of(server).subscription_count == 1, SECONDS)
        _spilled(server)
        assert _files(tmp_path / "data")
        shown = CliRunner().invoke(cli, ["stats", "--admin", server.admin_url]).stdout
        assert re.search(r"^slow +1 connection behind, 1 offline, [1-9][\d,]* bytes in", shown, re.MULTILINE)
        (tmp_path / "data" / "spill" / "notes.txt").write_text("not ours")
        server.kill() if how == "kill" else server.stop()
        stalled.close()
        left = _files(tmp_path / "data")
        assert (len(left) > 1) is (how == "kill")
        server.start()
        assert [path.name for path in _files(tmp_path / "data")] == ["notes.txt"]
        assert stats_of(server).slow_clients.disk_bytes == 0
        assert " recovery " not in server.errors() or how == "kill"
