"""Tests in a thread that ends with the test.

An exception at a bytecode where none can occur, raised by a trace function in the middle of an `except`,
stays in the thread's exception state: all later exceptions in that thread seem to occur during its handling.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def in_a_thread_of_its_own(test: Callable[P, None]) -> Callable[P, None]:
    """Run the test in a new thread from beginning to end, and raise its exception here."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        raised: list[BaseException] = []

        def body() -> None:
            try:
                test(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again below
                raised.append(error)

        thread = threading.Thread(target=body, name=test.__name__, daemon=True)
        thread.start()
        thread.join()
        if raised:
            raise raised.pop()

    return run
