"""Files in deploy/: valid configuration, existing sources, and exit codes of the server."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tickertape.cli.support.command_group import EXIT_USAGE
from tickertape.server.app import EXIT_DISK_FAILED, EXIT_JOURNAL_REFUSED
from tickertape.server.config.config import examine
from tickertape.server.limits import connections_max

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_configuration_of_the_container_is_valid() -> None:
    config, problems = examine(DEPLOY / "container.toml")
    assert problems == []
    assert config is not None
    assert config.instance.data == "/data"


def test_image_copies_files_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    sources = [
        name for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE) for name in line.split()[:-1]
    ]
    assert len(sources) >= 5
    assert [name for name in sources if not (ROOT / name).exists()] == []
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["tickertape"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()


def test_unit_does_not_restart_after_disk_failure_or_refused_journal() -> None:
    text = (DEPLOY / "tickertape.service").read_text(encoding="utf-8")
    assert f"RestartPreventExitStatus={EXIT_USAGE} {EXIT_DISK_FAILED} {EXIT_JOURNAL_REFUSED}\n" in text
    limit = re.search(r"^LimitNOFILE=(\d+)$", text, re.MULTILINE)
    assert limit is not None
    assert int(limit[1]) > connections_max


@pytest.mark.slow
def test_unit_passes_the_check_of_systemd(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "tickertape.service"
    text = (DEPLOY / "tickertape.service").read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/tickertape/bin/tickertape", "/bin/true"), encoding="utf-8")
    done = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
