"""Query selection: the SOW topics, records and order that a query requests, and its groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tickertape.engine.limits import query_index_slots_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.query.few_records import FewRecords, few_records
from tickertape.engine.sow.query.order import RecordSorter, SortOrder
from tickertape.engine.sow.query.query import Passing, QuerySource, StateQuery
from tickertape.engine.sow.query.record_copy import WantedKeys
from tickertape.engine.sow.query.record_filter import RecordFilter, RecordKeyFilter
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.query.result import ResultFrames
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
            self.filter = RecordFilter(content, topics, topic.fold.records, chosen)
        self._only = only

    def source(self, keys: SelectedKeys, order: SortOrder | None) -> QuerySource:
        """Return the records of this SOW topic that a query selects."""
        sorter = None if order is None else RecordSorter(order, self.topics, self.topic.fold.records)
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


class GroupQuery(NamedTuple):
    """The query of some SOW topics, whose records are sent together."""

    groups: tuple[QueryGroup, ...]
    query: StateQuery | FewRecords


class QuerySelection(NamedTuple):
    """A validated query."""

    groups: tuple[QueryGroup, ...]
    keys: SelectedKeys
    order: SortOrder | None
    top_n: int | None
    skip_n: int
    batch_size: int
    follow: Interest | None
    """Messages that follow the result. None: it ends."""

    def prepare(self, memory: StateMemory) -> Iterator[None]:
        """Build the indexes that the queries need, one bounded step for each yield."""
        if self.keys.names and self.keys.canonical is None:
            for group in self.groups:
                yield from memory.index_record_keys(group.topic.fold)

    def begin(self, position: int) -> list[GroupQuery]:
        """Start the queries at the folded position: one of all SOW topics with `order` or `top_n`, otherwise
        one of each."""
        groups = self.groups
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
