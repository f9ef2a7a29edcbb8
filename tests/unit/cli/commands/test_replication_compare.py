"""`replication compare`: output and exit codes for equal, different and lagging data directories."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.helpers.compared_logs import ComparedJournal, Content
from tickertape.cli.support.command_group import cli

START = 77


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["replication", "compare", *map(str, arguments)])


def pair() -> tuple[ComparedJournal, ComparedJournal]:
    a, b = ComparedJournal(1), ComparedJournal(2)
    for log in (a, b):
        log.begin_run(START)
        log.put_all([(7, 1), (7, 2)])
    return a, b


def saved(directory: Path, *logs: ComparedJournal) -> list[Path]:
    return [log.save(directory / f"log-{number}") for number, log in enumerate(logs)]


def test_equal_directories_exit_with_0(tmp_path: Path) -> None:
    directories = saved(tmp_path, *pair())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = compare(*directories)
    text = "2 messages of 1 publisher"
    assert (result.exit_code, result.stdout) == (0, f"A: {text}\nB: {text}\nequal\n")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_different_directories_exit_with_1(tmp_path: Path) -> None:
    a, b = pair()
    a.put_all([(7, 3), (7, 4), (7, 6)])
    b.put(7, 6, Content(b"other"))
    b.put_all([(8, 1), (8, 1)])
    result = compare(*saved(tmp_path, a, b))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "A: 5 messages of 1 publisher",
        "B: 5 messages of 2 publishers",
        "missing in B: publisher 7, sequences 3 to 4",
        "different content: publisher 7, sequence 6",
        "repeated in B: publisher 8, sequence 1",
        "missing in A: publisher 8, sequence 1",
        "different",
    ]


def test_messages_on_the_way_exit_with_3(tmp_path: Path) -> None:
    a, b = pair()
    b.note_place(a.log, START, a.end)
    a.put(7, 3)
    result = compare(*saved(tmp_path, a, b))
    assert (result.exit_code, result.stdout.splitlines()[0::2]) == (
        3,
        ["A: 3 messages of 1 publisher, 1 on the way to the other log", "no difference yet"],
    )


def test_limit_hides_and_counts_differences(tmp_path: Path) -> None:
    a, b = pair()
    a.put_all([(8, sequence) for sequence in (1, 3, 5)])
    directories = saved(tmp_path, a, b)
    lines = compare(*directories, "--limit", 1).stdout.splitlines()
    assert lines[2:] == ["missing in B: publisher 8, sequence 1", "2 further differences", "different"]


def test_json_has_all_fields(tmp_path: Path) -> None:
    a, b = pair()
    a.put_all([(8, 1), (8, 2)])
    result = compare(*saved(tmp_path, a, b), "--output", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["equal"], found["more"]) == (1, False, False)
    assert found["differences"] == [{"kind": "missing", "log": "B", "publisher": 8, "first": 1, "last": 2}]
    assert found["a"] == {
        "journal": a.log.hex(),
        "first_position": 0,
        "end_position": a.end,
        "messages": 4,
        "publishers": 2,
        "removed": 0,
        "on_the_way": 0,
    }


def test_removed_messages_are_named(tmp_path: Path) -> None:
    a, b = pair()
    for log in (a, b):
        for sequence in range(3, 41):
            log.put(7, sequence, Content(b"x" * 500))
    highest = a.retire(2).highest.of(7)
    result = compare(*saved(tmp_path, a, b))
    line = f"B: {40 - highest} messages of 1 publisher, {highest} left out because of removed segments"
    assert (result.exit_code, result.stdout.splitlines()[1]) == (0, line)


@pytest.mark.parametrize(
    ("topics", "code"), [(["orders"], 0), (["fills"], 1), (["^or", "^fi"], 1), (["^or"], 0), ([], 1)]
)
def test_topics_select_the_messages(tmp_path: Path, topics: list[str], code: int) -> None:
    a, b = pair()
    a.put(7, 3, Content(topic="fills"))
    a.put(7, 4, Content(topic="$queue", kind=1))
    a.put(7, 5, Content(topic="/tickertape/x"))
    options = [text for topic in topics for text in ("--topic", topic)]
    assert compare(*saved(tmp_path, a, b), *options).exit_code == code


@pytest.mark.parametrize(("topics", "code"), [([], 1), (["orders"], 1), (["fills"], 0)])
def test_deletes_of_selected_topics_are_compared(tmp_path: Path, topics: list[str], code: int) -> None:
    a, b = pair()
    delete = ["orders", 1, [0, 0, 0], False, [], []]
    a.put(7, 3, Content(msgspec.msgpack.encode(delete), "$sow", kind=1))
    b.put(7, 4, Content(msgspec.msgpack.encode(["orders", 2, *delete[2:]]), "$sow", kind=1))
    options = [text for topic in topics for text in ("--topic", topic)]
    result = compare(*saved(tmp_path, a, b), *options)
    assert result.exit_code == code
    assert ("missing in B: publisher 7, sequence 3" in result.stdout) == bool(code)
    assert "missing in A" not in result.stdout, "expiries belong to one server"


@pytest.mark.parametrize("topic", ["a[", ""])
def test_invalid_topic_is_a_mistake_of_the_user(tmp_path: Path, topic: str) -> None:
    result = compare(*saved(tmp_path, *pair()), "--topic", topic)
    assert result.exit_code == 2
    assert "--topic" in result.stderr


def test_directory_without_a_journal_is_refused(tmp_path: Path) -> None:
    (first,) = saved(tmp_path, pair()[0])
    result = compare(first, tmp_path)
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


def test_unsynced_messages_need_the_option(tmp_path: Path) -> None:
    a, b = pair()
    (saved_b,) = saved(tmp_path, b)
    for name, data in a.disk.contents().items():
        path = tmp_path / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert compare(tmp_path / "a", saved_b).exit_code == 1
    assert compare(tmp_path / "a", saved_b, "--unsynced").exit_code == 0
