"""Demonstration with little data: real processes, a real kill, all checks, and its final commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.helpers.processes import source_environment
from tickertape.testing import running_server

ROOT = Path(__file__).resolve().parents[2]
DEMO_SECONDS_MAX = 100
SPARK_DEMO_SECONDS_MAX = 220
NUMBER = r"([\d,]+)"


def run(*command: str, directory: Path = ROOT, seconds: float = DEMO_SECONDS_MAX) -> tuple[int, str, str]:
    done = subprocess.run(
        command,
        cwd=directory,
        env=source_environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def demo(*arguments: str, seconds: float = DEMO_SECONDS_MAX) -> tuple[int, str, str]:
    return run(sys.executable, "-m", "examples.demo", *arguments, seconds=seconds)


def numbers(pattern: str, text: str) -> tuple[int, ...]:
    found = re.search(pattern.replace("#", NUMBER), text)
    assert found, f"{pattern!r} is not in\n{text}"
    return tuple(int(number.replace(",", "")) for number in found.groups())


def next_commands(text: str) -> list[list[str]]:
    """Return the words of the three commands at the end, without the program."""
    lines = [shlex.split(line) for line in text.splitlines()[-4:-1]]
    return [words[next(i for i, word in enumerate(words) if "tickertape" in word) + 1 :] for words in lines]


@pytest.mark.slow
@pytest.mark.timeout(DEMO_SECONDS_MAX + 50)
def test_demo_runs_all_steps_and_prints_working_commands(tmp_path: Path) -> None:
    data = tmp_path / "log"
    code, text, errors = demo("--flights", "3000", "--no-spark", "--data", str(data))
    assert (code, errors) == (0, ""), text
    acknowledged, total = numbers("server killed after # of # messages were acknowledged", text)
    assert total == 6000
    assert 0.4 * total <= acknowledged <= 0.7 * total
    assert numbers("# publishers reconnected", text) == (5,)
    assert numbers("flights: # messages of # publishers, # missing, # duplicate, # out of order", text) == (
        *(3000, 4, 0, 0, 0),
    )
    assert numbers("weather: # messages of # publisher, # missing, # duplicate, # out of order", text) == (
        *(3000, 1, 0, 0, 0),
    )
    assert numbers("# messages in [0-9.]+ s, identical to this range", text) == (301,)
    before, start = numbers("# arrivals in the log, the subscriber starts after number #", text)
    (published,) = numbers("it caught up after # arrivals", text)
    received, first, last = numbers("# arrivals, number # to #: no gap", text)
    assert start < before <= published < last, "some messages are from the log and some live"
    assert (first, received) == (start + 1, last - start)
    published, day = numbers("# departures published", text)[0], numbers("# departures of 2013-", text)[0]
    assert 0 < day < published
    assert numbers("# flights published, # refused: no tail number", text) == (3000, 5)
    assert numbers("# records after the kill, identical", text) == (1433,)
    assert "\x1b" not in text, "no colours without a terminal"

    verify, serve, subscribe = next_commands(text)
    code, text, errors = run(sys.executable, "-m", "tickertape", *verify)
    assert (code, errors) == (0, "")
    assert "no corruption: " in text
    assert serve == ["serve", "--data", str(data)]
    with running_server(data) as server:
        code, text, errors = run(sys.executable, "-m", "tickertape", *subscribe, "--server", server.uri)
    assert (code, errors) == (0, "")
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    assert len(lines) == 3
    assert all(line["data"]["year"] == 2013 for line in lines)


@pytest.mark.full  # the quick start of the README runs Spark every time
@pytest.mark.spark
@pytest.mark.timeout(SPARK_DEMO_SECONDS_MAX + 20)
def test_demo_with_spark_equals_the_source_file(tmp_path: Path) -> None:
    arguments = ("--flights", "1500", "--data", str(tmp_path / "log"))
    code, text, errors = demo(*arguments, seconds=SPARK_DEMO_SECONDS_MAX)
    assert (code, errors) == (0, ""), text
    assert "1,500 flights of 14 carriers, identical to the source file" in text
    assert f"plots of the delays by hour and by carrier: {tmp_path / 'delays.html'}" in text
    for name in ("delays-by-hour.png", "delays-by-carrier.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear aunt")
    code, text, errors = demo("--no-spark", "--data", str(tmp_path))
    assert (code, text) == (2, "")
    assert errors == f"demo: {tmp_path}: not empty. Use a new or empty directory.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
