"""Handler runner: calls the application's callbacks and reports their exceptions.

Invariant: no exception of a callback reaches the receive thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import current_thread, main_thread
from typing import Final

from tickertape.batch.message_batch import Message

LOG: Final = logging.getLogger("tickertape.client")
"""Log of clients. Python prints its warnings and errors to standard error if the program does not configure
logging."""
Handler = Callable[[Message], object]
"""Application callback for the messages of a subscription."""
ExceptionListener = Callable[[BaseException], object]


class HandlerRunner:
    """Runner of handlers. `listener` receives their exceptions. None logs them."""

    def __init__(self) -> None:
        self.listener: ExceptionListener | None = None

    def set_listener(self, listener: ExceptionListener | None) -> None:
        """Report exceptions of handlers to `listener` from now on."""
        self.listener = listener

    def run(self, handler: Callable[..., object], *arguments: object) -> None:
        """Call `handler` and report its exception."""
        try:
            handler(*arguments)
        except BaseException as error:  # noqa: BLE001 - code of the application may raise anything
            self.caught(error)

    def caught(self, error: BaseException) -> None:
        """Report the exception of a handler.

        On the main thread, exceptions that end a program (not subclasses of `Exception`) are raised again. On
        the receive thread they would end only the connection.
        """
        if not isinstance(error, Exception) and current_thread() is main_thread():
            raise error
        self.report(error)

    def report(self, error: BaseException) -> None:
        """Report `error` to the listener, or log it."""
        if self.listener is None:
            _show(error)
            return
        try:
            self.listener(error)
        except Exception as second:  # noqa: BLE001 - the listener too
            _show(second)


def _show(error: BaseException) -> None:
    LOG.error("Unhandled exception outside of a call.", exc_info=error)
