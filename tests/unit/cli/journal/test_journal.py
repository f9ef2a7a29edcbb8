"""`journal ls` and `journal verify`: output for intact and damaged journals."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.journal.written import Written
from tickertape.cli.support.command_group import cli


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a stopped journal of two segments on the real disk."""
    written = Written(segment_bytes=8192)
    for _ in range(20):
        written.publish()
    written.stop()
    for name, data in written.disk.contents().items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "data"


def _corrupt(directory: object, places: str) -> str:
    """Return the last line of `verify` about a corrupt journal."""
    return (
        f"tickertape: The journal in {str(directory)!r} is corrupt in {places}. See "
        "docs/operations/runbook.md.\n"
    )


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["journal", *map(str, arguments)])


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_ls_lists_segments_in_columns(directory: Path) -> None:
    before = contents(directory)
    result = run("ls", directory)
    assert (result.exit_code, result.stderr) == (0, "")
    head, *rows = (line.split() for line in result.stdout.splitlines())
    assert head == [
        "segment",
        "state",
        "epoch",
        "first",
        "end",
        "messages",
        "publishers",
        "bytes",
        "begun",
        "last",
    ]
    assert [row[:7] for row in rows[:2]] == [
        ["1", "sealed", "1", "0", "42", "42", "1"],
        ["2", "sealed", "1", "42", "60", "18", "1"],
    ]
    assert rows[0][8].startswith("20231114T2213")
    assert contents(directory) == before


def segments(directory: Path, *arguments: object) -> list[dict[str, Any]]:
    result = run("ls", directory, "--output", "json", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_ls_json_is_one_object_per_segment(directory: Path) -> None:
    listed = segments(directory)
    assert sum(segment["messages"] for segment in listed) == 60
    assert listed[0]["file"] == "journal/0000000001.segment"
    for name in ("begun", "last"):
        assert all(1_700_000_000_000_000 <= s[name] < 1_700_000_001_000_000 for s in listed[:2])
    assert "begun and last are microseconds since 1970, UTC" in " ".join(run("ls", "--help").stdout.split())


def test_ls_with_a_limit_lists_the_newest_segments(directory: Path) -> None:
    assert segments(directory, "--limit", 1) == segments(directory)[-1:]
    assert len(run("ls", directory, "--limit", 1).stdout.splitlines()) == 2


def test_ls_does_not_read_the_messages_of_a_sealed_segment(directory: Path) -> None:
    flip(directory / "journal/0000000001.segment", 700)
    assert len(segments(directory)) >= 2
    assert json.loads(run("verify", directory, "--output", "json").stdout)["whole"] is False
    text = " ".join(run("ls", "--help").stdout.split())
    assert '"journal verify" also checks its messages' in text


def test_ls_json_reports_damage_on_standard_error(directory: Path) -> None:
    flip(directory / "journal/0000000002.segment", 3)
    result = run("ls", directory, "--output", "json")
    assert result.stderr.startswith("CORRUPT  journal/0000000002.segment: ")
    assert all(json.loads(line)["number"] for line in result.stdout.splitlines())


def test_verify_uses_the_singular_for_one_segment_and_message(tmp_path: Path) -> None:
    written = Written()
    written.publish(count=1)
    written.stop()
    for name, data in written.disk.contents().items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    total = run("verify", tmp_path / "data").stdout.splitlines()[-1]
    assert "no corruption: 1 segment, " in total
    assert ", 1 message, " in total


def test_verify_of_an_intact_journal_exits_0_and_changes_nothing(directory: Path) -> None:
    before = contents(directory)
    result = run("verify", directory)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("no corruption: ")
    assert " 60 messages, " in result.stdout
    assert contents(directory) == before


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_files_of_the_server_are_known(
    directory: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("identity.json", "lock", "end.json", "begun.bin", "retired.bin", "queues.bin"):
        (directory / f"{name}.new").touch() if name != "lock" else (directory / name).touch()
    for name in ("spill", "transactions", "quarantine", "lost+found"):
        (directory / name).mkdir(exist_ok=True)
    monkeypatch.chdir(directory)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("tickertape.sock")
        result = run(command, directory)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "note" not in result.stdout
    (directory / "tokens.toml").touch()
    assert "note     tokens.toml: not a Tickertape file" in run(command, directory).stdout


def test_verify_prints_damage_with_file_and_offset(directory: Path) -> None:
    flip(directory / "journal/0000000001.segment", 700)
    (directory / "journal/mine.txt").write_text("?")
    result = run("verify", directory)
    assert (result.exit_code, result.stderr) == (1, _corrupt(directory, "1 place"))
    damage, note, total = result.stdout.splitlines()
    assert damage.startswith("CORRUPT  journal/0000000001.segment at offset 512: commit 1 is damaged, ")
    assert note == "note     journal/mine.txt: not a Tickertape file, ignored by the server"
    assert total.startswith("CORRUPT in 1 place: ")


def test_verify_json_lists_damage_with_file_and_offset(directory: Path) -> None:
    flip(directory / "journal/0000000002.segment", 3)
    flip(directory / "journal/0000000001.segment", 600)
    result = run("verify", directory, "--output", "json")
    assert (result.exit_code, result.stderr) == (1, _corrupt(directory, "2 places"))
    report = json.loads(result.stdout)
    assert report["whole"] is False
    assert [(f["file"], f["offset"]) for f in report["damage"]] == [
        ("journal/0000000001.segment", 512),
        ("journal/0000000002.segment", 0),
    ]


def test_verify_with_a_limit_prints_as_many_findings(directory: Path) -> None:
    flip(directory / "journal/0000000002.segment", 3)
    flip(directory / "journal/0000000001.segment", 600)
    result = run("verify", directory, "--limit", 1)
    assert (result.exit_code, result.stderr) == (1, _corrupt(directory, "2 places"))
    assert result.stdout.count("CORRUPT  ") == 1
    report = json.loads(run("verify", directory, "--limit", 1, "--output", "json").stdout)
    assert (len(report["damage"]), report["whole"]) == (1, False)


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_directory_without_a_journal_exits_2(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.exit_code == 2
    assert (
        result.stderr
        == f"tickertape: Cannot read a journal in '{tmp_path}': it has neither identity.json nor "
        "journal/. Use the data directory of a server.\n"
    )
    assert run(command, tmp_path / "none").exit_code == 2
