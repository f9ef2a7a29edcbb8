"""`sow`, `query` and `client.query` with a real server, and the examples of the help."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import tickertape as tt
from tickertape.cli.support.command_group import cli
from tickertape.client.sql.database import Database
from tickertape.client.sql.statement import tables_of
from tickertape.testing import RunningServer, running_server

pytestmark = pytest.mark.slow

TOPIC: Final = '[[sow]]\nname = "{name}"\n{key}\n[[topic]]\nname = "{name}"\nmessage_type = "json"\n'
KEYS: Final = {
    "positions": 'key = ["/id"]',
    "desks": 'key = ["/desk"]',
    "positions/eu": "",
    "empty": 'key = ["/id"]',
    "own": "",
    "followed": 'key = ["/id"]',
}
POSITIONS: Final = [
    {"id": 1, "desk": "fx", "qty": 5},
    {"id": 2, "desk": "rates", "qty": 7.5},
    {"id": 3, "desk": "fx", "qty": 2, "note": 'a, "b"'},
]
SECONDS: Final = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield one server with records, which no test changes."""
    config = "\n".join(TOPIC.format(name=name, key=key) for name, key in KEYS.items())
    with running_server(tmp_path_factory.mktemp("sow") / "data", config) as running:
        with tt.Client("loader", running.uri) as client:
            client.publish("positions", {"id": 1, "desk": "old", "qty": 0})
            client.publish_batch("positions", POSITIONS)
            client.publish_batch("desks", [{"desk": "fx", "head": "Ann"}, {"desk": "rates", "head": "Bob"}])
            client.publish("positions/eu", {"qty": 9}, sow_key="eu-1")
            client.publish_batch("followed", [{"id": 1}, {"id": 2}])
            client.publish_flush()
        yield running


def run(server: RunningServer, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--server", server.uri])


def output(server: RunningServer, *arguments: str) -> bytes:
    done = run(server, *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout_bytes


def lines(server: RunningServer, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(server, *arguments).splitlines()]


# -- sow ----------------------------------------------------------------------------------------------


def test_sow_prints_the_body_of_each_record(server: RunningServer) -> None:
    assert list(map(json.loads, output(server, "sow", "positions").splitlines())) == POSITIONS


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--filter", "/desk = 'fx'"], [1, 3]),
        (["--order-by", "/qty DESC"], [2, 1, 3]),
        (["--order-by", "/qty DESC", "--top", "1"], [2]),
        (["--order-by", "/qty DESC", "--top", "5", "--skip", "1"], [1, 3]),
        (["--top", "0"], []),
        (["--limit", "2"], [1, 2]),
        (["--limit", "2", "--top", "1"], [1]),
        (["--sow-key", "no-such-key"], []),
    ],
)
def test_sow_options_select_records(server: RunningServer, options: list[str], ids: list[int]) -> None:
    printed = lines(server, "sow", "positions", "--output", "json", *options)
    assert [row["data"]["id"] for row in printed] == ids


def test_printed_key_of_a_record_selects_the_record(server: RunningServer) -> None:
    rows = lines(server, "sow", "positions", "--output", "json")
    assert {row["command"] for row in rows} == {"sow"}
    key = rows[1]["sow_key"]
    assert lines(server, "sow", "positions", "--output", "json", "--sow-key", key) == [rows[1]]
    (explicit,) = lines(server, "sow", "positions/eu", "--output", "json")
    assert (explicit["sow_key"], explicit["topic"]) == ("eu-1", "positions/eu")


def test_printed_bookmark_of_a_record_is_a_start_point(server: RunningServer) -> None:
    rows = lines(server, "sow", "positions", "--output", "json")
    rest = output(server, "subscribe", "positions", "--bookmark", rows[1]["bookmark"], "--until-caught-up")
    assert json.loads(rest) == POSITIONS[2]


def test_sow_as_csv_and_arrow_has_a_column_for_each_field(server: RunningServer) -> None:
    rows = list(csv.DictReader(io.StringIO(output(server, "sow", "positions", "--output", "csv").decode())))
    names = ["id", "desk", "qty", "note", "_sow_key", "_topic", "_bookmark", "_timestamp", "_correlation_id"]
    assert list(rows[0]) == names
    assert [row["note"] for row in rows] == ["", "", 'a, "b"']
    table = pa.ipc.open_stream(output(server, "sow", "positions", "--output", "arrow")).read_all()
    assert table.column_names == names
    assert table.column("qty").to_pylist() == [5.0, 7.5, 2.0]
    assert table.column("_sow_key").to_pylist() == [row["_sow_key"] for row in rows]


