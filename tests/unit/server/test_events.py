"""Log lines: format, limits, and a standard error that is not read."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tickertape.server import events
from tickertape.server.events import EventWriter, Format, RateLimit, event, logging_to
from tickertape.server.limits import event_error_characters_max, event_text_characters_max
from tickertape.testing import wait_until

SRC = Path(__file__).resolve().parents[3] / "src" / "tickertape"
PAGE = SRC.parents[1] / "docs" / "reference" / "configuration.md"
HOSTILE = 'a\nb\x1b[31m\x9b\u202e\u2028\x00é" = x'


@pytest.fixture(autouse=True)
def quiet_root() -> Iterator[None]:
    """Remove the root handlers of pytest, so that it does not capture events."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()
    yield
    root.handlers[:] = handlers


def lines(form: Format, name: str, level: int = logging.INFO, **fields: Any) -> list[str]:
    stream = io.StringIO()
    with logging_to(stream, form, "info"):
        event(name, level, **fields)
    return stream.getvalue().splitlines()


def test_text_line_has_time_level_event_and_fields() -> None:
    (line,) = lines("text", "logon", conn=7, client="pricing-1", ratio=0.25, good=True, none=None)
    moment, *rest = line.split(" ")
    assert rest == ["INFO", "logon", "conn=7", "client=pricing-1", "ratio=0.25", "good=true"]
    assert len(moment) == len("2026-11-21T10:08:47.123456Z")
    assert moment.endswith("Z")


def test_json_line_has_time_level_event_and_fields() -> None:
    (line,) = lines("json", "logon", logging.WARNING, conn=7, client="pricing 1", none=None)
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "event": "logon", "conn": 7, "client": "pricing 1"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_untrusted_text_is_escaped_and_truncated(form: Format) -> None:
    (line,) = lines(form, "logon", client=HOSTILE, other="x" * 10_000, empty="")
    assert line.isascii()
    assert line.isprintable()
    if form == "json":
        assert json.loads(line)["client"] == HOSTILE
        assert len(json.loads(line)["other"]) == event_text_characters_max
    else:
        assert line.endswith(f' other={"x" * 148}...{"x" * 149} empty=""')


@pytest.mark.parametrize("directories", [40, 400])
def test_error_text_with_long_paths_keeps_cause_and_cure(directories: int) -> None:
    path = "/var/lib" + "/tickertape" * directories
    text = f"Cannot use certificate '{path}/a.pem' with key '{path}/b.key': they do not match. Use its key."
    (line,) = lines("json", "failed", text=text)
    found = json.loads(line)["text"]
    assert len(found) <= event_error_characters_max
    assert found.startswith("Cannot use certificate '/var/lib/tickertape")
    assert "/a.pem' with key '/var/lib" in found
    assert found.endswith("/b.key': they do not match. Use its key.")


def test_error_text_of_short_words_loses_only_the_middle() -> None:
    text = "Cannot start: " + "one problem, " * 100 + "and one more. Correct them."
    (line,) = lines("json", "failed", text=text)
    found = json.loads(line)["text"]
    assert len(found) == event_error_characters_max
    assert found.startswith("Cannot start: one problem, one")
    assert found.endswith(" and one more. Correct them.")


def test_events_below_the_level_are_not_logged() -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", "error"):
        event("logon")
        event("failure", logging.CRITICAL)
    event("afterwards", logging.CRITICAL)
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["failure"]


def test_record_of_a_library_is_one_line_with_traceback() -> None:
    stream = io.StringIO()
    with logging_to(stream, "json", "info"):
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            logging.getLogger("asyncio").exception("it broke: %s", "badly")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["event"], found["logger"], found["text"]) == ("log", "asyncio", "it broke: badly")
    assert "ZeroDivisionError" in found["traceback"]


def test_long_traceback_is_logged_from_the_end() -> None:
    def deeper(left: int) -> int:
        return shallower(left - 1) + 1

    def shallower(left: int) -> int:
        return deeper(left - 1) + 1 if left else 1 // 0

    stream = io.StringIO()
    with logging_to(stream, "json", "info"):
        try:
            deeper(101)
        except ZeroDivisionError:
            logging.getLogger("asyncio").exception("it broke")
    traceback = json.loads(stream.getvalue())["traceback"]
    assert traceback.startswith("...")
    assert traceback.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")


def test_rate_limit_applies_per_event_and_second_and_counts_the_rest() -> None:
    limit = RateLimit(2)
    assert [limit.admit("a", 5.0 + n / 10)[0] for n in range(5)] == [True, True, False, False, False]
    assert limit.admit("b", 5.9) == (True, {})
    assert limit.admit("b", 6.0) == (True, {"a": 3})
    assert limit.admit("a", 6.1) == (True, {})
    assert limit.suppressed(6.9) == {}
    assert limit.suppressed(9.0) == {}


def test_suppressed_lines_are_counted_and_critical_lines_never_suppressed() -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", "info"):
        for _ in range(1_000):
            event("flood")
        for _ in range(100):
            event("failure", logging.CRITICAL)
    names = [line.split()[2] for line in stream.getvalue().splitlines()]
    assert names.count("failure") == 100
    suppressed = sum(
        int(line.split("lines=")[1]) for line in stream.getvalue().splitlines() if " of=flood " in line
    )
    assert names.count("flood") + suppressed == 1_000
    assert names.count("flood") <= 60


def test_unread_standard_error_drops_events_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_FLUSH_SECONDS_MAX", 0.02)
    monkeypatch.setattr(events, "_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(events, "event_queue_lines_max", 50)
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    writer = EventWriter(stream, "text", RateLimit(1_000_000))
    record = logging.makeLogRecord({"msg": "flood", "fields": {"text": "x" * 300}, "created": time.time()})
    for _ in range(2_000):
        writer.handle(record)
    writer.close()  # the pipe is not read before this returns
    assert writer.dropped > 500
    os.close(read)
    wait_until(lambda: not any(t.name == "log" for t in threading.enumerate()))
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_closed_standard_error_drops_events() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with logging_to(Gone(), "text", "info") as writer:
        event("logon")
    assert writer.dropped == 1


def test_documented_events_are_the_logged_events() -> None:
    source = "".join(path.read_text() for path in (SRC / "server").rglob("*.py"))
    calls = re.findall(r"\b(?:event|_record)\(\s*([^,)]*)", source)
    logged = {name for call in calls for name in re.findall(r'"(\w+)"', call)} | {"log"}
    for path in (SRC / "engine").rglob("*.py"):  # the server logs events of the engine by name
        logged |= set(
            re.findall(r'"((?:retention|segments|queue|transaction|sow)_(?!of_)\w+)", True', path.read_text())
        )
        logged |= set(re.findall(r'"((?:retention|segments)_\w+)"', path.read_text()))
    for path in (SRC / "engine" / "replication").glob("l*/*.py"):  # links and their levels
        logged |= set(re.findall(r'"((?:link|history|places)_[a-z]+)"', path.read_text()))
    holes = (SRC / "engine" / "runtime" / "holes.py").read_text()
    logged |= set(re.findall(r'"(hole_\w+|publisher_behind)"', holes))
    section = PAGE.read_text(encoding="utf-8").partition("### Events")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    documented |= {n for row in rows if "drain" in row[0] for n in re.findall(r"`(\w+)`", row[2])}
    assert logged == documented
