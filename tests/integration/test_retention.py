"""Retention on a real server: old segments are removed, and errors and statistics report it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tickertape as tt
from tests.helpers.admin import ask, stats_of
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, running_server

CONFIG = """
[journal]
segment_size = "1MB"
retain_size = "4MB"
sync = "never"
[admin]
listen = "http://127.0.0.1:0"
"""
BODY = b'{"text":"' + b"x" * 20_000 + b'"}'


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["journal", *map(str, arguments)])


def publish(client: tt.Client, messages: int) -> None:
    """Publish in commits that are smaller than a segment."""
    for number in range(messages):
        client.publish("t", BODY)
        if number % 20 == 19:
            client.publish_flush(timeout=20)


def settled(server: RunningServer, data: Path) -> list[int]:
    """Wait until the files and the next reserved segment fit the retention size, and return the segments."""
    deadline = time.monotonic() + 20
    while True:
        journal = stats_of(server).journal
        numbers = sorted(int(path.name[:10]) for path in (data / "journal").iterdir())
        coming = 0 if len(numbers) > journal.segments else 1 << 20
        if numbers[0] == journal.retention.retired_segments + 1 and journal.file_bytes + coming <= 4 << 20:
            return numbers
        assert time.monotonic() < deadline, journal
        time.sleep(0.02)


def open_and_gone(pid: int, data: Path) -> list[str]:
    """Return the deleted segment files that a process has open."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if str(data) in target and target.endswith("(deleted)"):
            found.append(target)
    return found


def test_retention_removes_old_segments_and_reports_the_first_bookmark(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data, CONFIG) as server, tt.Client("pub", server.uri) as client:
        client.set_publish_store(tt.MemoryPublishStore())
        publish(client, 20)
        whole = [str(message.bookmark) for message in client.replay("t")]
        publish(client, 380)
        numbers = settled(server, data)
        assert numbers[0] > 3
        with pytest.raises(tt.BookmarkExpired) as expired:
            client.replay("t", whole[0])
        first = next(iter(client.replay("t"))).bookmark
        assert expired.value.available == first
        assert str(first) in str(expired.value)
        replayed = [message.sequence for message in client.replay("t")]
        assert replayed == list(range(replayed[0], replayed[-1] + 1))
        retention = stats_of(server).journal.retention
        assert retention.first_bookmark == first
        assert retention.retired_segments == numbers[0] - 1 == retention.removed_segments
        assert (retention.held_by, retention.failures) == (None, 0)
        metrics = ask(server, "/metrics")[2].decode()
        assert f"tickertape_journal_removed_segments_total {numbers[0] - 1:.1f}" in metrics
        assert open_and_gone(server.pid, data) == []
        listed = json.loads(run("verify", data, "--output", "json").stdout)
        assert listed["retired"]["through"] == numbers[0] - 1
        found = run("find", data, whole[0])
        assert found.exit_code == 1
        assert "removed by retention" in found.stderr
        assert run("dump", data, "--from", f"{first},{whole[1]}").exit_code == 1
        dumped = run("dump", data, "--limit", "1", "--output", "json")
        assert json.loads(dumped.stdout)["bookmark"] == first
        assert "removed by retention" in dumped.stderr
        server.kill()
        server.restart()
        with tt.Client("reader", server.uri) as reader:
            assert settled(server, data)[0] >= numbers[0], (
                "the new run has one more segment, so retention may remove one"
            )
            first = stats_of(server).journal.retention.first_bookmark
            assert next(iter(reader.replay("t"))).bookmark == first
            with pytest.raises(tt.BookmarkExpired):
                reader.replay("t", whole[-1])
    assert run("verify", data).exit_code == 0
