"""Loop flush: sends unsent messages of open asyncio clients when their event loop ends.

It runs when the loop shuts down its asynchronous generators, as `asyncio.run` does. The exit flush of the
program would be too late, because the loop is closed by then.

Invariant: a loop keeps no client alive.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Final, Protocol

from tickertape.client.api.exit_flush import Unclosed, time_for_all


class UnclosedOnLoop(Unclosed, Protocol):
    """An asyncio client that may be open when its event loop ends."""

    def is_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the client is connected on `loop`."""

    async def flush_with_loop(self, seconds: float) -> None:
        """Send everything within `seconds`. The client stays open for another loop. Never raises."""


_WATCH: Final = "_tickertape_clients"
"""Attribute of a loop: its clients, and the generator that flushes them."""


async def watch(client: UnclosedOnLoop) -> None:
    """Flush `client` at the end of the running event loop if it is still open. Does not keep it alive."""
    # The generator references its loop. Stored on the loop itself, both are collected together.
    kept = vars(asyncio.get_running_loop())
    if _WATCH not in kept:
        clients: weakref.WeakSet[UnclosedOnLoop] = weakref.WeakSet()
        kept[_WATCH] = clients, _until_loop_ends(clients)
        await anext(kept[_WATCH][1])
    kept[_WATCH][0].add(client)


async def _until_loop_ends(clients: Iterable[UnclosedOnLoop]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:  # `shutdown_asyncgens` closes it
        loop = asyncio.get_running_loop()
        vars(loop).pop(_WATCH, None)
        left = time_for_all()
        for client in list(clients):
            with suppress(Exception):  # from a publish store of the application: `close_all` raises it
                if client.is_on(loop):
                    await client.flush_with_loop(left())
