"""Fork safety: clients, streams and stores refuse to work in a forked child.

This module sends nothing and waits for no lock: the thread that holds a lock exists only in the parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NoReturn, TypeVar

from tickertape.base.errors import Forked

T = TypeVar("T")


class ForkedLock:
    """Replacement of a lock in a forked child: every call raises `Forked`."""

    def acquire(self, *_arguments: object, **_options: object) -> NoReturn:
        """Raise `Forked`. So does `release`, for a lock that was held during the fork."""
        raise forked_error()

    __enter__ = release = acquire

    def __exit__(self, *_: object) -> None:
        return


def forked_error() -> Forked:
    """Return the error that every call raises in a forked child."""
    return Forked(
        f"Cannot use this client, stream or store in process {os.getpid()}: it was inherited from the parent "
        "process. Create a new one after the fork."
    )


def refuse(*_arguments: object, **_options: object) -> NoReturn:
    """Raise `Forked`, as the replacement of any function."""
    raise forked_error()


def detach(descriptor: int) -> None:
    """Replace the parent's socket behind `descriptor` by the null device in this process.

    Closing is not enough: other code holds the descriptor number and may write to it, or remove it from a
    poll object that parent and child share. Never raises: the descriptor may already be closed.
    """
    if descriptor < 0:
        return
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
    except OSError:
        return  # out of descriptors: this package no longer writes to it, so it may stay open
    try:
        with suppress(OSError):
            os.dup2(nowhere, descriptor, inheritable=False)
    finally:
        os.close(nowhere)


def register(inherited: T, refuse: Callable[[T], None]) -> None:
    """Call `refuse` with this object in every forked child. The object is not kept alive.

    `refuse` makes the object refuse every call from now on. It must not raise or wait.
    """
    _alive[inherited] = refuse


_alive: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def _in_child() -> None:
    # An exception in one must not prevent the others: they would continue to use the parent's resources.
    with ExitStack() as calls:
        for inherited, refuse in list(_alive.items()):
            calls.callback(refuse, inherited)
        _alive.clear()


os.register_at_fork(after_in_child=_in_child)
