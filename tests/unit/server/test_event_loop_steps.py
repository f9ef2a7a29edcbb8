"""Steps of the event loop: their durations, and the work that one step does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from tests.helpers.peer import Peer, frame
from tests.helpers.threaded_instance import running
from tickertape.base.interfaces import Now
from tickertape.base.limits import batch_bytes_max, message_bytes_max, receive_buffer_bytes
from tickertape.batch import batch_from_bodies
from tickertape.engine.broker import Broker
from tickertape.engine.limits import small_filter_effort, turn_effort_max
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.server import engine_driver
from tickertape.server.network import connection
from tickertape.wire.commands import Ack, Deliver, Flush, Publish, Subscribe

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


class UnitsOfSteps:
    """Units of work of each step of an event loop of asyncio."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of_steps = [0]
        self.thread = 0
        """The thread of the event loop, from its first step on."""
        run = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            self.thread = threading.get_ident()
            self.of_steps.append(0)
            run(handle)

        patch.setattr(asyncio.Handle, "_run", counted)

    def add(self, units: int) -> None:
        """Count work, unless another thread does it."""
        if threading.get_ident() == self.thread:
            self.of_steps[-1] += units


def test_frame_of_16_mb_is_hashed_at_most_twice_in_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frame(Publish(frame=1), batch_from_bodies("t", [bytes(message_bytes_max)]))
    units = UnitsOfSteps(monkeypatch)

    def counted(part: Any, value: int = 0) -> int:
        units.add(memoryview(part).nbytes)
        return crc32c(part, value)

    with ExitStack() as opened:
        server = opened.enter_context(running(tmp_path / "data", new_loop=asyncio.SelectorEventLoop))
        publisher, subscriber = (opened.enter_context(Peer(server.uri, name)) for name in "ab")
        subscriber.send(frame(Subscribe(id=1, sub_id="s", topic="t", bookmark="0", credit=1 << 30)))
        subscriber.until(Ack)
        for module in ("wire.frames", "batch.message_batch", "batch.format"):
            monkeypatch.setattr(f"tickertape.{module}.crc32c", counted)
        publisher.send(data + frame(Flush(id=1)))
        publisher.until(Ack)
        subscriber.until(Deliver)
    large = [count for count in units.of_steps if count >= message_bytes_max]
    assert len(large) >= 3, "the messages are verified, and a commit and a delivery are hashed"
    # A commit that starts at once is hashed in the step that verifies its messages.
    assert max(large) <= 2 * (batch_bytes_max + receive_buffer_bytes)
    reads = [count for count in units.of_steps if receive_buffer_bytes // 2 < count < message_bytes_max]
    assert len(reads) > 16
    assert max(reads) <= 2 * receive_buffer_bytes


@pytest.mark.parametrize(
    ("path", "filters_max"), [("/step{0}", 1), ("/step", turn_effort_max // (1 + small_filter_effort) + 1)]
)
def test_each_step_compiles_one_filter_or_some_small_ones_of_a_known_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, filters_max: int
) -> None:
    units = UnitsOfSteps(monkeypatch)
    make = InterestCompiler._make

    def counted(*arguments: Any) -> Any:
        units.add(1)
        return make(*arguments)

    monkeypatch.setattr(InterestCompiler, "_make", counted)
    subscribe = b"".join(
        frame(Subscribe(id=n, sub_id=f"s{n}", topic="t", filter=f"{path.format(n)} = {n}", credit=32))
        for n in range(1, 51)
    )
    with ExitStack() as opened:
        server = opened.enter_context(running(tmp_path / "data", new_loop=asyncio.SelectorEventLoop))
        first, second = (opened.enter_context(Peer(server.uri, name)) for name in "ab")
        for peer in (first, second):
            peer.send(subscribe + frame(Flush(id=99)))
        for peer in (first, second):
            while Ack(id=99) not in peer.until(Ack):
                pass
    assert sum(units.of_steps) >= 50
    assert max(units.of_steps) == filters_max
