"""Owns what the unit tests of the client share: a signal that raises."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.helpers.interrupts import Interrupt


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGUSR1 raises, as a Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)
