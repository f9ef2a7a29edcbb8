"""Start and stop of a server process: descriptors, exit codes and a second signal."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from tests.helpers.processes import source_environment
from tickertape.base.errors import ConfigurationError, JournalCorrupt, JournalFailed
from tickertape.server import app
from tickertape.server.config.config import Config
from tickertape.server.engine_driver import EngineDriver


@pytest.mark.parametrize(("sealed", "code"), [(True, 0), (False, 1)])
def test_second_signal_exits_with_code_1_when_the_log_is_not_sealed(
    monkeypatch: pytest.MonkeyPatch, sealed: bool, code: int
) -> None:
    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    journal = SimpleNamespace(commits=SimpleNamespace(closed=sealed))
    instance = cast("EngineDriver", SimpleNamespace(broker=SimpleNamespace(journal=journal)))
    with pytest.raises(SystemExit) as ended:
        app._stop_now(instance, signal.SIGTERM.name)
    assert ended.value.code == code


@pytest.mark.parametrize(
    ("open_files", "connections"), [(64, 32), (1024, 512), (4096, 2048), (12_088, 10_000), (2**20, 10_000)]
)
def test_connection_limit_leaves_file_descriptors_for_the_log(open_files: int, connections: int) -> None:
    assert app.connections_for(open_files) == connections


def test_filter_modules_are_imported_after_the_start(tmp_path: Path) -> None:
    program = """if True:
        import os, signal, sys
        from tickertape.server import app
        from tickertape.server.config.config import AdminConfig, Config, InstanceConfig
        from tickertape.server.config.transports import Transport
        def ready(uris, admin):
            assert not {"lark", "re2"} & sys.modules.keys(), "the start waits for the import"
            os.kill(os.getpid(), signal.SIGTERM)
        config = Config(
            instance=InstanceConfig(data=sys.argv[1]), transports=[Transport(listen="tcp://127.0.0.1:0")],
            admin=AdminConfig(listen=None),
        )
        assert app.run_server(config, ready) == 0
        assert {"lark", "re2"} <= sys.modules.keys()
    """
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    done = subprocess.run(command, env=source_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), 4),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 4),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), 4),
        (JournalFailed("StartSegment failed"), 4),
        (JournalCorrupt("a commit is damaged"), 5),
    ],
    ids=["EIO", "ENOSPC", "EDQUOT", "a job failed", "damage"],
)
def test_start_exit_code_distinguishes_disk_failure_from_damage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    monkeypatch.setattr(app, "open_instance", _raising(error))
    assert app.run_server(Config(), lambda _uris, _admin: None) == code
    event = " start_refused code=" + ("journal_failed" if code == app.EXIT_DISK_FAILED else "journal_corrupt")
    assert event in capfd.readouterr().err


def test_permission_error_at_the_start_is_not_a_disk_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "open_instance", _raising(PermissionError(errno.EACCES, "not ours")))
    with pytest.raises(PermissionError):
        app.run_server(Config(), lambda _uris, _admin: None)


def _raising(error: Exception) -> Callable[[Config, object, object, object], NoReturn]:
    def open_instance(config: Config, rights: object, rebuild: object, links: object) -> NoReturn:
        raise error

    return open_instance


def test_start_with_the_clock_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def beyond() -> float:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")

    with monkeypatch.context() as patched:
        patched.setattr(time, "time", beyond)
        with pytest.raises(
            ConfigurationError, match=r"Cannot start: the system clock is beyond .* Correct it\.$"
        ):
            app.run_server(Config(), lambda *_: None)
