"""Owns what the unit tests of the client share: a signal that raises, and a look after each test whether it
left the interpreter as it found it.
"""

from __future__ import annotations

import signal
import sys
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


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """An exception that seems to be handled for ever would show in the tracebacks of later tests.

    Runs behind the test itself, in the same thread, where no exception is handled.
    """
    assert sys.exc_info() == (None, None, None), f"{item.nodeid} left an exception behind"
