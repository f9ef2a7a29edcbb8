"""Owns how a test runs in a thread that ends with it.

An exception raised at a bytecode where none can be (by a trace function, in the middle of an `except`)
leaves the thread's exception state behind: all later ones in that thread seem to come while it is handled.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def in_a_thread_of_its_own(test: Callable[P, None]) -> Callable[P, None]:
    """The test, run in a new thread from beginning to end; what it raises is raised here."""

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
