"""Durations of the steps of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.peer import Peer, frame
from tests.helpers.threaded_instance import running
from tickertape.base.interfaces import Now
from tickertape.batch import batch_from_bodies
from tickertape.engine.broker import Broker
from tickertape.server import engine_driver
from tickertape.server.network import connection
from tickertape.wire.commands import Ack, Flush, Publish

PUBLISH = frame(Publish(frame=1), batch_from_bodies("t", [b"1"])) + frame(Flush(id=1))


class StepClock:
    """A clock that advances only during one kind of input of the engine."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str, seconds: float) -> None:
        self.now = 1.0
        self.inputs = 0
        handle: Callable[..., Any] = getattr(Broker, kind)

        def handled(broker: Broker, *arguments: Any) -> Any:
            self.inputs += 1
            self.now += seconds
            return handle(broker, *arguments)

        patch.setattr(Broker, kind, handled)
        stopped = SimpleNamespace(monotonic=lambda: self.now)
        patch.setattr(engine_driver, "time", stopped)
        patch.setattr(connection, "time", stopped)
        patch.setattr(engine_driver, "clock", lambda: Now(self.now, 1_000_000))


@pytest.mark.parametrize("kind", ["received", "disk_done", "work", "disconnected"])
def test_each_kind_of_input_is_a_measured_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = StepClock(monkeypatch, kind, 0.25)
    with running(tmp_path / "data", new_loop=asyncio.SelectorEventLoop) as server:
        with Peer(server.uri, "a") as peer:
            peer.send(PUBLISH)
            peer.until(Ack)
        server.until(lambda _: not server.connections)
    steps = server.driver.steps
    assert clock.inputs > 0
    assert steps.total == pytest.approx(0.25 * clock.inputs)
    assert 0.25 <= steps.highest <= 0.25 * 3  # the logon, the publish and the flush are inputs of one read
    assert steps.counts[0] > 0, "other steps take no time"
    assert sum(steps.counts) == steps.count > sum(steps.counts[1:]) > 0
