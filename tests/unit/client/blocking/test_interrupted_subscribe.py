"""A Ctrl-C in `Client.subscribe`: no subscription without a reader remains."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from tests.helpers.interrupts import Interrupt
from tests.unit.client.socket_server import socket_server
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.testing import wait_until


def test_subscription_is_ended_if_the_wait_for_the_answer_is_interrupted(interrupts: None) -> None:
    main = threading.main_thread().ident or 0
    with socket_server() as server, Client("pricing-1", server.uri) as client:
        client.subscribe("orders")
        server.deaf = True
        (session,) = server.sessions

        def interrupt() -> None:
            assert session.unanswered.wait(20)
            wait_until(lambda: sys._current_frames()[main].f_code is ThreadWaiter.wait.__code__)
            for _ in range(20):  # Python notices a signal just before a wait only with the next signal
                signal.pthread_kill(main, signal.SIGUSR1)
                if session.unsubscribed.wait(1):
                    return

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(Interrupt):
            client.subscribe("orders", timeout=60)
        assert session.unsubscribed.wait(20)
        thread.join()
        client.publish("orders", b"1")
        client.publish_flush()
        assert len(client._driver.core.subscriptions) == 1
