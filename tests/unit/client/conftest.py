"""Fixtures of the client's unit tests: a raising signal, and a check of the interpreter after each test."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from tests.helpers.interrupts import Interrupt


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Make SIGUSR1 raise, as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Check that the test left no handled exception, which later tracebacks would show.

    The check runs after the test, in the same thread, where no exception is handled.
    """
    assert sys.exc_info() == (None, None, None), f"{item.nodeid} left an exception behind"
