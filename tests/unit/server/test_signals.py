"""SIGHUP: reload of certificates and tokens, and failures that end no session."""

from __future__ import annotations

import io
import logging
import os
import pty
import signal
import sys
import threading
from collections.abc import Collection
from typing import Any

import pytest

from tickertape.base.errors import ConfigurationError
from tickertape.server import signals


class Admission:
    """Replacement for the admission, with a fixed result of a reload."""

    def __init__(
        self, outcome: frozenset[str] | Exception, *, has_files: bool = True, has_tokens: bool = True
    ) -> None:
        self._outcome = outcome
        self.has_files = has_files
        self.refuses_all = not has_tokens

    def reload(self) -> frozenset[str]:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class Watch:
    """Replacement for the session expiry, which records its checks."""

    def __init__(self, error: Exception | None = None) -> None:
        self.checks: list[Collection[str]] = []
        self._error = error

    def check(self, replaced: Collection[str]) -> None:
        self.checks.append(replaced)
        if self._error is not None:
            raise self._error


class Loop:
    """Replacement for the event loop, which records its signal handlers."""

    def __init__(self) -> None:
        self.handled: list[int] = []

    def add_signal_handler(self, number: int, *_: object) -> None:
        self.handled.append(number)


def reload(admission: Any, watch: Any) -> None:
    signals.reload(admission, watch)


def test_reload_checks_sessions_after_reading_the_files(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = Watch()
    reload(Admission(frozenset({"spark"})), watch)
    assert watch.checks == [{"spark"}]
    assert [record.message for record in caplog.records] == ["reloaded"]


def test_reload_that_leaves_no_token_ends_sessions_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = Watch()
    reload(Admission(frozenset(), has_tokens=False), watch)
    assert len(watch.checks) == 1
    (reloaded,) = caplog.records
    assert (reloaded.message, reloaded.levelno) == ("reloaded", logging.WARNING)
    assert "no client can log on" in reloaded.__dict__["fields"]["text"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("not TOML"), "bad_configuration"),
        (ValueError("secret"), "unexpected"),
        (OverflowError("secret"), "unexpected"),
    ],
)
@pytest.mark.parametrize("where", ["files", "sessions"])
def test_failed_reload_is_logged_and_does_not_raise(
    caplog: pytest.LogCaptureFixture, error: Exception, code: str, where: str
) -> None:
    in_files = where == "files"
    watch = Watch(None if in_files else error)
    reload(Admission(error if in_files else frozenset()), watch)
    assert len(watch.checks) == (not in_files)
    (failed,) = [record for record in caplog.records if record.message == "reload_failed"]
    fields = failed.__dict__["fields"]
    assert fields["code"] == code
    assert "The previous certificates and tokens stay in use." in fields["text"]
    assert "secret" not in fields["text"]


def handled(*, has_files: bool) -> bool:
    loop: Any = Loop()
    admission: Any = Admission(frozenset(), has_files=has_files)
    watch: Any = Watch()
    signals.ReloadSignal(admission).reload_on(loop, watch)
    return bool(loop.handled)


def test_sighup_is_unhandled_only_at_a_terminal_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal_end = pty.openpty()
    with os.fdopen(controller), os.fdopen(terminal_end) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert not handled(has_files=False)
        assert handled(has_files=True)
    assert handled(has_files=False), "standard input is closed"
    for stdin in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert handled(has_files=False)


def test_main_thread_prints_the_stacks_when_another_thread_gets_the_signal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Another thread would read stacks while they change, which can crash the process."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with signals.stacks_on_signal():
            assert other.ident is not None
            signal.pthread_kill(other.ident, signal.SIGUSR1)
            over.wait(0.05)
    finally:
        over.set()
        other.join()
    main = threading.main_thread().ident
    assert f"Current thread 0x{main:016x}" in capfd.readouterr().err


def test_sighup_before_the_event_loop_runs_is_handled_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop: Any = Loop()
    admission: Any = Admission(frozenset({"spark"}))
    watch: Any = Watch()
    hang_ups = signals.ReloadSignal(admission)
    before = signal.getsignal(signal.SIGHUP)
    try:
        hang_ups.hold()
        os.kill(os.getpid(), signal.SIGHUP)
        assert not watch.checks
        hang_ups.reload_on(loop, watch)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert watch.checks == [{"spark"}]
