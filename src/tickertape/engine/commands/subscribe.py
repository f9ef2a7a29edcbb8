"""Subscribe handler: starts, changes and ends subscriptions of all connections.

Invariants:
- A connection uses a subscription id for at most one subscription at a time.
- All subscriptions of a closed connection are removed, in bounded steps. Nothing is sent to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tickertape.base.errors import BadCommand, BadOption, NotReady, SubscriptionUnknown, TickertapeError
from tickertape.base.limits import combined_subscriptions_max, credit_bytes_max
from tickertape.base.text_format import shown
from tickertape.engine.commands.feed_services import FeedServices
from tickertape.engine.commands.range_searches import RangeSearch, RangeSearches
from tickertape.engine.commands.sow import SowHandler
from tickertape.engine.commands.subscribe_checks import (
    bookmarks_in,
    check_replaces,
    check_subscribe,
    of_underlying,
    publishers_in,
    range_search,
    without_queues,
)
from tickertape.engine.conflation.buffer import ConflationBuffer, ConflationBuffers
from tickertape.engine.limits import dropped_subscriptions_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.queue_feed import QueueFeed
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.engine.subscriptions.options import SubscribeOptions, check_queue_options
from tickertape.engine.subscriptions.position_limits import ScanLimits, range_of_limit
from tickertape.engine.subscriptions.start_position import ExtentSearch, ReplayRange, close_range
from tickertape.engine.subscriptions.subscription import Subscription
from tickertape.engine.subscriptions.subscription_registry import (
    ConnectionSubscriptions,
    SubscriptionRegistry,
)
from tickertape.engine.transient.backlog import TransientFeed
from tickertape.journal.journal import Journal
from tickertape.wire.commands import (
    Ack,
    Credits,
    Pause,
    Resolve,
    Resolved,
    Resume,
    Sow,
    Subscribe,
    Unsubscribe,
)

if TYPE_CHECKING:
    from tickertape.engine.subscriptions.log_places import LogPlaces

Request: TypeAlias = Subscribe | Sow | Unsubscribe | Pause | Resume | Resolve

_ANY = 1 << 62
"""No limit."""


class _StartSearch(RangeSearch):
    """Search for the start of a subscription to persistent topics."""

    def __init__(self, feed: LogFeed, command: Subscribe, steps: ExtentSearch, target: int, backlog: int):
        super().__init__(feed.session, steps, bookmarks_in(command))
        self.feed = feed
        self.command = command
        self.target = target
        """End of the log at the time of the command."""
        self.backlog = backlog


class _RangeLookup(RangeSearch):
    """Search for the range of a resolve command."""

    def __init__(
        self,
        session: Session,
        command: Resolve,
        steps: ExtentSearch,
        topic: str,
        types: dict[str, tuple[str, ...]],
    ) -> None:
        super().__init__(session, steps, bookmarks_in(command))
        self.command = command
        self.topic = topic
        """Topic to read. Empty: the topic of the command."""
        self.types = types


class SubscribeHandler:
    """Executes the subscription commands."""

    def __init__(
        self,
        journal: Journal,
        compiler: InterestCompiler,
        outbox: Outbox,
        clock: EngineClock,
        services: FeedServices,
        searches: RangeSearches,
    ) -> None:
        self._journal = journal
        self._compiler = compiler
        self.conflation = ConflationBuffers(compiler)
        self._outbox = outbox
        self._clock = clock
        self.services = services
        self.searches = searches
        self._registry = SubscriptionRegistry()
        self._queries = SowHandler(journal, compiler, outbox, services, self._registry)
        self._dropping: deque[ConnectionSubscriptions] = deque()
        """Subscriptions of closed connections, to be ended in steps."""
        self.pending: Pending = (self._dropping,)
        """Not empty while subscriptions of closed connections remain."""
        self.held = self._registry.held
        """The subscriptions of each connection that has any."""
        self._stopping = False
        self._places: LogPlaces | None = None
        """Places of a server that replicates. None for others."""
        self._handlers: dict[type[Request], Callable[[Session, Any], None]] = {
            Subscribe: self.subscribe,
            Sow: self._queries.query,
            Unsubscribe: self.unsubscribe,
            Pause: self.pause,
            Resume: self.resume,
            Resolve: self.resolve,
        }

    def use_places(self, places: LogPlaces) -> None:
        """Resume subscriptions by the places of a server that replicates."""
        self._places = places

    def of(self, conn: int) -> ConnectionSubscriptions:
        """Return the subscriptions of a connection. Callers must not change them."""
        return self._registry.of(conn)

    def owed(self, conn: int) -> bool:
        """Return whether messages remain to be sent to a connection."""
        return self.services.transient.passing or self._registry.of(conn).owed

    def stop(self) -> None:
        """Start a clean stop: reject subscriptions, and send messages held by conflation."""
        self._stopping = True
        self.conflation.budget.stop()
        self.services.stop()

    # -- commands -------------------------------------------------------------------------------------

    def answer(self, session: Session, command: Request) -> None:
        """Execute a command, and answer its errors."""
        try:
            if self._stopping and isinstance(command, Subscribe | Sow | Resolve):
                raise NotReady("Cannot subscribe: the server is stopping. Subscribe again after a reconnect.")
            self._handlers[type(command)](session, command)
        except TickertapeError as error:
            self._outbox.reject(session.conn, command.id, error)

    def subscribe(self, session: Session, command: Subscribe) -> None:
        """Start a subscription, and answer after its start is found. Raises the errors of `check_subscribe`
        and `range_search`."""
        replay = command.bookmark is not None or command.positions is not None
        if replay:
            command = of_underlying(self._compiler.catalog, command)
        interest, options = self._check(session, command)
        queues = self.services.queues
        workers = [] if replay else queues.named(interest)
        check_queue_options(options, command.topic, queue=bool(workers))
        if options.browse and interest.topic_name is None:
            raise BadOption("Cannot browse a pattern: only one queue can be browsed. Use its name.")
        backlog = queues.check(session, workers, options.max_backlog)
        content = self._queue_content(session, command, interest, options, workers)
        if options.browse:
            self._browse(session, command, content, workers[0])
            return
        interest = without_queues(interest, workers)
        of_log, of_rest = self._parts(interest, replay) if interest is not NO_TOPICS else (False, False)
        conflating = self._conflating(interest, options, of_log)
        conflating_rest = self._conflating(interest, options, of_rest)
        search = range_search(self._journal, command, options, self._clock.now, self._places)
        old = self._registry.of(session.conn).get(command.sub_id)
        if old is not None:
            check_replaces(old)
        self.searches.check(session.conn, bookmarks_in(command))
        # A refusal leaves no trace: nothing is refused from here on.
        if replay:
            sub = Subscription(session, command.sub_id, command.credit)
        else:
            sub = self._begin(session, command, old)
            self._consume(sub, command.topic, content, workers, backlog)
            self._begin_transient(sub, interest if of_rest else None, conflating_rest)
        feed = sub.feed(LogFeed)
        if feed is not None:
            self.services.log.credit(feed)
            if options.pause:
                self.services.log.pause([feed])
            self.services.log.replace(
                feed, interest if of_log else None, options.pace, conflating, live=options.live
            )
            self.forget_ended()
        elif of_log:
            feed = LogFeed(sub, interest, self.services.log)
            feed.replays = command.bookmark is not None
            if self._places is not None:
                feed.known_publishers = publishers_in(command)
                feed.expirations = self._places.expirations
            feed.numbered = command.numbered
            feed.paused, feed.live = options.pause, options.live
            if options.fully_durable and self.services.durable is not None:
                feed.horizon = self.services.durable.horizon_of(command.topic)
            feed.set_pace(options.pace)
            feed.conflating = conflating
            sub.feeds.append(feed)
            self._hold(sub)
            self._search(_StartSearch(feed, command, search, self._journal.commits.accepted_end, backlog))
            return
        self._outbox.send(session.conn, Ack(id=command.id, backlog=backlog))
        self._go_on(sub)

    def _go_on(self, sub: Subscription) -> None:
        """Deliver messages that wait for renewed credit. The client counts it only after the answer."""
        feed = sub.feed(TransientFeed)
        if feed is not None:
            self.services.transient.credit(feed)  # may close the connection: nothing follows

    def _begin(self, session: Session, command: Subscribe, old: Subscription | None) -> Subscription:
        """Return the subscription that a command without a bookmark starts or replaces in place."""
        held = self._registry.hold(session)
        # A pending replay with this id must not replace the subscription later.
        held.cancel(command.sub_id)
        if old is not None:
            # Outstanding bytes of earlier messages are not granted again.
            old.allowance.renew(command.credit)
            return old
        sub = held[command.sub_id] = Subscription(session, command.sub_id, command.credit)
        return sub

    def _hold(self, sub: Subscription) -> None:
        """Register a subscription to persistent topics. An older one with its id continues until its start is
        found."""
        held = self._registry.hold(sub.session)
        held.cancel(sub.sub_id)
        if held.get(sub.sub_id, sub) is sub:
            held[sub.sub_id] = sub
        else:
            held.coming[sub.sub_id] = sub

    def _conflating(
        self, interest: Interest, options: SubscribeOptions, wanted: bool
    ) -> ConflationBuffer | None:
        """Return a conflation buffer if the options request one. Raises `BadOption`."""
        if options.conflation is None or not wanted:
            return None
        return self.conflation.make(interest, options.conflation)

    def _parts(self, interest: Interest, replay: bool) -> tuple[bool, bool]:
        """Return whether a subscription gets persistent messages, and whether it gets non-persistent ones."""
        if replay:
            return True, False
        if interest.topic_name is None:
            return True, not self._compiler.catalog.records_everything
        recorded = self._compiler.catalog.recorded(interest.topic_name)
        return recorded, not recorded

    def _queue_content(
        self,
        session: Session,
        command: Subscribe,
        interest: Interest,
        options: SubscribeOptions,
        workers: list[QueueWorker],
    ) -> ContentFilter | None:
        """Return the content filter for messages of queues, compiled for their topics."""
        if interest.content is None or interest.topic_name is None or not workers:
            return interest.content
        topic = workers[0].queue.definition.topic
        return self._compiler.compile(topic, command.filter, options.select, session.subscriber).content

    def _browse(
        self, session: Session, command: Subscribe, content: ContentFilter | None, worker: QueueWorker
    ) -> None:
        """Start to browse a queue."""
        sub = Subscription(session, command.sub_id, command.credit)
        self._outbox.send(session.conn, Ack(id=command.id))
        sub.feeds.append(self.services.queues.browse(sub, worker, content))
        self._hold(sub)

    def _consume(
        self,
        sub: Subscription,
        topic: str,
        content: ContentFilter | None,
        workers: list[QueueWorker],
        backlog: int,
    ) -> None:
        """Start consuming queues, or replace the queues that a subscription consumes."""
        old = sub.feed(QueueFeed)
        if old is not None and workers:
            self.services.queues.replace(old, topic, content, workers, backlog)
            return
        for feed in (old, sub.feed(QueueBrowser)):
            if feed is not None:
                sub.feeds.remove(feed)
                feed.close()
        if workers:
            sub.feeds.append(self.services.queues.subscribe(sub, topic, content, workers, backlog))

    def _begin_transient(
        self, sub: Subscription, interest: Interest | None, conflating: ConflationBuffer | None
    ) -> None:
        """Start the feed of non-persistent topics, and replace an older one. Without an interest, only remove
        the older one."""
        transient, old = self.services.transient, sub.feed(TransientFeed)
        if interest is None:
            if old is not None:
                transient.retire(old)
            return
        if conflating is not None:  # conflation needs whole bodies
            interest = self._compiler.without_select(interest, sub.session.subscriber)
        feed = TransientFeed(sub, interest, transient, conflating)
        sub.feeds.append(feed)
        if old is None:
            transient.add(feed)
        else:
            sub.feeds.remove(old)
            transient.replace(old, feed)

    def _search(self, search: _StartSearch | _RangeLookup) -> None:
        if self.searches.begin(search):
            self.searched(search)

    def searched(self, search: RangeSearch) -> None:
        """Start the subscription, or report the range, of a finished search."""
        self.searches.finished(search)
        assert isinstance(search, _StartSearch | _RangeLookup)
        try:
            extent = search.result()
        except TickertapeError as error:
            self._not_found(search, error)
            return
        if isinstance(search, _StartSearch):
            self._start(search, extent)
        else:
            self._resolved(search, extent)

    def _not_found(self, search: _StartSearch | _RangeLookup, error: TickertapeError) -> None:
        if isinstance(search, _StartSearch):
            held, sub = self._registry.of(search.conn), search.feed.subscription
            if held.coming.get(sub.sub_id) is sub:
                held.cancel(sub.sub_id)
            search.feed.close()
            self.forget_ended()
            self._registry.forget_if_empty(search.conn)
        self._outbox.reject(search.conn, search.command.id, error)

    def _start(self, search: _StartSearch, extent: ReplayRange) -> None:
        """Start delivery at the start of a range."""
        feed, command = search.feed, search.command
        sub = feed.subscription
        if feed.phase is Phase.ENDED:
            text = f"Cannot start subscription {shown(sub.sub_id)}: it was ended before its start was found."
            self._not_found(search, SubscriptionUnknown(text))
            return
        held = self._registry.of(search.conn)
        if held.coming.get(sub.sub_id) is sub:
            del held.coming[sub.sub_id]
            self._registry.end(held, sub.sub_id)
            self._registry.hold(sub.session)[sub.sub_id] = sub
        if command.until_caught_up:
            stop = search.target if extent.stop is None else min(extent.stop, search.target)
            extent = extent._replace(stop=stop)
        answer = Ack(
            id=command.id,
            start=extent.start,
            found=extent.found,
            after=extent.after,
            backlog=search.backlog,
            places=extent.places,
        )
        self._outbox.send(search.conn, answer)
        feed.begin(extent, search.target)
        self.services.log.begin(feed)
        self._go_on(sub)

    def _resolved(self, search: _RangeLookup, extent: ReplayRange) -> None:
        assert extent.stop is not None
        answer = Resolved(
            id=search.command.id,
            journal=self._journal.identity,
            start=extent.start,
            end=extent.stop,
            topic=search.topic,
            types=search.types,
        )
        self._outbox.send(search.conn, answer)

    def pause(self, session: Session, command: Pause) -> None:
        """Pause bookmark subscriptions. Raises `SubscriptionUnknown` or `BadOption` before any is paused."""
        self.services.log.pause(self._replays(session, command.sub_ids))
        self._outbox.send(session.conn, Ack(id=command.id))

    def resume(self, session: Session, command: Resume) -> None:
        """Resume paused subscriptions. Raises the errors of `pause`."""
        self.services.log.resume(self._replays(session, command.sub_ids))
        self._outbox.send(session.conn, Ack(id=command.id))

    def _replays(self, session: Session, sub_ids: tuple[str, ...]) -> list[LogFeed]:
        held = self._registry.of(session.conn)
        self._check_known(held, sub_ids, "No subscription was changed.")
        feeds = {}
        for sub_id in sub_ids:
            feed = held[sub_id].feed(LogFeed)
            if feed is None or not feed.replays:
                raise BadOption(
                    f"Cannot pause or resume subscription {shown(sub_id)}: it has no bookmark. "
                    "No subscription was changed. Subscribe with a bookmark to pause it."
                )
            if feed.live:
                raise BadOption(
                    f"Cannot pause or resume subscription {shown(sub_id)}: it has the option 'live'. "
                    "No subscription was changed. To pause it, subscribe without the option 'live'."
                )
            feeds[sub_id] = feed
        return list(feeds.values())

    @staticmethod
    def _check_known(held: ConnectionSubscriptions, sub_ids: tuple[str, ...], consequence: str) -> None:
        for sub_id in sub_ids:
            if sub_id not in held:
                raise SubscriptionUnknown(
                    f"Unknown subscription {shown(sub_id)} on this connection. "
                    f"{consequence} Use the id of an active one."
                )

    def unsubscribe(self, session: Session, command: Unsubscribe) -> None:
        """End subscriptions. Raises `SubscriptionUnknown` before any is ended."""
        held = self._registry.of(session.conn)
        self._check_known(held, command.sub_ids, "No subscription was ended.")
        for sub_id in command.sub_ids:
            self._registry.end(held, sub_id)
        self._outbox.send(session.conn, Ack(id=command.id))

    def resolve(self, session: Session, command: Resolve) -> None:
        """Search for the positions of a range. Raises the errors of `check_subscribe` and `range_search`."""
        asked, command = command.topic, of_underlying(self._compiler.catalog, command)
        interest, options = self._check(session, command)
        types = {} if command.filter is None else self._compiler.other_types(interest)
        if command.positions is not None:
            bounds = ScanLimits(command.messages_max or _ANY, command.bytes_max or _ANY)
            search = range_of_limit(self._journal, interest, command.topic, command.positions, bounds)
        else:
            search = range_search(self._journal, command, options, self._clock.now)
            search = close_range(self._journal, search, command.topic)
        topic = "" if command.topic == asked else command.topic
        self.searches.check(session.conn, bookmarks_in(command))
        self._search(_RangeLookup(session, command, search, topic, types))

    def credit(self, session: Session, sub_id: str, size: int) -> None:
        """Grant credit to a subscription, unless it has ended. Raises `BadCommand`."""
        if not 0 < size <= credit_bytes_max:
            raise BadCommand(f"Invalid credit of {size} bytes. Use 1 to {credit_bytes_max} bytes.")
        sub = self._registry.of(session.conn).get(sub_id)
        if sub is not None:
            sub.grant(size)

    def credits(self, session: Session, command: Credits) -> None:
        """Grant credit to several subscriptions. Raises `BadCommand`."""
        if not 0 < len(command.sub_ids) == len(command.bytes) <= combined_subscriptions_max:
            raise BadCommand(
                f"Invalid credits: {len(command.bytes)} numbers for {len(command.sub_ids)} subscriptions. "
                f"Send one number for each of 1 to {combined_subscriptions_max} subscriptions."
            )
        for sub_id, size in zip(command.sub_ids, command.bytes, strict=True):
            self.credit(session, sub_id, size)

    # -- connections ----------------------------------------------------------------------------------

    def drop(self, session: Session) -> None:
        """End the subscriptions of a closed connection: queue consumers and some others now, the rest in
        later steps. Its session has ended, so nothing is sent to them meanwhile."""
        self.searches.drop(session.conn)
        self.services.drop(session)
        self._dropping.append(self._registry.take(session.conn))
        self._drop_some()

    def _drop_some(self) -> None:
        """End a bounded number of subscriptions of closed connections."""
        left = dropped_subscriptions_max
        while self._dropping:
            held = self._dropping[0]
            subs = held.coming or held
            if not subs:
                self._dropping.popleft()
            elif left:
                _, sub = subs.popitem()
                sub.close()
                left -= 1
            else:
                return

    # -- time -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Execute one bounded step of delivery, and of the end of subscriptions."""
        self._drop_some()
        self.services.step()
        self.forget_ended()

    # -- internals ------------------------------------------------------------------------------------

    def _check(self, session: Session, command: Subscribe | Resolve) -> tuple[Interest, SubscribeOptions]:
        held = self._registry.of(session.conn)
        old = None if isinstance(command, Resolve) else held.get(command.sub_id)
        feed = None if old is None else old.feed(LogFeed)
        replaces_replay = feed is not None and feed.replays
        return check_subscribe(session, held, command, self._journal, self._compiler, replaces_replay)

    def forget_ended(self) -> None:
        """Remove feeds that have ended, and subscriptions without feeds."""
        for feed in self.services.take_ended():
            sub = feed.subscription
            if feed in sub.feeds:
                sub.feeds.remove(feed)
                feed.close()
                held = self._registry.of(sub.session.conn)
                if not sub.feeds and held.get(sub.sub_id) is sub:
                    sub.close()
                    del held[sub.sub_id]
                    self._registry.forget_if_empty(sub.session.conn)
