"""Signals of a real server that do not stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.testing import running_server, wait_until

pytestmark = pytest.mark.slow


def test_server_continues_after_sighup_and_prints_stacks_on_sigusr1() -> None:
    """A service manager sends SIGHUP for a reload even without files to reload."""
    with running_server() as server, tt.Client("c", server.uri) as client:
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "INFO reloaded" in server.errors())

        def shown() -> bool:
            # a stack of more than 100 frames, like in a late import, is truncated
            os.kill(server.pid, signal.SIGUSR1)
            return "app.py" in server.errors()

        wait_until(shown)
        assert "most recent call first" in server.errors()
        client.publish("t", b"1")
        client.publish_flush()
        assert server.stop() == 0


_SIGNALLED = """
import os, signal, sys
from tickertape.cli import main
from tickertape.server import app

def signalled(function):
    def call(*arguments):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGHUP)
        return function(*arguments)
    return call

app.open_instance, app.record_end = signalled(app.open_instance), signalled(app.record_end)
def log_ready(*arguments, logged=app._log_ready):
    logged(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
app._log_ready = log_ready
sys.argv[1:] = ["serve", "--data", "data", "--listen", "tcp://127.0.0.1:0", "--admin", "off"]
main()
"""


def test_signals_during_recovery_and_after_the_event_loop_are_harmless(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED],
        cwd=tmp_path,
        env=source_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("INFO reloaded") == 1
    assert (tmp_path / "data" / "end.json").exists()
