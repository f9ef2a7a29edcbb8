"""The start and the end of a server process: its descriptors, and a second signal."""

from __future__ import annotations

import logging
import os
import signal
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

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
    ("open_files", "connections"), [(64, 32), (1024, 512), (4096, 3096), (11_000, 10_000), (2**20, 10_000)]
)
def test_connections_leave_the_log_its_descriptors(open_files: int, connections: int) -> None:
    assert app.connections_for(open_files) == connections
