"""Signals of a real server that do not stop it."""

from __future__ import annotations

import os
import signal

import pytest

import tickertape as tt
from tickertape.testing import running_server, wait_until

pytestmark = pytest.mark.slow


def test_a_server_without_files_goes_on_after_hang_up_and_shows_its_threads() -> None:
    """A service manager sends SIGHUP for a reload, whether there is something to reload or not."""
    with running_server() as server, tt.Client("c", server.uri) as client:
        os.kill(server.pid, signal.SIGHUP)
        wait_until(lambda: "INFO reloaded" in server.errors())

        def shown() -> bool:
            # a stack of more than 100 frames, as of an import that comes late, is cut off
            os.kill(server.pid, signal.SIGUSR1)
            return "app.py" in server.errors()

        wait_until(shown)
        assert "most recent call first" in server.errors()
        client.publish("t", b"1")
        client.publish_flush()
        assert server.stop() == 0
