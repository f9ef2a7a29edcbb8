"""`subscribe`: output of messages."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.helpers.leases import out_of
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies, merge
from tickertape.cli.support.command_group import cli
from tickertape.cli.support.json_lines import TerminalOutput, print_batches

BODIES = [b'{"a": 1.50,\n "b": [ ]}', b"plain text", b"", b'"caf\xc3\xa9"', b"\xff\x00", b'"\xff"', b"[1] 2"]


def printed(batches: list[MessageBatch], count: int | None = None, *, as_json: bool = False) -> bytes:
    out = BytesIO()
    whole = print_batches(batches, count, out, as_json=as_json)
    assert whole is (count is not None and count <= sum(batch.count for batch in batches))
    return out.getvalue()


def test_subscribe_prints_each_body_and_a_line_end() -> None:
    assert (
        printed([batch_from_bodies("t", [b"a", b"", b"c"]), batch_from_bodies("t", [b"d"])]) == b"a\n\nc\nd\n"
    )


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("count", "lines"), [(1, 1), (3, 3), (4, 4), (5, 4), (None, 4)])
def test_subscribe_limit_stops_inside_a_batch(as_json: bool, count: int | None, lines: int) -> None:
    batches = [batch_from_bodies("t", [b"1", b"2", b"3"]), batch_from_bodies("t", [b"4"])]
    assert len(printed(batches, count, as_json=as_json).splitlines()) == lines


def test_subscribe_json_prints_all_fields_of_each_message() -> None:
    one = batch_from_bodies("orders", [b'{"x":1}', b"[2]"], first_sequence=10)
    two = batch_from_bodies('fi"lls', [b"{}"], first_sequence=5)
    stamps = [Stamp(2**64 - 1, 10, 1_700_000_000_000_000), Stamp(7, 5, 1_700_000_000_000_001)]
    lines = printed([merge([one, two], stamps)], as_json=True).splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "topic": "orders",
            "bookmark": "18446744073709551615|10|",
            "publisher": "18446744073709551615",
            "sequence": 10,
            "timestamp": "20231114T221320.000000Z",
            "data": {"x": 1},
        },
        {
            "topic": "orders",
            "bookmark": "18446744073709551615|11|",
            "publisher": "18446744073709551615",
            "sequence": 11,
            "timestamp": "20231114T221320.000000Z",
            "data": [2],
        },
        {
            "topic": 'fi"lls',
            "bookmark": "7|5|",
            "publisher": "7",
            "sequence": 5,
            "timestamp": "20231114T221320.000001Z",
            "data": {},
        },
    ]


def test_subscribe_json_prints_bodies_as_data_text_or_base64() -> None:
    lines = printed([batch_from_bodies("t", BODIES)], as_json=True).splitlines()
    assert len(lines) == len(BODIES)
    shown = [json.loads(line) for line in lines]
    kinds = [next(name for name in ("data", "text", "base64") if name in row) for row in shown]
    assert kinds == ["data", "text", "text", "data", "base64", "base64", "text"]
    assert b'"data":{"a":1.50,"b":[]}' in lines[0]
    assert [row[kind] for row, kind in zip(shown[1:4], kinds[1:4], strict=True)] == ["plain text", "", "café"]
    assert base64.b64decode(shown[4]["base64"]) == BODIES[4]


def test_subscribe_json_prints_optional_fields_when_present() -> None:
    builder = BatchBuilder()
    builder.add("t", b"1", correlation_id='c"1', key="k", expiration_ms=1500)
    builder.add("t", b"2")
    builder.add("t", b"3", expiration_ms=1)
    first, second, third = (
        json.loads(line) for line in printed([builder.build()], as_json=True).splitlines()
    )
    assert (first["expiration"], first["correlation_id"], first["sow_key"]) == (1500, 'c"1', "k")
    assert not {"expiration", "correlation_id", "sow_key"} & second.keys()
    assert third["expiration"] == 1


def test_subscribe_json_prints_an_expiration_without_other_optional_fields() -> None:
    builder = BatchBuilder()
    builder.add("t", b"1", expiration_ms=2)
    assert json.loads(printed([builder.build()], as_json=True))["expiration"] == 2


@pytest.mark.parametrize(
    ("ends", "more"),
    [(0, {}), (1_700_000_030_000_000, {"lease_expires": "20231114T221350.000000Z"})],
)
def test_subscribe_json_of_a_queue_prints_queue_topic_and_lease(ends: int, more: dict[str, str]) -> None:
    batch = out_of("work", batch_from_bodies("orders", [b"1"], publisher=7, first_sequence=3), ends=ends)
    (line,) = printed([batch], as_json=True).splitlines()
    shown = json.loads(line)
    assert (shown["topic"], shown["underlying_topic"], shown["bookmark"]) == ("work", "orders", "7|3|")
    assert {name: shown[name] for name in shown if name.startswith("lease")} == more


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--until-caught-up"], "--until-caught-up requires --bookmark"),
        (["--bookmark", "yesterday"], "Invalid start point 'yesterday': not a timestamp"),
        (["--bookmark", "garbage"], "Use epoch, now, a bookmark (publisher|sequence|), a comma-sep"),
        (["--server", "http://127.0.0.1:9007"], "Use tcp://host:port, tls://host:port or unix:///path"),
        (["--bookmark", "[0:1"], "a range ends with ] (inclusive) or ) (exclusive)"),
        (["--bookmark", "[0:now)"], "Invalid end point 'now': not a timestamp (at position 3). Use a bookm"),
        (["--bookmark", "recent"], "only a client with a bookmark store resolves"),
        (["--limit", "0"], "0"),
        (["--timeout", "-1"], "Invalid interval '-1'"),
        (["--output", "xml"], "'xml'"),
        (["--rate", "2x"], "--rate requires --bookmark"),
        (["--rate-max-gap", "1s"], "--rate-max-gap requires --bookmark"),
        (["--live"], "--live requires --bookmark"),
        (["--pause"], "--pause requires --bookmark"),
        (["--resume-after", "1s"], "--resume-after requires --bookmark"),
        (["--bookmark-not-found", "now"], "--bookmark-not-found requires --bookmark"),
        (["--bookmark-not-found", "perhaps"], "perhaps"),
        (["--resume-after", "soon"], "Invalid interval 'soon'"),
    ],
)
def test_subscribe_with_invalid_options_exits_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["subscribe", "orders", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bookmark", "epoch", "--rate", "2X", "--rate-max-gap", "5s"],
        ["--conflation", "none"],
        ["--conflation", "auto"],  # the server refuses this value with a reason
    ],
)
def test_subscribe_with_valid_options_connects(arguments: list[str], tmp_path: Path) -> None:
    server = f"unix://{tmp_path}/none"
    result = CliRunner().invoke(cli, ["subscribe", "orders", "--server", server, *arguments])
    assert f"Cannot connect to '{server}'" in result.stderr


def test_json_of_a_deeply_nested_body_is_shown_as_text() -> None:
    nested = b"[" * 20_000 + b"]" * 20_000
    first, second = printed([batch_from_bodies("t", [nested, b"{}"])], as_json=True).splitlines()
    assert json.loads(first)["text"] == nested.decode()
    assert json.loads(second)["data"] == {}


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"\x1b]0;title\x07plain", rb"\x1b]0;title\x07plain"),
        ("caf\u00e9\t{}".encode(), "caf\u00e9\t{}".encode()),
        ("a\u009bb".encode(), rb"a\u009bb"),
        (b"\xff\x00", rb"\xff\x00"),
        (b"two\nlines\r", rb"two" + b"\n" + rb"lines\x0d"),
    ],
)
def test_bodies_for_a_terminal_have_control_characters_escaped(body: bytes, shown: bytes) -> None:
    out = BytesIO()
    print_batches([batch_from_bodies("t", [body])], None, TerminalOutput(out), as_json=False)
    assert out.getvalue() == shown + b"\n"
