"""How-to about a pair of servers: its files are valid, and its blocks print the documented output."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.helpers.linked_servers import SECONDS
from tickertape.cli.support.command_group import cli
from tickertape.server.config.config import load_config
from tickertape.testing import RunningServer
from tickertape.testing.ports import ReservedPort
from tickertape.testing.server import wait_until

PAGE = Path(__file__).parents[2] / "docs/howto/pair.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def run(line: str) -> str:
    """Run a command of the page, and return its standard output."""
    prompt, name, *arguments = line.replace('"', "").split()
    assert (prompt, name) == ("$", "tickertape")
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def is_idle() -> bool:
    """Return whether the destination has everything, or its link is paused."""
    rows = run("$ tickertape replication ls --output json").splitlines()
    (out,) = [row for row in map(json.loads, rows) if row["direction"] == "out"]
    return bool(out["paused"]) or (out["state"] == "live" and not out["behind_messages"])


def check_changed_files(first: str, remote: str, synchronous: str, policy: str) -> None:
    """Check the configuration of the first server with each later block of the page."""
    local = re.compile(r'\[\[replication\.destination\]\]\nname = "ny-2"\naddresses = .*\n')
    rules = re.compile(r"\[\[replication\.destination\.topic\]\]\n(.*\n)*")
    Path("remote.toml").write_text(local.sub(remote, first))
    assert "tls://" in Path("remote.toml").read_text()
    assert load_config("remote.toml").replication is not None
    Path("synchronous.toml").write_text(rules.sub(synchronous, first))
    assert "sync = true" in Path("synchronous.toml").read_text()
    assert load_config("synchronous.toml").replication is not None
    Path("policy.toml").write_text('[instance]\nname = "ny-1"\n' + policy)
    assert load_config("policy.toml").replication is not None


def test_pair_howto_blocks_print_the_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    ports = {number: ReservedPort() for number in (9007, 9017, 9008, 9018)}
    for number, port in ports.items():
        text = text.replace(f":{number}", f":{port.number}")
    blocks = [match.groups() for match in BLOCK.finditer(text)]
    assert [language for language, _, _ in blocks] == [
        "toml", "toml", "console", "console", "python", "console", "console", "toml", "toml", "console",
        "toml", "console", "python", "console"
    ]  # fmt: skip
    first, second, check, serve, use, ls, token, remote, synchronous, *rest = blocks
    levels, policy, pauses, resume, compare = rest
    for name, (_, source, _) in (("ny-1", first), ("ny-2", second)):
        Path(f"{name}.toml").write_text(source)
    assert run(check[1]).startswith("ny-1.toml: valid\n")
    assert serve[1] == "$ tickertape serve ny-1.toml\n$ tickertape serve ny-2.toml\n"
    assert run(token[1]) == ""
    check_changed_files(first[1], remote[1], synchronous[1], policy[1])
    servers = [RunningServer(tmp_path / name, Path(f"{name}.toml"), listen=None) for name in ("ny-1", "ny-2")]
    for server, admin in zip(servers, (9008, 9018), strict=True):
        server.admin_url = f"http://127.0.0.1:{ports[admin].number}"
    try:
        for server in servers:
            server.start()
        wait_until(lambda: run(ls[1]).count(" live ") == 2, SECONDS)
        printed = io.StringIO()
        names: dict[str, Any] = {}
        with contextlib.redirect_stdout(printed):
            exec(use[1], names)
            exec(resume[1], names)
        assert printed.getvalue() == use[2] + resume[2]
        line, _, output = compare[1].partition("\n")
        arguments = line.removeprefix("$ tickertape ").split()
        wait_until(lambda: CliRunner().invoke(cli, arguments).stdout == output, SECONDS)
        for server, (_, source, _) in zip(servers, (first, second), strict=True):
            server.kill()
            Path(f"{server.data.name}.toml").write_text(source.replace("sync = false", "sync = true"))
        for server in servers:
            server.start()
        monkeypatch.setenv("TICKERTAPE_ADMIN", servers[0].admin_url)
        for block in (levels, pauses):
            lines = block[1].splitlines()
            for line, expected in zip(lines[::2], lines[1::2], strict=True):
                wait_until(is_idle, SECONDS)
                assert run(line) == f"{expected}\n"
    finally:
        for server in servers:
            server.kill()
            server.release()
        for port in ports.values():
            port.release()
