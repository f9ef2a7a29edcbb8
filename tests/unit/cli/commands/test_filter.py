"""`filter explain` and `filter test`: meaning of a filter, and matching lines."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from tickertape.cli.support.command_group import cli

LINES = b'{"a":1,"s":"x"}\n\n{"a":2,"s":"y"}\r\nnot json\n{"a":30}'


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, ["filter", *arguments], input=stdin)


def test_explain_prints_meaning_fields_and_cost() -> None:
    result = run("explain", "NOT /a = 1 + 1 or /b LIKE '^x' and TOPIC_NAME() = 't' AND TRUE")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "means    (NOT /a = 2) OR (/b LIKE '^x' AND TOPIC_NAME() = 't')",
        "reads    /a, /b",
        "needs    topics",
        "cost     9 of 300 parts, 1 of 6 text scans, 2 of 600 pattern states",
    ]


def test_explain_names_the_keys_that_an_index_can_use() -> None:
    result = run("explain", "/s = 'IBM' AND 5 = /q AND /v IN (1, 2) AND /p > 3 AND /a = /b")
    keys = [line.split(None, 1)[1] for line in result.stdout.splitlines() if line.startswith("key")]
    assert keys == ["/s = 'IBM'", "5 = /q", "/v IN (1, 2)"]


def test_explain_json_prints_constant_fields_and_meaning() -> None:
    found = json.loads(run("explain", "1 = 2", "--output", "json").stdout)
    assert (found["always"], found["fields"], found["meaning"]) == ("false", [], "FALSE")
    assert json.loads(run("explain", "NULL", "--output", "json").stdout)["always"] == "unknown"
    assert "no fields (the body is not decoded)" in run("explain", "1 = 1").stdout


def test_explain_error_shows_caret_on_own_line() -> None:
    result = run("explain", "/a = AND")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "tickertape: Invalid filter at column 6: expected a value, not 'AND'.\n  /a = AND\n       ^\n"
    )
    assert "binary" in run("explain", "/a = 1", "--type", "binary").stderr
    assert run("explain", "/a = 1", "--type", "xml").exit_code == 2


def test_filter_test_prints_the_matching_lines(tmp_path: Path) -> None:
    result = run("test", "/a > 1", stdin=LINES)
    assert (result.exit_code, result.stdout) == (0, '{"a":2,"s":"y"}\n{"a":30}\n')
    assert result.stderr == "tickertape: Not valid as json: 1 line. Check --type.\n"
    file = tmp_path / "lines"
    file.write_bytes(LINES)
    assert run("test", "/a > 1", str(file)).stdout == result.stdout
    assert run("test", "1 = 1", "-c", str(file)).stdout == "4\n"


def test_filter_test_without_a_match_exits_1() -> None:
    result = run("test", "/a > 100", stdin=b'{"a":1}\n')
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "tickertape: No line matches.\n")
    assert run("test", "/a > 100", "--count", stdin=b'{"a":1}\n').stdout == "0\n"


def test_filter_test_reads_other_message_types() -> None:
    assert run("test", "/55 = 'IBM'", "--type", "fix", stdin=b"35=D\x0155=IBM\x01\n").exit_code == 0


def test_filter_test_refuses_functions_that_need_a_message() -> None:
    result = run("test", "TOPIC_NAME() = 'x' AND USER() = 'y'", stdin=b"{}")
    assert result.stderr == (
        "tickertape: Cannot test the filter: it uses TOPIC_NAME() and USER(), and each input line is only "
        "the body of a message. Remove the conditions with these functions.\n"
    )
    assert result.exit_code == 2


def test_filter_test_json_prints_line_number_and_body() -> None:
    lines = b'{"a":1}\n\n{"a": 2}\nnot json\n{"a":3}\n'
    result = run("test", "/a > 1", "--output", "json", stdin=lines)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"line": 3, "data": {"a": 2}},
        {"line": 5, "data": {"a": 3}},
    ]
    assert json.loads(run("test", "/a > 1", "-c", "--output", "json", stdin=lines).stdout) == {"count": 2}


def test_limit_stops_after_as_many_lines() -> None:
    lines = b"".join(b'{"a":%d}\n' % n for n in range(2_000))
    result = run("test", "/a > 9", "--limit", "1000", stdin=lines)
    assert result.stdout.splitlines()[-1] == '{"a":1009}'
    assert len(result.stdout.splitlines()) == 1000
