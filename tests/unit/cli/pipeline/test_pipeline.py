"""The group `pipeline`: missing requirements, and no import of Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from tests.unit.cli.support.test_command_group import imported
from tickertape.cli.pipeline.session import (
    _standard_error_to,
    _why,
    error_line,
    require_spark,
    session_options,
)
from tickertape.cli.support.command_group import Failure


@pytest.fixture
def with_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace PySpark, because the import of the real one is slow."""
    for name in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


def test_pipeline_without_pyspark_prints_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
    with pytest.raises(Failure, match=r"pip install 'tickertape\[spark\]'"):
        require_spark()


@pytest.mark.usefixtures("with_pyspark")
def test_pipeline_without_java_prints_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(Failure, match=r"java is not on the PATH\. Install Java 17"):
        require_spark()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Failure, match=rf"JAVA_HOME '{tmp_path}' has no bin/java\. Set JAVA_HOME to"):
        require_spark()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    require_spark()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[X] a\nTraceback\n  tickertape.Disconnected: none answers\n\tat org.apache",
            "none answers",
        ),
        ("\n[TABLE] no table\n== SQL ==", "[TABLE] no table"),
        ("", "Spark failed without a message"),
    ],
)
def test_error_of_spark_becomes_one_line(text: str, line: str) -> None:
    assert error_line(text) == line


def test_failed_java_start_is_explained_by_the_java_output(tmp_path: Path) -> None:
    said = tmp_path / "java.log"
    with _standard_error_to(said):
        os.write(2, b"Picked up JAVA_TOOL_OPTIONS: -X\nError: Could not create the Java Virtual Machine.\n")
    assert (
        _why(said, ValueError("[JAVA_GATEWAY_EXITED]")) == "Error: Could not create the Java Virtual Machine."
    )
    said.write_text("Picked up\n")
    assert _why(said, ValueError("[JAVA_GATEWAY_EXITED] it\nended")) == "[JAVA_GATEWAY_EXITED] it"


@pytest.mark.parametrize(("memory", "code"), [("2g", 0), ("512MB", 0), ("2", 2), ("0g", 2), ("much", 2)])
def test_driver_memory_must_be_a_size(memory: str, code: int) -> None:
    @click.command()
    @session_options
    def show(master: str, driver_memory: str) -> None:
        click.echo(f"{master} {driver_memory}")

    result = CliRunner().invoke(show, ["--driver-memory", memory])
    assert result.exit_code == code
    assert code or result.stdout == f"local[*] {memory.lower()}\n"


@pytest.mark.slow
def test_pipeline_group_imports_nothing_of_spark_before_a_command_runs() -> None:
    modules = imported(
        "from tickertape.cli.support.command_group import cli; import click; context = click.Context(cli);"
        "group = cli.get_command(context, 'pipeline');"
        "[group.get_command(context, name) for name in group.list_commands(context)]"
    )
    assert "tickertape.cli.pipeline" in modules
    assert modules & {"pyspark", "pyarrow", "pandas", "numpy", "deltalake", "rich"} == set()
