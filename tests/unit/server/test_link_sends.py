"""Frames of links that the engine driver sends."""

from __future__ import annotations

from typing import cast

from tickertape.base.errors import FrameTooLarge, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.engine.broker import Broker
from tickertape.engine.runtime.effects import SendLink
from tickertape.server.engine_driver import EngineDriver
from tickertape.wire.link import LinkNames
from tickertape.wire.link_connection import LinkConnection


class Line:
    """Protocol state of a link that can send no frame with an odd end."""

    def send(self, command: LinkNames, batch: MessageBatch | None) -> list[Buffer]:
        assert batch is None
        if command.end % 2:
            raise FrameTooLarge("Cannot encode LinkNames: test. Nothing.")
        return [bytes([command.end])]


class Engine:
    """An engine that records the connections that end."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, TickertapeError]] = []

    def goodbye(self, conn: int, error: TickertapeError) -> None:
        self.ended.append((conn, error))


def test_frames_behind_one_that_cannot_be_sent_are_not_sent() -> None:
    driver, engine = EngineDriver.__new__(EngineDriver), Engine()
    driver.broker = cast("Broker", engine)
    driver._link_states = {conn: cast("LinkConnection", Line()) for conn in (1, 2)}
    driver._outgoing = {}
    for conn, end in ((1, 2), (1, 3), (2, 4), (1, 6), (1, 7), (2, 8)):
        driver._send_link(SendLink(conn, LinkNames(end=end)))
    assert driver._outgoing == {1: [b"\x02"], 2: [b"\x04", b"\x08"]}, "the destination would miss rows"
    assert [(conn, error.code) for conn, error in engine.ended] == [(1, "frame_too_large")]
