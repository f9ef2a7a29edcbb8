"""Output of Arrow tables: text, JSON, CSV and Arrow."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tickertape.cli.support import arrow_output
from tickertape.cli.support.arrow_output import check_output, print_table

TABLE = pa.table(
    {
        "name": ["a", None, 'b, "c"'],
        "number": pa.array([1, 20, None], pa.int64()),
        "list": [[1], None, []],
        "flag": [True, False, None],
        "at": pa.array([datetime(2026, 11, 20, 9, tzinfo=UTC), None, None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 11, 20), None, None]),
        "exact": pa.array([Decimal("1.50"), None, None], pa.decimal128(5, 2)),
    }
)


def printed(table: pa.Table, output: str, limit: int | None = None) -> Result:
    @click.command()
    def run() -> None:
        print_table(table, output, limit)

    result = CliRunner().invoke(run, catch_exceptions=False)
    assert result.exit_code == 0
    return result


def test_text_aligns_numbers_right_and_names_null() -> None:
    assert printed(TABLE, "text").stdout == (
        "name    number  list  flag   at                    day         exact\n"
        "a            1  [1]   true   2026-11-20T09:00:00Z  2026-11-20   1.50\n"
        "NULL        20  NULL  false  NULL                  NULL         NULL\n"
        'b, "c"    NULL  []    NULL   NULL                  NULL         NULL\n'
    )


def test_text_escapes_control_characters() -> None:
    assert printed(pa.table({"a\x1b": ["\x1b[2J"]}), "text").stdout == "a\\x1b\n\\x1b[2J\n"


def test_json_is_one_object_per_row() -> None:
    rows = [json.loads(line) for line in printed(TABLE, "json").stdout.splitlines()]
    assert rows[0] == {
        "name": "a", "number": 1, "list": [1], "flag": True, "at": "2026-11-20T09:00:00Z",
        "day": "2026-11-20", "exact": 1.5,
    }  # fmt: skip
    assert rows[1]["name"] is None
    assert len(rows) == 3


def test_json_keeps_columns_of_one_name() -> None:
    table = pa.table([[1], [2], [3]], names=["a", "a", "a_1"])
    assert json.loads(printed(table, "json").stdout) == {"a": 1, "a_1": 2, "a_1_1": 3}


def test_csv_is_read_back() -> None:
    rows = list(csv.reader(io.StringIO(printed(TABLE, "csv").stdout)))
    assert rows == [
        ["name", "number", "list", "flag", "at", "day", "exact"],
        ["a", "1", "[1]", "true", "2026-11-20T09:00:00Z", "2026-11-20", "1.50"],
        ["", "20", "", "false", "", "", ""],
        ['b, "c"', "", "[]", "", "", "", ""],
    ]


def test_arrow_is_a_stream_of_the_table() -> None:
    read = pa.ipc.open_stream(printed(TABLE, "arrow").stdout_bytes).read_all()
    assert read.equals(TABLE)


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("text", lambda out: out.count(b"\n") - 1),
        ("csv", lambda out: out.count(b"\n") - 1),
        ("json", lambda out: out.count(b"\n")),
        ("arrow", lambda out: pa.ipc.open_stream(out).read_all().num_rows),
    ],
)
def test_limit_is_a_number_of_rows(output: str, count: Callable[[bytes], int]) -> None:
    table = pa.table({"a": list(range(5))})
    assert count(printed(table, output, 2).stdout_bytes) == 2
    assert count(printed(table, output).stdout_bytes) == 5


def test_rows_of_many_chunks_are_all_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_output, "_ROWS", 3)
    table = pa.concat_tables([pa.table({"a": [i, i + 1]}) for i in range(0, 10, 2)])
    assert printed(table, "csv").stdout.split() == ["a", *map(str, range(10))]


@pytest.mark.parametrize("output", ["text", "json", "csv"])
def test_nanoseconds_are_printed(output: str) -> None:
    table = pa.table({"t": pa.array([1], pa.timestamp("ns"))})
    assert "1970-01-01 00:00:00.000000001" in printed(table, output).stdout


@pytest.mark.parametrize(("output", "text"), [("text", "a\n"), ("json", ""), ("csv", "a\n")])
def test_table_without_rows_has_only_a_header(output: str, text: str) -> None:
    assert printed(pa.table({"a": pa.array([], pa.string())}), output).stdout == text


def test_arrow_is_refused_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(click.UsageError, match="Redirect"):
        check_output("arrow")
    for output in ("text", "json", "csv"):
        check_output(output)
