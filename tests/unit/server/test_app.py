"""The end of a server process by a second signal."""

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
