"""Query selection: the SOW topics, queues, records and order that a query requests, and its groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tickertape.engine.limits import query_index_slots_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.engine.queues.queue_feed import FeedQueue, QueueWaiter
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.query.few_records import FewRecords, few_records
from tickertape.engine.sow.query.order import RecordSorter, SortOrder
from tickertape.engine.sow.query.query import Passing, QuerySource, StateQuery
from tickertape.engine.sow.query.record_copy import WantedKeys
from tickertape.engine.sow.query.record_filter import RecordFilter, RecordKeyFilter
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.query.result import ResultFrames
from tickertape.engine.sow.queue_copy import CopyMemory, QueueCopy
from tickertape.engine.sow.state.blocks import BodyBlocks
from tickertape.engine.sow.topic import StateTopic
from tickertape.wire.commands import GroupBegin


class SelectedKeys:
    """Keys of the records to select. Without any, all records."""

    def __init__(self, record_keys: Sequence[str] = (), canonical: Sequence[bytes] = ()) -> None:
        self.names = frozenset(record_keys)
        """Generated or explicit keys."""
        self.canonical = WantedKeys(canonical) if canonical else None
        self.explicit: WantedKeys | None = None
        """The same keys as explicit ones. A key that is not an explicit one is in no record."""
        if record_keys:
            encoded = [key.encode("utf-8", "replace") for key in record_keys]
            self.explicit = WantedKeys(encoded, explicit=True)


class QueryGroup:
    """The part of a query for one SOW topic.

    `only` restricts a SOW over a pattern to one topic. It requires `content`."""

    def __init__(
        self,
        topic: StateTopic,
        topics: RecordTopics,
        content: ContentFilter | None,
        types: dict[str, tuple[str, ...]],
        only: str | None = None,
    ) -> None:
        self.topic = topic
        self.topics = topics
        self.content = content
        self.types = types
        """Topics that are not JSON, by message type."""
        self.filter: RecordFilter | None = None
        if content is not None and (content.filter is not None or only is not None):
            chosen = None if only is None else frozenset((only,))
            self.filter = RecordFilter(content, topics, topic.fold.records.publishers, chosen)
        self.blocks = (topic.fold.records.blocks,)
        """Blocks of the bodies, which results share with the state."""

    def source(self, keys: SelectedKeys, order: SortOrder | None) -> QuerySource:
        """Return the records of this SOW topic that a query selects."""
        sorter = (
            None if order is None else RecordSorter(order, self.topics, self.topic.fold.records.publishers)
        )
        wanted = keys.canonical
        passing: Passing | None = self.filter
        with_keys = ResultFrames.needs_keys(self.topics)
        if self.topics.explicit and not self.topics.over_pattern:
            wanted = wanted or keys.explicit
        elif keys.names:
            passing = RecordKeyFilter(self.topics, keys.names, self.filter)
            with_keys = True
        if self.filter is not None:
            with_keys = with_keys or self.filter.needs_keys
        if sorter is not None:
            with_keys = with_keys or sorter.needs_keys
        slots = search = None
        record_keys = self.topic.fold.record_keys
        if wanted is None and keys.names and record_keys is not None:
            slots = record_keys.candidates(keys.names)
        elif wanted is None and self.content is not None and self.topic.indexes is not None:
            most = min(query_index_slots_max, self.topic.fold.records.record_count // 2)
            slots = self.topic.indexes.candidates(self.content, most)
        if wanted is None and slots is None and self.content is not None:
            search = self.topic.columns.search(self.content)
        return QuerySource(self.topic.fold, passing, wanted, with_keys, sorter, slots, search)

    def begin(self, sub_id: str, as_of: str, position: int) -> GroupBegin:
        """Return the start of the group."""
        definition = self.topic.definition
        return GroupBegin(
            sub_id=sub_id,
            topic=definition.name,
            as_of=as_of,
            position=position,
            key=definition.key,
            domain=definition.key_domain if definition.key else "",
            explicit=self.topics.explicit,
            pattern=definition.pattern or "",
            types=self.types,
        )


class QueueGroup:
    """The part of a query for the available messages of one queue.

    `named`: the query has its name. Such a query fails if the queue has stopped. A pattern leaves it out: a
    stopped queue delivers nothing, so it has no available messages."""

    blocks: tuple[BodyBlocks, ...] = ()

    def __init__(
        self,
        queues: QueueRegistry,
        worker: QueueWorker,
        topics: RecordTopics,
        content: ContentFilter | None,
        types: dict[str, tuple[str, ...]],
        *,
        named: bool,
    ) -> None:
        self._queues = queues
        self._worker = worker
        self.queue: FeedQueue = worker.queue
        self.topics = topics
        self.content = content
        self.types = types
        """Topics of its messages that are not JSON, by message type."""
        self._named = named
        self.position = 0
        """Position of its messages, from their copy on."""
        self.copy: QueueCopy | None = None
        """Copy of the messages, from the start of the query on."""

    def wait(self, waiter: QueueWaiter) -> bool:
        """See `QueueRegistry.wait`."""
        return self._queues.wait(self._worker, waiter)

    def cancel_wait(self, waiter: QueueWaiter) -> None:
        """See `QueueRegistry.cancel_wait`."""
        self._queues.cancel_wait(self._worker, waiter)

    def has_stopped(self) -> bool:
        """Return whether the queue has stopped. Raises its error if the query has its name."""
        failure = self._worker.failure
        if failure is not None and self._named:
            raise failure
        return failure is not None

    def open(self, end: int, limit: int | None, holder: object, memory: CopyMemory) -> None:
        """Take the messages below `end` that are available now. The result needs the first `limit` of them.
        `holder` resumes after each read of the log."""
        available, reader = self._queues.available(self._worker, end), self._queues.reader(holder)
        self.position = end
        self.copy = QueueCopy(available, reader, self.content, memory, limit)

    def source(self, _keys: SelectedKeys, order: SortOrder | None) -> QuerySource:
        """Return the messages that a query selects. Call it after `open`. Messages of queues have no keys."""
        assert self.copy is not None
        sorter = None if order is None else RecordSorter(order, self.topics, self.copy.publishers)
        return QuerySource(self.copy.start, with_keys=self.topics.over_pattern, order=sorter)

    def begin(self, sub_id: str, _as_of: str, _position: int) -> GroupBegin:
        """Return the start of the group. It has no `as_of`, because the queue has a position of its own."""
        return GroupBegin(
            sub_id=sub_id,
            topic=self.topics.queue,
            as_of="0",
            position=self.position,
            types=self.types,
            queue=True,
        )


Group: TypeAlias = QueryGroup | QueueGroup


class GroupQuery(NamedTuple):
    """The query of some SOW topics and queues, whose records are sent together."""

    groups: tuple[Group, ...]
    query: StateQuery | FewRecords


class QuerySelection(NamedTuple):
    """A validated query."""

    groups: tuple[Group, ...]
    """SOW topics, then queues."""
    keys: SelectedKeys
    """None for queues."""
    order: SortOrder | None
    top_n: int | None
    skip_n: int
    batch_size: int
    follow: Interest | None
    """Messages that follow the result. None: it ends."""
    queues: tuple[QueueGroup, ...] = ()
    """The queues among the groups."""

    def prepare(self, memory: StateMemory) -> Iterator[None]:
        """Build the indexes that the queries need, one bounded step for each yield."""
        if self.keys.names and self.keys.canonical is None:
            for group in self.groups:
                if isinstance(group, QueryGroup):
                    yield from memory.index_record_keys(group.topic.fold)

    def without_stopped(self) -> QuerySelection:
        """Return the selection without stopped queues. Raises the error of one with the name of the query."""
        left_out = [group for group in self.queues if group.has_stopped()]
        if not left_out:
            return self
        return self._replace(
            groups=tuple(group for group in self.groups if group not in left_out),
            queues=tuple(group for group in self.queues if group not in left_out),
        )

    def begin(self, position: int, end: int, holder: object) -> list[GroupQuery]:
        """Start the queries at the folded position: one of all SOW topics and queues with `order` or `top_n`,
        otherwise one of each. Queues have messages below `end`, and `holder` resumes after each read for
        them."""
        groups = self.groups
        if self.queues:
            self._open_queues(end, holder)
        if len(groups) == 1:
            source = groups[0].source(self.keys, self.order)
            few = few_records(source, position, self.top_n, self.skip_n)
            return [GroupQuery(groups, few or StateQuery([source], position, self.top_n, self.skip_n))]
        together = self.order is not None or self.top_n is not None
        parts = [groups] if together and groups else [(group,) for group in groups]
        return [
            GroupQuery(
                part,
                StateQuery(
                    [group.source(self.keys, self.order) for group in part], position, self.top_n, self.skip_n
                ),
            )
            for part in parts
        ]

    def _open_queues(self, end: int, holder: object) -> None:
        limit = self.top_n
        if limit:
            limit = self.skip_n + limit if self.order is None else None
        memory = CopyMemory()
        for group in self.queues:
            group.open(end, limit, holder, memory)
