"""What a person at a terminal sees, and that nobody else does."""

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


def test_without_a_terminal_nothing_is_shown_or_imported(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("verify", 10) as advance:
        advance(10)
    remark("done with it")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_on_a_terminal_progress_goes_to_standard_error_alone() -> None:
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo terminals: {error}")
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 65536):
                shown += more
        except OSError:
            pass  # how Linux says that the other end was closed
        os.close(ours)
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait() == 0
    assert b"verify" in shown
    assert b"2.0/2.0 kB" in shown
    assert b"100%" in shown
    assert shown.endswith(b"done with it\r\n")
