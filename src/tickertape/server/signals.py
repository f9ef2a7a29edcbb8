"""Signals that do not stop a server: SIGHUP reloads certificates and tokens, SIGUSR1 prints stacks.

Invariant: neither ends the process, regardless of the contents of the files, from the start of recovery until
the data directory is closed.
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
from types import FrameType
from typing import Final

from tickertape.base.errors import TickertapeError
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.events import event
from tickertape.server.session_expiry import SessionExpiry

_STDERR: Final = 2
_UNEXPECTED: Final = "unexpected"
_KEPT: Final = "The previous certificates and tokens stay in use."
_NO_TOKEN: Final = (
    "The tokens_file has no tokens: all sessions are closed and no client can log on. Add tokens to the file "
    "and send SIGHUP again."
)


@contextmanager
def stacks_on_signal() -> Iterator[None]:
    """Print the stack of every thread on standard error at each SIGUSR1.

    This works while the process hangs, except in native code. The main thread prints, because
    `faulthandler.register` reads the stacks of running threads, which sometimes crashes with SIGSEGV."""
    before = signal.signal(signal.SIGUSR1, _print_stacks)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def _print_stacks(_number: int, _frame: FrameType | None) -> None:
    with suppress(OSError, ValueError):  # standard error is closed
        faulthandler.dump_traceback(_STDERR, all_threads=True)


class ReloadSignal:
    """Handler of SIGHUP that reloads certificates and tokens.

    A signal that arrives before the event loop runs is handled when the loop runs. A server that has nothing
    to reload and was started at a terminal keeps the default action: SIGHUP ends it."""

    def __init__(self, credentials: CredentialStore) -> None:
        self._credentials = credentials
        self._handled = credentials.has_files or not _at_terminal()
        self._arrived = False

    def hold(self) -> None:
        """Only record signals, while no event loop runs."""
        if self._handled:
            signal.signal(signal.SIGHUP, self._note)

    def reload_on(self, loop: AbstractEventLoop, expiry: SessionExpiry) -> None:
        """Reload at each signal from now on, and now if one has arrived."""
        if self._handled:
            loop.add_signal_handler(signal.SIGHUP, reload, self._credentials, expiry)
        if self._arrived:
            reload(self._credentials, expiry)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._arrived = True


def reload(credentials: CredentialStore, expiry: SessionExpiry) -> None:
    """Reload certificates and tokens, and close the sessions of revoked tokens.

    Open connections keep their certificates. Never raises: a failure is logged and changes nothing."""
    try:
        replaced = credentials.reload()
        if credentials.refuses_all:  # on purpose: revoking the last token must not be overruled
            event("reloaded", logging.WARNING, text=_NO_TOKEN)
        else:
            nothing = None if credentials.has_files else "No certificates or tokens are configured."
            event("reloaded", text=nothing)
        expiry.check(replaced)
    except TickertapeError as error:
        event("reload_failed", logging.ERROR, code=error.code, text=f"{str(error).rstrip('.')}. {_KEPT}")
    except Exception as error:  # noqa: BLE001 - a defect. Its text may contain secrets of the files.
        text = f"Internal error: {type(error).__name__} in {_place(error)}. {_KEPT}"
        event("reload_failed", logging.ERROR, code=_UNEXPECTED, text=text)


def _place(error: Exception) -> str:
    """Return the location at which an error was raised, as `file:line`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        "?" if trace is None else f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    )


def _at_terminal() -> bool:
    """Return whether standard input is a terminal."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False
