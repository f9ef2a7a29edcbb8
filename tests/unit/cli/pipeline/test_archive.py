"""`pipeline archive` and `pipeline compact` without Spark: options, merging and signals."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.helpers.archive_rows import JOURNAL, archived, batch_of
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.location import ArchiveLocation, location_of
from tickertape.archive.parquet_writer import write_files
from tickertape.base.errors import BadOption
from tickertape.cli.pipeline.archive import stop_flag
from tickertape.cli.support.archive_options import archive_location
from tickertape.cli.support.command_group import cli
from tickertape.spark.archive import job
from tickertape.spark.archive.job import ArchiveJobOptions


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["pipeline", *arguments])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def filled(tmp_path: Path) -> ArchiveLocation:
    location = location_of(str(tmp_path / "archive"))
    archive = ArchiveWriter.create(location, JOURNAL, 0, "")
    for at in range(0, 50, 10):
        archive.add(at, at + 10, write_files(location, [batch_of(range(at, at + 10))]))
    return location


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["archive"], "Missing option '--to'"),
        (["archive", "--to", "x", "--once", "--interval", "5s"], "--once excludes --interval"),
        (["archive", "--to", "x", "--server", "http://a"], "Invalid value for '--server'"),
        (["archive", "--to", "x", "--interval", "soon"], "Invalid value for '--interval'"),
        (["archive", "--to", "x", "--batch", "0"], "Invalid value for '--batch'"),
        (["compact", "x", "--storage-option", "AWS_REGION"], "KEY=VALUE, such as AWS_REGION=eu-west-1"),
        (["compact", "x", "--storage-option", "a=b"], "Cannot use storage options: 'x' is a directory"),
        (["compact", ""], "Invalid archive location '': it is empty"),
    ],
)
def test_archive_and_compact_with_invalid_options_exit_2(given: Sequence[str], said: str) -> None:
    code, output = run(*given)
    assert code == 2
    assert said in output


def test_archive_journal_directory_is_relative_to_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directories = []

    def refuse(options: ArchiveJobOptions) -> None:
        directories.append(options.directory)
        raise BadOption("Cannot continue: test.")

    monkeypatch.setattr(job, "prepare", refuse)
    monkeypatch.chdir(tmp_path)
    for given in (["--journal", "data"], ["--journal", "/srv/data"], []):
        assert run("archive", "--to", "x", *given)[0] == 2
    assert directories == [str(tmp_path / "data"), "/srv/data", None]


def test_malformed_storage_option_is_refused_without_printing_the_value() -> None:
    code, output = run("compact", "x", "--storage-option", "=hunter2")
    assert code == 2
    assert "hunter2" not in output


def test_compact_without_deltalake_prints_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    code, output = run("compact", "x")
    assert code == 2
    assert "pip install 'tickertape[spark]'" in output


def test_compact_merges_small_files_and_removes_old_ones(filled: ArchiveLocation) -> None:
    rows = archived(filled.location)
    code, output = run("compact", filled.location)
    assert code == 0
    assert "compacted 5 files into 1" in output
    assert "removed 0 unused files" in output
    assert archived(filled.location) == rows
    stray = Path(filled.path("stray.parquet"))
    stray.write_bytes(b"of an attempt that failed")
    os.utime(stray, (1, 1))
    code, output = run("compact", filled.location, "--output", "json")
    assert code == 0
    assert json.loads(output) == {
        "files_before": 0, "files_after": 0, "rows": 0, "bytes_before": 0, "bytes_after": 0, "removed": 1,
    }  # fmt: skip
    assert not stray.exists()


def test_compact_refuses_to_keep_files_for_less_than_an_hour(filled: ArchiveLocation) -> None:
    code, output = run("compact", filled.location, "--keep", "10m")
    assert code == 2
    assert "Invalid duration '10m'. Use at least 1h." in output


def test_compact_of_a_directory_without_archive_exits_2(tmp_path: Path) -> None:
    code, output = run("compact", str(tmp_path))
    assert code == 2
    assert "has no Delta table" in output


def test_archive_location_has_storage_options() -> None:
    assert archive_location("s3://b/p", {"AWS_REGION": "x"}) == ArchiveLocation(
        "s3://b/p", {"AWS_REGION": "x"}
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_flag_is_set_by_signals_and_restores_the_handlers(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_flag() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


@pytest.mark.timeout(20)
def test_stop_flag_handles_a_signal_during_the_handler_of_another() -> None:
    def again(_frame: object, event: str, _what: object) -> None:
        if event == "call":
            signal.raise_signal(signal.SIGTERM)

    with stop_flag() as stop:
        sys.setprofile(again)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            sys.setprofile(None)
        assert stop.is_set()
