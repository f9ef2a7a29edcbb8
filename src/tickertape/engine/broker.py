"""Owns the engine's machine: commands, disk answers and time go in, effects come out.

The parts (sessions, publishing, delivery, registry) talk only through here. Must never wait, read a clock, or
touch a socket or file; a misbehaving peer is a `Goodbye` and a close, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tickertape.base.errors import (
    AlreadyLoggedOn,
    BadBatch,
    BadBody,
    BadCommand,
    BadTopic,
    CorruptBatch,
    JournalFull,
    LogonRequired,
    NameInUse,
    NotReady,
    SlowClient,
    SubscriptionUnknown,
    TickertapeError,
)
from tickertape.base.limits import credit_bytes_max, read_ahead_bytes_max
from tickertape.base.ports import Buffer, Now
from tickertape.base.texts import shown
from tickertape.batch import MessageBatch
from tickertape.engine.delivery import Delivery
from tickertape.engine.effects import (
    Close,
    DiskJob,
    Effect,
    Fatal,
    LoggedOnNow,
    PauseReading,
    Refused,
    ResumeReading,
    Send,
)
from tickertape.engine.points import Extent, close_extent
from tickertape.engine.publishing import Publishing, last_sequence
from tickertape.engine.read_budget import ReadBudget
from tickertape.engine.registry import Registry
from tickertape.engine.requests import check_subscribe, extent_search
from tickertape.engine.searches import Searches
from tickertape.engine.sessions import Session, Sessions
from tickertape.engine.statistics import Statistics
from tickertape.engine.subscription import Subscription
from tickertape.engine.unrecorded import LiveSubscription, Unrecorded
from tickertape.engine.validation import Validation
from tickertape.journal.jobs import Job
from tickertape.journal.journal import Journal
from tickertape.journal.reading import Part
from tickertape.wire.commands import (
    WIRE_VERSION,
    Ack,
    Command,
    Credit,
    Flush,
    Goodbye,
    Heartbeat,
    LoggedOn,
    Logon,
    Processed,
    Publish,
    Rejected,
    Resolve,
    Resolved,
    Subscribe,
    Unsubscribe,
)
from tickertape.wire.frames import encode_frame


class Broker:
    """The engine. Inputs: `connected`, `received`, `disconnected`, `writable`, `blocked`, `disk_done`,
    `read_done`, `wake`, `close`; after each one drain `effects()`; while `has_work`, call `work` between
    other inputs."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        *,
        instance: str,
        software: str,
        recorded: frozenset[str] | None = None,
        validated: Mapping[str, str] | None = None,
    ) -> None:
        self.journal = journal
        self.statistics = Statistics()
        self._instance = instance
        self._software = software
        self._recorded = recorded
        self._effects: list[Effect] = []
        self._token = 0
        self._sessions = Sessions(instance, registry, self.statistics)
        self._publishing = Publishing(journal, registry, recorded)
        self._validation = Validation(validated)
        budget = ReadBudget(read_ahead_bytes_max)
        self._delivery = Delivery(journal, self._effects, self._new_token, budget)
        self._unrecorded = Unrecorded(self._effects)
        self._searches = Searches(self._effects, self._new_token, budget)
        self._strangers: set[int] = set()
        self._paused: set[int] = set()
        self._failed = False
        self.draining = False
        """A clean stop has begun."""
        self.statistics.name_topics(sorted(recorded or ()))

    # -- inputs ---------------------------------------------------------------------------------------

    def connected(self, conn: int) -> None:
        """The driver accepted a connection and calls it `conn`."""
        self._strangers.add(conn)

    def disconnected(self, conn: int) -> None:
        """The connection is gone; its subscriptions end."""
        self._strangers.discard(conn)
        self._paused.discard(conn)
        session = self._sessions.remove(conn)
        if session is not None:
            self._drop_subscriptions(session)

    def violated(self, conn: int, error: TickertapeError) -> None:
        """What came from the connection is not the protocol: say so and close."""
        self._goodbye(conn, error)

    def writable(self, conn: int) -> None:
        """The connection has room for more."""
        session = self._sessions.by_conn.get(conn)
        if session is not None:
            self._delivery.writable(session)
            for sub in list(session.live.values()):
                self._unrecorded.drain(sub)

    def blocked(self, conn: int) -> None:
        """More than `outbox_bytes_max` waits to be written to the connection."""
        session = self._sessions.by_conn.get(conn)
        if session is not None:
            session.writable = False

    def received(self, conn: int, command: Command, batch: MessageBatch | None, now: Now) -> None:
        """A command of the connection."""
        session = self._sessions.by_conn.get(conn)
        try:
            if self.journal.failure is not None:
                raise self.journal.failure
            if session is None:
                if conn in self._strangers:
                    self._first(conn, command)
                return
            self._dispatch(session, command, batch, now)
        except TickertapeError as error:
            self._goodbye(conn, error)
        self._journal_moved(now)

    def disk_done(self, job: Job, error: OSError | None, salt: int, now: Now) -> None:
        """The disk's answer to a `DiskJob`."""
        self.journal.done(job, error, salt, now)
        self._journal_moved(now)

    def read_done(self, token: int, data: Buffer | TickertapeError, now: Now) -> None:
        """The answer to a `Read`."""
        if not self._delivery.read_done(token, data):
            self._searches.read_done(token, data)
        self._journal_moved(now)

    def wake(self, now: Now) -> None:
        """A deadline has come."""
        self.journal.wake(now)
        self._delivery.settle(now)
        self._journal_moved(now)

    def work(self, now: Now) -> None:
        """One bounded step of delivery, and of a search that let others go first."""
        self._delivery.step()
        self._searches.step()
        self._journal_moved(now)

    def close(self, now: Now) -> None:
        """Begin a clean stop: nothing new is taken; what was accepted is persisted, then the log sealed."""
        self.draining = True
        self.journal.close(now)
        self._journal_moved(now)

    # -- outputs --------------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Drain the effects, in order."""
        drained = self._effects[:]
        self._effects.clear()
        return drained

    @property
    def has_work(self) -> bool:
        """Whether `work` would do something."""
        return self._delivery.has_work or self._searches.has_work

    def next_deadline(self, now: Now) -> float | None:
        """Monotonic second at which `wake` is wanted."""
        wanted = [
            t for t in (self.journal.next_deadline(), self._delivery.next_deadline(now)) if t is not None
        ]
        return min(wanted, default=None)

    @property
    def sessions(self) -> Mapping[int, Session]:
        """Sessions by their connection, in the order of their logons."""
        return self._sessions.by_conn

    @property
    def duplicates(self) -> int:
        """Messages that were published again and dropped, since the start."""
        return self._publishing.duplicates

    @property
    def connections(self) -> list[int]:
        """All connections, strangers included."""
        return [*self._strangers, *self._sessions.by_conn]

    def subscriptions_of(self, conn: int) -> list[str]:
        """Ids of the subscriptions of a connection."""
        session = self._sessions.by_conn.get(conn)
        return [] if session is None else [*session.subscriptions, *session.live]

    # -- the journal ----------------------------------------------------------------------------------

    def _journal_moved(self, now: Now) -> None:
        """Pass on what the journal wants and what became persisted."""
        commits = self.journal.take_persisted()
        self._effects.extend(DiskJob(job) for job in self.journal.jobs())
        for session, command in self._publishing.due():
            self._send(session.conn, command)
        for commit in commits:
            self.statistics.persisted(commit.batch)
            self._delivery.persisted(Part(commit.first_position, commit.batch))
        if commits:
            self._delivery.dispatch()
            self._delivery.settle(now)
            if self._paused and not self._crowded:
                self._effects.extend(ResumeReading(conn) for conn in sorted(self._paused))
                self._paused.clear()
        if self.journal.failure is not None and not self._failed:
            self._fail()

    def _fail(self) -> None:
        self._failed = True
        error = self.journal.failure
        assert error is not None
        for conn in self.connections:
            self._goodbye(conn, error)
        self._effects.append(Fatal(error))

    # -- commands -------------------------------------------------------------------------------------

    def _first(self, conn: int, command: Command) -> None:
        if not isinstance(command, Logon):
            raise LogonRequired(f"{type(command).__name__} before the logon")
        if self.draining:
            raise NotReady("the server is stopping: connect again later")
        session, old = self._sessions.logon(conn, command)
        if old is not None:
            self._goodbye(
                old.conn, NameInUse(f"another connection took over the client name {shown(old.name)}")
            )
        self._strangers.discard(conn)
        self.statistics.logons += 1
        self._effects.append(LoggedOnNow(conn))

        def logged_on() -> LoggedOn:
            return LoggedOn(
                version=WIRE_VERSION,
                software=self._software,
                instance=self._instance,
                journal=self.journal.identity,
                epoch=self.journal.epoch,
                publisher=session.publisher,
                last_persisted=self.journal.persisted_highest.get(session.publisher, 0),
                recorded=None if self._recorded is None else tuple(sorted(self._recorded)),
                validated=self._validation.topics,
            )

        if self.journal.highest.get(session.publisher) == self.journal.persisted_highest.get(
            session.publisher
        ):
            self._send(conn, logged_on())
        else:
            # What an earlier connection of this name sent is on its way to the disk: the number is told when
            # it is
            # there, so that a new store does not begin below it.
            self._publishing.owe(session, logged_on)

    def _dispatch(self, session: Session, command: Command, batch: MessageBatch | None, now: Now) -> None:
        if session.turned_away and not isinstance(command, Credit):
            return
        if isinstance(command, Publish):
            if batch is None:
                raise BadCommand("a publish without its batch")
            self._publish(session, command, batch, now)
        elif isinstance(command, Credit):
            self._credit(session, command)
        elif isinstance(command, Subscribe):
            self._answered(session, command.id, lambda: self._subscribe(session, command, now))
        elif isinstance(command, Unsubscribe):
            self._answered(session, command.id, lambda: self._unsubscribe(session, command))
        elif isinstance(command, Flush):
            self._flush(session, command)
        elif isinstance(command, Resolve):
            self._answered(session, command.id, lambda: self._resolve(session, command, now))
        elif isinstance(command, Logon):
            raise AlreadyLoggedOn("a second logon on one connection")
        elif not isinstance(command, Heartbeat):
            raise BadCommand(f"{type(command).__name__} does not come from a client")

    def _answered(self, session: Session, command_id: int, act: Callable[[], None]) -> None:
        """Do what a command asks; a refusal is its answer and disturbs nothing else."""
        try:
            act()
        except TickertapeError as error:
            self._refuse(session, Ack(id=command_id, code=error.code, text=str(error)), error)

    def _refuse(self, session: Session, answer: Command, error: TickertapeError) -> None:
        self.statistics.refuse(error)
        self._send(session.conn, answer)
        self._effects.append(Refused(session.conn, error))

    def _publish(self, session: Session, command: Publish, batch: MessageBatch, now: Now) -> None:
        if self.draining:
            # Nothing more of it may be taken, lest a later frame or a flush overtakes this one. What it is to
            # get, acknowledgements of earlier frames among them, still goes out before its goodbye.
            session.turned_away = True
            return
        try:
            recorded = self._publishing.inspect(session, command, batch)
            if recorded and not self.journal.can_accept(batch.nbytes):
                raise JournalFull(
                    "no room to prepare the next segment: free disk space; retried every second"
                )
        except (BadBatch, CorruptBatch, BadCommand):
            raise
        except (BadTopic, JournalFull) as error:
            if command.sequenced and isinstance(error, JournalFull):
                # A refusal for now must not drop what a store keeps, nor let later sequences overtake it.
                raise
            last = last_sequence(batch) if command.sequenced else 0
            rejected = Rejected(frame=command.frame, sequence=last, code=error.code, text=str(error))
            self._refuse(session, rejected, error)
            return
        split = self._validation.split(command, batch)
        if split is not None:
            first, *others = split.rejections
            self._refuse(session, first, BadBody(first.text))
            for rejection in others:
                self._send(session.conn, rejection)
            if split.rest is None:
                return
            batch = split.rest
        session.published(batch)
        if not recorded:
            self.statistics.unrecorded(batch)
            for slow in self._unrecorded.publish(batch):
                self._goodbye(slow.conn, SlowClient("it does not read what it subscribed to"))
            self._send(session.conn, Processed(frame=command.frame))
            return
        self._publishing.accept(session, command, batch, now)
        self._pause_when_crowded(session)

    def _pause_when_crowded(self, session: Session) -> None:
        """Who brings more than the disk takes is not read from until it has caught up."""
        if self._crowded and session.conn not in self._paused:
            self._paused.add(session.conn)
            self._effects.append(PauseReading(session.conn))

    @property
    def _crowded(self) -> bool:
        return self.journal.congested or self._publishing.crowded

    def _flush(self, session: Session, command: Flush) -> None:
        if command.level == "persisted":
            self._publishing.owe(session, lambda: Ack(id=command.id))
            self._pause_when_crowded(session)
        elif command.level == "processed":
            self._send(session.conn, Ack(id=command.id))
        else:
            self._send(
                session.conn,
                Ack(id=command.id, code="bad_option", text=f"no flush level {shown(command.level)}"),
            )

    def _subscribe(self, session: Session, command: Subscribe, now: Now) -> None:
        self._check_not_stopping()
        options = check_subscribe(session, command, self._publishing, self.journal)
        if not self._publishing.is_recorded(command.topic):
            live = LiveSubscription(session, command.sub_id, command.topic, command.credit)
            session.live[command.sub_id] = live
            self._unrecorded.add(live)
            self._send(session.conn, Ack(id=command.id))
            return
        search = extent_search(self.journal, command, options, now)  # what it refuses leaves no trace
        sub = Subscription(session, command.sub_id, command.topic, command.credit)
        sub.wants_notices = command.bookmark is not None
        session.subscriptions[command.sub_id] = sub
        target = self.journal.accepted_end

        def found(extent: Extent) -> None:
            if session.subscriptions.get(sub.sub_id) is not sub:
                failed(SubscriptionUnknown(f"subscription {shown(sub.sub_id)} was ended before it began"))
                return
            if command.until_caught_up:
                extent = extent._replace(stop=target if extent.stop is None else min(extent.stop, target))
            self._send(session.conn, Ack(id=command.id, start=extent.start, found=extent.found))
            sub.begin(extent, target)
            self._delivery.begin(sub)

        def failed(error: TickertapeError) -> None:
            if session.subscriptions.get(sub.sub_id) is sub:
                del session.subscriptions[sub.sub_id]
            self._refuse(session, Ack(id=command.id, code=error.code, text=str(error)), error)

        self._searches.begin(session, search, found, failed)

    def _unsubscribe(self, session: Session, command: Unsubscribe) -> None:
        unknown = [s for s in command.sub_ids if s not in session.subscriptions and s not in session.live]
        if unknown:
            raise SubscriptionUnknown(
                f"no subscription {shown(unknown[0])} on this connection; nothing was ended"
            )
        for sub_id in command.sub_ids:
            sub = session.subscriptions.get(sub_id)
            if sub is not None:
                self._delivery.remove(sub)
            elif sub_id in session.live:
                self._unrecorded.remove(session.live[sub_id])
        self._send(session.conn, Ack(id=command.id))

    def _resolve(self, session: Session, command: Resolve, now: Now) -> None:
        self._check_not_stopping()
        options = check_subscribe(session, command, self._publishing, self.journal)

        def found(extent: Extent) -> None:
            assert extent.stop is not None
            identity = self.journal.identity
            self._send(
                session.conn, Resolved(id=command.id, journal=identity, start=extent.start, end=extent.stop)
            )

        def failed(error: TickertapeError) -> None:
            self._refuse(session, Ack(id=command.id, code=error.code, text=str(error)), error)

        search = extent_search(self.journal, command, options, now)
        self._searches.begin(session, close_extent(self.journal, search), found, failed)

    def _credit(self, session: Session, command: Credit) -> None:
        if not 0 < command.bytes <= credit_bytes_max:
            raise BadCommand(f"a credit of {command.bytes} bytes")
        sub = session.subscriptions.get(command.sub_id)
        if sub is not None:
            self._delivery.credit(sub, command.bytes)
        elif command.sub_id in session.live:
            live = session.live[command.sub_id]
            live.credit += command.bytes
            self._unrecorded.drain(live)

    def _check_not_stopping(self) -> None:
        if self.draining:
            raise NotReady("the server is stopping: subscribe again after reconnecting")

    # -- helpers --------------------------------------------------------------------------------------

    def _new_token(self) -> int:
        self._token += 1
        return self._token

    def _drop_subscriptions(self, session: Session) -> None:
        self._searches.drop(session)
        for sub in list(session.subscriptions.values()):
            self._delivery.remove(sub)
        for live in list(session.live.values()):
            self._unrecorded.remove(live)

    def _send(self, conn: int, command: Command) -> None:
        self._effects.append(Send(conn, encode_frame(command)))

    def _goodbye(self, conn: int, error: TickertapeError) -> None:
        """Say why, close, and forget the connection now: nothing more is taken from it."""
        self._send(conn, Goodbye(code=error.code, text=str(error)))
        self.statistics.end(error)
        self._effects.append(Close(conn, error.code, str(error)))
        self.disconnected(conn)
