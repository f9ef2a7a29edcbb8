"""`pipeline run`: requirements, progress, failures in one line, and the end of all processes.

A script replaces the runner of Spark. tests/spark/test_pipelines.py uses the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.helpers.processes import source_environment
from tickertape.cli.pipeline.run import missing_packages, reason
from tickertape.cli.support.command_group import cli

pytest.importorskip("pyspark", reason="provides the runner")

SECONDS = 30.0


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home of a Spark whose runner is a script, with a Java."""
    home = tmp_path / "spark"
    script(home / "bin" / "spark-pipelines", "true")
    script(tmp_path / "jdk" / "bin" / "java", "true")
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "inside").mkdir(parents=True)
    (place / "spark-pipeline.yml").write_text("name: x\n")
    return place


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["pipeline", "run", *map(str, arguments)])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    return result.stderr


def test_run_without_a_project_prints_the_init_command(spark_home: Path, tmp_path: Path) -> None:
    text_shown = refused(run(tmp_path))
    assert text_shown.count("\n") == 1
    assert "has a spark-pipeline.yml" in text_shown
    assert "tickertape pipeline init DIR" in text_shown
    assert "does not exist" in refused(run(tmp_path / "none"))


def test_run_refuses_two_project_files(spark_home: Path, project: Path) -> None:
    (project / "spark-pipeline.yaml").write_text("name: y\n")
    assert "Remove one of them" in refused(run(project))


def test_run_names_missing_packages_before_the_start(
    spark_home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ['no-such-a>=1; extra == "pipelines"', 'no-such-b; extra == "connect"', "no-such-c"]
    monkeypatch.setattr(metadata, "requires", lambda _: wanted)
    assert missing_packages() == ["no-such-a"]
    text_shown = refused(run(project))
    assert text_shown == (
        "tickertape: Cannot run a pipeline: missing packages no-such-a. Run: pip "
        "install 'tickertape[pipelines]'\n"
    )


def test_run_prints_one_line_for_missing_pyspark_java_or_runner(
    spark_home: Path, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (spark_home / "bin" / "spark-pipelines").unlink()
    assert "has no bin/spark-pipelines. Unset SPARK_HOME" in refused(run(project))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    text_shown = refused(run(project))
    assert "Java 17 or later" in text_shown
    assert "Set JAVA_HOME" in text_shown
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    assert "pip install 'tickertape[pipelines]'" in refused(run(project))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--conf", "spark.x"], "Use KEY=VALUE"),
        (["--conf", "spark.x = 1"], "Use KEY=VALUE, without spaces in KEY."),
        (["--full-refresh-all", "--refresh", "a"], "--full-refresh-all excludes"),
        (["--dry-run", "--full-refresh", "a"], "--dry-run excludes"),
    ],
)
def test_run_with_invalid_options_is_refused(
    spark_home: Path, project: Path, arguments: list[str], text: str
) -> None:
    assert text in refused(run(project, *arguments))


def test_run_passes_project_and_options_to_the_runner(spark_home: Path, project: Path) -> None:
    script(
        spark_home / "bin" / "spark-pipelines",
        'for word in "$@" "$PYSPARK_PYTHON" "$PWD"; do echo "$word" >> said; done',
    )
    options = [
        "--refresh",
        "a",
        "--refresh",
        "b",
        "--full-refresh",
        "c",
        "--conf",
        "k=v w",
        "--master",
        "local[1]",
    ]
    result = run(project / "inside", *options)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{project}: done\n"
    said = (project / "said").read_text().splitlines()
    assert said[:3] == ["run", "--spec", str(project / "spark-pipeline.yml")]
    assert said[3:-2] == options
    assert said[-2:] == [os.environ.get("PYSPARK_PYTHON", sys.executable), str(project)]
    result = run(project, "--dry-run")
    assert "definitions are valid" in result.stdout
    assert "dry-run" in (project / "said").read_text()


def test_run_shows_progress_and_other_output_only_with_verbose(spark_home: Path, project: Path) -> None:
    script(
        spark_home / "bin" / "spark-pipelines",
        "echo '2026-11-23 19:49:53: Starting run...'; echo '26/11/23 WARN noise' >&2",
    )
    assert run(project).stderr == "2026-11-23 19:49:53: Starting run...\n"
    assert "noise" in run(project, "--verbose").stderr


def test_run_failure_is_one_line(spark_home: Path, project: Path) -> None:
    script(
        spark_home / "bin" / "spark-pipelines",
        "echo Traceback; echo 'pyspark.errors.X: [NO_TABLE] no table t'; echo '  at org.apache'; exit 3",
    )
    result = run(project)
    assert result.exit_code == 1
    assert result.stderr == (
        f"tickertape: Cannot run the pipeline {project}/spark-pipeline.yml: [NO_TABLE] no table t. Use "
        "--verbose to see all output.\n"
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["[X] a", "x tickertape.Disconnected: none answers", "at y"], "none answers"),
        (["a: warning", "pyspark.errors.AnalysisException: [NO_TABLE] none", "rest"], "[NO_TABLE] none"),
        (["2026-11-23 19:49:53: Loading", "something else", ""], "something else"),
        (["2026-11-23 19:49:53: Loading"], "Spark's runner ended with exit code 7"),
    ],
)
def test_reason_of_a_failure_is_the_most_specific_line(lines: list[str], expected: str) -> None:
    assert reason(lines, 7) == expected


def test_signal_during_the_runner_start_stops_the_runner(
    spark_home: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(spark_home / "bin" / "spark-pipelines", "exec sleep 600")
    started: list[int] = []

    class Starting(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)  # the process runs, but Popen has not returned

    monkeypatch.setattr(subprocess, "Popen", Starting)
    result = run(project)
    assert result.exit_code == 130, result.output
    assert result.stderr == "tickertape: interrupted, stopping Spark\n"
    [pid] = started
    assert is_gone(pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_stops_the_runner_and_child_processes(
    spark_home: Path, project: Path, number: signal.Signals
) -> None:
    script(spark_home / "bin" / "spark-pipelines", "sleep 600 & echo $! > child; echo $$ > runner; wait")
    command = [sys.executable, "-m", "tickertape", "pipeline", "run", str(project)]
    process = subprocess.Popen(command, env=source_environment(), stderr=subprocess.PIPE, text=True)
    until(lambda: (project / "runner").exists() and (project / "runner").read_text().endswith("\n"))
    process.send_signal(number)
    _, text_shown = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert text_shown == "tickertape: interrupted, stopping Spark\n"
    for name in ("runner", "child"):
        pid = int((project / name).read_text())
        until(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, including one that was not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
