"""Owns the signals that a server answers without stopping: SIGHUP reloads certificates and tokens, SIGUSR1
prints the stack of every thread on standard error.

Must never end the process, whatever the files hold.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tickertape.base.errors import TickertapeError
from tickertape.server.admission import Admission
from tickertape.server.events import event
from tickertape.server.user_watch import UserWatch

_STDERR: Final = 2
_UNEXPECTED: Final = "unexpected"


@contextmanager
def stacks_on_signal() -> Iterator[None]:
    """Print the stack of every thread on standard error at each SIGUSR1, also while the process hangs."""
    with suppress(OSError, ValueError):  # standard error is closed
        faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)


def reload_on_signal(loop: AbstractEventLoop, admission: Admission, watch: UserWatch) -> None:
    """Reload at each SIGHUP. A server without anything to reload that was started at a terminal ends with
    it instead, as other programs do."""
    if admission.has_files or not _at_terminal():
        loop.add_signal_handler(signal.SIGHUP, reload, admission, watch)


def reload(admission: Admission, watch: UserWatch) -> None:
    """Read certificates and tokens again, and end the sessions whose token is gone. Connections keep their
    certificates. Never raises: what cannot be used is reported, and what was read before stays."""
    try:
        replaced = admission.reload()
        nothing = None if admission.has_files else "there are no certificates or tokens to read"
        event("reloaded", text=nothing)
        watch.look(replaced)
    except TickertapeError as error:
        event("reload_failed", logging.ERROR, code=error.code, text=f"{error}; what was read before goes on")
    except Exception as error:  # noqa: BLE001 - a defect of ours; its text may show what is in the files
        text = f"{type(error).__name__} in {_place(error)}; what was read before goes on"
        event("reload_failed", logging.ERROR, code=_UNEXPECTED, text=text)


def _place(error: Exception) -> str:
    """Where it was raised, as `file:line`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        "?" if trace is None else f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    )


def _at_terminal() -> bool:
    """Whether standard input is a terminal."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False
