"""SOW feed: the result of one query of a subscription, and the log feed that continues it.

Invariants:
- The result has the records at one position P, the folded position at its start. A queue has its own one.
- The log feed is held at P in the step that starts the result, and released after its end. So a client gets
  each message from P on, once.
- All records are copied before the first one is sent. So a slow reader keeps no changes of the states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import slice_batch
from tickertape.engine.limits import few_records_steps_max, query_step_groups_max
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sow.log_fold import LogFold
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.query.few_records import FewRecords
from tickertape.engine.sow.query.query import StateQuery
from tickertape.engine.sow.query.result import ResultFrame, ResultFrames
from tickertape.engine.sow.result_memory import ResultMemory
from tickertape.engine.sow.selection import Group, GroupQuery, QuerySelection, QueueGroup
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.subscriptions.start_position import ReplayRange
from tickertape.engine.subscriptions.subscription import Feed, FeedService, Subscription
from tickertape.wire.commands import Command, Completed, Ended, GroupEnd, Records
from tickertape.wire.frames import encode_frame
from tickertape.wire.sow_command import record_mark_bytes


class HeldFeeds(Protocol):
    """Log delivery, which holds log feeds and releases them."""

    def hold(self, sub: LogFeed) -> None:
        """Start a feed that is sent nothing before `release`."""

    def release(self, sub: LogFeed) -> None:
        """Let a held feed receive its messages."""

    def remove(self, sub: LogFeed) -> None:
        """End a feed."""


class SowFeed(Feed):
    """One query of a subscription. `log_feed` sends the messages after the result, if any."""

    def __init__(
        self,
        subscription: Subscription,
        topic: str,
        selection: QuerySelection,
        service: FeedService,
        outbox: Outbox,
        log_feed: LogFeed | None,
    ) -> None:
        super().__init__(subscription, topic, service)
        self._selection = selection
        self.groups: tuple[Group, ...] = selection.groups
        """The SOW topics and queues of the query."""
        self.queues: tuple[QueueGroup, ...] = selection.queues
        """The queues among them."""
        self.needs_fold = len(self.queues) < len(self.groups)
        """Whether its start waits for the fold: it covers a SOW topic."""
        self.late: dict[FeedQueue, QueueGroup] = {}
        """Queues for which its start waits."""
        self._outbox = outbox
        self.needed = 0
        """Position up to which the log must be folded, and considered by queues, before its start."""
        self.requested_at = 0.0
        """Time (monotonic) of its request."""
        self._preparation: Iterator[None] | None = None
        """Steps before its start. None before the first one, and without any left."""
        self.prepared = False
        """Whether the indexes that it needs are built."""
        self.log_feed = log_feed
        self.position = 0
        """Position of the records of SOW topics, from `begin` on."""
        self._lowest = 0
        """Lowest position of the parts of the result. 0 without any."""
        self.is_small = False
        """Whether it has begun, and its steps are so short that it takes several at once."""
        self.over = False
        """Whether everything is sent, or the query has ended."""
        self.queued = False
        """Whether it is in the run queue."""
        self._queries: list[GroupQuery] = []
        self._memory: ResultMemory | None = None
        """None before the start and after the end."""
        self._bytes = 0
        """Memory of the result, without blocks of bodies."""
        self._as_of = ""
        self._announced = 0
        """Groups whose starts are sent."""
        self._copied = 0
        """Queries whose records are copied."""
        self._current = 0
        """Number of the query whose records are selected or sent."""
        self._frames: ResultFrames | None = None
        self._waiting: deque[ResultFrame] = deque()
        """At most one frame that credit or connection do not permit yet."""
        self._sent = 0

    @property
    def owed(self) -> bool:
        """Whether a clean stop waits for the rest of the result."""
        return not self.over

    @property
    def filter(self) -> str | None:
        """The filter of the query."""
        return next((group.content.filter for group in self.groups if group.content is not None), None)

    @property
    def blocked(self) -> bool:
        """Whether credit or connection block the result."""
        return bool(self._waiting) or not self.session.writable

    @property
    def oldest_needed(self) -> int | None:
        """Position from which it still needs the log for messages of queues, or None."""
        copies = [group.copy for group in self.queues if group.copy is not None]
        return min([copy.oldest_needed for copy in copies if copy.oldest_needed is not None], default=None)

    @property
    def begun(self) -> bool:
        """Whether its result has started, and has not ended."""
        return self._memory is not None

    def wait_for_queues(self) -> None:
        """Wait until all queues have considered the log up to `needed`, or have stopped: until `late` is
        empty."""
        for group in self.queues:
            if group.wait(self):
                self.late[group.queue] = group

    def considered(self, queue: FeedQueue) -> None:
        """Continue without a queue: it has considered the log up to `needed`, or has stopped."""
        del self.late[queue]
        self._service.credit(self)

    def prepare(self, memory: StateMemory) -> None:
        """Execute one bounded step before the start, until `prepared`."""
        if self._preparation is None:
            self._preparation = self._selection.prepare(memory)
        if next(self._preparation, self) is self:
            self.prepared = True

    def begin(self, fold: LogFold, log: HeldFeeds, memory: ResultMemory) -> None:
        """Start the result at the folded position, and hold the log there. `memory` counts the result.

        Raises the error of a stopped queue with the name of the query."""
        if self.queues:
            self._leave_out_stopped()
        self.position = fold.folded
        self._as_of = "0" if fold.last is None else str(fold.last)
        self._queries = self._selection.begin(self.position, self.needed, self)
        self._lowest = self.position if self._queries else 0
        if self.queues:
            positions = [queue.position for queue in self.queues]
            self._lowest = min([*positions, self.position] if self.needs_fold else positions)
        self.is_small = len(self._queries) == 1 and isinstance(self._queries[0].query, FewRecords)
        self._memory = memory
        memory.begin(blocks for group in self.groups for blocks in group.blocks)
        self._count(sum(query.nbytes for _, query in self._queries))
        if self.log_feed is not None:
            self.log_feed.begin(ReplayRange(self.position), None)
            log.hold(self.log_feed)

    def step(self) -> bool:
        """Execute one bounded step, or several of a query of few records. Return whether another step could
        do something now.

        Raises `QueryTooSlow`, `JournalCorrupt` and other errors that end the query."""
        steps = few_records_steps_max if self.is_small else 1
        while steps and self._step():
            steps -= 1
        return not steps

    def _step(self) -> bool:
        """Execute one bounded step. Return whether another step could do something now."""
        if self._waiting:
            return self._send_records(self._pop_waiting())
        if self._announced < len(self.groups):
            self._announce()
            return True
        if self._copied < len(self._queries):
            query = self._queries[self._copied].query
            if not query.is_copied:
                self._step_query(query)
            self._copied += query.is_copied
            return not query.waiting
        if self._current == len(self._queries):
            self._end()
            return False
        groups, query = self._queries[self._current]
        if not query.over:
            self._step_query(query)
            return True
        if not self.session.writable:
            return False
        if self._frames is None:
            topics = [group.topics for group in groups]
            queues = [one.queue for one in topics] if self.queues else ()
            content, size = groups[0].content, self._selection.batch_size
            self._frames = ResultFrames(query, topics, content, size, queues)
        frame = self._frames.next()
        if frame is not None:
            sent = self._send_records(frame)
            if not (sent and self._frames.over):
                return sent
        self._frames = None
        self._count(-query.nbytes)
        self._close(query)
        self._current += 1
        return True

    def stop(self) -> None:
        """End the query and release everything that it holds. Further calls have no effect."""
        if self.over:
            return
        self.over = True
        for group in self.late.values():
            group.cancel_wait(self)
        self.late.clear()
        self._waiting.clear()
        self._frames = None
        for _, query in self._queries[self._current :]:
            self._close(query)
        self._count(-self._bytes)
        if self._memory is not None:
            self._memory.end(blocks for group in self.groups for blocks in group.blocks)
            self._memory = None

    def fail(self, error: TickertapeError, log: HeldFeeds) -> None:
        """End the whole subscription with an error."""
        self.stop()
        if self.session.ended:
            return
        self._outbox.end_subscription(self.session.conn, self.sub_id, self.topic, error)
        if self.log_feed is not None:
            log.remove(self.log_feed)

    # -- internals --------------------------------------------------------------------------------------

    def _leave_out_stopped(self) -> None:
        selection = self._selection = self._selection.without_stopped()
        self.groups, self.queues = selection.groups, selection.queues

    def _announce(self) -> None:
        """Send the starts of some groups."""
        end = self._announced + query_step_groups_max
        for group in self.groups[self._announced : end]:
            self._put(encode_frame(group.begin(self.sub_id, self._as_of, self.position)))
        self._announced = min(end, len(self.groups))

    def _close(self, query: StateQuery | FewRecords) -> None:
        memory = query.close()
        if self._memory is not None:
            self._memory.discard(memory)

    def _step_query(self, query: StateQuery | FewRecords) -> None:
        before = query.nbytes
        query.step()
        self._count(query.nbytes - before)

    def _count(self, nbytes: int) -> None:
        """Count memory of the result that is more or less than before."""
        self._bytes += nbytes
        if self._memory is not None:
            self._memory.count(nbytes)

    def _keep_waiting(self, frame: ResultFrame) -> None:
        self._waiting.append(frame)
        self._count(frame.batch.nbytes)

    def _pop_waiting(self) -> ResultFrame:
        frame = self._waiting.popleft()
        self._count(-frame.batch.nbytes)
        return frame

    def _send_records(self, frame: ResultFrame) -> bool:
        """Send as much of a frame as credit and connection permit. Return whether that was all of it."""
        batch = frame.batch
        count = self.allowance.fitting(batch, 0, batch.count) if self.session.writable else 0
        if not count:
            self._keep_waiting(frame)
            return False
        sent, marks, queue = batch, frame.marks, frame.queue
        if count < batch.count:
            sent = slice_batch(batch, 0, count)
            cut = count * record_mark_bytes
            self._keep_waiting(ResultFrame(slice_batch(batch, count, batch.count), marks[cut:], queue))
            marks = marks[:cut]
        self.spend(sent)
        self._sent += count
        self._put(encode_frame(Records(sub_id=self.sub_id, marks=marks, queue=queue), sent))
        return True

    def _end(self) -> None:
        matches = sum(query.matches for _, query in self._queries)
        topic_matches = sum(query.topic_matches for _, query in self._queries)
        ends: list[Command] = [
            GroupEnd(sub_id=self.sub_id, matches=matches, topic_matches=topic_matches, records=self._sent),
            Completed(sub_id=self.sub_id, next=self._lowest),
        ]
        if self.log_feed is None:
            ends.append(Ended(sub_id=self.sub_id))
        self._put([buffer for command in ends for buffer in encode_frame(command)])
        self.stop()

    def _put(self, buffers: list[Buffer]) -> None:
        if not self.session.ended:
            self._outbox.put(Send(self.session.conn, buffers))
