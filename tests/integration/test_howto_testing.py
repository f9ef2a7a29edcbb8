"""How-to about tests: its code runs as documented."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import source_environment

PAGE = Path(__file__).parents[2] / "docs/howto/testing.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_testing_howto_test_passes(tmp_path: Path) -> None:
    test, *_ = blocks()
    (tmp_path / "test_orders.py").write_text(test)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=source_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_testing_howto_context_manager_runs() -> None:
    block = blocks()[1]
    done = subprocess.run(
        [sys.executable, "-c", block],
        env=source_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    uri, admin = done.stdout.split()
    assert uri.startswith("tcp://127.0.0.1:")
    assert admin.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("number", range(2, 6))
def test_testing_howto_other_blocks_pass(number: int) -> None:
    assert len(blocks()) == 6
    subprocess.run([sys.executable, "-c", blocks()[number]], env=source_environment(), timeout=60, check=True)
