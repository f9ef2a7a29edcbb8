"""`tickertape pipeline archive` killed at random times during publishing.

In the end the archive has each message once, and the rows of its files are in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.archive_rows import archived, check_files, log_rows
from tests.helpers.java import short_lived_java
from tests.helpers.processes import source_environment
from tickertape.client.blocking.client import Client
from tickertape.testing.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]

KILLS = 3
KILLS_FULL = 12
START_SECONDS_MAX = 120
KILL_WITHIN_SECONDS = 1.5


@contextlib.contextmanager
def publishing(server: RunningServer) -> Iterator[None]:
    """Publish continuously to three topics, a few messages at a time."""
    over = threading.Event()

    def publish() -> None:
        with Client("publisher", server.uri) as client:
            n = 0
            while not over.wait(0.05):
                client.publish_batch("flights", [b"%d %d" % (n, i) for i in range(10)])
                client.publish(("weather", "rare")[n % 2], b"%d" % n)
                n += 1
            client.publish_flush()

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield
    finally:
        over.set()
        publisher.join()


def command(server: RunningServer, location: Path, *more: str) -> list[str]:
    base = [sys.executable, "-m", "tickertape", "pipeline", "archive", "--server", server.uri]
    return [*base, "--to", str(location), "--master", "local[2]", "--compact", *more]


def commits(location: Path) -> int:
    """Return the number of commits, without reading the table."""
    return len(list((location / "_delta_log").glob("*.json")))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **source_environment(),
        **short_lived_java(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(tmp_path),
    }


def test_archiving_killed_at_random_times_loses_and_duplicates_nothing(
    tmp_path: Path, environment: dict[str, str], full: bool
) -> None:
    location, chance = tmp_path / "archive", random.Random(7)
    with running_server(tmp_path / "data", '[journal]\nsegment_size = "1MB"\n') as server:
        with publishing(server):
            for kill in range(KILLS_FULL if full else KILLS):
                before = commits(location)
                driver = subprocess.Popen(
                    command(server, location, "--interval", "50ms", "--batch", "500"),
                    env=environment,
                    start_new_session=True,
                    stdout=subprocess.DEVNULL,
                )
                try:
                    wait_until(lambda before=before: commits(location) > before + 2, START_SECONDS_MAX)
                    time.sleep(chance.uniform(0, KILL_WITHIN_SECONDS))
                    assert driver.poll() is None
                finally:
                    # The driver alone, or with its Java machine, which otherwise runs a little longer.
                    (os.kill if kill % 2 else os.killpg)(driver.pid, signal.SIGKILL)
                    driver.wait()
        done = subprocess.run(
            command(server, location, "--once", "--output", "json"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        rows = log_rows(server.data)
        assert json.loads(done.stdout)["end"] > rows[-1]["position"]
    assert len(rows) > 1000
    assert archived(location) == rows
    check_files(location)
