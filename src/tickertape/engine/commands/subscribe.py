"""Subscribe handler: begins, feeds and ends subscriptions of all connections.

Invariants:
- A connection uses a subscription id once at a time.
- Nothing is left of a connection that is gone.
"""

from __future__ import annotations

from typing import TypeAlias

from tickertape.base.errors import BadCommand, BadOption, NotReady, SubscriptionUnknown, TickertapeError
from tickertape.base.limits import combined_subscriptions_max, credit_bytes_max
from tickertape.base.text_format import shown
from tickertape.engine.commands.queue_subscribe import QueueSubscribeHandler, of_underlying, without_queues
from tickertape.engine.commands.range_searches import RangeSearch, RangeSearches
from tickertape.engine.commands.subscribe_checks import bookmarks_in, check_subscribe, range_search
from tickertape.engine.commands.subscription_registry import ConnectionSubscriptions, SubscriptionRegistry
from tickertape.engine.conflation.buffer import ConflationBuffer, ConflationBuffers
from tickertape.engine.delivery.log_delivery import LogDelivery
from tickertape.engine.limits import replaces_waiting_max
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import CreditWindow
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.engine.subscriptions.options import SubscribeOptions, check_queue_options
from tickertape.engine.subscriptions.position_limits import ScanLimits, range_of_limit
from tickertape.engine.subscriptions.start_position import ExtentSearch, ReplayRange, close_range
from tickertape.engine.transient.backlog import TransientFeed
from tickertape.engine.transient.delivery import TransientDelivery
from tickertape.journal.journal import Journal
from tickertape.wire.commands import Ack, Credits, Pause, Resolve, Resolved, Resume, Subscribe, Unsubscribe

Request: TypeAlias = Subscribe | Unsubscribe | Pause | Resume | Resolve

_ANY = 1 << 62
"""No limit."""


class _StartSearch(RangeSearch):
    """Search for the start of a subscription to recorded topics, which `place` holds."""

    def __init__(
        self,
        sub: LogFeed,
        command: Subscribe,
        steps: ExtentSearch,
        place: dict[str, LogFeed],
        target: int,
        backlog: int,
    ) -> None:
        super().__init__(sub.session, steps, bookmarks_in(command))
        self.sub = sub
        self.command = command
        self.place = place
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
        """Topic to read; empty: the topic of the command."""
        self.types = types


