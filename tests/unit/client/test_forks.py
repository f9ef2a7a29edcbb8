"""Letting go in a forked child; forks of whole clients are in tests/conformance."""

from __future__ import annotations

import os
import socket

import pytest

from tickertape.base.errors import Forked
from tickertape.client import forks


def test_what_was_let_go_is_not_the_socket_any_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = socket.fromfd(ours.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        with keeper:
            number = ours.fileno()
            forks.let_go(number)
            os.write(number, b"lost")
            keeper.sendall(b"kept")
            assert theirs.recv(100) == b"kept"
            assert ours.fileno() == number


def test_locks_and_functions_that_refuse() -> None:
    with pytest.raises(Forked, match=str(os.getpid())), forks.ForkedLock():
        pass
    with pytest.raises(Forked):
        forks.ForkedLock().acquire(timeout=1)
    with pytest.raises(Forked, match="after the fork"):
        forks.refuse("orders", b"1", key="k")
