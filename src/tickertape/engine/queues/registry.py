"""Queue registry: all queues of a server, their consumers, and their scheduling.

Invariants:
- A connection reads or acknowledges only if `permit` allows it.
- Leases of a consumer end when the consumer ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from pyroaring import BitMap64

from tickertape.base.errors import NotAQueue, TickertapeError
from tickertape.base.interfaces import Now
from tickertape.base.text_format import did_you_mean, shown
from tickertape.batch import MessageBatch
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.dispatch import DeferredDelivery
from tickertape.engine.queues.message_reader import MessageReader, QueueAccess
from tickertape.engine.queues.queue_feed import QueueFeed, QueueWaiter
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
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.subscription import Subscription
from tickertape.wire.commands import Completed, Ended
from tickertape.wire.settlement import Runs, Settlement


class QueueRegistry:
    """All queues. They start with `begin`, after their recovery (checkpoints.py)."""

    def __init__(
        self,
        catalog: TopicCatalog,
        access: QueueAccess,
        compiler: InterestCompiler,
    ) -> None:
        self._access = access
        self._clock = access.clock
        self.ended: list[QueueFeed | QueueBrowser] = []
        """Subscriptions that ended by themselves, until `take_ended`."""
        self._journal = access.journal
        self._compiler = compiler
        self._catalog = catalog
        self._outbox = access.outbox
        self.log = access.log
        self._due: deque[DeferredDelivery] = deque()
        """Deliveries that wait for the disk, in order."""
        self._active: dict[QueueWorker | QueueBrowser, None] = {}
        """Workers and browsers that may have work, in round-robin order."""
        self.pending: Pending = (self._active,)
        """Not empty while a queue or browser may have work."""
        self._feeds: dict[int, dict[QueueFeed | QueueBrowser, None]] = {}
        """Feeds by connection."""
        self._early: dict[str, dict[QueueBrowser, None]] = {}
        """Browsers that wait for their queue to advance, by its name, in the order of their requests."""
        self._waiters: dict[str, dict[QueueWaiter, None]] = {}
        """Queries that wait for a queue to advance, by its name, with ascending positions."""
        self._workers: dict[str, QueueWorker] = {}
        for definition in catalog.queues.values():
            priority = None
            if definition.priority is not None:
                priority = Priorities(definition.priority, compiler.filter_context)
            admission = QueueAdmission(definition, compiler, priority)
            self._workers[definition.name] = QueueWorker(Queue(definition), admission, access)
        self._patterned = [
            worker for worker in self._workers.values() if worker.admission.interest.topic_name is None
        ]
        self._fingerprints: dict[QueueWorker, bytes] = {}
        self._begun = False
        self._at_start: dict[str, QueueSnapshot] = {}

    def begin(self) -> None:
        """Start all queues after their recovery."""
        self._begun = True
        self._at_start = {seen.name: seen for seen in self.snapshots(self._clock.now)}
        for worker in self._workers.values():
            worker.begin()
            self._active[worker] = None

    # -- names ------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._workers)

    @property
    def workers(self) -> Iterable[QueueWorker]:
        """Workers of all queues."""
        return self._workers.values()

    def named(self, interest: Interest) -> list[QueueWorker]:
        """Return the queues of a subscription without a bookmark."""
        if interest.topic_name is not None:
            worker = self._workers.get(interest.topic_name)
            return [] if worker is None else [worker]
        return [worker for name, worker in self._workers.items() if interest.covers(name)]

    @staticmethod
    def permit(session: Session, worker: QueueWorker) -> None:
        """Raise an error unless `session` may read, and therefore acknowledge, a queue. The only access
        check."""

    # -- consumers --------------------------------------------------------------------------------------

    def check(self, session: Session, workers: list[QueueWorker], asked: int | None) -> int:
        """Return the granted backlog of a subscription to queues, 0 without queues.

        It is the minimum of the limits of the queues and the requested backlog (default 1). Raises the error
        of a queue that has failed or may not be read."""
        for worker in workers:
            self.permit(session, worker)
            if worker.failure is not None:
                raise worker.failure
        limits = [worker.queue.definition.max_per_subscription_backlog for worker in workers]
        return min([asked or 1, *(limit for limit in limits if limit is not None)]) if workers else 0

    def subscribe(
        self,
        subscription: Subscription,
        topic: str,
        content: ContentFilter | None,
        workers: list[QueueWorker],
        limit: int,
    ) -> QueueFeed:
        """Start delivery to a consumer."""
        consumer = QueueFeed(subscription, topic, content, limit, self)
        self._feeds.setdefault(consumer.session.conn, {})[consumer] = None
        consumer.queues = [worker.queue for worker in workers]
        for worker in workers:
            worker.add(consumer)
            self._wake(worker)
        return consumer

    def replace(
        self,
        consumer: QueueFeed,
        topic: str,
        content: ContentFilter | None,
        workers: list[QueueWorker],
        limit: int,
    ) -> None:
        """Replace a consumer. It keeps its leases."""
        for queue in consumer.queues:
            worker = self._workers[queue.name]
            if worker in workers:
                worker.dispatch.discard(consumer)
            else:
                worker.leave(consumer)
                self._wake(worker)  # the filter may have delayed messages for other consumers
                if queue not in consumer.previous_queues:
                    consumer.previous_queues.append(queue)
        kept, consumer.queues = consumer.queues, [worker.queue for worker in workers]
        consumer.topic, consumer.content, consumer.limit = topic, content, limit
        for worker in workers:
            if worker.queue in kept:
                worker.dispatch.filters.add(consumer)
            else:
                worker.add(consumer)
            self._wake(worker)

    def remove(self, feed: QueueFeed | QueueBrowser) -> None:
        """End a feed. Messages held by a consumer are requeued."""
        feeds = self._feeds[feed.session.conn]
        del feeds[feed]
        if not feeds:
            del self._feeds[feed.session.conn]
        if isinstance(feed, QueueFeed):
            self._drop(feed)
            return
        self._active.pop(feed, None)
        self._early.get(feed.topic, {}).pop(feed, None)
        feed.stop()

    def drop(self, session: Session) -> None:
        """End the feeds of a closed connection."""
        for feed in [*self._feeds.get(session.conn, ())]:
            feed.subscription.feeds.remove(feed)
            feed.close()

    def _drop(self, consumer: QueueFeed) -> None:
        for queue in consumer.queues:
            self._workers[queue.name].leave(consumer)
        for queue in dict.fromkeys([*consumer.queues, *consumer.previous_queues]):
            worker = self._workers[queue.name]
            self._apply(worker, worker.requeue_of(consumer))
            self._wake(worker)
        consumer.queues, consumer.previous_queues = [], []

    def browse(
        self, subscription: Subscription, worker: QueueWorker, content: ContentFilter | None
    ) -> QueueBrowser:
        """Send the ready messages of a queue to a client without consuming them."""
        browsing = QueueBrowser(subscription, worker.queue, content, self._access, self)
        self._feeds.setdefault(browsing.session.conn, {})[browsing] = None
        if browsing.may_begin:
            self._wake_browser(browsing)
        else:
            self._early.setdefault(browsing.topic, {})[browsing] = None
        return browsing

    def available(self, worker: QueueWorker, end: int) -> BitMap64:
        """Return the positions of the messages of a queue that a query copies now. See `Queue.available`."""
        return worker.queue.available(end, self._clock.wall)

    def reader(self, holder: object) -> MessageReader:
        """Return a reader of messages of queues for a query."""
        return MessageReader(self._access, None, holder)

    def wait(self, worker: QueueWorker, waiter: QueueWaiter) -> bool:
        """Let a query wait until a queue has considered the log up to `waiter.needed`, the persisted end.

        Return False if it has, or has stopped."""
        queue = worker.queue
        if queue.considered >= waiter.needed or worker.failure is not None:
            return False
        self._waiters.setdefault(queue.name, {})[waiter] = None
        return True

    def cancel_wait(self, worker: QueueWorker, waiter: QueueWaiter) -> None:
        """End the wait of a query."""
        self._waiters.get(worker.queue.name, {}).pop(waiter, None)

    def credit(self, feed: QueueFeed | QueueBrowser) -> None:
        """Wake the queues of a feed that can receive more messages."""
        if isinstance(feed, QueueBrowser):
            self._wake_browser(feed)
            return
        for queue in feed.queues:
            self._wake(self._workers[queue.name])

    def writable(self, session: Session) -> None:
        """Resume the feeds of a connection that is writable again."""
        for feed in self._feeds.get(session.conn, ()):
            self.credit(feed)

    # -- settlements ------------------------------------------------------------------------------------

    def worker_of(self, session: Session, settlement: Settlement) -> QueueWorker:
        """Return the queue of a settlement. Raises `NotAQueue`."""
        worker = self._workers.get(settlement.queue)
        if worker is None:
            raise NotAQueue(
                f"Cannot acknowledge: {shown(settlement.queue)} is not a queue."
                f"{did_you_mean(settlement.queue, self._workers)} "
                "Use the name of a queue."
            )
        self.permit(session, worker)
        if worker.failure is not None:
            raise worker.failure
        return worker

    def look_up(self, session: Session, settlement: Settlement, runs: Runs) -> Found:
        """Find the messages of a settlement, except messages that only a lease names.

        Raises `NotAQueue` or `BadFilter`."""
        worker = self.worker_of(session, settlement)
        content, persisted = None, self._journal.commits.persisted_end
        if settlement.filter is not None:
            topic = worker.queue.definition.topic
            content = self._compiler.compile(topic, settlement.filter, None, session.subscriber).content
            while worker.queue.considered < persisted and worker.failure is None:
                yield None  # messages persisted before the request must enter first
        return (yield from look_up(worker.queue, self._journal.view, settlement, runs, content, persisted))

    def settle(self, session: Session, settlement: Settlement, runs: Runs, found: BitMap64) -> bytes:
        """Execute a settlement. Return the body of its last record. Raises `NotAQueue`."""
        worker = self.worker_of(session, settlement)
        settled = settle(worker.queue, session, settlement, runs, found, self._clock.now)
        for holder in settled.holders:
            self._room_freed(worker, holder)
        *before, body = settled.bodies
        self.log.write_bodies(before)
        self._wake(worker)
        return body

    # -- time and disk ----------------------------------------------------------------------------------

    def unrecorded(self, batch: MessageBatch) -> None:
        """Count messages published to non-persistent topics that match a queue's pattern."""
        for worker in self._patterned:
            own = [worker.admission.interest.covers(topic) for topic in batch.topics]
            if any(own):
                index = batch.topic_index
                count = batch.count if index is None else sum(own[number] for number in index.tolist())
                worker.queue.unrecorded += count

    def persisted(self) -> None:
        """Send deferred deliveries and wake all queues: the log has grown."""
        end = self._journal.commits.persisted_end
        while self._due and self._due[0].end <= end:
            due = self._due.popleft()
            due.consumer.allowance.deferred -= due.cost
            if not (due.consumer.subscription.closed or due.consumer.session.ended):
                self._outbox.put(due.send)
        if self._begun:
            for worker in self._workers.values():
                self._active[worker] = None

    def read_done(self, holder: object) -> None:
        """Resume a worker or browser after the answer to its read."""
        if isinstance(holder, QueueBrowser):
            self._wake_browser(holder)
        elif isinstance(holder, QueueWorker):
            holder.read_done()
            self._wake(holder)

    def take_ended(self) -> list[QueueFeed | QueueBrowser]:
        """Return the subscriptions that ended by themselves since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def step(self) -> None:
        """Run one queue or browser for one step."""
        if self._active:
            first = next(iter(self._active))
            del self._active[first]
            if isinstance(first, QueueBrowser):
                self._step_browser(first)
            else:
                self._apply(first, first.step())
                self._begin_early(first)
                if first.has_work:
                    self._active[first] = None

    def wake(self) -> None:
        """End expired leases and expire messages that are due."""
        if self._begun and not self._journal.commits.stopping:
            for worker in self._workers.values():
                self._apply(worker, worker.wake())
                if worker.is_active:
                    self._active[worker] = None

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that a queue needs in the log, as a pin."""
        pins = []
        for name, worker in self._workers.items():
            brief = worker.queue.state.oldest() is None
            pins.append(RetentionPin(needed_by(worker.queue), f"queue {shown(name)}", brief=brief))
        return min(pins, default=None)

    def fingerprint(self, worker: QueueWorker) -> bytes:
        """Return the parts of a definition that decide which messages enter."""
        mark = self._fingerprints.get(worker)
        if mark is None:
            covers = worker.admission.interest.covers
            types = [(name, kind) for name, kind in self._catalog.message_types.items() if covers(name)]
            mark = self._fingerprints[worker] = fingerprint(worker.queue.definition, types)
        return mark

    def snapshot(self, worker: QueueWorker) -> CheckpointSnapshot:
        """Copy the state of a queue for a checkpoint. It is valid once everything accepted before the call is
        persisted.

        This copies a few sets. The encoding may run outside of the engine."""
        if worker.failure is not None:
            return stopped_of(worker.queue)  # stores no state, but keeps the positions that the queue needs
        return snapshot_of(worker.queue, self.fingerprint(worker), self._journal.commits.accepted_end)

    def checkpoint_body(self) -> bytes:
        """Encode a checkpoint now: at the start and at a clean stop, without clients."""
        return encode_snapshots(map(self.snapshot, self._workers.values()))

    def snapshots(self, now: Now) -> list[QueueSnapshot]:
        """Return the current state of all queues."""
        return [
            snapshot(worker.queue, worker.failure, self._journal, now) for worker in self._workers.values()
        ]

    def snapshots_of_run(self, now: Now) -> Iterator[QueueSnapshot]:
        """Yield `snapshots` with counts since the queues started. Nothing before they start."""
        for name, worker in self._workers.items() if self._begun else ():
            seen = snapshot(worker.queue, worker.failure, self._journal, now)
            yield seen.since(self._at_start[name])

    # -- internals --------------------------------------------------------------------------------------

    def _begin_early(self, worker: QueueWorker) -> None:
        """Wake browsers and queries that waited for a queue."""
        queue = worker.queue
        early = self._early.get(queue.name)
        while early:
            first = next(iter(early))
            if not first.may_begin:
                break
            del early[first]
            self._wake_browser(first)
        waiters = self._waiters.get(queue.name)
        while waiters:
            waiter = next(iter(waiters))
            if queue.considered < waiter.needed:
                return
            del waiters[waiter]
            waiter.considered(queue)

    def _wake_browser(self, browsing: QueueBrowser) -> None:
        self._active[browsing] = None

    def _step_browser(self, browsing: QueueBrowser) -> None:
        if browsing.step():
            self._active[browsing] = None
        elif browsing.failure is not None:
            topic = browsing.queue.name
            self._outbox.end_subscription(browsing.session.conn, browsing.sub_id, topic, browsing.failure)
            self.ended.append(browsing)
        elif browsing.over:
            self._outbox.send(browsing.session.conn, Completed(sub_id=browsing.sub_id, next=browsing.end))
            self._outbox.send(browsing.session.conn, Ended(sub_id=browsing.sub_id))
            self.ended.append(browsing)

    def _wake(self, worker: QueueWorker) -> None:
        """Schedule a queue that may have work."""
        worker.mark_active()
        if self._begun:
            self._active[worker] = None

    def _apply(self, worker: QueueWorker, transitions: list[QueueTransition]) -> None:
        for transition in transitions:
            if isinstance(transition, DeferredDelivery):
                self._due.append(transition)
            elif isinstance(transition, RoomFreed):
                self._room_freed(worker, transition.holder)
            else:
                self._stopped(worker, transition.error)

    def _room_freed(self, worker: QueueWorker, holder: QueueFeed) -> None:
        """Wake the other queues of a consumer that holds fewer messages now."""
        for queue in holder.queues:
            if queue is not worker.queue:
                self._wake(self._workers[queue.name])

    def _stopped(self, worker: QueueWorker, error: TickertapeError) -> None:
        """End the subscriptions and waits of a queue that stopped because it cannot read its messages."""
        fields: dict[str, str | int] = {"queue": worker.queue.name, "code": error.code, "text": str(error)}
        self._outbox.log_event("queue_stopped", True, fields)
        subs: list[QueueFeed | QueueBrowser] = [
            *worker.queue.consumers,
            *self._early.pop(worker.queue.name, {}),
        ]
        for sub in subs:
            self._outbox.end_subscription(sub.session.conn, sub.sub_id, sub.topic, error)
            self.ended.append(sub)
        for waiter in self._waiters.pop(worker.queue.name, {}):
            waiter.considered(worker.queue)
