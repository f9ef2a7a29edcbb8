"""Journal tools on the directory of a running server: they read it without a disturbance."""

from __future__ import annotations

import json
import time
from pathlib import Path

from click.testing import CliRunner, Result

import tickertape as tt
from tickertape.cli.support.command_group import cli
from tickertape.testing import running_server


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["journal", *map(str, arguments)])


def test_journal_tools_read_persisted_messages_of_a_running_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data) as server, tt.Client("tools", server.uri) as client:
        sent = 0
        for _ in range(4):
            for _ in range(50):
                client.publish("orders", b'{"n":%d}' % sent)
                sent += 1
            client.publish_flush(timeout=10)
            deadline = time.monotonic() + 10
            while True:  # a later commit proves that a commit is durable, after at most 20 ms without writes
                result = run("dump", data, "--topic", "orders", "--output", "json")
                assert result.exit_code == 0, result.stderr
                seen = [json.loads(line)["data"]["n"] for line in result.stdout.splitlines()]
                assert seen == list(range(len(seen)))
                if len(seen) == sent:
                    break
                assert time.monotonic() < deadline
        assert run("grep", data, '"n":1[0-9]}', "-c").stdout == "10\n"
        assert run("verify", data).exit_code == 0
        bookmark = json.loads(result.stdout.splitlines()[7])["bookmark"]
        found = json.loads(run("find", data, bookmark, "--output", "json").stdout)
        assert found["topic"] == "orders"
        client.publish("orders", b"after the tools")
        client.publish_flush(timeout=10)
