"""`journal ls` and `journal verify`: what is printed for what is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.journal.written import Written
from tickertape.cli.support.command_group import cli


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A stopped journal of two segments, on the real disk."""
    written = Written(segment_bytes=8192)
    for _ in range(20):
        written.publish()
    written.stop()
    for name, data in written.disk.contents().items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "data"


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


def test_ls_as_json(directory: Path) -> None:
    report = json.loads(run("ls", directory, "--json").stdout)
    assert report.keys() == {"journal", "segments", "retired", "damage_outside_sealed_commits", "notes"}
    assert report["journal"] == bytes(range(16)).hex()
    assert report["damage_outside_sealed_commits"] == []
    assert sum(segment["messages"] for segment in report["segments"]) == 60
    assert report["segments"][0]["file"] == "journal/0000000001.segment"


def test_ls_as_json_claims_nothing_about_what_it_does_not_read(directory: Path) -> None:
    flip(directory / "journal/0000000001.segment", 700)
    report = json.loads(run("ls", directory, "--json").stdout)
    assert not {"whole", "damage"} & report.keys()
    assert json.loads(run("verify", directory, "--json").stdout)["whole"] is False
    for name in ("begun", "last"):
        assert all(1_700_000_000_000_000 <= s[name] < 1_700_000_001_000_000 for s in report["segments"][:2])
    text = " ".join(run("ls", "--help").stdout.split())
    assert '"journal verify" also checks its messages' in text
    assert "begun and last are microseconds since 1970, UTC" in text


def test_ls_tells_the_damage_that_it_sees(directory: Path) -> None:
    flip(directory / "journal/0000000002.segment", 3)
    report = json.loads(run("ls", directory, "--json").stdout)
    assert [(f["file"], f["offset"]) for f in report["damage_outside_sealed_commits"]] == [
        ("journal/0000000002.segment", 0)
    ]


def test_one_of_a_thing_is_no_plural(tmp_path: Path) -> None:
    written = Written()
    written.publish(count=1)
    written.stop()
    for name, data in written.disk.contents().items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    total = run("verify", tmp_path / "data").stdout.splitlines()[-1]
    assert "whole: 1 segment, " in total
    assert ", 1 message, " in total


def test_verify_of_a_whole_journal(directory: Path) -> None:
    before = contents(directory)
    result = run("verify", directory)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("whole: ")
    assert " 60 messages, " in result.stdout
    assert contents(directory) == before


def test_verify_tells_damage_with_file_and_offset(directory: Path) -> None:
    flip(directory / "journal/0000000001.segment", 700)
    (directory / "journal/mine.txt").write_text("?")
    result = run("verify", directory)
    assert (result.exit_code, result.stderr) == (1, f"tickertape: {directory}: damaged in 1 place\n")
    damage, note, total = result.stdout.splitlines()
    assert damage.startswith("DAMAGE  journal/0000000001.segment at 512: commit 1 is damaged, ")
    assert note == "note    journal/mine.txt at 0: not a Tickertape file, ignored by the server"
    assert total.startswith("DAMAGED in 1: ")


def test_verify_as_json(directory: Path) -> None:
    flip(directory / "journal/0000000002.segment", 3)
    flip(directory / "journal/0000000001.segment", 600)
    result = run("verify", directory, "--json")
    assert (result.exit_code, result.stderr) == (1, f"tickertape: {directory}: damaged in 2 places\n")
    report = json.loads(result.stdout)
    assert report["whole"] is False
    assert [(f["file"], f["offset"]) for f in report["damage"]] == [
        ("journal/0000000001.segment", 512),
        ("journal/0000000002.segment", 0),
    ]


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_directory_without_a_journal_is_an_error(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path)
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"tickertape: Cannot read a journal in '{tmp_path}': it has neither identity.json nor "
        "journal/. Use the data directory of a server.\n"
    )
    assert run(command, tmp_path / "none").exit_code == 2
