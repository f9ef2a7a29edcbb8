"""Owns the queues of an instance: which names are queues, their consumers, and whose turn it is to work.

What one queue does is the business of work.py. Must never let a connection read or acknowledge where `permit`
does not allow it, or leave a lease behind of one that is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pyroaring import BitMap64

from tickertape.base.errors import NotAQueue, TickertapeError
from tickertape.base.interfaces import Buffer, Now
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.consumer import QueueFeed
from tickertape.engine.queues.dispatch import DeferredDelivery
from tickertape.engine.queues.message_reader import QueueAccess, QueueReader
from tickertape.engine.queues.settlement import Found, look_up, settle
from tickertape.engine.queues.snapshot import QueueSnapshot, snapshot
from tickertape.engine.queues.state.admission import Priorities, QueueAdmission
from tickertape.engine.queues.state.checkpoint import (
    CheckpointSnapshot,
    encode_snapshots,
    fingerprint,
    needed_by,
    snapshot_of,
    stopped_of,
)
from tickertape.engine.queues.state.queue import Queue
from tickertape.engine.queues.worker import QueueTransition, QueueWorker, RoomFreed
from tickertape.engine.retention import RetentionPin
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import CreditWindow
from tickertape.wire.commands import Completed, Ended
from tickertape.wire.settlement import Runs, Settlement


class QueueRegistry:
    """All queues. Begins to work with `begin`, once they were recovered (`recovering.py`)."""

    def __init__(
        self,
        catalog: TopicCatalog,
        access: QueueAccess,
        compiler: InterestCompiler,
    ) -> None:
        self._access = access
        self._clock = access.clock
        self._ended: list[QueueFeed | QueueBrowser] = []
        """Subscriptions that are over by themselves, until they are taken."""
        self._journal = access.journal
        self._compiler = compiler
        self._catalog = catalog
        self._outbox = access.outbox
        self.ledger = access.log
        self._due: deque[DeferredDelivery] = deque()
        """Deliveries that wait for the disk, in order."""
        self._active: dict[QueueWorker | QueueBrowser, None] = {}
        """Those that may have something to do, in turn."""
        self._early: dict[str, dict[QueueBrowser, None]] = {}
        """Those whose queue has not come so far, by its name, in the order in which they asked."""
        self._works: dict[str, QueueWorker] = {}
        for definition in catalog.queues.values():
            priority = None
            if definition.priority is not None:
                priority = Priorities(definition.priority, compiler.filter_context)
            entrance = QueueAdmission(definition, compiler, priority)
            self._works[definition.name] = QueueWorker(Queue(definition), entrance, access)
        self._patterned = [work for work in self._works.values() if work.entrance.cover.literal is None]
        self._begun = False
        self._at_start: dict[str, QueueSnapshot] = {}

    def begin(self) -> None:
        """They are recovered: work."""
        self._begun = True
        self._at_start = {one.name: one for one in self.snapshots(self._clock.now)}
        for work in self._works.values():
            work.begin()
            self._active[work] = None

    # -- names ------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._works)

    @property
    def works(self) -> Iterable[QueueWorker]:
        """All queues at work."""
        return self._works.values()

    def named(self, cover: Interest) -> list[QueueWorker]:
        """The queues that a subscription without a bookmark is to."""
        if cover.literal is not None:
            work = self._works.get(cover.literal)
            return [] if work is None else [work]
        return [work for name, work in self._works.items() if cover.covers(name)]

    @staticmethod
    def permit(session: Session, work: QueueWorker) -> None:
        """Raise unless `session` may read a queue, and so acknowledge: the one place that says so."""

    # -- consumers --------------------------------------------------------------------------------------

    def check(self, session: Session, works: list[QueueWorker], asked: int | None) -> int:
        """The backlog that a subscription to some queues is granted: the least of their limits and of what it
        asks for, which is 1 when it does not; 0 without queues. Raises what speaks against it."""
        for work in works:
            self.permit(session, work)
            if work.failure is not None:
                raise work.failure
        limits = [work.queue.definition.max_per_subscription_backlog for work in works]
        return min([asked or 1, *(limit for limit in limits if limit is not None)]) if works else 0

    def subscribe(self, consumer: QueueFeed, works: list[QueueWorker]) -> None:
        """A consumer begins."""
        consumer.queues = [work.queue for work in works]
        for work in works:
            work.add(consumer)
            self._wake(work)

    def replace(
        self,
        consumer: QueueFeed,
        topic: str,
        content: ContentFilter | None,
        works: list[QueueWorker],
        limit: int,
    ) -> None:
        """A consumer becomes another one; what it holds it still holds."""
        for queue in consumer.queues:
            work = self._works[queue.name]
            if work in works:
                work.delivering.discard(consumer)
            else:
                work.leave(consumer)
                if queue not in consumer.previous_queues:
                    consumer.previous_queues.append(queue)
        kept, consumer.queues = consumer.queues, [work.queue for work in works]
        consumer.topic, consumer.content, consumer.limit = topic, content, limit
        for work in works:
            if work.queue in kept:
                work.delivering.filters.add(consumer)
            else:
                work.add(consumer)
            self._wake(work)

    def drop(self, consumer: QueueFeed) -> None:
        """A consumer is over: what it holds goes back."""
        for queue in consumer.queues:
            self._works[queue.name].leave(consumer)
        for queue in dict.fromkeys([*consumer.queues, *consumer.previous_queues]):
            work = self._works[queue.name]
            self._apply(work, work.take_back(consumer))
            self._wake(work)
        consumer.queues, consumer.previous_queues = [], []

    def browse(
        self,
        session: Session,
        sub_id: str,
        work: QueueWorker,
        content: ContentFilter | None,
        allowance: CreditWindow,
    ) -> QueueBrowser:
        """Read what a queue has ready, and take nothing."""
        persisted = self._journal.commits.persisted_end
        browsing = QueueBrowser(session, sub_id, work.queue, content, allowance, self._access, persisted)
        if browsing.may_begin:
            self._stir_browsing(browsing)
        else:
            self._early.setdefault(browsing.topic, {})[browsing] = None
        return browsing

    def stop_browsing(self, browsing: QueueBrowser) -> None:
        """Nobody wants it any more."""
        self._active.pop(browsing, None)
        self._early.get(browsing.topic, {}).pop(browsing, None)
        browsing.stop()

    def stir(self, sub: QueueFeed | QueueBrowser) -> None:
        """It has more room."""
        if isinstance(sub, QueueBrowser):
            self._stir_browsing(sub)
            return
        for queue in sub.queues:
            self._wake(self._works[queue.name])

    # -- settlements ------------------------------------------------------------------------------------

    def work_of(self, session: Session, settlement: Settlement) -> QueueWorker:
        """The queue of a settlement. Raises `NotAQueue`."""
        work = self._works.get(settlement.queue)
        if work is None:
            raise NotAQueue(
                f"{shown(settlement.queue)} is no queue: acknowledge under the name of the queue, "
                "which is the topic of the messages that it delivers"
            )
        self.permit(session, work)
        if work.failure is not None:
            raise work.failure
        return work

    def look_up(self, session: Session, settlement: Settlement, runs: Runs) -> Found:
        """The messages that a settlement names, but for those that a lease names. Raises `NotAQueue`,
        `BadFilter`."""
        work = self.work_of(session, settlement)
        content, persisted = None, self._journal.commits.persisted_end
        if settlement.filter is not None:
            topic = work.queue.definition.topic
            content = self._compiler.compile(topic, settlement.filter, None, session.subscriber).content
            while work.queue.considered < persisted and work.failure is None:
                yield None  # what was there when it was asked for has to enter first
        return (yield from look_up(work.queue, self._journal.view, settlement, runs, content, persisted))

    def settle(self, session: Session, settlement: Settlement, runs: Runs, found: BitMap64) -> bytes:
        """Carry a settlement out; the body of its record, which is the last. Raises `NotAQueue`."""
        work = self.work_of(session, settlement)
        settled = settle(work.queue, session, settlement, runs, found, self._clock.now)
        for holder in settled.holders:
            self._room_freed(work, holder)
        *before, body = settled.bodies
        self.ledger.write_bodies(before)
        self._wake(work)
        return body

    # -- time and disk ----------------------------------------------------------------------------------

    def unrecorded(self, batch: MessageBatch) -> None:
        """Messages were published to topics that are not recorded."""
        for work in self._patterned:
            own = [work.entrance.cover.covers(topic) for topic in batch.topics]
            if any(own):
                index = batch.topic_index
                count = batch.count if index is None else sum(own[number] for number in index.tolist())
                work.queue.unrecorded += count

    def persisted(self) -> None:
        """The log has grown."""
        end = self._journal.commits.persisted_end
        while self._due and self._due[0].end <= end:
            due = self._due.popleft()
            if due.consumer.queues:
                self._outbox.put(due.send)
        if self._begun:
            for work in self._works.values():
                self._active[work] = None

    def read_done(self, reader: QueueReader, data: Buffer | TickertapeError) -> None:
        """The answer to a read."""
        reader.read_done(data)
        holder = reader.holder
        if isinstance(holder, QueueBrowser):
            self._stir_browsing(holder)
        elif isinstance(holder, QueueWorker):
            holder.read_done()
            self._wake(holder)

    def take_ended(self) -> list[QueueFeed | QueueBrowser]:
        """Subscriptions that ended by themselves since the last call."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        return bool(self._active)

    def step(self) -> None:
        """Let one queue work."""
        if self._active:
            first = next(iter(self._active))
            del self._active[first]
            if isinstance(first, QueueBrowser):
                self._browse_on(first)
            else:
                self._apply(first, first.step())
                self._begin_browsing(first.queue.name)
                if first.has_work:
                    self._active[first] = None

    def wake(self) -> None:
        """Leases and messages whose time has come."""
        if self._begun and not self._journal.commits.stopping:
            for work in self._works.values():
                self._apply(work, work.wake())
                if work.is_stirred:
                    self._active[work] = None

    def next_deadline(self) -> float | None:
        """Monotonic second at which `wake` is wanted."""
        if not self._begun or self._journal.commits.stopping:
            return None
        deadlines = [work.next_deadline() for work in self._works.values()]
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def oldest_needed(self) -> RetentionPin | None:
        """What of the log queues still need."""
        pins = []
        for name, work in self._works.items():
            brief = work.queue.state.oldest() is None
            pins.append(RetentionPin(needed_by(work.queue), f"queue {shown(name)}", brief=brief))
        return min(pins, default=None)

    def fingerprint(self, work: QueueWorker) -> bytes:
        """What of its definition decides what enters a queue."""
        covers = work.entrance.cover.covers
        types = self._catalog.message_types.items()
        return fingerprint(work.queue.definition, [(name, kind) for name, kind in types if covers(name)])

    def snapshot(self) -> list[CheckpointSnapshot]:
        """Copy the contents of a checkpoint, which holds once everything accepted so far is persisted. Only a
        few copies of sets for each queue: whoever encodes it need not hold up the engine."""
        end = self._journal.commits.accepted_end
        return [
            snapshot_of(work.queue, self.fingerprint(work), end)
            if work.failure is None
            else stopped_of(work.queue)  # what is not known is not stored, but what it needs is kept
            for work in self._works.values()
        ]

    def covered(self) -> bytes:
        """Encode a checkpoint at once: for a start and a clean stop, when nobody is served."""
        return encode_snapshots(self.snapshot())

    def snapshots(self, now: Now) -> list[QueueSnapshot]:
        """Return the state of all queues."""
        return [snapshot(work.queue, work.failure, self._journal, now) for work in self._works.values()]

    def snapshots_of_run(self, now: Now) -> list[QueueSnapshot]:
        """As `snapshots`, with counts that begin where the queues began to work; none before that."""
        taken = self.snapshots(now) if self._begun else []
        return [one.since(self._at_start[one.name]) for one in taken]

    # -- inside -----------------------------------------------------------------------------------------

    def _begin_browsing(self, name: str) -> None:
        early = self._early.get(name)
        while early:
            first = next(iter(early))
            if not first.may_begin:
                return
            del early[first]
            self._stir_browsing(first)

    def _stir_browsing(self, browsing: QueueBrowser) -> None:
        self._active[browsing] = None

    def _browse_on(self, browsing: QueueBrowser) -> None:
        if browsing.step():
            self._active[browsing] = None
        elif browsing.failure is not None:
            topic = browsing.queue.name
            self._outbox.end_subscription(browsing.session.conn, browsing.sub_id, topic, browsing.failure)
            self._ended.append(browsing)
        elif browsing.over:
            self._outbox.send(browsing.session.conn, Completed(sub_id=browsing.sub_id, next=browsing.end))
            self._outbox.send(browsing.session.conn, Ended(sub_id=browsing.sub_id))
            self._ended.append(browsing)

    def _wake(self, work: QueueWorker) -> None:
        """There may be something to do for a queue."""
        work.stir()
        if self._begun:
            self._active[work] = None

    def _apply(self, work: QueueWorker, transitions: list[QueueTransition]) -> None:
        for transition in transitions:
            if isinstance(transition, DeferredDelivery):
                self._due.append(transition)
            elif isinstance(transition, RoomFreed):
                self._room_freed(work, transition.holder)
            else:
                self._stopped(work, transition.error)

    def _room_freed(self, work: QueueWorker, holder: QueueFeed) -> None:
        """A consumer holds fewer messages of a queue: its other queues have something to do, too."""
        for queue in holder.queues:
            if queue is not work.queue:
                self._wake(self._works[queue.name])

    def _stopped(self, work: QueueWorker, error: TickertapeError) -> None:
        """A queue cannot read what it needs: nobody is served by it any more."""
        fields: dict[str, str | int] = {"queue": work.queue.name, "code": error.code, "text": str(error)}
        self._outbox.log_event("queue_stopped", True, fields)
        subs: list[QueueFeed | QueueBrowser] = [*work.queue.consumers, *self._early.pop(work.queue.name, {})]
        for sub in subs:
            self._outbox.end_subscription(sub.session.conn, sub.sub_id, sub.topic, error)
            self._ended.append(sub)
