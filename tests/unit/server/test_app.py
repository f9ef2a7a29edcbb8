"""The start and the end of a server process: its descriptors, and a second signal."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from tests.helpers.processes import source_environment
from tickertape.server import app
from tickertape.server.instance import Instance


@pytest.mark.parametrize(("sealed", "code"), [(True, 0), (False, 1)])
def test_a_second_signal_ends_the_process_and_says_whether_the_log_was_sealed(
    monkeypatch: pytest.MonkeyPatch, sealed: bool, code: int
) -> None:
    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    journal = SimpleNamespace(closed=sealed)
    instance = cast("Instance", SimpleNamespace(broker=SimpleNamespace(journal=journal)))
    with pytest.raises(SystemExit) as ended:
        app._stop_now(instance, signal.SIGTERM.name)
    assert ended.value.code == code


@pytest.mark.parametrize(
    ("open_files", "connections"), [(64, 32), (1024, 512), (4096, 2048), (12_088, 10_000), (2**20, 10_000)]
)
def test_connections_leave_the_log_its_descriptors(open_files: int, connections: int) -> None:
    assert app.connections_for(open_files) == connections


def test_the_first_filter_is_prepared_beside_the_event_loop(tmp_path: Path) -> None:
    program = """if True:
        import os, signal, sys
        from tickertape.server import app
        from tickertape.server.config import Admin, Config, Instance
        from tickertape.server.transports_config import Transport
        def ready(uris, admin):
            assert not {"lark", "re2"} & sys.modules.keys(), "the start waits for it"
            os.kill(os.getpid(), signal.SIGTERM)
        config = Config(
            instance=Instance(data=sys.argv[1]), transports=[Transport(listen="tcp://127.0.0.1:0")],
            admin=Admin(listen=None),
        )
        assert app.run_server(config, ready) == 0
        assert {"lark", "re2"} <= sys.modules.keys()
    """
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    done = subprocess.run(command, env=source_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
