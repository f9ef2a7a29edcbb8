"""Subscribe checks: validate subscribe and resolve commands, and create the search for their range.

A rejected command has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tickertape.base.bookmarks import AtBookmarks, FromNow, is_place, parse_bookmark
from tickertape.base.client_limits import ClientLimits
from tickertape.base.errors import (
    BadCommand,
    BadOption,
    LimitReached,
    NotReady,
    SubscriptionExists,
    TopicNotRecorded,
    WrongJournal,
)
from tickertape.base.interfaces import Now
from tickertape.base.limits import credit_bytes_max, message_cost_bytes, subscription_id_bytes_max
from tickertape.base.text_format import shown
from tickertape.engine.limits import replaces_waiting_max
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.feed import SowFeed
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.subscriptions.options import SubscribeOptions, subscribe_options
from tickertape.engine.subscriptions.start_position import ExtentSearch, ReplayRange, resolve, with_place
from tickertape.engine.subscriptions.subscription import Subscription
from tickertape.engine.transient.backlog import TransientFeed
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_reader import expired_error, look, oldest
from tickertape.wire.commands import Resolve, Sow, Subscribe

if TYPE_CHECKING:
    from tickertape.engine.subscriptions.log_places import LogPlaces

CommandT = TypeVar("CommandT", Subscribe, Resolve)


def check_subscribe(
    session: Session,
    held: Collection[str],
    command: Subscribe | Resolve,
    journal: Journal,
    compiler: InterestCompiler,
    replaces_replay: bool,
) -> tuple[Interest, SubscribeOptions]:
    """Validate a command. Return its interest and its options. Raises the error of an invalid command.

    `held` contains the subscription ids of the connection. `replaces_replay`: the subscription with the id of
    the command has a bookmark."""
    replay = isinstance(command, Resolve) or command.bookmark is not None or command.positions is not None
    options = subscribe_options(command.options, replay=replay or replaces_replay)
    if isinstance(command, Subscribe):
        _check_subscription(held, command, options, journal, compiler.limits)
        interest = compiler.compile(command.topic, command.filter, options.select, session.subscriber)
    else:
        if command.positions is not None:
            _check_positions(command, command.positions, journal)
        interest = compiler.compile(command.topic, command.filter, None, session.subscriber)
    if replay and interest.topic_name is not None and not compiler.catalog.recorded(interest.topic_name):
        raise TopicNotRecorded(
            f"Cannot replay topic {shown(command.topic)}: it is not persistent."
            f"{compiler.suggest_persistent(command.topic)} "
            "Subscribe without a bookmark, or make the topic persistent."
        )
    return interest, options


def check_id_and_credit(
    held: Collection[str], command: Subscribe | Sow, limits: ClientLimits, *, replaces: bool
) -> None:
    """Raise the error of an invalid subscription id or credit.

    `held` contains the subscription ids of the connection. `replaces`: the command may replace one."""
    if not 0 < len(command.sub_id.encode()) <= subscription_id_bytes_max:
        raise BadCommand(f"Invalid subscription id. Use 1 to {subscription_id_bytes_max} bytes.")
    if not message_cost_bytes <= command.credit <= credit_bytes_max:
        allowed = f"Use {message_cost_bytes} to {credit_bytes_max:,} bytes."
        raise BadCommand(f"Invalid credit of {command.credit:,} bytes. {allowed}")
    if command.sub_id in held and not replaces:
        raise SubscriptionExists(
            f"Cannot subscribe: the subscription id {shown(command.sub_id)} is in use on this connection. "
            "Use another id, or the option replace."
        )
    most = limits.subscriptions_per_connection_max
    if command.sub_id not in held and len(held) >= most:
        raise LimitReached(
            f"Cannot subscribe: this connection has {most:,} subscriptions, which is the maximum "
            "(subscriptions_per_connection_max). Unsubscribe from some, or open another connection."
        )


def check_replaces(sub: Subscription) -> None:
    """Raise `NotReady` if a subscription cannot be replaced now."""
    if sub.feed(SowFeed) is not None:
        raise NotReady(
            f"Cannot replace the subscription {shown(sub.sub_id)}: the server is still sending the result "
            "of its query. Wait for the end of the result, or unsubscribe."
        )
    log, rest = sub.feed(LogFeed), sub.feed(TransientFeed)
    waiting = 0 if log is None else len(log.pending_replacements)
    if rest is not None:
        waiting += len(rest.line)
    if waiting > replaces_waiting_max:
        raise NotReady(
            f"Cannot replace the subscription {shown(sub.sub_id)}: {waiting} earlier replacements wait until "
            "the client consumes messages of the subscription. Consume the messages first."
        )


def _check_subscription(
    held: Collection[str],
    command: Subscribe,
    options: SubscribeOptions,
    journal: Journal,
    limits: ClientLimits,
) -> None:
    check_id_and_credit(held, command, limits, replaces=options.replace)
    if command.positions is not None:
        _check_positions(command, command.positions, journal)
        if command.numbered and (options.conflation is not None or options.live):
            other = "live" if options.conflation is None else "conflation"
            raise BadOption(f"Options numbered and {other} exclude each other. Remove one of them.")
    elif command.numbered:
        raise BadOption("Option numbered requires positions. Add them, or remove the option.")
    elif command.until_caught_up and command.bookmark is None:
        raise BadOption("Option until_caught_up requires a bookmark. Add one, or remove the option.")


def _check_positions(command: Subscribe | Resolve, positions: tuple[int, int], journal: Journal) -> None:
    if command.bookmark:
        raise BadOption("Options positions and bookmark exclude each other. Remove one of them.")
    if command.journal != journal.identity:
        raise WrongJournal(
            f"Cannot use positions of journal {shown(str(command.journal))}: this server has journal "
            f"{journal.identity!r}. Connect to the server that assigned the positions."
        )
    start, end = positions
    if start > end:
        raise BadOption(
            f"Invalid positions {start} to {end}: the end is below the start. Use an end at or above the "
            "start."
        )
    if start < journal.view.first_position and journal.view.archive is None:
        raise expired_error(f"position {start}", journal.view)


def range_search(
    journal: Journal,
    command: Subscribe | Resolve,
    options: SubscribeOptions,
    now: Now,
    places: LogPlaces | None = None,
) -> ExtentSearch:
    """Return the search for the range of a validated command. Raises `BadBookmark`."""
    if isinstance(command, Subscribe) and command.positions is not None:
        return _between(journal, command.topic, *command.positions)
    if command.bookmark is None:
        return _known(ReplayRange(journal.commits.accepted_end))
    point, log_time = parse_bookmark(command.bookmark), journal.log_time(now)
    if isinstance(point, FromNow):
        search = _known(ReplayRange(journal.commits.accepted_end))
    else:
        search = resolve(
            journal, point, journal.commits.accepted_end, options.not_found, log_time, command.topic, places
        )
    if isinstance(command, Subscribe):
        return with_place(journal, point, search, log_time, command.topic, places)
    return search


def _between(journal: Journal, topic: str, start: int, end: int) -> ExtentSearch:
    """Search for the range between two positions. Raises `BookmarkExpired`."""
    if start < journal.view.first_position:
        older = yield from look(journal.view, topic)
        if start < oldest(journal.view, None if older is None else topic):
            raise expired_error(f"position {start}", journal.view)
    return ReplayRange(start, stop=end)


def of_underlying(catalog: TopicCatalog, command: CommandT) -> CommandT:
    """Convert a replay of a queue into a replay of its underlying topics."""
    topic = catalog.underlying(command.topic)
    return command if topic == command.topic else msgspec.structs.replace(command, topic=topic)


def without_queues(interest: Interest, workers: list[QueueWorker]) -> Interest:
    """Return the interest of a subscription without its queues."""
    if not workers:
        return interest
    if interest.topic_name is not None:
        return NO_TOPICS
    names = frozenset(worker.queue.name for worker in workers)
    return Interest(
        interest.topic, lambda topic: topic not in names and interest.covers(topic), interest.content, names
    )


def bookmarks_in(command: Subscribe | Resolve) -> int:
    """Return the approximate number of bookmarks that a command looks up."""
    return 1 if not command.bookmark else command.bookmark.count(",") + 1


def publishers_in(command: Subscribe) -> frozenset[int]:
    """Return the publishers with holes in the list of bookmarks of a command."""
    if not command.bookmark or "," not in command.bookmark:
        return frozenset()
    point = parse_bookmark(command.bookmark)
    if not isinstance(point, AtBookmarks):
        return frozenset()
    counts = Counter(one.publisher for one in point.bookmarks if not is_place(one))
    return frozenset(publisher for publisher, count in counts.items() if count > 1)


def _known(extent: ReplayRange) -> ExtentSearch:
    """Return a range without reading."""
    yield from ()
    return extent