def test_sow_follow_prints_records_and_then_messages(server: RunningServer) -> None:
    command = [sys.executable, "-m", "tickertape", "sow", "followed", "--follow", "--limit", "3"]
    process = subprocess.Popen(
        [*command, "--output", "json", "--server", server.uri], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(2)]
        with tt.Client("later", server.uri) as client:
            client.publish("followed", {"id": 1, "again": True})
            client.publish_flush()
        out, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, b"")
    last = json.loads(out)
    assert [row["data"]["id"] for row in first] == [1, 2]
    assert last["data"] == {"id": 1, "again": True}
    assert ("command" in last, last["sow_key"]) == (False, first[0]["sow_key"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["sow", "positons"], "Did you mean 'positions'?"),
        (["sow", "positions", "--order-by", "qty"], "Cannot sort by"),
        (["sow", "positions", "--filter", "/qty >"], "Invalid filter"),
        (["query", "from positons"], "Did you mean 'positions'?"),
        (["query", "from '/etc/passwd'"], "'/etc/passwd': it is not a SOW topic"),
        (["query", "select * from read_text('/etc/passwd')"], "disabled by configuration"),
        (["query", "copy (from positions) to 'x.csv'"], "the statement is not a SELECT"),
        (["query", "select nope from positions"], "\nselect nope from positions\n       ^\n"),
        (["query", "select x from empty"], "'empty' has no records, so its columns are unknown"),
    ],
)
def test_mistake_is_exit_code_2(server: RunningServer, arguments: list[str], text: str) -> None:
    done = run(server, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert text in done.stderr


# -- query --------------------------------------------------------------------------------------------

BY_DESK: Final = (
    "SELECT head, max(qty) AS most FROM positions JOIN desks USING (desk) GROUP BY head ORDER BY 1"
)


def test_query_prints_a_table(server: RunningServer) -> None:
    assert output(server, "query", BY_DESK) == b"head  most\nAnn    5.0\nBob    7.5\n"


def test_query_prints_json_csv_and_arrow(server: RunningServer) -> None:
    expected = [{"head": "Ann", "most": 5.0}, {"head": "Bob", "most": 7.5}]
    assert lines(server, "query", BY_DESK, "--output", "json") == expected
    assert output(server, "query", BY_DESK, "--output", "csv") == b"head,most\nAnn,5.0\nBob,7.5\n"
    arrow = output(server, "query", BY_DESK, "--output", "arrow", "--limit", "1")
    assert pa.ipc.open_stream(arrow).read_all().to_pylist() == expected[:1]


def test_filter_on_explicit_keys_selects_records_and_later_messages(server: RunningServer) -> None:
    with tt.Client("reader", server.uri) as client:
        with client.sow_and_subscribe("positions/eu", "SOW_KEY() = 'eu-7'") as stream:
            for key, quantity in (("eu-8", 1), ("eu-7", 2)):
                client.publish("positions/eu", {"qty": quantity}, sow_key=key)
            assert next(stream).json() == {"qty": 2}
        client.sow_delete("positions/eu", keys=["eu-7", "eu-8"])


def test_client_query_maps_tables_to_topics(server: RunningServer) -> None:
    with tt.Client("asks", server.uri) as client:
        table = client.query("SELECT qty, _sow_key FROM p", {"p": "positions/eu"})
        assert table.to_pylist() == [{"qty": 9, "_sow_key": "eu-1"}]
        types = {"empty": {"id": pa.int64()}}
        assert client.query("FROM empty", types=types).schema == pa.schema([("id", pa.int64())])
        with pytest.raises(tt.BadTopic, match="positons"):
            client.query("FROM positons")


def test_client_query_sees_own_persisted_messages(server: RunningServer) -> None:
    with tt.Client("writes", server.uri) as client:
        for count in range(1, 4):
            client.publish("own", {"n": count}, sow_key="mine")
            client.publish_flush()
            assert client.query("SELECT n, _sow_key FROM own").to_pylist() == [
                {"n": count, "_sow_key": "mine"}
            ]


LONG: Final = "select sum(a.range * b.range) from range(1_000_000) a, range(1_000_000) b"


def test_cancelled_query_of_an_asyncio_client_ends(server: RunningServer) -> None:
    async def ask() -> None:
        async with tt.AsyncClient("asks-async", server.uri) as client:
            assert (await client.query(BY_DESK)).num_rows == 2
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.query(LONG), 0.3)
            assert (await client.query("SELECT 1 AS one")).to_pylist() == [{"one": 1}]

    asyncio.run(asyncio.wait_for(ask(), SECONDS))


def test_query_of_an_asyncio_client_parses_outside_the_event_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def tables(sql: str, database: Database) -> list[str]:
        threads.append(threading.current_thread())
        return tables_of(sql, database)

    async def ask() -> None:
        async with tt.AsyncClient("asks-async", server.uri) as client:
            assert (await client.query(BY_DESK)).num_rows == 2

    monkeypatch.setattr("tickertape.client.sql.query.tables_of", tables)
    asyncio.run(asyncio.wait_for(ask(), SECONDS))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()  # the first import of DuckDB takes long


def test_ctrl_c_ends_a_running_query(server: RunningServer) -> None:
    later = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    with tt.Client("interrupted", server.uri) as client:
        later.start()
        with pytest.raises(KeyboardInterrupt):
            client.query(LONG)
        later.join()
        assert client.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


# -- examples of the help -----------------------------------------------------------------------------


def examples(command: str) -> list[str]:
    text = CliRunner().invoke(cli, [command, "--help"]).stdout
    return re.findall(rf"^  ((?:echo .* \| )?tickertape {command} .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("example", [*examples("sow"), *examples("query")])
def test_example_of_the_help_runs(server: RunningServer, example: str, tmp_path: Path) -> None:
    words = shlex.split(re.split(r" [|>] ", example)[0])[1:]
    if "--follow" in words:
        words += ["--limit", "1"]
    done = run(server, *words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout_bytes
