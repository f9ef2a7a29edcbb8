"""Transitions: changes of feeds as data, which `LogDelivery` applies in one place."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.engine.delivery.fanout import Fanout
from tickertape.engine.subscriptions.log_feed import LogFeed


class BoundaryReached(NamedTuple):
    """A feed has considered every message below a position at which something is due."""

    feed: LogFeed


class MayShare(NamedTuple):
    """A feed reads the log by itself, and may go on with others from where it is."""

    feed: LogFeed


class CaughtUp(NamedTuple):
    """A feed that reads by itself has considered every persisted message."""

    feed: LogFeed


class GroupCaughtUp(NamedTuple):
    """The feeds of a shared cursor have considered every persisted message."""

    group: Fanout


class GroupMoved(NamedTuple):
    """A group has considered more, or feeds have left it: they read by themselves from their positions on."""

    group: Fanout
    left: list[LogFeed]


class ReadFailed(NamedTuple):
    """What a feed needs cannot be read."""

    feed: LogFeed
    error: TickertapeError


Transition: TypeAlias = BoundaryReached | MayShare | CaughtUp | GroupCaughtUp | GroupMoved | ReadFailed

T = TypeVar("T")

Transitions: TypeAlias = Generator[Transition, None, T]
"""Transitions, each of which is applied before the next is made."""
