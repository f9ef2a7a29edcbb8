"""Transitions: state changes of feeds as data, applied by `LogDelivery`."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.engine.delivery.fanout import Fanout
from tickertape.engine.subscriptions.log_feed import LogFeed


class BoundaryReached(NamedTuple):
    """A feed has considered every message below a position that requires an action."""

    feed: LogFeed


class MayShare(NamedTuple):
    """A feed with its own cursor may share a cursor at its position."""

    feed: LogFeed


class CaughtUp(NamedTuple):
    """A feed with its own cursor has considered every persisted message."""

    feed: LogFeed


class GroupCaughtUp(NamedTuple):
    """The feeds of a shared cursor have considered every persisted message."""

    group: Fanout


class GroupMoved(NamedTuple):
    """A group has advanced, or feeds have left it and continue with their own cursors."""

    group: Fanout
    left: list[LogFeed]


class ReadFailed(NamedTuple):
    """The log could not be read for a feed."""

    feed: LogFeed
    error: TickertapeError


Transition: TypeAlias = BoundaryReached | MayShare | CaughtUp | GroupCaughtUp | GroupMoved | ReadFailed

T = TypeVar("T")

Transitions: TypeAlias = Generator[Transition, None, T]
"""A generator of transitions. Each is applied before the next one is requested."""
