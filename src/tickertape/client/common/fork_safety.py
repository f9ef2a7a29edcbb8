"""Fork safety: clients, streams and stores refuse to work in a forked child.

Nothing here sends anything or waits for a lock: a thread that held it exists in the parent only.
"""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack, suppress
from typing import NoReturn, Protocol

from tickertape.base.errors import Forked


class Inherited(Protocol):
    """An object that a forked child must not use."""

    def forked(self) -> None:
        """Refuse every call from now on; never raises, never waits."""


class ForkedLock:
    """Stands where a lock was: whoever would take it is told why not."""

    def acquire(self, *_arguments: object, **_options: object) -> NoReturn:
        """As a lock's; it is also refused to release it, where the fork happened while it was held."""
        raise forked_error()

    __enter__ = release = acquire

    def __exit__(self, *_: object) -> None:
        return


def forked_error() -> Forked:
    """Return the error that every call raises in a child."""
    return Forked(
        f"process {os.getpid()} was forked and inherited this client, stream or store, which belongs to its "
        "parent: make one of your own after the fork"
    )


def refuse(*_arguments: object, **_options: object) -> NoReturn:
    """Stands where a function was."""
    raise forked_error()


def detach(descriptor: int) -> None:
    """Make `descriptor`, in this process, something else than the parent's socket.

    Closing would not do: others hold the number and may write to it, or take it out of a poll that parent and
    child share. Never raises: a loss just before the fork may have closed it, or be about to.
    """
    if descriptor < 0:
        return
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
    except OSError:
        return  # out of descriptors: nothing of ours writes there any more, so it may stay
    try:
        with suppress(OSError):
            os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)


def register(inherited: Inherited) -> None:
    """Call `forked` of this object in a child. It is not kept alive."""
    _alive.add(inherited)


_alive: weakref.WeakSet[Inherited] = weakref.WeakSet()


def _in_child() -> None:
    # Whatever one of them meets, all others have to know: each would go on using what the parent uses.
    with ExitStack() as told:
        for inherited in list(_alive):
            told.callback(inherited.forked)
        _alive.clear()


os.register_at_fork(after_in_child=_in_child)
