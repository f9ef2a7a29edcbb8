"""Progress and remarks, which only a terminal shows."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tickertape.cli.support.terminal import progress, remark

SCRIPT = """
from tickertape.cli.support.terminal import progress, remark
with progress("verify", 2000) as advance:
    advance(500)
    advance(1500)
remark("done with it")
"""


def test_progress_without_a_terminal_shows_and_imports_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("verify", 10) as advance:
        advance(10)
    remark("done with it")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_progress_on_a_terminal_is_written_to_standard_error_only() -> None:
    try:
        controller, terminal = pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo terminals: {error}")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while more := os.read(controller, 65536):
                shown += more
        except OSError:
            pass  # the error of Linux for a closed other end
        os.close(controller)
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait() == 0
    assert b"verify" in shown
    assert b"2.0/2.0 kB" in shown
    assert b"100%" in shown
    assert shown.endswith(b"done with it\r\n")
