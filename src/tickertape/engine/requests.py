"""Owns what a subscribe or resolve command must be: its checks and options, and the search for its extent.

Must never ignore an option: what is unknown or not built yet is refused with its name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tickertape.base.bookmarks import FromNow, parse_bookmark
from tickertape.base.errors import (
    BadCommand,
    BadFilter,
    BadOption,
    BadTopic,
    SubscriptionExists,
    TopicNotRecorded,
    WrongJournal,
)
from tickertape.base.limits import (
    credit_bytes_max,
    message_cost_bytes,
    subscription_id_bytes_max,
    subscriptions_per_connection_max,
)
from tickertape.base.names import check_topic, is_pattern
from tickertape.base.options import parse_options
from tickertape.base.ports import Now
from tickertape.base.texts import shown
from tickertape.engine.points import NOT_FOUND_POLICIES, Extent, ExtentSearch, resolve
from tickertape.engine.publishing import Publishing
from tickertape.journal.journal import Journal
from tickertape.journal.retired import expired
from tickertape.wire.commands import Resolve, Subscribe

_FLAGS: Final = frozenset({"bookmark", "timestamp"})
_REPLAY_ONLY: Final = frozenset({"bookmark_not_found"})

Options = dict[str, str | None]


def check_subscribe(
    held: Collection[str], command: Subscribe | Resolve, publishing: Publishing, journal: Journal
) -> Options:
    """Refuse what cannot be done, with an error that says why; returns the options. `held` are the ids of the
    connection's subscriptions."""
    options = parse_options(command.options)
    replay = isinstance(command, Resolve) or command.bookmark is not None or command.positions is not None
    for name, value in options.items():
        if name in _FLAGS:
            if value is not None:
                raise BadOption(f"option {name} takes no value, not {shown(value)}")
        elif name in _REPLAY_ONLY:
            if not replay:
                raise BadOption(f"option {name} needs a bookmark")
        else:
            raise BadOption(f"option {shown(name)} is unknown or not built yet")
    policy = options.get("bookmark_not_found", "now")
    if policy not in NOT_FOUND_POLICIES:
        raise BadOption(f"bookmark_not_found={shown(str(policy))}: use now, epoch or fail")
    if is_pattern(command.topic):
        raise BadTopic(
            f"{shown(command.topic)} is a pattern; patterns are not built yet, subscribe to literal topics"
        )
    check_topic(command.topic)
    if replay and not publishing.is_recorded(command.topic):
        raise TopicNotRecorded(
            f"topic {shown(command.topic)} is not recorded: subscribe without a bookmark, or record it"
        )
    if isinstance(command, Subscribe):
        _check_subscription(held, command, journal)
    return options


def _check_subscription(held: Collection[str], command: Subscribe, journal: Journal) -> None:
    if command.filter is not None:
        raise BadFilter("content filters are not built yet")
    if not 0 < len(command.sub_id.encode()) <= subscription_id_bytes_max:
        raise BadCommand(f"a subscription id has 1 to {subscription_id_bytes_max} bytes")
    if not message_cost_bytes <= command.credit <= credit_bytes_max:
        raise BadCommand(f"a credit of {command.credit} bytes")
    if command.sub_id in held:
        raise SubscriptionExists(f"subscription id {shown(command.sub_id)} is in use on this connection")
    if len(held) >= subscriptions_per_connection_max:
        raise BadCommand(f"more than {subscriptions_per_connection_max} subscriptions on one connection")
    if command.positions is not None:
        if command.bookmark is not None:
            raise BadOption("positions and a bookmark exclude each other")
        if command.journal != journal.identity:
            raise WrongJournal(
                f"the positions are of journal {shown(str(command.journal))}, "
                f"this server holds {journal.identity}"
            )
        start, end = command.positions
        if start > end:
            raise BadOption(f"positions {start} to {end}: the end is below the start")
        if start < journal.view.first_position:
            raise expired(f"position {start}", journal.view.retired, journal.view.first)
    elif command.until_caught_up and command.bookmark is None:
        raise BadOption("until_caught_up needs a bookmark")


def extent_search(journal: Journal, command: Subscribe | Resolve, options: Options, now: Now) -> ExtentSearch:
    """The search for what a checked command covers. Raises `BadBookmark` at once for what cannot be read."""
    if isinstance(command, Subscribe) and command.positions is not None:
        return _known(Extent(command.positions[0], stop=command.positions[1]))
    if command.bookmark is None:
        return _known(Extent(journal.accepted_end))
    point = parse_bookmark(command.bookmark)
    if isinstance(point, FromNow):
        return _known(Extent(journal.accepted_end))
    not_found = options.get("bookmark_not_found") or "now"
    return resolve(journal, point, journal.accepted_end, not_found, journal.log_time(now))


def bookmarks_in(command: Subscribe | Resolve) -> int:
    """How many bookmarks are looked up for a command, about."""
    return 1 if command.bookmark is None else command.bookmark.count(",") + 1


def _known(extent: Extent) -> ExtentSearch:
    """A search that needs no reading."""
    yield from ()
    return extent
