"""Broker: a sans-I/O state machine that turns commands, disk answers and time into effects.

It composes the components of the engine, and runs the same sequence of steps after each input that may change
the log.

Invariants:
- It never waits, reads a clock, or accesses a socket or file.
- A misbehaving client gets a `Goodbye` and is closed. It never causes an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import TYPE_CHECKING, Any

from tickertape.base.client_limits import DEFAULT, ClientLimits
from tickertape.base.errors import (
    AlreadyLoggedOn,
    BadCommand,
    LogonRequired,
    NameInUse,
    NotReady,
    SlowClient,
    TickertapeError,
)
from tickertape.base.interfaces import Buffer, Now
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.engine.commands.body_validation import BodyValidation
from tickertape.engine.commands.feed_services import FeedServices
from tickertape.engine.commands.frame_requests import RequestLookup, RequestLookups
from tickertape.engine.commands.publish import PublishHandler
from tickertape.engine.commands.publish_checks import PublishChecks
from tickertape.engine.commands.range_searches import RangeSearch, RangeSearches
from tickertape.engine.commands.subscribe import Request, SubscribeHandler
from tickertape.engine.delivery.cursor import Cursor
from tickertape.engine.delivery.log_delivery import LogDelivery
from tickertape.engine.delivery.shared_cursor import SharedCursor
from tickertape.engine.log_reads.log_reads import LogReads, ReadResult, ReadTask
from tickertape.engine.log_reads.log_scan import PersistedReader
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.checkpoints import CheckpointWriter, RecoveredQueues, beginnings
from tickertape.engine.queues.log_records import QueueLog
from tickertape.engine.queues.message_reader import QueueAccess
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.retention import RetentionManager, RetentionTask
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import Effect, Fatal, LogonAccepted, ReadTaskDone
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.runtime.statistics import Statistics
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.ack_tracker import AckTracker
from tickertape.engine.sessions.heartbeat import HeartbeatMonitor, heartbeat_seconds
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.registry import AllowAll, LogonPolicy, SessionRegistry
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.checkpoints import StateCheckpoints
from tickertape.engine.sow.recovery import StatePlan
from tickertape.engine.sow.registry import RecoveredStates, StateAccess, StateRegistry
from tickertape.engine.transactions.coordinator import TransactionCoordinator
from tickertape.engine.transactions.records import CommittedTransactions
from tickertape.engine.transactions.staging_area import StagingArea, StagingLimits
from tickertape.engine.transient.delivery import TransientDelivery
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.journal.commit.group_commit import PersistedCommit
from tickertape.journal.commit.jobs import JournalJob, PublishState, RetireSegments, WriteQueues, WriteState
from tickertape.journal.format.staging_file import PreparedPart
from tickertape.journal.journal import Journal
from tickertape.journal.reading.archive_reader import ArchiveAnswer
from tickertape.journal.reading.log_view import LogPart
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.commands import (
    WIRE_VERSION,
    Abort,
    Command,
    Commit,
    Credit,
    Credits,
    Flush,
    Heartbeat,
    LoggedOn,
    Logon,
    LogonReplication,
    Pause,
    Prepare,
    Publish,
    Resolve,
    Resume,
    Sow,
    Stage,
    Subscribe,
    Unsubscribe,
)
from tickertape.wire.heartbeat import Liveness

if TYPE_CHECKING:
    from tickertape.engine.replication.links.registry import LinkRegistry
    from tickertape.engine.replication.links.replication import Replication
    from tickertape.engine.replication.links.sync_topics import SyncTopics
    from tickertape.engine.replication.subscribers.persisted_facts import PersistedFacts
    from tickertape.engine.sessions.sync_ack_tracker import SyncAckTracker
    from tickertape.wire.link import DestinationCommand, SourceCommand


class Broker:
    """The engine.

    `rights` decides about logons. With `replication`, links connect it to other instances.

    The driver takes `effects()` after each input: all `pending_effects`. While `has_work`, it calls `work`
    between other inputs."""

    def __init__(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        *,
        instance: str,
        software: str,
        catalog: TopicCatalog | None = None,
        retention: RetentionPolicy | None = None,
        slow_clients: SlowConsumerLimits | None = None,
        staging: StagingLimits | None = None,
        rights: LogonPolicy | None = None,
        limits: ClientLimits = DEFAULT,
        hash_secret: bytes = bytes(16),
        sow_bytes_max: int = 1 << 62,
        replication: Replication | None = None,
    ) -> None:
        self.journal = journal
        self._commits = journal.commits
        self.statistics = Statistics()
        self._instance, self._software, self._replication = instance, software, replication
        self.catalog = catalog = catalog or TopicCatalog()
        self._clock = EngineClock(journal.commits)
        self._outbox = Outbox(self.statistics, self._clock)
        exclusive = not catalog.records_nothing
        rights = rights or AllowAll()
        self._sessions = SessionRegistry(instance, registry, rights, self.statistics, exclusive=exclusive)
        self.sessions: Mapping[int, Session] = self._sessions.by_conn  # in the order of logons
        self._writer = LogWriter(journal, registry, self._clock, replicating=replication is not None)
        sent = None if replication is None else replication.sent_topics()
        checks = PublishChecks(catalog, BodyValidation(catalog, limits.message_bytes_max), sent)
        self._throttle = throttle = ReadThrottle(self._outbox)
        self._sync = None if replication is None else replication.sync_topics()
        self._sync_acks = None if self._sync is None else self._make_sync_acks(self._sync)
        self._acks = self._sync_acks or AckTracker(journal, throttle)
        self.heartbeats = HeartbeatMonitor(self._outbox, self._clock)
        self.compiler = InterestCompiler(catalog, self._clock, limits)
        self.reads = LogReads(self._outbox)
        slow, close = slow_clients or SlowConsumerLimits(), self._close_slow_consumer
        self._delivery = LogDelivery(journal, self._outbox, self._clock, self.reads, slow.age_seconds)
        self._transient = TransientDelivery(self._outbox, self._clock, slow, throttle, close)
        access = QueueAccess(journal, self._outbox, self._clock, self.reads, QueueLog(journal, self._writer))
        self.queues = QueueRegistry(catalog, access, self.compiler)
        self.states = self._make_states(hash_secret, limits.message_bytes_max, sow_bytes_max)
        self.services = self._make_services()
        self.subscriptions = self._make_subscribe_handler()
        self.state_checkpoints = self._make_state_checkpoints()
        self._checkpoints = CheckpointWriter(self.queues, journal, self._outbox, self._clock)
        self._publish_handler = self._make_publish_handler(checks)
        self.transactions = self._make_transactions(registry, checks, staging or StagingLimits())
        self.retention = self._make_retention(retention or RetentionPolicy())
        self.links, self._persisted_facts = self._make_links(registry, replication)
        self._unauthenticated: set[int] = set()
        self._pending = self._all_pending()
        self._has_queues, self._has_states = bool(catalog.queues), bool(catalog.sow)
        self.pending_effects: Sized = self._outbox.effects
        self.next_deadline = self._clock.next_deadline  # monotonic seconds at which to call `wake`, or None
        self._acknowledged: list[PersistedCommit] = []  # whose messages are not delivered yet
        self._failed = self.draining = self._step_waits = False  # waits: the last `work` delivered commits
        self.statistics.name_topics(catalog.recorded_names)

    def _make_services(self) -> FeedServices:
        delivery, transient = self._delivery, self._transient
        return FeedServices(delivery, transient, self.queues, self.states, durable=self._sync)

    def _make_publish_handler(self, checks: PublishChecks) -> PublishHandler:
        lookups = RequestLookups(self.reads, self._throttle)
        return PublishHandler(self._writer, self._acks, checks, self.services, self._outbox, lookups)

    def _make_sync_acks(self, sync: SyncTopics) -> SyncAckTracker:
        from tickertape.engine.sessions.sync_ack_tracker import SyncAckTracker

        return SyncAckTracker(self.journal, self._throttle, sync)

    def _make_states(self, secret: bytes, message_max: int, sow_max: int) -> StateRegistry:
        journal, outbox, context = self.journal, self._outbox, self.compiler.filter_context
        access = StateAccess(journal, outbox, self.reads, self._writer, self._clock, message_max, sow_max)
        return StateRegistry(self.catalog, access, self._throttle, context, secret)

    def _make_state_checkpoints(self) -> StateCheckpoints:
        states = self.states
        return StateCheckpoints(states.topics, states.fold, self.journal, self._outbox, self._clock)

    def _all_pending(self) -> Pending:
        subs, services, reads = self.subscriptions.pending, self.services.pending, self.reads.pending
        checkpoints = *self._checkpoints.pending, *self.state_checkpoints.pending
        links = () if self.links is None else self.links.pending
        return (*subs, *services, *reads, *checkpoints, *links)

    def _make_subscribe_handler(self) -> SubscribeHandler:
        return SubscribeHandler(
            self.journal,
            self.compiler,
            self._outbox,
            self._clock,
            self.services,
            RangeSearches(self.reads, self._throttle),
        )

    def _make_retention(self, policy: RetentionPolicy) -> RetentionManager:
        retention = RetentionManager(self.journal, policy, self._outbox, self._clock, self.reads)
        retention.pin(self.queues.oldest_needed)
        retention.pin(self._delivery.oldest_needed)
        retention.pin(self.services.records.oldest_needed)
        retention.pin_states(self.state_checkpoints)
        return retention

    def _make_transactions(
        self, registry: PublisherDirectory, checks: PublishChecks, limits: StagingLimits
    ) -> TransactionCoordinator:
        journal = self.journal
        staging = StagingArea(journal.journal_id, limits, self._outbox, self._clock, self._throttle)
        return TransactionCoordinator(
            self._writer,
            self._sessions,
            checks,
            staging,
            self._outbox,
            CommittedTransactions(registry.latest.values()),
        )

    def _make_links(
        self, registry: PublisherDirectory, replication: Replication | None
    ) -> tuple[LinkRegistry | None, PersistedFacts | None]:
        """Return the links of a server that replicates, and the facts for its subscriptions."""
        if replication is None:
            return None, None
        from tickertape.engine.replication.links.parts import LinkParts
        from tickertape.engine.replication.links.registry import LinkRegistry
        from tickertape.engine.replication.subscribers.persisted_facts import PersistedFacts

        parts = LinkParts(
            self._instance,
            self._software,
            self.journal,
            registry,
            self.catalog,
            self._writer,
            self._outbox,
            self._clock,
            self.reads,
            self._throttle,
            self.heartbeats,
        )
        links = LinkRegistry(parts, replication, self._sync)
        self.retention.pin(links.oldest_needed)
        exact = self._writer.exact
        assert exact is not None
        facts = PersistedFacts(self.journal, replication.facts, exact.known, links)
        self._delivery.use_facts(facts)
        self.subscriptions.use_places(facts)
        return links, facts

    # -- inputs ---------------------------------------------------------------------------------------

    def connected(self, conn: int) -> None:
        """Add a connection that the driver accepted."""
        self._unauthenticated.add(conn)

    def disconnected(self, conn: int) -> None:
        """Remove a closed connection, and end its subscriptions, many of them in later steps."""
        if self.links is not None and conn in self.links.connections:
            self.links.lost(conn)
            return
        self._unauthenticated.discard(conn)
        self._throttle.forget(conn)
        self.heartbeats.drop(conn)
        self._outbox.forget(conn)
        session = self._sessions.remove(conn)
        if session is not None:
            session.end()
            self._publish_handler.drop(session)
            if self._sync_acks is not None:
                self._sync_acks.forget(conn)
            self.transactions.gone(conn)
            self.subscriptions.drop(session)
            self._submit()

    def goodbye(self, conn: int, error: TickertapeError) -> None:
        """Close a connection with an error, and remove it at once."""
        if self.links is not None and conn in self.links.connections:
            self.links.end(conn, error)
            return
        self._outbox.close(conn, error)
        self.disconnected(conn)

    def writable(self, conn: int) -> None:
        """Resume sending to a connection that is writable again."""
        session = self._sessions.by_conn.get(conn)
        if session is not None:
            if self._acknowledged:
                self._deliver()
            self.services.writable(session)
        elif self.links is not None and conn in self.links.connections:
            self.links.set_writable(conn, writable=True)

    def blocked(self, conn: int) -> None:
        """Stop sending to a connection with more than `outbox_bytes_max` to write."""
        session = self._sessions.by_conn.get(conn)
        if session is not None:
            session.writable = False
        elif self.links is not None and conn in self.links.connections:
            self.links.set_writable(conn, writable=False)

    def link_connected(self, conn: int, destination: str, token: str | None, now: Now) -> None:
        """Open the link to a destination on an established connection. `token` is sent to it.

        The engine answers with `LinkEnded` when the link ends."""
        self._begin(now)
        assert self.links is not None
        self.links.connected(conn, destination, token)
        self._after_input()

    def link_received(
        self,
        conn: int,
        command: SourceCommand | DestinationCommand,
        batch: MessageBatch | None,
        now: Now,
    ) -> None:
        """Handle a command of a link. The first one of an accepted connection is `LinkOpen`."""
        self._begin(now)
        assert self.links is not None
        if conn in self._unauthenticated:
            self._unauthenticated.discard(conn)
            self.links.accept(conn)
        self.links.received(conn, command, batch)
        self._after_links(self.links)
        self._after_input()

    def change_level(self, destination: str, now: Now, *, downgraded: bool) -> None:
        """Downgrade or upgrade the link to a destination, by a command of an operator.

        It takes effect when its record is persisted. Raises `TickertapeError` if it is refused."""
        self._begin(now)
        assert self.links is not None
        self.links.change_level(destination, downgraded=downgraded)
        self._after_input()

    def set_link_stopped(self, destination: str, now: Now, *, stopped: bool) -> None:
        """Pause or resume the link to a destination. Raises `BadOption` for an unknown one."""
        self._begin(now)
        assert self.links is not None
        self.links.set_stopped(destination, stopped=stopped)
        self._after_input()

    def received(self, conn: int, command: Command, batch: MessageBatch | None, now: Now) -> None:
        """Handle a command."""
        self._clock.set(now)  # as `_begin`, without a call for each message
        if self._acknowledged:
            self._deliver()
        session = self._sessions.by_conn.get(conn)
        try:
            if self._commits.failure is not None:
                raise self._commits.failure
            if session is None:
                if conn in self._unauthenticated:
                    self._logon(conn, command)
                return
            self._dispatch(session, command, batch)
        except TickertapeError as error:
            self.goodbye(conn, error)
        self._after_input()

    def probed(self, conn: int, sight: Liveness, now: Now) -> None:
        """Handle the answer to a `ProbeConnection`."""
        self._begin(now)
        error = self.heartbeats.probed(conn, sight)
        if error is not None:
            self.goodbye(conn, error)

    def archive_changed(self, now: Now) -> None:
        """Let retention check again, after the archive has changed."""
        self._begin(now)
        self.retention.freed()

    def disk_done(self, job: JournalJob, error: OSError | None, salt: int, now: Now) -> None:
        """Handle the answer to a `DiskJob`."""
        self._clock.set(now)  # as `_begin`, without a call for each message
        if self._acknowledged:
            self._deliver()
        if isinstance(job, RetireSegments):
            self.retention.done(job, error)
        elif isinstance(job, WriteQueues):
            self._checkpoints.done(error)
        elif isinstance(job, WriteState | PublishState):
            self.state_checkpoints.done(job, error)
            if self.state_checkpoints.take_freed():
                self.retention.freed()
        else:
            self._commits.done(job, error, salt, now)
        self._after_disk()

    def read_done(self, token: int, data: Buffer | ArchiveAnswer | TickertapeError, now: Now) -> None:
        """Handle the answer to a `ReadLog` or an `ArchiveRead`."""
        self._begin(now)
        self._hand_out(self.reads.answered(token, data))
        self._after_input()

    def run(self, task: ReadTask[Any]) -> None:
        """Run a task of the driver, until `ReadTaskDone`."""
        if self.reads.run(task):
            self._outbox.put(ReadTaskDone(task))

    def spill_done(self, token: int, data: Buffer | OSError | None, now: Now) -> None:
        """Handle the answer to a `SpillWrite` (None, or an error) or a `SpillRead`."""
        self._begin(now)
        self._transient.spill_done(token, data)
        self._after_input()

    def staging_done(self, token: int, result: list[memoryview] | TickertapeError, now: Now) -> None:
        """Handle the answer to a `StagingJob`: the blocks of an opened file, None, or an error."""
        self._begin(now)
        self.transactions.done(token, result)
        self._after_disk()

    def wake(self, now: Now) -> None:
        """Execute everything that is due."""
        self._begin(now)
        self._clock.announce_all()
        self._outbox.release()
        self.transactions.wake()
        self._transient.settle()
        self.queues.wake()
        self.states.expiry.wake()
        self.states.columns.wake()
        self._checkpoints.wake()
        self.state_checkpoints.wake()
        if self.links is not None:
            self.links.wake()
        self._commits.wake(now)
        for session, why in self._delivery.overdue().items():
            self._close_slow_consumer(session, why)
        self._delivery.settle()
        self.retention.wake()
        self.heartbeats.wake()
        self._after_disk()

    def work(self, now: Now) -> None:
        """Deliver the acknowledged commits, or execute one bounded step of delivery and of reads.

        A step waits for the delivery of commits at most once, so that steady commits do not prevent it."""
        self._clock.set(now)
        if self._acknowledged:
            self._deliver()
            self._step_waits = not self._step_waits
            if self._step_waits:
                return
        self._step_waits = False
        if any(self._pending):
            self.subscriptions.step()
            self._hand_out(self.reads.step())
            self._checkpoints.step()
            self.state_checkpoints.log_advanced()
            self.state_checkpoints.step()
            if self.links is not None:
                self.links.step()
                self._after_links(self.links)
            self._after_input()

    def close(self, now: Now) -> None:
        """Start a clean stop (`draining`): accept no new input, persist the rest, seal the log."""
        self._begin(now)
        self.draining = True
        self.subscriptions.stop()
        if self.links is not None:
            self.links.stop()
        self._commits.close(now)
        self._after_disk()

    # -- outputs --------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Remove and return the effects, in order."""
        if self._transient.spends:
            self._transient.written()
        return self._outbox.take() if self.pending_effects else []

    @property
    def has_work(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._acknowledged) or any(self._pending)

    def begin_replication(self, now: Now) -> None:
        """Append the record of this run, as its first row. Called once with `replication`, before any other
        input."""
        self._begin(now)
        assert self.links is not None
        self.links.begin()
        self._after_disk()

    def begin_queues(self, recovered: RecoveredQueues, now: Now) -> None:
        """Start the recovered queues. Called once, before any other input."""
        self._begin(now)
        if recovered.begun:
            self._writer.append_control(beginnings(recovered.begun))
            self._after_disk()
        self.queues.begin()

    def begin_states(self, plan: StatePlan, recovered: RecoveredStates, now: Now) -> None:
        """Start the checkpoints of recovered SOW topics. Called once, before any other input."""
        self._begin(now)
        self.state_checkpoints.begin(plan.topics, recovered.last)

    def begin_staged(self, found: Iterable[PreparedPart], now: Now) -> None:
        """Add the parts of transactions that recovery found on disk."""
        self._begin(now)
        self.transactions.restore(found)

    @property
    def duplicates(self) -> int:
        """Messages dropped as duplicates since the start."""
        return self._writer.duplicates

    @property
    def connections(self) -> list[int]:
        """All connections, including connections before their logon."""
        links = () if self.links is None else self.links.connections
        return [*self._unauthenticated, *self._sessions.by_conn, *links]

    # -- reads ----------------------------------------------------------------------------------------

    def _hand_out(self, results: list[ReadResult]) -> None:
        """Route each result to its owner."""
        for owner, result in results:
            if isinstance(owner, Cursor | SharedCursor):
                self._delivery.read_done(owner, result)
            elif isinstance(owner, PersistedReader):
                owner.read_done(result)
                if self.links is None or not self.links.read_done(owner.holder):
                    self.services.read_done(owner.holder)
            elif isinstance(owner, RequestLookup):
                self._settle(owner)
            elif isinstance(owner, RangeSearch):
                self.subscriptions.searched(owner)
            elif isinstance(owner, RetentionTask):
                self.retention.task_done()
            elif owner is self.retention:
                self.retention.checked(result)
            else:
                self._outbox.put(ReadTaskDone(owner))

    def _settle(self, lookup: RequestLookup) -> None:
        try:
            self._publish_handler.looked_up(lookup)
        except TickertapeError as error:
            self.goodbye(lookup.session.conn, error)

    # -- the journal ----------------------------------------------------------------------------------

    def _begin(self, now: Now) -> None:
        """Start an input: first deliver the commits that are only acknowledged."""
        self._clock.set(now)
        if self._acknowledged:
            self._deliver()

    def _after_disk(self) -> None:
        """Run the steps that follow an input after which more may be persisted."""
        self._acknowledged = self.journal.take_persisted()
        self._clock.announce(self._commits)
        self.transactions.log_advanced()
        if self.links is not None:
            self.links.log_persisted()
            if self._sync_acks is not None:
                self._send_to_sync_links(self.links)
        self._after_input()
        if not self._acknowledged:
            self._log_advanced()

    def _after_input(self) -> None:
        """Run the steps that follow each input: next disk job, then acknowledgements.

        Delivery follows in `_deliver`, so that acknowledgements need not wait for the fan-out."""
        if self.journal.accepted or self._commits.queued:
            self._submit()
        if self._acks.pending and self._acks.pending[0].end <= self._commits.persisted_end:
            self._outbox.reply_all(self._acks.take_due())
        if self._delivery.ended or self.queues.ended or self.services.records.ended:
            self.subscriptions.forget_ended()
        if self._throttle.reasons:
            self._resume_reading()
        if self._commits.failure is not None and not self._failed:
            self._fail()

    def _send_to_sync_links(self, links: LinkRegistry) -> None:
        """Send persisted rows to synchronous links, after the next disk job and before acknowledgements."""
        if self.journal.accepted or self._commits.queued:
            self._submit()
        links.step_sync()
        self._after_links(links)

    def _after_links(self, links: LinkRegistry) -> None:
        """Send the acknowledgements that waited for links, after input for links."""
        if self._sync_acks is not None and links.take_moved():
            self._outbox.reply_all(self._sync_acks.take_replicated())
            self._delivery.links_moved()

    def _deliver(self) -> None:
        """Deliver acknowledged commits to subscriptions and queues."""
        commits, self._acknowledged = self._acknowledged, []
        for commit in commits:
            part = LogPart(commit.first_position, commit.batch)
            if self._persisted_facts is not None:
                self._persisted_facts.persisted(part)
            self._delivery.persisted(part)
            self.statistics.persisted(commit.batch)
            if self._has_states:
                self.states.persisted(commit.batch.nbytes)
                self.state_checkpoints.persisted(commit)
            if self.journal.view.first is None:
                self.retention.persisted(part)
        if any(self._delivery.pending):
            self._delivery.dispatch()
        self._delivery.settle()
        if self._has_states:
            self.services.step_states()  # before queues and any other input, so that a query finds it folded
        if self._has_queues:
            self.queues.persisted()
            self.queues.step()  # an idle consumer need not wait for the next step
        self._after_input()
        self._log_advanced()

    def _log_advanced(self) -> None:
        """Run the last steps after the log has advanced."""
        if self._commits.sealed_through != self.retention.sealed_through:
            self.retention.log_advanced()
        if self._has_queues:
            self._checkpoints.log_advanced()
        if self._has_states:
            self.state_checkpoints.log_advanced()

    def _resume_reading(self) -> None:
        """Resume reading from publishers that were ahead of the disk or of delivery."""
        self._acks.resume_unless_behind()
        self._transient.resume_unless_behind()
        self.states.resume_unless_behind()

    def _submit(self) -> None:
        """Pass accepted messages to live subscriptions and to the disk."""
        if self.journal.accepted or self.journal.ended:
            accepted = self.journal.take_accepted()
            self._delivery.accepted(accepted)
            if self.links is not None:
                self.links.accepted(accepted)
        if self._commits.queued:
            self._outbox.submit(self._commits.jobs())

    def _fail(self) -> None:
        self._failed = True
        assert self._commits.failure is not None
        for conn in self.connections:
            self.goodbye(conn, self._commits.failure)
        self._outbox.put(Fatal(self._commits.failure))

    # -- commands -------------------------------------------------------------------------------------

    def _logon(self, conn: int, command: Command) -> None:
        if not isinstance(command, Logon):
            raise LogonRequired(f"Cannot handle {type(command).__name__} before the logon. Log on first.")
        user = self._sessions.user_of(command, self._clock.now)  # before any other check
        if self.draining:
            raise NotReady("Cannot log on: the server is stopping. Wait until it runs again.")
        heartbeat_seconds(command.heartbeat_ms)
        session, old = self._sessions.logon(conn, command, user)
        if old is not None:
            taken = (
                f"Cannot keep the connection: another one took over the client name {shown(old.name)}. "
                "Use a unique client name for each client."
            )
            self.goodbye(old.conn, NameInUse(taken))
        self._unauthenticated.discard(conn)
        self.statistics.logged_on()
        self._outbox.put(LogonAccepted(conn))
        self.heartbeats.begin(conn, command.heartbeat_ms)

        journal, publisher = self.journal, session.publisher
        highest = journal.highest.get(publisher, 0)

        def logged_on() -> LoggedOn:
            return LoggedOn(
                version=WIRE_VERSION,
                software=self._software,
                instance=self._instance,
                journal=self.journal.identity,
                epoch=self._commits.epoch,
                publisher=session.publisher,
                last_persisted=highest,
                recorded=self.catalog.recorded_for_clients,
                validated=self.catalog.validated_for_clients,
                queues=tuple(sorted(self.catalog.queues)),
                **self.compiler.limits._asdict(),
                replication=self._replication_at(publisher, command.persisted),
            )

        persisted = journal.persisted_highest.get(publisher, 0)  # below `highest` if holes end there
        if highest == persisted or self._commits.accepted_end == self._commits.persisted_end:
            self._outbox.send(conn, logged_on())
        else:  # after messages of an earlier connection are persisted: a new store must start above them
            self._acks.add_answer(session, logged_on)

    def _replication_at(self, publisher: int, claim: int) -> LogonReplication | None:
        """Return the replication of this log at the logon of a publisher with a claim."""
        exact = self._writer.exact
        if exact is None:
            return None
        group, start = "", self._commits.epoch
        if self._replication is not None:
            group, start = self._replication.group, self._replication.start
        behind = exact.known.lacks_claimed(publisher, claim)
        return LogonReplication(start=start, group=group, behind=behind)

    def _dispatch(self, session: Session, command: Command, batch: MessageBatch | None) -> None:
        if session.draining and not isinstance(command, Credit | Credits | Heartbeat):
            return
        if isinstance(command, Publish):
            if batch is None:
                raise BadCommand(
                    "Cannot publish: the command has no batch. Send a batch with each publish command."
                )
            if self.draining:
                # No more input is accepted, otherwise a later frame or flush could overtake this one.
                # Deliveries and acknowledgements of earlier frames are still sent before the goodbye.
                session.draining = True
            else:
                self._publish_handler.publish(session, command, batch)
        elif isinstance(command, Credit):
            self.subscriptions.credit(session, command.sub_id, command.bytes)
        elif isinstance(command, Credits):
            self.subscriptions.credits(session, command)
        elif isinstance(command, Subscribe | Sow | Unsubscribe | Pause | Resume | Resolve):
            # In order: earlier settlements must not end leases that this subscription receives.
            self._publish_handler.after(session, lambda: self._answer(session, command))
        elif isinstance(command, Stage | Prepare | Commit | Abort):
            self.transactions.take(session, command, batch)
            self.transactions.log_advanced()
        elif isinstance(command, Flush):
            self._publish_handler.flush(session, command)
        elif isinstance(command, Logon):
            raise AlreadyLoggedOn(
                "Cannot log on: the connection is already logged on. Open another connection."
            )
        elif not isinstance(command, Heartbeat):
            raise BadCommand(
                f"Unexpected command {type(command).__name__} from a client. Send client commands only."
            )
        elif command.interval_ms is not None:
            self.heartbeats.begin(session.conn, command.interval_ms)

    def _answer(self, session: Session, command: Request) -> None:
        if self._sessions.by_conn.get(session.conn) is not session:
            return  # an earlier command closed it
        self.subscriptions.answer(session, command)

    def _close_slow_consumer(self, session: Session, why: str) -> None:
        if not session.ended:
            self.goodbye(session.conn, SlowClient(f"Cannot serve a slow consumer: {why}"))
