"""Letting go in a forked child; forks of whole clients are in tests/conformance."""

from __future__ import annotations

import os
import resource
import socket
import weakref

import pytest

from tickertape.base.errors import Forked
from tickertape.client.aio.client import AsyncClient
from tickertape.client.blocking.client import Client
from tickertape.client.common import fork_safety as forks
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.client.publishing.send_buffer import CLOSED


def test_what_was_let_go_is_not_the_socket_any_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reconnecting = socket.fromfd(ours.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        with reconnecting:
            number = ours.fileno()
            forks.detach(number)
            os.write(number, b"lost")
            reconnecting.sendall(b"kept")
            assert theirs.recv(100) == b"kept"
            assert ours.fileno() == number


def test_locks_and_functions_that_refuse() -> None:
    with pytest.raises(Forked, match=str(os.getpid())), forks.ForkedLock():
        pass
    with pytest.raises(Forked):
        forks.ForkedLock().acquire(timeout=1)
    with pytest.raises(Forked):
        forks.ForkedLock().release()
    with pytest.raises(Forked, match="after the fork"):
        forks.refuse("orders", b"1", key="k")


def test_a_child_does_not_append_to_the_open_run() -> None:
    client = Client("parent", "tcp://127.0.0.1:1", publish_store=MemoryPublishStore(), connect=False)
    for _ in range(5):
        client.publish("orders", b"1")
    assert client._publishing.run is not CLOSED
    client._driver.forked()
    with pytest.raises(Forked):
        client.publish("orders", b"2")


def test_a_child_of_an_asyncio_client_does_not_append_to_the_open_run() -> None:
    client = AsyncClient("parent", "tcp://127.0.0.1:1", publish_store=MemoryPublishStore())
    for _ in range(5):
        with pytest.raises(StopIteration):  # it has nothing to wait for
            client.publish("orders", b"1").send(None)
    assert client.unpersisted_count() == 5
    assert client._publishing.run is not CLOSED
    client._driver.forked()
    with pytest.raises(Forked):
        client.publish("orders", b"2").send(None)


class Heir:
    """Notes that it was told; `wrong` ones raise then."""

    def __init__(self, *, wrong: bool) -> None:
        self.told = False
        self._wrong = wrong

    def forked(self) -> None:
        self.told = True
        if self._wrong:
            raise RuntimeError("nobody expects this")


def test_all_are_told_whatever_some_of_them_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_alive", weakref.WeakKeyDictionary())
    heirs = [Heir(wrong=n % 2 == 0) for n in range(8)]
    for heir in heirs:
        forks.register(heir, Heir.forked)
    with pytest.raises(RuntimeError, match="nobody expects"):
        forks._in_child()
    assert all(heir.told for heir in heirs)
    forks._in_child()  # told once


def test_a_socket_that_was_closed_just_before_the_fork_needs_no_letting_go() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        before = os.listdir("/dev/fd")
        forks.detach(ours.fileno())
        assert len(os.listdir("/dev/fd")) == len(before)


def test_what_cannot_be_let_go_leaves_nothing_open() -> None:
    before = os.listdir("/dev/fd")
    forks.detach(resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # a number that no descriptor has
    assert len(os.listdir("/dev/fd")) == len(before)
