"""Data directory of a running server: renamed, replaced, without lock, and with special files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import tickertape as tt
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, ServerNotReady, running_server

CONFIG = """
[journal]
segment_size = "1MB"
retain_size = "4MB"
"""
BODY = b'{"text":"' + b"x" * 20_000 + b'"}'
ROUND = 20


def publish(server: RunningServer, rounds: int) -> None:
    with tt.Client("pub", server.uri) as client:
        client.set_publish_store(tt.MemoryPublishStore())
        for _ in range(rounds):
            for _ in range(ROUND):
                client.publish("t", BODY)
            client.publish_flush(timeout=20)


def kept(data: Path) -> tuple[int, int]:
    """Check that the log is intact, and return the positions of its first message and of its end."""
    checked = CliRunner().invoke(cli, ["journal", "verify", "--output", "json", str(data)])
    assert checked.exit_code == 0, checked.output
    report = json.loads(checked.output)
    segments = report["segments"]
    return segments[0]["first_position"], max(segment["end_position"] for segment in segments)


@pytest.mark.full
@pytest.mark.slow
def test_renamed_data_directory_keeps_the_log_and_the_new_one_is_separate(tmp_path: Path) -> None:
    data, moved = tmp_path / "data", tmp_path / "moved"
    with running_server(data, CONFIG) as first:
        publish(first, 1)
        data.rename(moved)
        with running_server(data, CONFIG) as second:
            publish(second, 5)
            before = {path.name: path.stat().st_ino for path in data.rglob("*.segment")}
            publish(first, 25)
            assert before == {path.name: path.stat().st_ino for path in data.rglob("*.segment")}
            assert second.stop() == 0
        assert first.stop() == 0
    control = 1  # the control record with the publisher name
    assert kept(data) == (0, 5 * ROUND + control)
    begin, end = kept(moved)
    assert end == 26 * ROUND + control
    assert begin > 0, "retention has removed segments of the renamed directory"
    assert (moved / "end.json").exists()
    for directory, published in ((data, 5), (moved, 26)):
        with running_server(directory, CONFIG) as server:
            publish(server, 1)
            assert "recovery" not in server.errors()
        assert kept(directory)[1] == (published + 1) * ROUND + control


@pytest.mark.full
@pytest.mark.slow
def test_removed_lock_file_does_not_admit_a_second_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data, CONFIG) as server:
        publish(server, 1)
        (data / "lock").unlink()
        with pytest.raises(ServerNotReady, match=r"(?s)exit code 5.*journal_locked"):
            RunningServer(data).start()
        publish(server, 1)
        assert server.stop() == 0
    assert kept(data) == (0, 2 * ROUND + 1)


@pytest.mark.slow
def test_fifo_in_place_of_a_segment_refuses_the_start_without_blocking(tmp_path: Path) -> None:
    data, name = tmp_path / "data", "journal/0000000001.segment"
    with running_server(data, CONFIG) as server:
        assert server.stop() == 0
    (data / name).unlink()
    os.mkfifo(data / name)
    with (
        pytest.raises(ServerNotReady, match=rf"(?s)exit code 1.*{name}': not a regular file"),
        running_server(data),
    ):
        pass


@pytest.mark.slow
def test_symbolic_link_named_spill_is_not_followed(tmp_path: Path) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    outside.mkdir()
    foreign = outside / f"{1:020d}.spill"
    foreign.write_bytes(b"of another program")
    data.mkdir()
    with running_server(data) as server:
        assert server.stop() == 0
    (data / "spill").rmdir()
    (data / "spill").symlink_to(outside)
    with (
        pytest.raises(
            ServerNotReady, match=r"(?s)exit code \d.*Cannot use spill directory.*\[slow_clients\]"
        ),
        running_server(data),
    ):
        pass
    assert foreign.exists()
