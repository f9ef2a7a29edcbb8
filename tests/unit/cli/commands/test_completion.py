"""`completion`: shell scripts, and their requests to the command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tickertape.cli.commands.completion import SHELLS
from tickertape.cli.support.command_group import cli


@pytest.mark.parametrize("shell", SHELLS)
def test_script_asks_tickertape_for_completions(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert f"_TICKERTAPE_COMPLETE={shell}_complete" in result.stdout


def test_unknown_shell_is_bad_usage() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


def test_command_answers_the_completion_script() -> None:
    asked = {"_TICKERTAPE_COMPLETE": "bash_complete", "COMP_WORDS": "tickertape jour", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from tickertape.cli import main; main()"],
        env={**os.environ, **asked},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (b"plain,journal\n", b"")
