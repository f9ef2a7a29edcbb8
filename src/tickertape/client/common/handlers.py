"""Handler runner: calls the application's callbacks and reports what they raise.

Invariant: no such exception reaches the receive thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import current_thread, main_thread

from tickertape.batch.message_batch import Message
from tickertape.client.common.client_log import LOG

Handler = Callable[[Message], object]
"""Application callback for the messages of a subscription."""
ExceptionListener = Callable[[BaseException], object]


class HandlerRunner:
    """Runs handlers one by one. `listener` is told what they raise; None logs it."""

    def __init__(self) -> None:
        self.listener: ExceptionListener | None = None

    def set_listener(self, listener: ExceptionListener | None) -> None:
        """Give what handlers raise to `listener` from now on."""
        self.listener = listener

    def run(self, handler: Callable[..., object], *arguments: object) -> None:
        """Call `handler`; what it raises is told."""
        try:
            handler(*arguments)
        except BaseException as error:  # noqa: BLE001 - code of the application may raise anything
            self.caught(error)

    def caught(self, error: BaseException) -> None:
        """A handler raised this: it is told. Raised again is only what would end the program, on the main
        thread; on the receive thread it would end nothing but the connection."""
        if not isinstance(error, Exception) and current_thread() is main_thread():
            raise error
        self.tell(error)

    def tell(self, error: BaseException) -> None:
        """Report `error` to the listener, or log it."""
        if self.listener is None:
            _show(error)
            return
        try:
            self.listener(error)
        except Exception as second:  # noqa: BLE001 - the listener too
            _show(second)


def _show(error: BaseException) -> None:
    LOG.error("An exception had no caller that could handle it.", exc_info=error)
