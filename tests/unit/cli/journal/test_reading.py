"""`journal dump`, `grep` and `find` on intact and damaged journals."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from tests.unit.cli.journal.test_journal import contents, flip
from tests.unit.journal.written import START_MICROS, Written
from tickertape.base.bookmarks import format_timestamp
from tickertape.batch import BatchBuilder, Stamp, batch_from_bodies
from tickertape.cli.support.command_group import cli
from tickertape.journal.format.segment import segment_path


class Sent(NamedTuple):
    """A published message."""

    publisher: int
    sequence: int
    micros: int
    topic: str
    body: bytes

    @property
    def bookmark(self) -> str:
        return f"{self.publisher}|{self.sequence}|"


class Log(NamedTuple):
    """A directory, and its messages by position (None for a control record)."""

    directory: Path
    sent: list[Sent | None]
    written: Written

    def messages(self) -> list[tuple[int, Sent]]:
        return [(at, sent) for at, sent in enumerate(self.sent) if sent is not None]

    def save(self) -> None:
        for name, data in self.written.disk.contents().items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def make(directory: Path, *, commits: int = 58, stop: bool = True) -> Log:
    """Write a log of two publishers with gaps, three topics, control records and about three segments."""
    written, rng = Written(segment_bytes=12 * 1024), Random(3)
    log = Log(directory, [], written)
    sequences = {7: 0, 8: 100, 99: 0}
    for number in range(commits):
        publisher = rng.choice((7, 8)) if number % 15 != 14 else 99
        first = sequences[publisher] + rng.choice((1, 1, 4))
        count = rng.choice((1, 5, 40))
        topic = rng.choice(("orders", "orders", "fills", "rare" if number % 20 == 3 else "orders"))
        micros = START_MICROS + number * 1_000_000
        sequences[publisher] = first + count - 1
        bodies = [
            b'{"n":%d,"s":"%b"}' % (len(log.sent) + i, rng.choice((b"AAPL", b"MSFT"))) for i in range(count)
        ]
        if number == 10:
            bodies[0] = b"\xff\x00 not text"
        if number == 11:
            bodies[0] = b"plain text"
        if number % 15 == 14:
            builder = BatchBuilder()
            builder.add("$control", b"record", kind=1, sequence=first)
            batch, count = builder.build(), 1
            sequences[publisher] = first
            log.sent.append(None)
        else:
            batch = batch_from_bodies(topic, bodies, first_sequence=first)
            log.sent.extend(Sent(publisher, first + i, micros, topic, body) for i, body in enumerate(bodies))
        journal = written.journal
        journal.append(batch, Stamp(publisher, first, micros), sequences[publisher], written._now())
        written.work()
    if stop:
        written.stop()
    log.save()
    return log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return make(tmp_path / "data")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["journal", *map(str, arguments)])


def dump(directory: Path, *arguments: object) -> Result:
    return run("dump", directory, "--output", "json", *arguments)


def positions(result: Result) -> list[int]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["position"] for line in result.stdout.splitlines()]


# -- dump ---------------------------------------------------------------------------------------------


def test_dump_prints_every_message_with_the_header(log: Log) -> None:
    before = contents(log.directory)
    result = dump(log.directory)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for line, (at, sent) in zip(lines, log.messages(), strict=True):
        assert line["position"] == at
        assert (line["topic"], line["bookmark"]) == (sent.topic, sent.bookmark)
        assert line["timestamp"] == format_timestamp(sent.micros)
        if sent.body.startswith(b"{"):
            assert line["data"] == json.loads(sent.body)
        elif sent.body.startswith(b"plain"):
            assert line["text"] == "plain text"
        else:
            assert "base64" in line
    assert contents(log.directory) == before, "the journal is unchanged"


def test_dump_data_prints_bodies_only(log: Log) -> None:
    result = run("dump", log.directory, "--topic", "fills", "--limit", 9)
    wanted = [sent.body for _, sent in log.messages() if sent.topic == "fills"][:9]
    assert result.stdout_bytes == b"\n".join([*wanted, b""])


def test_dump_accepts_every_kind_of_range(log: Log) -> None:
    messages = log.messages()
    rng = Random(5)
    for _ in range(12):
        (low, first), (high, last) = sorted(rng.sample(messages, 2))
        between = [at for at, _ in messages if low <= at <= high]
        assert positions(dump(log.directory, "--from", low, "--to", high)) == between
        assert positions(dump(log.directory, "--from", first.bookmark, "--to", last.bookmark)) == between
        timed = [at for at, sent in messages if first.micros <= sent.micros <= last.micros]
        begin, end = format_timestamp(first.micros), format_timestamp(last.micros)
        assert positions(dump(log.directory, "--from", begin, "--to", end)) == timed
        inside = [at for at, sent in messages if first.micros < sent.micros < last.micros]
        assert positions(dump(log.directory, "--from", f"({begin}:{end})")) == inside
        assert positions(dump(log.directory, "--from", f"[{first.bookmark}:{last.bookmark})")) == [
            at for at in between if at < high
        ]
    for now in ("0|1|", "now"):
        assert positions(dump(log.directory, "--from", now)) == []
    assert positions(dump(log.directory, "--from", "EPOCH")) == [at for at, _ in messages]
    assert len(positions(dump(log.directory, "--from", "0", "--limit", 3))) == 3


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--from", "yesterday"], "timestamp"),
        (["--to", "[0:0|1|)"], "EPOCH and NOW"),
        (["--to", "[20261120T090000:20261120T090001)"], ": a range. Use"),
        (["--from", "[20261120T090000:20261120T090001)", "--to", "7"], "Remove --to"),
        (["--from", "garbage"], "Use a position (a number), epoch, now, a bookmark ("),
        (["--to", "garbage"], "Use a position (a number), a bookmark ("),
        (["--to", "epoch"], "Invalid end point 'epoch': not a timestamp"),
        (["--commits", "--topic", "orders"], "Remove the others"),
        (["--topic", "or*"], "makes it a pattern"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_dump_with_invalid_options_exits_2(log: Log, arguments: list[str], what: str) -> None:
    result = dump(log.directory, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert what in result.stderr


def test_dump_stops_at_damage_after_the_messages_before(log: Log) -> None:
    whole = positions(dump(log.directory))
    path = log.directory / segment_path(2)
    flip(path, path.stat().st_size // 2)
    result = dump(log.directory)
    assert result.exit_code == 1
    printed = [json.loads(line)["position"] for line in result.stdout.splitlines()]
    assert printed == whole[: len(printed)]
    assert 0 < len(printed) < len(whole)
    assert re.fullmatch(
        r"tickertape: Cannot read 'journal/0000000002.segment' at offset \d+: .*\n", result.stderr
    )


def test_dump_stops_at_a_missing_segment(log: Log) -> None:
    whole = positions(dump(log.directory))
    (log.directory / segment_path(2)).unlink()
    result = dump(log.directory)
    printed = [json.loads(line)["position"] for line in result.stdout.splitlines()]
    assert printed == whole[: len(printed)]
    assert printed
    assert result.exit_code == 1
    assert "segment 2 is missing" in result.stderr
    assert "start" not in result.stderr


def test_dump_commits_prints_each_commit_and_stops_at_damage(log: Log) -> None:
    result = dump(log.directory, "--commits")
    assert result.exit_code == 0
    commits = [json.loads(line) for line in result.stdout.splitlines()]
    assert [commit["commit"] for commit in commits] == list(range(1, len(commits) + 1))
    assert sum(commit["messages"] for commit in commits) == len(log.sent)
    assert {commit["kind"] for commit in commits} == {"data", "seal"}
    assert len(dump(log.directory, "--commits", "--limit", 4).stdout.splitlines()) == 4
    path = log.directory / segment_path(1)
    flip(path, commits[3]["offset"] + 5)
    damaged = dump(log.directory, "--commits")
    assert damaged.exit_code == 1
    assert f"at offset {commits[3]['offset']}: no valid commit header" in damaged.stderr


# -- beside a running server --------------------------------------------------------------------------


def test_dump_of_an_unsealed_segment_prints_only_durable_messages(tmp_path: Path) -> None:
    log = make(tmp_path / "data", stop=False)
    everything = [at for at, _ in log.messages()]
    printed = positions(dump(log.directory))
    assert printed == everything[: len(printed)]
    assert len(printed) < len(everything), "no later commit proves the sync of the last one"
    assert positions(dump(log.directory, "--unsynced")) == everything
    absent = run("find", log.directory, everything[-1])
    assert absent.exit_code == 1
    assert "may not be synced yet" in absent.stderr
    assert run("find", log.directory, everything[-1], "--unsynced").exit_code == 0
    log.written.rest()
    log.save()
    assert positions(dump(log.directory)) == everything


# -- grep ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        "AAPL",
        '"n":1[0-9]+,',
        "A+P.*MSFT",
        "^plain",
        "t$",
        'MSFT"}$',
        "(?i)aapl",
        "",
        r"\bAAPL\b",
        '}.*"',
        '"}{"',
    ],
)
def test_grep_matches_a_search_of_each_body(log: Log, pattern: str) -> None:
    expression = re.compile(pattern.encode())
    wanted = [sent for _, sent in log.messages() if expression.search(sent.body)]
    result = run("grep", log.directory, pattern)
    lines = [f"{s.bookmark}\t{s.topic}\t".encode() + s.body + b"\n" for s in wanted]
    assert result.stdout_bytes == b"".join(lines)
    assert result.exit_code == (0 if wanted else 1)
    counted = run("grep", log.directory, "-c", pattern)
    assert counted.stdout == f"{len(wanted)}\n"


def test_grep_searches_topics_or_both(log: Log) -> None:
    for where, pattern, wanted in (
        ("topic", "^(rare|fills)$", [s for _, s in log.messages() if s.topic in ("rare", "fills")]),
        ("both", "fills|MSFT", [s for _, s in log.messages() if s.topic == "fills" or b"MSFT" in s.body]),
    ):
        result = run("grep", log.directory, pattern, "--in", where)
        assert [line.split(b"\t")[0].decode() for line in result.stdout_bytes.splitlines()] == [
            sent.bookmark for sent in wanted
        ]


def test_grep_honours_case_limit_and_topic_options(log: Log) -> None:
    first = run("grep", log.directory, "aapl", "-i", "--limit", 2, "--topic", "orders")
    wanted = [s for _, s in log.messages() if b"AAPL" in s.body and s.topic == "orders"][:2]
    assert [line.split("\t")[0] for line in first.stdout.splitlines()] == [sent.bookmark for sent in wanted]
    nothing = run("grep", log.directory, "GOOG")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert nothing.stderr == "tickertape: No message matches.\n"
    for bad in ("(", r"(a)\1", "(?=a)"):
        result = run("grep", log.directory, bad)
        assert result.exit_code == 2
        assert f"Invalid RE2 expression {bad!r}: " in result.stderr


# -- find ---------------------------------------------------------------------------------------------


def test_find_by_bookmark_position_and_time_prints_the_same(log: Log) -> None:
    commits = [json.loads(line) for line in dump(log.directory, "--commits").stdout.splitlines()]
    for at, sent in log.messages()[::37]:
        found = json.loads(run("find", log.directory, sent.bookmark, "--output", "json").stdout)
        assert found == json.loads(run("find", log.directory, at, "--output", "json").stdout)
        holder = [c for c in commits if c["first_position"] <= at < c["first_position"] + c["messages"]]
        assert [(found["file"], found["offset"], found["commit"])] == [
            (c["file"], c["offset"], c["commit"]) for c in holder
        ]
        assert (found["position"], found["topic"], found["bookmark"]) == (at, sent.topic, sent.bookmark)
        assert (found["data_bytes"], found["control"]) == (len(sent.body), False)
        timed = json.loads(run("find", log.directory, found["timestamp"], "--output", "json").stdout)
        assert timed["timestamp"] == found["timestamp"]
        assert timed["position"] <= at
    text = run("find", log.directory, 0).stdout
    assert "journal/0000000001.segment" in text
    assert re.search(r"^control +no$", text, re.MULTILINE)


def test_find_without_a_match_prints_the_reason(log: Log) -> None:
    mine = [sent.sequence for _, sent in log.messages() if sent.publisher == 7]
    gap = next(a for a, b in pairwise(mine) if b > a + 2)
    after = mine[mine.index(gap) + 1]
    for point, what in (
        ("8|5|", "the lowest sequence of this publisher in the log is 10"),
        (f"7|{max(mine) + 1}|", f"highest sequence of this publisher in the log is {max(mine)}"),
        (f"7|{gap + 1}|", f"a gap: the publisher went from sequence {gap} to {after}"),
        ("9|1|", "no message of publisher 9"),
        (str(len(log.sent)), "is after the last message: the log has positions 0 to "),
        ("20991231T000000", "is after the last message, which has the timestamp "),
    ):
        result = run("find", log.directory, point)
        assert (result.exit_code, result.stdout) == (1, ""), point
        assert what in result.stderr
        assert result.stderr.count("\n") == 1
    takes = "a position (a number), epoch, a bookmark (publisher|sequence|), or a UTC timestamp ("
    for bad in ("x|y|", "7|1|,7|2|", "7|1|,x|y|", "0|1|", "now", "[0:7|1|)", "garbage"):
        result = run("find", log.directory, bad)
        assert result.exit_code == 2
        assert takes in result.stderr
        assert "range such as" not in result.stderr
    assert run("find", log.directory, "epoch").stdout == run("find", log.directory, "0").stdout


# -- directories without a journal --------------------------------------------------------------------


@pytest.mark.parametrize("command", [["dump"], ["grep", "x"], ["find", "0"], ["dump", "--commits"]])
def test_reading_commands_refuse_directories_that_are_not_a_journal(
    tmp_path: Path, command: list[str]
) -> None:
    name, *rest = command
    (tmp_path / "empty").mkdir()
    result = run(name, tmp_path / "empty", *rest)
    assert (result.exit_code, result.stdout) == (2, "")
    refusal = f"Cannot read a journal in '{tmp_path / 'empty'}': identity.json is missing."
    assert refusal in result.stderr
    log = make(tmp_path / "data", commits=3)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "identity.json").write_bytes((log.directory / "identity.json").read_bytes())
    os.symlink(log.directory / "journal", linked / "journal")
    result = run(name, linked, *rest)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    path = log.directory / segment_path(1)
    path.write_bytes(path.read_bytes()[:300])
    result = run(name, log.directory, *rest)
    assert result.stderr.count("\n") <= 1
    assert "Traceback" not in result.stderr
    (log.directory / "identity.json").write_bytes(b"{" * 5000)
    result = run(name, log.directory, *rest)
    assert result.exit_code == 1
    assert "identity.json" in result.stderr


# -- text and JSON ------------------------------------------------------------------------------------


def test_grep_json_is_the_json_of_dump_for_matching_messages(log: Log) -> None:
    dumped = dump(log.directory).stdout.splitlines()
    wanted = [line for line in dumped if "AAPL" in line]
    assert run("grep", log.directory, "AAPL", "--output", "json").stdout.splitlines() == wanted
    limited = run("grep", log.directory, "AAPL", "--output", "json", "--limit", 3)
    assert limited.stdout.splitlines() == wanted[:3]
    counted = run("grep", log.directory, "AAPL", "-c", "--output", "json")
    assert json.loads(counted.stdout) == {"count": len(wanted)}


def test_commits_as_text_have_the_fields_of_the_json(log: Log) -> None:
    objects = [json.loads(line) for line in dump(log.directory, "--commits").stdout.splitlines()]
    lines = run("dump", log.directory, "--commits").stdout.splitlines()
    assert [line.split("\t") for line in lines] == [[str(v) for v in row.values()] for row in objects]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            ["dump", "--topic", "ordrs"],
            "tickertape: No messages of 'ordrs' in this range. Did you mean 'orders'?\n",
        ),
        (["dump", "--topic", "nothing-like-it"], ""),
        (["dump", "--topic", "orders", "--from", "now"], ""),
    ],
)
def test_topic_without_messages_names_a_near_topic_of_the_journal(
    log: Log, arguments: list[str], hint: str
) -> None:
    name, *rest = arguments
    result = run(name, log.directory, *rest)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", hint)


def test_grep_of_a_missing_topic_names_a_near_topic(log: Log) -> None:
    result = run("grep", log.directory, "x", "--topic", "ordrs")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "tickertape: No messages of 'ordrs' in this range. Did you mean 'orders'?",
        "tickertape: No message matches.",
    ]
