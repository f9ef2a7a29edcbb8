"""Query selection: the SOW topics, records and order that a query requests, and its groups."""

from __future__ import annotations

from typing import NamedTuple

from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.engine.sow.query.order import RecordSorter, SortOrder
from tickertape.engine.sow.query.query import Passing, QueryTerms, StateQuery
from tickertape.engine.sow.query.record_filter import RecordFilter, RecordKeyFilter
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.query.result import ResultFrames
from tickertape.engine.sow.state.keys import ExplicitKeys
from tickertape.engine.sow.topic import StateTopic
from tickertape.wire.commands import GroupBegin


class SelectedKeys(NamedTuple):
    """Keys of the records to select. Without any, all records."""

    record_keys: tuple[str, ...] = ()
    """Generated or explicit keys."""
    canonical: tuple[bytes, ...] = ()


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

    def terms(
        self, keys: SelectedKeys, order: SortOrder | None, top_n: int | None, skip_n: int
    ) -> QueryTerms:
        """Return the terms of the query of this SOW topic."""
        sorter = None if order is None else RecordSorter(order, self.topics, self.topic.fold.records)
        canonical = list(keys.canonical) if keys.canonical else None
        passing: Passing | None = self.filter
        with_keys = ResultFrames.needs_keys(self.topics)
        if keys.record_keys and self.topics.explicit and not self.topics.over_pattern:
            # A key that is not an explicit one is in no record.
            found = ExplicitKeys().read([key.encode("utf-8", "replace") for key in keys.record_keys])
            canonical = [key for key in found.keys if key]
        elif keys.record_keys:
            passing = RecordKeyFilter(self.topics, frozenset(keys.record_keys), self.filter)
            with_keys = True
        if self.filter is not None:
            with_keys = with_keys or self.filter.needs_keys
        if sorter is not None:
            with_keys = with_keys or sorter.needs_keys
        return QueryTerms(passing, canonical, with_keys, sorter, top_n, skip_n)

    def topic_matches(self, query: StateQuery) -> int:
        """Return the number of all records of the queried topics."""
        if self._only is None or self.filter is None:
            return query.topic_matches
        return self.filter.topic_matches

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

    def begin(self, group: QueryGroup, position: int) -> StateQuery:
        """Start the query of one SOW topic at the folded position."""
        terms = group.terms(self.keys, self.order, self.top_n, self.skip_n)
        return StateQuery(group.topic.fold, position, terms)
