"""Python calls of the server for one message alone in flight.

The count does not depend on the machine or its load, so it bounds the work that delays a publisher.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from statistics import quantiles

import msgspec
import pytest

from tests.helpers.counted_server import CountedCalls
from tests.helpers.processes import source_environment
from tickertape import Client

BEFORE = 50
COUNTED = 200
CALLS_MAX = 150


def counted_calls(data: Path, sync: str) -> CountedCalls:
    """Return the calls of a server for `COUNTED` messages, each published after the acknowledgement of the
    one before."""
    data.mkdir()
    config = data / "server.toml"
    config.write_text(f'[journal]\nsync = "{sync}"\n\n[admin]\nlisten = "off"\n')
    arguments = ["any", str(BEFORE), str(BEFORE + COUNTED), str(config), "--data", str(data / "log")]
    arguments += ["--listen", "tcp://127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.counted_server", *arguments],
        env=source_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        uri = process.stdout.readline().split()[1]
        with Client("publisher", uri) as client:
            for _ in range(BEFORE + COUNTED):
                client.publish("orders", b'{"id":1}')
                client.publish_flush()
        process.send_signal(signal.SIGTERM)
        return msgspec.json.decode(process.stdout.readlines()[-1], type=CountedCalls)


@pytest.mark.parametrize("sync", ["always", "never"])
def test_server_calls_at_most_150_functions_for_a_message_alone_in_flight(tmp_path: Path, sync: str) -> None:
    counted = counted_calls(tmp_path / sync, sync)
    assert len(counted.of_commands) == COUNTED
    each = {name: calls / COUNTED for name, calls in counted.of_functions.items()}
    # On a slow machine, timers that end between two messages add calls to many of them.
    quarter, _, _ = quantiles(counted.of_commands)
    assert quarter <= CALLS_MAX, each