class SubscribeHandler:
    """All subscriptions, by connection."""

    def __init__(
        self,
        journal: Journal,
        compiler: InterestCompiler,
        outbox: Outbox,
        clock: EngineClock,
        delivery: LogDelivery,
        transient: TransientDelivery,
        queues: QueueRegistry,
        searches: RangeSearches,
    ) -> None:
        self._journal = journal
        self._compiler = compiler
        self.conflation = ConflationBuffers(compiler)
        self._outbox = outbox
        self._clock = clock
        self.delivery = delivery
        self.transient = transient
        self.queues = queues
        self.searches = searches
        self._registry = SubscriptionRegistry()
        self._queue_subscriptions = QueueSubscribeHandler(queues, compiler, outbox, self._registry)
        self._stopping = False

    def of(self, conn: int) -> ConnectionSubscriptions:
        """Return the subscriptions of a connection; not to be changed."""
        return self._registry.of(conn)

    def oldest_needed(self) -> RetentionPin | None:
        """Return the pin of the subscription that is farthest behind."""
        oldest: LogFeed | None = None
        end = least = self.delivery.fanout.position
        for held in self._registry.all():
            for sub in held.recorded.values():
                if sub.phase in (Phase.REPLAY, Phase.SHARED_REPLAY):
                    needed = self._needed(sub)
                    if needed < least or (oldest is None and needed == least):
                        oldest, least = sub, needed
        if oldest is None:
            return RetentionPin(end, "those at the end of the log", brief=True)
        who = f"subscription {shown(oldest.sub_id)} of client {shown(oldest.session.name)}"
        return RetentionPin(least, who)

    def _needed(self, sub: LogFeed) -> int:
        """Return from where on a subscription needs the log, beside the archive."""
        view = self._journal.view
        if sub.considered_to >= view.first_position or view.archive is None:
            return sub.considered_to
        return max(sub.considered_to, view.archive.end)

    def owed(self, conn: int) -> bool:
        """Return whether messages are still to be sent to a connection, as far as is known."""
        held = self._registry.of(conn)
        return self.transient.passing or held.owed or any(map(self._is_held_back, held.recorded.values()))

    def _is_held_back(self, sub: LogFeed) -> bool:
        """Return whether conflation alone holds messages back."""
        if sub.conflating is None or sub.rate_limiter is not None or sub.paused:
            return False
        return sub.conflating.unsent_position is not None or not self.delivery.caught_up(sub)

    def stop(self) -> None:
        """Start a clean stop: accept no subscription, and send what conflation holds."""
        self._stopping = True
        self.conflation.stop()
        self.delivery.stop()
        self.transient.stop()

    # -- commands -------------------------------------------------------------------------------------

    def answer(self, session: Session, command: Request) -> None:
        """Carry out a command; answer what is wrong with it."""
        try:
            if isinstance(command, Subscribe):
                self._check_not_stopping()
                self.subscribe(session, command)
            elif isinstance(command, Unsubscribe):
                self.unsubscribe(session, command)
            elif isinstance(command, Pause):
                self.pause(session, command)
            elif isinstance(command, Resume):
                self.resume(session, command)
            else:
                self._check_not_stopping()
                self.resolve(session, command)
        except TickertapeError as error:
            self._outbox.reject(session.conn, command.id, error)

    def _check_not_stopping(self) -> None:
        if self._stopping:
            raise NotReady("the server is stopping: subscribe again after reconnecting")

    def subscribe(self, session: Session, command: Subscribe) -> None:
        """Start a subscription; answer when its start is found. Raises what `check_subscribe` and
        `range_search` raise."""
        replay = command.bookmark is not None or command.positions is not None
        if replay:
            command = of_underlying(self._compiler.catalog, command)
        interest, options = self._check(session, command)
        workers = [] if replay else self.queues.named(interest)
        check_queue_options(options, queue=bool(workers))
        if options.browse:
            self._queue_subscriptions.browse(session, command, interest, options, workers)
            self._registry.of(session.conn).coming.pop(command.sub_id, None)
            return
        backlog = self.queues.check(session, workers, options.max_backlog)
        content = self._queue_subscriptions.content(session, command, interest, options, workers)
        interest = without_queues(interest, workers)
        of_log, of_rest = self._parts(interest, replay) if interest is not NO_TOPICS else (False, False)
        conflating = self._conflating(interest, options, of_log)
        conflating_rest = self._conflating(interest, options, of_rest)
        search = range_search(
            self._journal, command, options, self._clock.now
        )  # what it refuses leaves no trace
        held = self._registry.of(session.conn)
        old, old_rest = held.recorded.get(command.sub_id), held.live.get(command.sub_id)
        _check_replaces(old, old_rest)
        before = old or old_rest or held.of_queues.get(command.sub_id)
        allowance = CreditWindow(command.credit)
        if before is not None and not replay:
            # What the old one still has to report of its consumption is not reported any more.
            allowance = before.allowance
            allowance.renew(command.credit)
        if not replay:
            # An older replace whose start is still searched must not take the place of this one afterwards.
            held.coming.pop(command.sub_id, None)
            self._queue_subscriptions.consume(session, command, content, workers, backlog, allowance)
        if of_rest:
            self._begin_rest(session, command, interest, allowance, conflating_rest, old_rest)
        elif old_rest is not None and not replay:
            self.transient.retire(old_rest)
        if old is not None and not replay:
            self.delivery.credit(old)
            if options.pause:
                self.delivery.pause([old])
            self.delivery.replace(
                old, interest if of_log else None, options.pace, conflating, live=options.live
            )
            self.forget_ended()
        elif of_log:
            sub = LogFeed(session, command.sub_id, interest, allowance)
            sub.replays = command.bookmark is not None
            sub.numbered = command.numbered
            sub.paused, sub.live = options.pause, options.live
            sub.set_pace(options.pace)
            sub.conflating = conflating
            self._begin(sub, command, search, backlog)
            return
        self._outbox.send(session.conn, Ack(id=command.id, backlog=backlog))

    def _conflating(
        self, interest: Interest, options: SubscribeOptions, wanted: bool
    ) -> ConflationBuffer | None:
        """Return a conflation buffer if the options ask for one. Raises `BadOption`."""
        if options.conflation is None or not wanted:
            return None
        return self.conflation.make(interest, options.conflation)

    def _parts(self, interest: Interest, replay: bool) -> tuple[bool, bool]:
        """Return whether a subscription gets recorded messages, and whether it gets others."""
        if replay:
            return True, False
        if interest.topic_name is None:
            return True, not self._compiler.catalog.records_everything
        recorded = self._compiler.catalog.recorded(interest.topic_name)
        return recorded, not recorded

    def _begin_rest(
        self,
        session: Session,
        command: Subscribe,
        interest: Interest,
        allowance: CreditWindow,
        conflating: ConflationBuffer | None,
        old: TransientFeed | None,
    ) -> None:
        """Start the part for topics that are not recorded, in place of `old`."""
        if conflating is not None:  # what it is made of is looked at whole
            interest = self._compiler.without_select(interest, session.subscriber)
        live = TransientFeed(session, command.sub_id, interest, allowance)
        live.conflating = conflating
        self._registry.hold(session).live[command.sub_id] = live
        if old is None:
            self.transient.add(live)
        else:
            self.transient.replace(old, live)
            self.transient.credit(live)

    def _begin(self, sub: LogFeed, command: Subscribe, search: ExtentSearch, backlog: int = 0) -> None:
        """Search for the start of a subscription. An older one with its id goes on until then."""
        held = self._registry.hold(sub.session)
        replay = command.bookmark is not None or command.positions is not None
        place = held.coming if replay and sub.sub_id in held else held.recorded
        place[sub.sub_id] = sub
        target = self._journal.commits.accepted_end
        self._search(_StartSearch(sub, command, search, place, target, backlog))

    def _search(self, search: _StartSearch | _RangeLookup) -> None:
        try:
            is_done = self.searches.begin(search)
        except NotReady as error:
            self._not_found(search, error)
            return
        if is_done:
            self.searched(search)

    def searched(self, search: RangeSearch) -> None:
        """Start the subscription, or report the range, of a search that is done."""
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
        if isinstance(search, _StartSearch) and search.place.get(search.sub.sub_id) is search.sub:
            del search.place[search.sub.sub_id]
            self._registry.forget_if_empty(search.conn)
        self._outbox.reject(search.conn, search.command.id, error)

    def _start(self, search: _StartSearch, extent: ReplayRange) -> None:
        """Deliver from the start of a range on."""
        sub, command, place = search.sub, search.command, search.place
        held = self._registry.of(search.conn)
        is_held = place is held.recorded or place is held.coming
        if not is_held or place.get(sub.sub_id) is not sub:
            text = f"subscription {shown(sub.sub_id)} was ended before it began"
            self._not_found(search, SubscriptionUnknown(text))
            return
        if place is held.coming:
            self._end(held, sub.sub_id)
            self._registry.hold(sub.session).recorded[sub.sub_id] = sub
        if command.until_caught_up:
            stop = search.target if extent.stop is None else min(extent.stop, search.target)
            extent = extent._replace(stop=stop)
        answer = Ack(
            id=command.id,
            start=extent.start,
            found=extent.found,
            after=extent.after,
            backlog=search.backlog,
        )
        self._outbox.send(search.conn, answer)
        sub.begin(extent, search.target)
        self.delivery.begin(sub)

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
        """Pause bookmark subscriptions. Raises `SubscriptionUnknown`, `BadOption`; none is paused then."""
        self.delivery.pause(self._replays(session, command.sub_ids))
        self._outbox.send(session.conn, Ack(id=command.id))

    def resume(self, session: Session, command: Resume) -> None:
        """Resume paused subscriptions. Raises as `pause`."""
        self.delivery.resume(self._replays(session, command.sub_ids))
        self._outbox.send(session.conn, Ack(id=command.id))

    def _replays(self, session: Session, sub_ids: tuple[str, ...]) -> list[LogFeed]:
        held = self._registry.of(session.conn)
        self._check_known(held, sub_ids, "nothing was changed")
        for sub_id in sub_ids:
            sub = held.recorded.get(sub_id)
            if sub is None or not sub.replays:
                raise BadOption(
                    f"subscription {shown(sub_id)} has no bookmark: only bookmark subscriptions are paused "
                    "and resumed; nothing was changed"
                )
            if sub.live:
                raise BadOption(
                    f"subscription {shown(sub_id)} is live, which excludes pause and resume; "
                    "nothing was changed"
                )
        return [held.recorded[sub_id] for sub_id in dict.fromkeys(sub_ids)]

    @staticmethod
    def _check_known(held: ConnectionSubscriptions, sub_ids: tuple[str, ...], consequence: str) -> None:
        for sub_id in sub_ids:
            if sub_id not in held:
                raise SubscriptionUnknown(
                    f"no subscription {shown(sub_id)} on this connection; {consequence}"
                )

    def unsubscribe(self, session: Session, command: Unsubscribe) -> None:
        """End subscriptions. Raises `SubscriptionUnknown`; none is ended then."""
        held = self._registry.of(session.conn)
        self._check_known(held, command.sub_ids, "nothing was ended")
        for sub_id in command.sub_ids:
            self._end(held, sub_id)
        self._outbox.send(session.conn, Ack(id=command.id))

    def resolve(self, session: Session, command: Resolve) -> None:
        """Search for the positions of a range. Raises what `check_subscribe` and `range_search` raise."""
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
        self._search(_RangeLookup(session, command, search, topic, types))

    def credit(self, session: Session, sub_id: str, size: int) -> None:
        """Grant credit to a subscription, unless it is over. Raises `BadCommand`."""
        if not 0 < size <= credit_bytes_max:
            raise BadCommand(f"a credit of {size} bytes; 1 to {credit_bytes_max} may be given back")
        held = self._registry.of(session.conn)
        sub, live, queued = held.recorded.get(sub_id), held.live.get(sub_id), held.of_queues.get(sub_id)
        first = sub or live or queued
        if first is not None:
            first.allowance.credit += size
        if sub is not None:
            self.delivery.credit(sub)
        if live is not None:
            self.transient.credit(live)
        if queued is not None:
            self.queues.wake_feed(queued)

    def credits(self, session: Session, command: Credits) -> None:
        """Grant credit to several subscriptions. Raises `BadCommand`."""
        if not 0 < len(command.sub_ids) == len(command.bytes) <= combined_subscriptions_max:
            raise BadCommand(
                f"credits of {len(command.bytes)} numbers for {len(command.sub_ids)} subscriptions; "
                f"as many of each, 1 to {combined_subscriptions_max}"
            )
        held = self._registry.of(session.conn)
        for sub_id, size in zip(command.sub_ids, command.bytes, strict=True):
            sub = held.recorded.get(sub_id)
            several = sub_id in held.live or sub_id in held.of_queues
            if sub is None or sub.group is None or several or not 0 < size <= credit_bytes_max:
                self.credit(session, sub_id, size)
            else:  # what most are: it waits for nothing, there may be hundreds
                sub.allowance.credit += size

    # -- connections ----------------------------------------------------------------------------------

    def writable(self, session: Session) -> None:
        """Go on sending to a connection that has room again."""
        self.delivery.writable(session)
        self.transient.writable(session)
        for queued in self._registry.of(session.conn).of_queues.values():
            self.queues.wake_feed(queued)

    def drop(self, session: Session) -> None:
        """End the subscriptions of a connection that is gone."""
        self.searches.drop(session.conn)
        held = self._registry.of(session.conn)
        for sub_id in list(held):
            self._end(held, sub_id)

    # -- time -----------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return self.delivery.has_work or self.queues.has_work or self.transient.has_work

    def step(self) -> None:
        """Do one bounded step of delivery."""
        self.delivery.step()
        self.queues.step()
        self.forget_ended()
        self.transient.step()

    # -- inside ---------------------------------------------------------------------------------------

    def _check(self, session: Session, command: Subscribe | Resolve) -> tuple[Interest, SubscribeOptions]:
        held = self._registry.of(session.conn)
        old = None if isinstance(command, Resolve) else held.recorded.get(command.sub_id)
        return check_subscribe(
            session,
            held,
            command,
            self._compiler.catalog,
            self._journal,
            self._compiler,
            replaces_replay=old is not None and old.replays,
        )

    def _is_held(self, sub: LogFeed) -> bool:
        return self._registry.of(sub.session.conn).recorded.get(sub.sub_id) is sub

    def _end(self, held: ConnectionSubscriptions, sub_id: str) -> None:
        held.coming.pop(sub_id, None)
        if sub_id in held.of_queues:
            conn = held.of_queues[sub_id].session.conn
            self._queue_subscriptions.end(held, sub_id)
            self._registry.forget_if_empty(conn)
        sub = held.recorded.get(sub_id)
        if sub is not None:
            self.delivery.remove(sub)
            self.forget_ended()
        live = held.live.pop(sub_id, None)
        if live is not None:
            self.transient.remove(live)
            self._registry.forget_if_empty(live.session.conn)

    def forget_ended(self) -> None:
        """Forget subscriptions that are over."""
        for sub in self.delivery.take_ended():
            if self._is_held(sub):
                del self._registry.of(sub.session.conn).recorded[sub.sub_id]
                self._registry.forget_if_empty(sub.session.conn)
        for queued in self.queues.take_ended():
            self._queue_subscriptions.ended(queued)


def _check_replaces(old: LogFeed | None, rest: TransientFeed | None) -> None:
    waiting = 0 if old is None else len(old.pending_replacements)
    while rest is not None:
        waiting, rest = waiting + 1, rest.earlier
    if waiting > replaces_waiting_max:
        raise NotReady(
            f"{waiting} replaces of this subscription wait until what came before them was taken: consume it"
        )
