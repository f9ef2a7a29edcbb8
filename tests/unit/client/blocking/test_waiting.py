"""Work in a thread: result, error, and the exception of a signal handler."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tickertape.client.blocking.waiting import in_thread


def test_result_and_error_of_the_work_reach_the_caller() -> None:
    assert in_thread(threading.current_thread, int) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0, int)


def test_exception_of_a_signal_handler_interrupts_the_work() -> None:
    started, interrupted, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert interrupted.wait(30)
        ended.set()

    def send() -> None:
        started.wait()
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        in_thread(work, interrupted.set)
    sender.join()
    assert ended.is_set(), "the call waits for the end of the work"


def test_second_signal_does_not_end_the_wait() -> None:
    started, interrupted, ended = threading.Event(), threading.Event(), threading.Event()
    go_on = threading.Event()

    def work() -> None:
        started.set()
        assert go_on.wait(30)
        ended.set()

    def send() -> None:
        started.wait()
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait()
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(0.2)
        go_on.set()

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        in_thread(work, interrupted.set)
    assert ended.is_set()
    sender.join()
