"""Owns what the option string of a subscribe or resolve may ask for, and what excludes what.

Must never ignore an option: what is unknown, misplaced or not built yet is refused with its name and the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tickertape.base.errors import BadOption
from tickertape.base.options import parse_options
from tickertape.base.queue_limits import queue_backlog_max
from tickertape.base.text_format import shown
from tickertape.engine.subscriptions.options import (
    ConflationOptions,
    ReplayRate,
    read_conflation,
    read_replay_rate,
)
from tickertape.engine.subscriptions.start_position import NOT_FOUND_POLICIES

_FLAGS: Final = frozenset({"bookmark", "browse", "fully_durable", "live", "pause", "replace", "timestamp"})
_REPLAY_ONLY: Final = frozenset(
    {"bookmark_not_found", "fully_durable", "live", "pause", "rate", "rate_max_gap"}
)
_WITHOUT_BOOKMARK: Final = {
    "pause": ": what is sent as it comes is kept for nobody. A bookmark subscription that is there is paused "
    "by the command pause",
}
_NOT_LIVE: Final = {
    "rate": "what is sent as it comes has no pace of its own",
    "rate_max_gap": "what is sent as it comes has no pace of its own",
    "pause": "what is not persisted is kept for nobody",
    "conflation": "what is held back is not sent as it comes",
    "fully_durable": "one asks for what is not persisted yet, the other for what is persisted everywhere",
}
_QUEUE_ONLY: Final = ("browse", "max_backlog")
_VALUES: Final = frozenset(
    {"bookmark_not_found", "conflation", "conflation_key", "max_backlog", "rate", "rate_max_gap", "select"}
)


class SubscribeOptions(NamedTuple):
    """Options, read and checked against each other."""

    not_found: str = "now"
    """What an unknown bookmark means: now, epoch or fail."""
    select: str | None = None
    """The select list, as it was written."""
    pace: ReplayRate | None = None
    conflation: ConflationOptions | None = None
    pause: bool = False
    """It begins paused."""
    live: bool = False
    """Once it has caught up it is sent what is not persisted yet."""
    replace: bool = False
    """It takes the place of the subscription with its id, if there is one."""
    max_backlog: int | None = None
    """Of queues: how many unacknowledged messages it wants at most."""
    browse: bool = False
    """Of queues: what is available is read, and nothing is taken."""


def subscribe_options(text: str, *, replay: bool) -> SubscribeOptions:
    """The options of a command, with a bookmark (or positions) when `replay`. Raises `BadOption`."""
    options = parse_options(text)
    for name, value in options.items():
        if name == "resume":
            raise BadOption("resume is no option of a subscribe but a command: it names what goes on")
        if name not in _FLAGS | _VALUES:
            raise BadOption(f"option {shown(name)} is unknown or not built yet")
        if name in _FLAGS and value is not None:
            raise BadOption(f"option {name} takes no value, not {shown(value)}")
        if name in _VALUES and value is None:
            raise BadOption(f"option {name} needs a value: {name}=...")
        if name in _QUEUE_ONLY and replay:
            raise BadOption(f"option {name} excludes a bookmark, which replays and takes nothing")
        if name in _REPLAY_ONLY and not replay:
            raise BadOption(f"option {name} needs a bookmark{_WITHOUT_BOOKMARK.get(name, '')}")
    if "live" in options:
        for name in _NOT_LIVE:
            if name in options:
                raise BadOption(f"live excludes {name}: {_NOT_LIVE[name]}")
    not_found = options.get("bookmark_not_found") or "now"
    if not_found not in NOT_FOUND_POLICIES:
        raise BadOption(f"bookmark_not_found={shown(not_found)}: use now, epoch or fail")
    return SubscribeOptions(
        not_found,
        options.get("select"),
        read_replay_rate(options),
        read_conflation(options),
        "pause" in options,
        "live" in options,
        "replace" in options,
        _backlog(options),
        "browse" in options,
    )


def check_queue_options(options: SubscribeOptions, *, queue: bool) -> None:
    """Raise `BadOption` for what a subscription to queues cannot have, or only one to queues can."""
    if not queue:
        for name, given in (("browse", options.browse), ("max_backlog", options.max_backlog is not None)):
            if given:
                raise BadOption(f"option {name} is for queues, and what is subscribed to is none")
    elif options.conflation is not None:
        raise BadOption("conflation: each message of a queue is delivered, and acknowledged, by itself")
    elif options.browse and (options.max_backlog is not None or options.replace):
        raise BadOption("browse takes no max_backlog and replaces nothing: it reads, once")


def _backlog(options: Mapping[str, str | None]) -> int | None:
    text = options.get("max_backlog")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= queue_backlog_max):
        raise BadOption(f"max_backlog={shown(text)}: a whole number, 1 to {queue_backlog_max:,}")
    return int(text)
