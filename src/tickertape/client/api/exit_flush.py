"""Exit flush: sends unsent messages of open clients when the program ends.

`atexit` closes the clients: non-daemon threads have ended by then, receive threads still run. The package
registers this on import, so exit handlers of the application run earlier. The loop of an asyncio client is
closed before `atexit`, so `aio/loop_flush.py` flushes it with its loop. All clients together have
`client_timeout_seconds`. Unsent messages are logged as errors, one per client.

Invariants:
- A forked child never sends messages of its parent. A child of `multiprocessing` flushes its own clients.
- The registry keeps no client alive.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from tickertape.client.common.handlers import LOG
from tickertape.client.limits import client_timeout_seconds


class ProgramEnd(NamedTuple):
    """Name of a client that the application did not close, and the number of its unsent messages."""

    name: str
    unsent: int


class Unclosed(Protocol):
    """A client that may be open when its program ends."""

    def end_with_program(self, seconds: float) -> ProgramEnd | None:
        """Close the client within `seconds`. Returns None if it was closed or unused. Never raises."""


def register(client: Unclosed) -> None:
    """Close `client` at the end of the program if it is still open. Does not keep it alive."""
    if not _clients:
        _register_in_child()
    _clients.add(client)


_clients: Final[weakref.WeakSet[Unclosed]] = weakref.WeakSet()


def close_all() -> None:
    """Close every open client at the end of the program.

    After all are closed, raises the first failure of a publish store of the application.
    """
    left = time_for_all()
    ended, failures = list[ProgramEnd | None](), list[Exception]()
    for client in list(_clients):
        try:
            ended.append(client.end_with_program(left()))
        except Exception as error:  # noqa: BLE001 - other clients have messages to send
            failures.append(error)
    _report(ended)
    for failure in failures:
        raise failure


def time_for_all() -> Callable[[], float]:
    """Return a function that returns the seconds left for all clients of one flush together."""
    end = time.monotonic() + client_timeout_seconds
    return lambda: max(0.0, end - time.monotonic())


def _report(ended: Iterable[ProgramEnd | None]) -> None:
    some = [one for one in ended if one is not None]
    for name, unsent in some:
        if unsent:
            LOG.error(
                "Cannot send %d message(s) of client %r before the program ends. Call close(), or use the "
                "client in a with statement.",
                unsent,
                name,
            )
    for name, _ in some:
        warnings.warn(
            f"Client {name!r} was not closed. Call close(), or use the client in a with statement.",
            ResourceWarning,
            stacklevel=2,
        )


def _register_in_child() -> None:
    """Register with the finalizers of `multiprocessing`: its forked children end without `atexit`."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close_all, exitpriority=0)


os.register_at_fork(after_in_child=_clients.clear)
