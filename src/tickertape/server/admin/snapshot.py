"""Snapshot of a running instance for `/health`, `/ready` and `/stats`.

It is taken on the event loop of the server, in bounded steps. Limits apply to listed sessions, subscriptions
and topics, and to the connections and queues of one step.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from tickertape.base.bookmarks import format_timestamp
from tickertape.base.histogram import SECONDS_BUCKETS, Histogram
from tickertape.base.text_format import shown
from tickertape.engine.delivery.fanout import Fanout
from tickertape.engine.delivery.log_delivery import LogDelivery
from tickertape.engine.matching.interest import Interest
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.queue_feed import QueueFeed
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.engine.runtime.statistics import OTHER_TOPICS, Statistics, TopicCounters
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.feed import SowFeed
from tickertape.engine.sow.snapshot import SowSnapshot
from tickertape.engine.sow.snapshot import snapshot as state_of
from tickertape.engine.sow.topic import StateTopic
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.subscriptions.subscription import Feed
from tickertape.engine.transient.backlog import TransientFeed
from tickertape.server.admin.loop_query import InSteps
from tickertape.server.admin.schema import (
    PAUSED,
    Durations,
    HolesList,
    HoleStatus,
    JournalState,
    LinkStatus,
    MemoryState,
    Retention,
    SessionState,
    SlowClientsState,
    SowState,
    Stats,
    SubscriptionState,
    Syncs,
    TopicState,
    Totals,
    TransactionsState,
)
from tickertape.server.clock import clock
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.limits import (
    holes_listed_max,
    sessions_listed_max,
    snapshot_step_connections_max,
    snapshot_step_publishers_max,
    snapshot_step_queues_max,
    snapshot_step_sow_topics_max,
    subscriptions_counted_max,
    subscriptions_listed_max,
)

T = TypeVar("T")


class Status(NamedTuple):
    """State of the server."""

    state: str
    """`ready`, `waiting`, `draining` or `failed`."""
    reason: str | None


class TopicSnapshot(NamedTuple):
    """Counters of a topic. `with_topics` formats them on another thread, because formatting is slow."""

    name: str
    recorded: bool
    messages: int
    bytes: int
    publisher: int
    sequence: int
    timestamp: int
    subscriptions: int | None


class EngineSnapshot(NamedTuple):
    """The state of an instance. Topics are not formatted yet."""

    stats: Stats
    """`stats.topics` is empty."""
    topics: list[TopicSnapshot]


def with_topics(snapshot: EngineSnapshot) -> Stats:
    """Return the report with its topics. May run on any thread."""
    return msgspec.structs.replace(snapshot.stats, topics=[_topic(topic) for topic in snapshot.topics])


def status(driver: EngineDriver, *, needs_links: bool = False) -> Status:
    """Return the state of an instance, and the cause if it is not ready.

    `needs_links`: it is not ready while acknowledgements wait for a destination that is not connected. The
    reason names it in either case."""
    failure = driver.broker.journal.commits.failure
    if failure is not None:
        return Status("failed", f"{failure.code}: {failure}")
    if driver.stopped.done() and driver.stopped.result() is not None:
        return Status("failed", str(driver.stopped.result()))
    if driver.broker.draining:
        return Status("draining", "the server is stopping")
    links = driver.broker.links
    away = [] if links is None else links.awaited()
    if not away:
        return Status("ready", None)
    names = ", ".join(map(shown, away))
    return Status("waiting" if needs_links else "ready", f"acknowledgements wait for the destination {names}")


class InstanceSnapshot:
    """Snapshots of one instance."""

    def __init__(self, driver: EngineDriver, name: str, *, needs_links: bool = False) -> None:
        """`needs_links`: see `status`."""
        self._driver = driver
        self._name = name
        self._needs_links = needs_links
        self._started = time.time_ns() // 1000
        self._since = time.monotonic()

    @property
    def statistics(self) -> Statistics:
        """The counters of the engine."""
        return self._driver.broker.statistics

    @property
    def steps(self) -> Histogram:
        """Durations of the steps of the event loop."""
        return self._driver.steps

    def status(self) -> InSteps[Status]:
        """Return the state of the instance, in one step."""
        yield from ()
        return status(self._driver, needs_links=self._needs_links)

    def stats(self) -> InSteps[EngineSnapshot]:
        """Return everything except the rates and the memory of the process."""
        driver = self._driver
        outbox = 0
        for connections in _portions(list(driver.connections.values()), snapshot_step_connections_max):
            outbox += sum([connection.outbox_bytes for connection in connections])
            yield
        queues: list[QueueSnapshot] = []
        for portion in _portions(driver.broker.queues.snapshots_of_run(clock()), snapshot_step_queues_max):
            queues += portion
            yield
        records: list[SowSnapshot] = []
        for some in _portions(driver.broker.states.topics, snapshot_step_sow_topics_max):
            records += self._records_of(some)
            yield
        topics = self._topics()
        yield
        state, reason = status(driver, needs_links=self._needs_links)
        sessions = driver.broker.sessions
        listed = self._sessions()
        count = self._subscription_count()
        stats = Stats(
            instance=self._name,
            state=state,
            reason=reason,
            pid=os.getpid(),
            started=format_timestamp(self._started),
            uptime_seconds=round(time.monotonic() - self._since, 3),
            journal=self._journal(),
            event_loop=Durations(**_durations(driver.steps)),
            totals=self._totals(),
            connections=len(driver.connections),
            session_count=len(sessions),
            sessions=listed,
            sessions_left_out=len(sessions) - len(listed),
            subscription_count=count,
            subscriptions_left_out=count - sum(len(session.subscriptions) for session in listed),
            topics=[],
            memory=MemoryState(
                anonymous_bytes=None,
                tail_cache_bytes=driver.broker.journal.view.tail_bytes,
                outbox_bytes=outbox,
                inbound_bytes=driver.inbound.bytes + driver.handshakes.bytes,
            ),
            slow_clients=self._slow_clients(),
            transactions=self._transactions(),
            queues=queues,
            sow=self._sow(records) if records else None,
            links=self._links(),
        )
        return EngineSnapshot(stats, topics)

    def _journal(self) -> JournalState:
        journal = self._driver.broker.journal
        view = journal.view
        last = max((segment.timestamp for segment in view.segments[-2:]), default=0)
        return JournalState(
            identity=journal.identity,
            epoch=journal.commits.epoch,
            first_position=view.first_position,
            persisted_end=journal.commits.persisted_end,
            accepted_end=journal.commits.accepted_end,
            log_time=_time(last),
            segments=len(view.segments),
            bytes=sum([segment.end for segment in view.segments]),
            file_bytes=journal.file_bytes,
            commits=self.statistics.commits,
            publishers=len(journal.persisted_highest) - (CONTROL_PUBLISHER in journal.persisted_highest),
            pending_bytes=journal.commits.pending_bytes,
            full=journal.commits.full,
            retention=self._retention(),
            syncs=Syncs(policy=journal.policy.value, **_durations(self._driver.disk_worker.syncs)),
        )

    def _retention(self) -> Retention:
        view, retention = self._driver.broker.journal.view, self._driver.broker.retention
        retired, first = view.retired, view.first
        return Retention(
            first_bookmark=None if first is None else str(first.bookmark),
            first_time=None if first is None else _time(first.timestamp),
            retired_segments=0 if retired is None else retired.through,
            retired_bytes=0 if retired is None else retired.removed_bytes,
            removed_segments=retention.removed_segments,
            held_segments=retention.held_segments,
            held_bytes=retention.held_bytes,
            held_by=retention.held_by or None,
            failures=retention.failures,
        )

    def _totals(self) -> Totals:
        counts = self.statistics
        return Totals(
            persisted_messages=counts.persisted_messages,
            persisted_bytes=counts.persisted_bytes,
            unrecorded_messages=counts.unrecorded_messages,
            unrecorded_bytes=counts.unrecorded_bytes,
            sent_messages=counts.sent_messages,
            sent_bytes=counts.sent_bytes,
            duplicate_messages=self._driver.broker.duplicates,
            logons=counts.logons,
            unreadable_messages=self._driver.broker.compiler.filter_context.unreadable,
            refused=dict(counts.refused),
            ended=dict(counts.ended),
            ended_subscriptions=dict(counts.ended_subscriptions),
        )

    def _slow_clients(self) -> SlowClientsState:
        services = self._driver.broker.services
        backlogs = services.transient.slow_consumers
        spill = backlogs.spill
        return SlowClientsState(
            memory_bytes=backlogs.held_bytes,
            memory_limit_bytes=backlogs.limits.memory_bytes,
            disk_bytes=spill.disk_bytes,
            disk_limit_bytes=spill.disk_bytes_max,
            waiting_connections=len(backlogs.waiting),
            offline_connections=backlogs.offline_connections,
            offline_starts=backlogs.offline_starts,
            offline_stops=backlogs.offline_stops,
            written_bytes=spill.written_bytes,
            read_bytes=spill.read_bytes,
            failures=spill.failures,
            live_fallbacks=services.log.live.fallbacks,
        )

    def _transactions(self) -> TransactionsState:
        transactions = self._driver.broker.transactions
        staging = transactions.staging
        return TransactionsState(
            committed=transactions.committed,
            repeated=transactions.repeated,
            aborted=transactions.aborted,
            expired=staging.expired,
            staged_parts=staging.count,
            staged_bytes=staging.bytes,
            staged_limit_bytes=staging.limits.disk_bytes,
            waiting=transactions.waiting,
        )

    # -- SOW topics -----------------------------------------------------------------------------------

    def _records_of(self, topics: list[StateTopic]) -> list[SowSnapshot]:
        broker, mono = self._driver.broker, time.monotonic()
        folded = broker.states.fold.folded
        return [state_of(topic, broker.state_checkpoints.look(topic.name), folded, mono) for topic in topics]

    def _sow(self, topics: list[SowSnapshot]) -> SowState:
        broker = self._driver.broker
        fold, queries = broker.states.fold, broker.services.records
        requested = queries.oldest_requested_at
        seconds = None if requested is None else round(max(time.monotonic() - requested, 0.0), 3)
        return SowState(
            folded_position=fold.folded,
            lag_bytes=fold.lag_bytes,
            failure=None if fold.failure is None else str(fold.failure),
            memory_bytes=broker.states.memory.used,
            memory_limit_bytes=broker.states.memory.bytes_max,
            memory_refused_frames=broker.states.memory.refusals,
            queries=len(queries),
            oldest_query_seconds=seconds,
            results_bytes=queries.results_bytes,
            results_limit_bytes=queries.results_bytes_max,
            topics=topics,
        )

    # -- links ----------------------------------------------------------------------------------------

    def _links(self) -> list[LinkStatus]:
        links = self._driver.broker.links
        if links is None:
            return []
        dialers = self._driver.links
        assert dialers is not None, "a server that replicates has dialers"
        sources = {one.source: one.address for one in self._driver.link_connections().values()}
        end = self._driver.broker.journal.commits.persisted_end
        listed = []
        for row in links.rows():
            address, error, wait = sources.get(row.name, ""), row.error, 0.0
            behind = row.behind
            if row.direction == "out":
                dial = dialers.state(row.name)
                address, wait = dial.address, round(dial.wait, 3)
                error = dial.error or error
                if row.state not in ("live", "resync"):
                    behind = end - row.position  # the link has examined nothing yet
            counts = row.counters
            listed.append(
                LinkStatus(
                    name=row.name,
                    direction=row.direction,
                    state=row.state,
                    address=address,
                    log=row.log,
                    position=row.position,
                    behind_messages=behind,
                    behind_seconds=round(row.behind_seconds, 3),
                    level=row.level,
                    pinned_position=row.pinned,
                    held_frames=row.held,
                    paused=PAUSED if row.stopped else row.paused,
                    error=error,
                    retry_seconds=wait,
                    connects=counts.connects,
                    disconnects=counts.disconnects,
                    messages=counts.messages,
                    bytes=counts.bytes,
                    named_messages=counts.named,
                    requested_messages=counts.requested,
                    downgrades=row.downgrades,
                )
            )
        return listed

    def holes(self) -> InSteps[HolesList]:
        """Return the open holes of all publishers, up to a limit."""
        links = self._driver.broker.links
        found: list[HoleStatus] = []
        left_out = 0
        owners = [] if links is None else links.hole_owners()
        for some in _portions(owners, snapshot_step_publishers_max):
            for publisher in some:
                assert links is not None
                name, ranges = links.holes_of(publisher)
                room = holes_listed_max - len(found)
                left_out += max(len(ranges) - room, 0)
                found += [
                    HoleStatus(
                        client=name, publisher=publisher, first=one.first, last=one.last, proven=one.proven
                    )
                    for one in ranges[:room]
                ]
            yield
        return HolesList(holes=found, left_out=left_out)

    # -- sessions -------------------------------------------------------------------------------------

    def _sessions(self) -> list[SessionState]:
        room = subscriptions_listed_max
        listed = []
        for session in islice(self._driver.broker.sessions.values(), sessions_listed_max):
            state = self._session(session, room)
            room -= len(state.subscriptions)
            listed.append(state)
        return listed

    def _session(self, session: Session, room: int) -> SessionState:
        connection = self._driver.connections[session.conn]
        end = self._driver.broker.journal.commits.persisted_end
        services = self._driver.broker.services
        held = self._driver.broker.subscriptions.of(session.conn)
        feeds = islice((feed for sub in held.values() for feed in sub.feeds), room)
        subs = [_feed_state(services.log, feed, end) for feed in feeds]
        waiting = services.transient.slow_consumers.waiting.get(session)
        return SessionState(
            client=session.name,
            address=connection.address,
            connected_seconds=round(time.monotonic() - connection.since, 3),
            published_messages=session.published_messages,
            published_bytes=session.published_bytes,
            sent_messages=session.sent_messages,
            sent_bytes=session.sent_bytes,
            outbox_bytes=connection.outbox_bytes,
            backlog_bytes=0 if waiting is None else waiting.bytes,
            offline=waiting is not None and waiting.offline_since is not None,
            subscription_count=len(held),
            subscriptions=subs,
        )

    # -- topics ---------------------------------------------------------------------------------------

    def _subscription_count(self) -> int:
        return sum(map(len, self._driver.broker.subscriptions.held))

    def _topics(self) -> list[TopicSnapshot]:
        subscribed: Counter[str] | None = None
        if self._subscription_count() <= subscriptions_counted_max:
            subscribed = Counter()
            for held in self._driver.broker.subscriptions.held:
                subscribed.update(feed.topic for sub in held.values() for feed in sub.feeds)
        counts = self.statistics
        of = (lambda _: None) if subscribed is None else subscribed.__getitem__
        topics = [_topic_snapshot(name, topic, of(name)) for name, topic in counts.topics.items()]
        topics += [_topic_snapshot(OTHER_TOPICS, topic, None) for topic in counts.others.values()]
        return topics


def _portions(entries: Iterable[T], count_max: int) -> Iterator[list[T]]:
    """Yield up to `count_max` entries for each step of the event loop."""
    rest = iter(entries)
    while portion := list(islice(rest, count_max)):
        yield portion


_counts: Final = attrgetter(*TopicSnapshot._fields[1:-1])
"""Getter of the fields of `TopicCounters` in the order of `TopicSnapshot`."""


def _topic_snapshot(name: str, topic: TopicCounters, subscriptions: int | None) -> TopicSnapshot:
    return TopicSnapshot._make((name, *_counts(topic), subscriptions))


def _topic(snapshot: TopicSnapshot) -> TopicState:
    return TopicState(
        name=snapshot.name,
        recorded=snapshot.recorded,
        messages=snapshot.messages,
        bytes=snapshot.bytes,
        last_bookmark=f"{snapshot.publisher}|{snapshot.sequence}|" if snapshot.sequence else None,
        last_time=_time(snapshot.timestamp),
        subscriptions=snapshot.subscriptions,
    )


def _filter(cover: Interest) -> str | None:
    return None if cover.content is None else cover.content.filter


def _reads_with(delivery: LogDelivery, sub: LogFeed) -> int:
    """Return the number of other subscriptions in its live group, at its cursor, or resumed with it."""
    if isinstance(sub.group, Fanout):
        return len(sub.group) - 1
    return delivery.cursors.reads_with(sub)


def _feed_state(delivery: LogDelivery, feed: Feed, end: int) -> SubscriptionState:
    if isinstance(feed, LogFeed):
        return _recorded(delivery, feed, end)
    if isinstance(feed, TransientFeed):
        return _unrecorded(feed)
    if isinstance(feed, SowFeed):
        return _of_records(feed)
    assert isinstance(feed, QueueFeed | QueueBrowser)
    return _of_queues(feed)


def _recorded(delivery: LogDelivery, sub: LogFeed, end: int) -> SubscriptionState:
    caught_up = delivery.caught_up(sub)
    # Messages of other topics do not advance the position of a subscription that has caught up.
    position = max(end, sub.position) if caught_up else sub.considered_to
    return SubscriptionState(
        sub_id=sub.sub_id,
        topic=sub.topic,
        filter=_filter(sub.interest),
        paused=sub.paused,
        rate=None if sub.pace is None else str(sub.pace),
        conflation_seconds=None if sub.conflating is None else sub.conflating.interval_seconds,
        live=sub.live,
        reads_with=_reads_with(delivery, sub),
        recorded=True,
        position=position,
        lag_messages=max(end - position, 0),
        credit_bytes=sub.allowance.credit,
        caught_up=caught_up,
        blocked=not caught_up and delivery.cursors.blocked(sub),
    )


def _unrecorded(sub: TransientFeed) -> SubscriptionState:
    return SubscriptionState(
        sub_id=sub.sub_id,
        topic=sub.topic,
        filter=_filter(sub.interest),
        recorded=False,
        credit_bytes=sub.allowance.credit,
        caught_up=not sub.left,
        blocked=sub.left > 0,
        backlog_bytes=sub.backlog_bytes,
    )


def _of_records(sub: SowFeed) -> SubscriptionState:
    return SubscriptionState(
        sub_id=sub.sub_id,
        topic=sub.topic,
        filter=sub.filter,
        recorded=True,
        credit_bytes=sub.allowance.credit,
        caught_up=False,
        blocked=sub.blocked,
    )


def _of_queues(sub: QueueFeed | QueueBrowser) -> SubscriptionState:
    consumer = sub if isinstance(sub, QueueFeed) else None
    return SubscriptionState(
        sub_id=sub.sub_id,
        topic=sub.topic,
        filter=None if sub.content is None else sub.content.filter,
        recorded=True,
        credit_bytes=sub.allowance.credit,
        caught_up=consumer is not None and not any(queue.state.ready for queue in consumer.queues),
        blocked=consumer is not None and not consumer.room,
        queues=[queue.name for queue in consumer.queues] if consumer is not None else [sub.topic],
        unsettled=None if consumer is None else consumer.unacked,
        max_backlog=None if consumer is None else consumer.limit,
    )


def _durations(seconds: Histogram) -> dict[str, Any]:
    """Return the fields of `Durations`."""
    total = 0
    buckets = []
    for bound, count in zip(SECONDS_BUCKETS, seconds.counts, strict=False):
        total += count
        buckets.append((bound, total))
    return {
        "count": seconds.count,
        "total_seconds": seconds.total,
        "highest_seconds": seconds.highest,
        "p50_seconds": seconds.percentile(0.5),
        "p99_seconds": seconds.percentile(0.99),
        "buckets": buckets,
    }


def _time(micros: int) -> str | None:
    return format_timestamp(micros) if micros > 0 else None
