"""`sow-delete` and `delta-publish` with a real server, and the examples of the help."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

import tickertape as tt
from tests.integration.test_sow_commands import examples
from tickertape.cli.commands import sow as commands
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, running_server

pytestmark = pytest.mark.slow

CONFIG: Final = """
[[sow]]
name = "positions"
key = ["/id"]
[[topic]]
name = "positions"
message_type = "json"
[[queue]]
name = "work"
underlying = "jobs"
"""
POSITIONS: Final = [{"id": 1, "qty": 5}, {"id": 2, "qty": 0}, {"id": 3, "qty": 0}, {"id": 7, "qty": 1}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("changes") / "data", CONFIG) as running:
        yield running


@pytest.fixture
def records(server: RunningServer) -> Iterator[tt.Client]:
    """Yield a client of a server with exactly the records `POSITIONS`."""
    with tt.Client("loader", server.uri) as client:
        client.sow_delete("positions", filter="TRUE")
        client.publish_batch("positions", POSITIONS)
        client.publish_flush()
        yield client


def run(server: RunningServer, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--server", server.uri], input=stdin)


def found(client: tt.Client) -> list[Any]:
    return [message.json() for message in client.sow("positions", order_by="/id")]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--filter", "/qty = 0"], [1, 7]),
        (["--filter", "TRUE"], []),
        (["--filter", "/qty > 100"], [1, 2, 3, 7]),
        (["--data", "-"], [1, 2, 3]),
        (["--sow-key", "nobody"], [1, 2, 3, 7]),
    ],
)
def test_sow_delete_removes_the_selected_records(
    server: RunningServer, records: tt.Client, options: list[str], ids: list[int]
) -> None:
    done = run(server, "sow-delete", "positions", "--yes", *options, stdin=b'{"id": 7}\n')
    assert (done.exit_code, done.stderr) == (0, "")
    assert [record["id"] for record in found(records)] == ids
    deleted = len(POSITIONS) - len(ids)
    assert done.stdout == f"{deleted} record{'' if deleted == 1 else 's'} deleted\n"


def test_printed_keys_delete_the_records(server: RunningServer, records: tt.Client) -> None:
    rows = map(json.loads, run(server, "sow", "positions", "--output", "json").stdout.splitlines())
    keys = [word for row in rows if row["data"]["id"] < 3 for word in ("--sow-key", row["sow_key"])]
    done = run(server, "sow-delete", "positions", *keys, "--yes", "--output", "json")
    assert json.loads(done.stdout) == {"topic": "positions", "matches": 2, "deleted": 2}
    assert [record["id"] for record in found(records)] == [3, 7]


def test_sow_delete_asks_with_the_number_of_records(
    server: RunningServer, records: tt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(commands, "confirmed", asked.append)
    assert run(server, "sow-delete", "positions", "--filter", "/qty = 0").exit_code == 2
    assert asked == ["Delete 2 records in 'positions'?"]
    assert found(records) == POSITIONS


def test_sow_delete_refuses_a_queue(server: RunningServer, records: tt.Client) -> None:
    records.sow_delete("work", filter="TRUE")
    records.publish("jobs", {"id": 1})
    records.publish_flush()
    done = run(server, "sow-delete", "work", "--filter", "TRUE", "--yes")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "it is not a SOW topic" in done.stderr
    assert run(server, "sow-delete", "work", "--sow-key", "a", "--yes").exit_code == 2
    with records.subscribe("work", browse=True) as stream:
        assert stream.get(timeout=10).json() == {"id": 1}


def test_sow_prints_the_available_messages_of_a_queue(server: RunningServer, records: tt.Client) -> None:
    records.sow_delete("work", filter="TRUE")
    records.publish_batch("jobs", [{"id": number} for number in (4, 6, 5)])
    records.publish_flush()
    done = run(server, "sow", "work", "--order-by", "/id DESC", "--top", "2")
    assert (done.exit_code, done.stdout.splitlines()) == (0, ['{"id":6}', '{"id":5}'])
    lines = run(server, "sow", "work", "--output", "json", "--limit", "1").stdout.splitlines()
    (line,) = map(json.loads, lines)
    assert (line["command"], line["topic"], line["underlying_topic"]) == ("sow", "work", "jobs")
    assert "sow_key" not in line
    csv = run(server, "sow", "work", "--output", "csv")
    assert (csv.exit_code, len(csv.stdout.splitlines())) == (0, 4)
    refused = run(server, "sow", "work", "--follow")
    assert refused.exit_code == 2
    assert "Cannot query and follow queue 'work'" in refused.stderr


def test_delta_publish_merges_lines_into_records(
    server: RunningServer, records: tt.Client, tmp_path: Path
) -> None:
    file = tmp_path / "changes.jsonl"
    file.write_text('{"id": 1, "note": {"a": 1}}\n{"id": 1, "note": {"b": 2}}\n{"id": 9, "qty": 4}\n')
    done = run(server, "delta-publish", "positions", str(file))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert found(records) == [
        {"id": 1, "qty": 5, "note": {"a": 1, "b": 2}},
        *POSITIONS[1:],
        {"id": 9, "qty": 4},
    ]


def test_delta_without_a_key_is_rejected(server: RunningServer, records: tt.Client) -> None:
    done = run(server, "delta-publish", "positions", stdin=b'{"qty": 4}\n')
    assert done.exit_code == 1
    assert "key" in done.stderr
    assert found(records) == POSITIONS


@pytest.mark.parametrize("example", [*examples("sow-delete"), *examples("delta-publish")])
def test_example_of_the_help_runs(
    server: RunningServer,
    records: tt.Client,
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "changes.jsonl").write_text('{"id": 2, "qty": 1}\n')
    monkeypatch.setattr(commands, "confirmed", lambda question: True)  # noqa: ARG005
    words = shlex.split(example.rpartition("tickertape ")[2])
    done = run(server, *words, stdin=b'{"id": 7, "price": 12.5}')
    assert (done.exit_code, done.stderr) == (0, "")
