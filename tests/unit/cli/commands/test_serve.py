"""`serve` before the server starts."""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from tickertape.cli.support.command_group import cli
from tickertape.server import app
from tickertape.server.config.config import AdminConfig, Config, InstanceConfig, JournalConfig
from tickertape.server.config.transports import Transport

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@pytest.fixture
def rebuilt() -> set[str]:
    """Return the SOW topics that the server starts rebuilt."""
    return set()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, rebuilt: set[str]) -> list[Config]:
    """Return the configurations of the server starts."""
    found: list[Config] = []

    def run_server(config: Config, ready: object, rebuild: frozenset[str]) -> int:
        assert callable(ready)
        rebuilt.update(rebuild)
        ready(["tcp://127.0.0.1:1234", "unix:///run/x"], config.admin.listen)
        found.append(config)
        return 5

    monkeypatch.setattr(app, "run_server", run_server)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_serve_prints_one_ready_line_and_returns_the_exit_code_of_the_server(started: list[Config]) -> None:
    result = run("serve")
    assert (result.stdout, result.exit_code) == ("ready tcp://127.0.0.1:1234 unix:///run/x\n", 5)
    assert started == [Config()]


def test_ready_line_ends_with_the_admin_address(started: list[Config]) -> None:
    result = run("serve", "--admin", "http://127.0.0.1:9008")
    assert result.stdout == "ready tcp://127.0.0.1:1234 unix:///run/x admin http://127.0.0.1:9008\n"
    assert started == [Config(admin=AdminConfig(listen="http://127.0.0.1:9008"))]


def test_ready_line_is_one_write_to_unbuffered_standard_output(
    started: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.BytesIO):
        def write(self, data: ReadableBuffer) -> int:
            if text := bytes(data):  # click probes the stream with empty writes
                writes.append(text)
            return len(text)

    writes: list[bytes] = []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Terminal(), encoding="utf-8", write_through=True))
    assert cli.main(["serve"], standalone_mode=False) == 5
    assert writes == [b"ready tcp://127.0.0.1:1234 unix:///run/x\n"]
    assert started == [Config()]


def test_serve_options_override_the_file(started: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[instance]\nname = "a"\ndata = "b"\n[journal]\nsync = "never"\n')
    run(
        "serve",
        str(file),
        "--name",
        "n",
        "--data",
        "d",
        "--listen",
        "tcp://127.0.0.1:0",
        "--listen",
        "unix:///s",
    )
    assert started == [
        Config(
            instance=InstanceConfig(name="n", data="d"),
            transports=[Transport(listen="tcp://127.0.0.1:0"), Transport(listen="unix:///s")],
            journal=JournalConfig(sync="never"),
        )
    ]


def test_serve_exits_2_for_invalid_options_and_an_invalid_file(started: list[Config], tmp_path: Path) -> None:
    result = run("serve", "--listen", "tcp://0.0.0.0:9007")
    assert result.exit_code == 2
    assert (
        "Invalid value for '--listen': tcp://0.0.0.0:9007 is reachable from other machines" in result.stderr
    )
    result = run("serve", "--admin", "http://0.0.0.0:9008")
    assert result.exit_code == 2
    assert (
        "Invalid value for '--admin': http://0.0.0.0:9008 is reachable from other machines" in result.stderr
    )
    file = tmp_path / "c.toml"
    file.write_text("y = 2\n")
    bad = "--listen", "udp://1", "--admin", "tcp://x", "--listen", "tcp://1", "--name", ""
    result = run("serve", str(file), *bad)
    assert result.exit_code == 2
    problems = [line.split(": ")[0] for line in result.stderr.splitlines()]
    options = ["--admin", "--listen", "--listen", "--name"]
    assert sorted(problems[:4]) == [f"Invalid value for '{option}'" for option in options]
    assert f"\n{file}:1: y: unknown key. " in result.stderr
    assert result.stderr.endswith("Error: 5 problems, server not started\n")
    file.write_text("x = 1\ny = 2\n")
    result = run("serve", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:1: x: unknown key. ")
    assert result.stderr.splitlines()[1].startswith(f"{file}:2: y: unknown key. ")
    assert result.stderr.endswith(f"tickertape: {file}: 2 problems, server not started\n")
    file.write_text("y = 2\n")
    assert run("serve", str(file)).stderr.startswith(f"tickertape: {file}:1: y: unknown key. ")
    assert run("serve", str(tmp_path / "none.toml")).stderr == (
        f"tickertape: Cannot read '{tmp_path}/none.toml': No such file or directory. Check the path and its "
        "permissions.\n"
    )
    assert started == []


def test_serve_rebuilds_the_named_sow_topics(
    started: list[Config], rebuilt: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[[sow]]\nname = 'a'\n[[sow]]\nname = 'b'\n[[sow]]\nname = 'c'\n")
    assert run("serve", str(file), "--rebuild-sow", "a", "--rebuild-sow", "b").exit_code == 5
    assert rebuilt == {"a", "b"}
    assert len(started) == 1


def test_serve_refuses_to_rebuild_a_name_without_a_sow_table(started: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[[sow]]\nname = 'orders'\n")
    result = run("serve", str(file), "--rebuild-sow", "order")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "Error: Invalid value for '--rebuild-sow': no [[sow]] has the name 'order'. Did you mean 'orders'? "
        "Use the name of a SOW topic.\n"
    )
    assert "Use the name of a SOW topic." in run("serve", "--rebuild-sow", "orders").stderr
    assert started == []


@pytest.mark.parametrize(("given", "used"), [(None, "1"), ("4", "4")])
def test_serve_limits_the_threads_of_numpy_unless_the_environment_does(
    monkeypatch: pytest.MonkeyPatch, started: list[Config], given: str | None, used: str
) -> None:
    if given is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    run("serve")
    assert len(started) == 1
    assert os.environ["OPENBLAS_NUM_THREADS"] == used


@pytest.mark.parametrize("arguments", [["serve"], ["serve", "--listen", "nonsense"]])
def test_serve_leaves_the_garbage_collector_on(started: list[Config], arguments: list[str]) -> None:
    assert gc.isenabled()
    run(*arguments)
    assert gc.isenabled()
