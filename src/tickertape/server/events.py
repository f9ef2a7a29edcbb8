"""Event log: events as lines on standard error, with time, level, name and fields.

Invariants:
- The event loop never waits for standard error.
- External text is escaped and limited in length.
- At most `events_per_second_max` lines per second are written for one event. Further lines are counted, and
  the count is logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

from tickertape.server.limits import (
    event_error_characters_max,
    event_queue_lines_max,
    event_text_characters_max,
    events_per_second_max,
)

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]
Value = str | int | float | bool | None

FORMATS: Final[tuple[Format, ...]] = ("text", "json")
LEVELS: Final[tuple[Level, ...]] = ("debug", "info", "warning", "error")

_FLUSH_SECONDS_MAX: Final = 1.0
"""Time limit for writing the remaining lines at the end."""
_CHECK_SECONDS: Final = 1.0
"""Interval of the reports of suppressed lines while nothing else is logged."""
_CHARACTERS_MAX: Final = {"traceback": 8_000, "text": event_error_characters_max}
"""Longest fields with a limit of their own."""
_WORD_CHARACTERS_MIN: Final = 40
"""A word of a shortened text keeps at least this length."""
_SEARCHED_CHARACTERS_MAX: Final = 16_000
"""Length above which `shortened` does not look for long words."""
_SAFE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/+,|[]@%~")

_log: Final = logging.getLogger("tickertape.server")


def event(name: str, level: int = logging.INFO, /, **fields: Value) -> None:
    """Log an event. `name` is from a small fixed set. Fields may contain external text."""
    if _log.isEnabledFor(level):
        _log.log(level, name, extra={"fields": fields})


class EventFormatter(logging.Formatter):
    """Formatter for one line of printable ASCII: text (`time LEVEL name key=value ...`) or a JSON object."""

    def __init__(self, form: Format) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line end."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        head = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower()}
        name, fields = _parts(record)
        cut = {key: _bounded(key, value) for key, value in fields.items() if value is not None}
        if self._form == "json":
            return json.dumps({**head, "event": name, **cut}, separators=(",", ":"))
        return " ".join([head["time"], record.levelname, name, *(f"{k}={_text(v)}" for k, v in cut.items())])


def _parts(record: logging.LogRecord) -> tuple[str, Mapping[str, Value]]:
    """Return the name and fields of a record. Records of other libraries become the event `log`."""
    fields: dict[str, Value] | None = getattr(record, "fields", None)
    if fields is not None:
        return record.getMessage(), fields
    other: dict[str, Value] = {"logger": record.name, "text": record.getMessage()}
    if record.exc_info:
        other["traceback"] = "".join(traceback.format_exception(*record.exc_info))
    return "log", other


def _bounded(key: str, value: Value) -> Value:
    characters_max = _CHARACTERS_MAX.get(key, event_text_characters_max)
    if isinstance(value, str) and len(value) > characters_max:
        if key == "traceback":  # the error is at the end of a traceback
            return "..." + value[3 - characters_max :]
        return shortened(value, characters_max)
    return value


def shortened(text: str, characters_max: int) -> str:
    """Return `text` with at most `characters_max` characters.

    First its longest words lose their middle, such as a path, because an error starts with the failed action
    and ends with the cure. If that is not enough, the text loses its middle.
    """
    words = re.findall(r"\S+", text) if len(text) <= _SEARCHED_CHARACTERS_MAX else []
    for word in sorted(words, key=len, reverse=True):
        size = max(len(word) - (len(text) - characters_max), _WORD_CHARACTERS_MIN)
        if len(text) <= characters_max or len(word) <= size:
            break
        text = text.replace(word, _without_middle(word, size), 1)
    return text if len(text) <= characters_max else _without_middle(text, characters_max)


def _without_middle(text: str, size: int) -> str:
    head = (size - 3) // 2
    return f"{text[:head]}...{text[len(text) - (size - 3 - head) :]}"


def _text(value: Value) -> str:
    if isinstance(value, str):
        return value if value and _SAFE.issuperset(value) else json.dumps(value)
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


class RateLimit:
    """Limit of the lines of one event per second, with a count of the suppressed lines."""

    def __init__(self, per_second: int = events_per_second_max) -> None:
        self._per_second = per_second
        self._second = 0
        self._counts: dict[str, int] = {}

    def admit(self, name: str, now: float) -> tuple[bool, dict[str, int]]:
        """Return whether a line of `name` may be written at `now` (seconds).

        Also return the number of suppressed lines of each event in the previous second."""
        suppressed = self.suppressed(now)
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count <= self._per_second, suppressed

    def suppressed(self, now: float) -> dict[str, int]:
        """Return the number of suppressed lines of each event in the last complete second."""
        if int(now) == self._second:
            return {}
        self._second = int(now)
        return self.close()

    def close(self) -> dict[str, int]:
        """Return the number of suppressed lines of each event since the last report."""
        over = {n: count - self._per_second for n, count in self._counts.items() if count > self._per_second}
        self._counts.clear()
        return over


class EventWriter(logging.Handler):
    """Log handler that writes on a thread of its own, so that callers never wait for standard error."""

    def __init__(self, stream: TextIO, form: Format, limit: RateLimit | None = None) -> None:
        super().__init__()
        self.setFormatter(EventFormatter(form))
        self._stream = stream
        self._limit = limit or RateLimit()
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(event_queue_lines_max)
        self.dropped = 0
        """Number of dropped lines, because the queue was full or a write failed."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record. Called with the handler's lock held."""
        name = record.getMessage() if hasattr(record, "fields") else f"log {record.name}"
        passes, suppressed = self._limit.admit(name, record.created)
        self._log_suppressed(suppressed)
        if passes or record.levelno >= logging.CRITICAL:
            self._put(record)

    def close(self) -> None:
        """Write the queued lines, for at most 2 s. Log nothing afterwards."""
        super().close()
        if not self._thread.is_alive():
            return
        with self._locked():
            self._log_suppressed(self._limit.close())
            if self.dropped:
                self._put(_record("dropped", lines=self.dropped))
        self._ended = True
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_FLUSH_SECONDS_MAX)
        self._thread.join(_FLUSH_SECONDS_MAX)

    def _locked(self) -> contextlib.AbstractContextManager[object]:
        return self.lock or contextlib.nullcontext()

    def _log_suppressed(self, suppressed: Mapping[str, int]) -> None:
        for name, lines in suppressed.items():
            self._put(_record("suppressed", of=name, lines=lines))

    def _put(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        while True:
            try:
                record = self._lines.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                if self._ended:
                    break
                with self._locked():
                    self._log_suppressed(self._limit.suppressed(time.time()))
                continue
            if record is None:
                break
            try:
                self._stream.write(f"{self.format(record)}\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                self.dropped += 1  # standard error is closed, the server continues without a log
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _record(name: str, **fields: Value) -> logging.LogRecord:
    """Return a record about the log itself."""
    level = logging.WARNING
    made = {"name": _log.name, "levelno": level, "levelname": logging.getLevelName(level), "msg": name}
    return logging.makeLogRecord({**made, "created": time.time(), "fields": fields})


@contextlib.contextmanager
def logging_to(stream: TextIO | None, form: Format, level: Level) -> Iterator[EventWriter]:
    """Log to `stream` (None: standard error) during the block. Queued lines are written at its end."""
    root = logging.getLogger()
    writer = EventWriter(stream or sys.stderr, form)
    before = root.level
    root.addHandler(writer)
    root.setLevel(level.upper())
    try:
        yield writer
    finally:
        root.removeHandler(writer)
        root.setLevel(before)
        writer.close()
