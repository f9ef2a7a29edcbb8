"""Release of resources in a forked child. Forks of whole clients are in `tests/conformance`."""

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


def test_detached_descriptor_no_longer_refers_to_the_socket() -> None:
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


def test_forked_lock_and_refuse_raise_forked() -> None:
    with pytest.raises(Forked, match=str(os.getpid())), forks.ForkedLock():
        pass
    with pytest.raises(Forked):
        forks.ForkedLock().acquire(timeout=1)
    with pytest.raises(Forked):
        forks.ForkedLock().release()
    with pytest.raises(Forked, match="after the fork"):
        forks.refuse("orders", b"1", key="k")


def test_forked_child_of_client_does_not_append_to_the_open_run() -> None:
    client = Client("parent", "tcp://127.0.0.1:1", publish_store=MemoryPublishStore(), connect=False)
    for _ in range(5):
        client.publish("orders", b"1")
    assert client._publishing.run is not CLOSED
    client._driver.forked()
    with pytest.raises(Forked):
        client.publish("orders", b"2")


def test_forked_child_of_asyncio_client_does_not_append_to_the_open_run() -> None:
    client = AsyncClient("parent", "tcp://127.0.0.1:1", publish_store=MemoryPublishStore())
    for _ in range(5):
        with pytest.raises(StopIteration):  # the call does not wait
            client.publish("orders", b"1").send(None)
    assert client.unpersisted_count() == 5
    assert client._publishing.run is not CLOSED
    client._driver.forked()
    with pytest.raises(Forked):
        client.publish("orders", b"2").send(None)


class Heir:
    """Records the call of `forked`, and raises if `wrong`."""

    def __init__(self, *, wrong: bool) -> None:
        self.notified = False
        self._wrong = wrong

    def forked(self) -> None:
        self.notified = True
        if self._wrong:
            raise RuntimeError("unexpected")


def test_fork_notification_reaches_all_objects_despite_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_alive", weakref.WeakKeyDictionary())
    heirs = [Heir(wrong=n % 2 == 0) for n in range(8)]
    for heir in heirs:
        forks.register(heir, Heir.forked)
    with pytest.raises(RuntimeError, match="unexpected"):
        forks._in_child()
    assert all(heir.notified for heir in heirs)
    forks._in_child()  # called once


def test_detach_of_closed_socket_does_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        before = os.listdir("/dev/fd")
        forks.detach(ours.fileno())
        assert len(os.listdir("/dev/fd")) == len(before)


def test_failed_detach_leaves_no_descriptor_open() -> None:
    before = os.listdir("/dev/fd")
    forks.detach(resource.getrlimit(resource.RLIMIT_NOFILE)[0])  # a number that no descriptor has
    assert len(os.listdir("/dev/fd")) == len(before)
