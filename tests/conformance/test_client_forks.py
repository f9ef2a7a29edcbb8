"""Clients in a forked process raise, and the clients of the parent continue to work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import source_environment
from tickertape.testing.server import running_server


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["blocking", "asyncio", pytest.param("uvloop", marks=pytest.mark.full)])
def test_client_in_forked_child_raises_and_parent_continues(kind: str, tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "ignore", "-m", "tests.conformance.forked", kind, server.uri],
            cwd=Path(__file__).parents[2],
            env=source_environment(),
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
        assert "Traceback" not in done.stderr
        assert "protocol" not in server.errors()
