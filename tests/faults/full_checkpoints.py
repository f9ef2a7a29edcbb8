"""A disk of 64 MiB that is full during checkpoints: `python -m tests.faults.full_checkpoints DIRECTORY`.

Runs in a mount namespace of its own (`tests.helpers.namespaces`). Judges by `assert`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.processes import run_tickertape
from tickertape.engine.sow.snapshot import SowCheckpointSnapshot
from tickertape.testing import RunningServer, running_server, wait_until

SECONDS: Final = 30.0
CONFIG: Final = """
[journal]
segment_size = "8MB"
[[sow]]
name = "positions"
key = ["/id"]
checkpoint_interval = "1s"
"""
RECORDS: Final = 10_000


def checkpoint_of(server: RunningServer) -> SowCheckpointSnapshot:
    sow = stats_of(server).sow
    assert sow is not None
    (topic,) = sow.topics
    return topic.checkpoint


def complete(server: RunningServer) -> bool:
    """Return whether the newest checkpoint has all messages."""
    sow = stats_of(server).sow
    assert sow is not None
    (topic,) = sow.topics
    return topic.checkpoint.position == topic.position


def publish(server: RunningServer, turn: int, count: int) -> None:
    with tt.Client("writer", server.uri, timeout=SECONDS) as client:
        client.publish_batch("positions", [{"id": n, "turn": turn, "text": "x" * 100} for n in range(count)])
        client.publish_flush(timeout=SECONDS)


def turns(server: RunningServer) -> list[int]:
    """Return the field `turn` of all records in the order of their ids."""
    with tt.Client("reader", server.uri, timeout=SECONDS) as client:
        return [record.json()["turn"] for record in client.sow("positions", order_by="/id")]


def take_all_space(ballast: Path) -> None:
    with open(ballast, "ab", buffering=0) as file:
        for size in (1 << 20, 4_096):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue  # full


def expected(*updated: int) -> list[int]:
    """Return the turns: the first `updated[i]` records have turn i + 1."""
    found = [0] * RECORDS
    for turn, count in enumerate(updated, 1):
        found[:count] = [turn] * count
    return found


def main(directory: Path) -> None:
    """Fill the disk before a checkpoint, restart the server there, and free space again."""
    disk = directory / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    (disk / "data").mkdir()
    link = directory / "data"  # the output of the server is beside the link, not on the small disk
    link.symlink_to(disk / "data")
    with running_server(link, CONFIG) as server:
        publish(server, 0, RECORDS)
        wait_until(lambda: complete(server), SECONDS)
        before = checkpoint_of(server).position
        take_all_space(disk / "ballast")
        publish(server, 1, 2_000)
        wait_until(lambda: checkpoint_of(server).failures > 0, SECONDS)
        print("failed\tcheckpoint")
        assert checkpoint_of(server).position == before
        assert turns(server) == expected(2_000)
        server.kill()
        server.start()
        assert turns(server) == expected(2_000)
        take_all_space(disk / "ballast")  # the start has freed the file of the failed checkpoint
        publish(server, 2, 1_000)
        wait_until(lambda: checkpoint_of(server).failures > 0, SECONDS)
        assert not complete(server)
        (disk / "ballast").unlink()
        wait_until(lambda: complete(server), SECONDS)
        print("written\tcheckpoint")
        assert turns(server) == expected(2_000, 1_000)
        server.kill()
        server.start()
        assert turns(server) == expected(2_000, 1_000)
        assert not list((disk / "data" / "sow").glob("*/*.new")), "no unfinished file stays"
        assert server.stop() == 0
    code, output, _ = run_tickertape("journal", "verify", str(link))
    assert code == 0, output


if __name__ == "__main__":
    main(Path(sys.argv[1]))
