"""Filter groups: subscriptions with filters, by topic, with one filter index for each message type.

A batch is tested only against filters that can match, one bounded piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

import numpy as np

from tickertape.batch import MessageBatch, indices_of_topics
from tickertape.batch.format import I8, Int64s
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest, rows_of_topics
from tickertape.engine.matching.topic_patterns import PatternMap
from tickertape.filter.batch_filter import bodies_of
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.limits import (
    filter_piece_bytes_max,
    filter_piece_steps_max,
    index_piece_messages_max,
)
from tickertape.payload import message_type

_STEP_BYTES = filter_piece_bytes_max // filter_piece_steps_max
"""Cost of a search step, in examined bytes."""


class GroupWithInterest(Protocol):
    """A group with an interest."""

    interest: Interest


G = TypeVar("G", bound=GroupWithInterest)


def is_indexed(interest: Interest) -> bool:
    """Return whether an index can hold the filter, because its result does not depend on the subscriber."""
    content = interest.content
    if interest.has_exclusions or content is None:
        return False
    return content.filter is not None and not content.depends_on_subscriber


class GroupMatches(Generic[G]):
    """Matching messages of a batch for several groups."""

    def __init__(self, groups: list[G], bounds: list[int], indices: Int64s, whole: bool = False) -> None:
        self.groups = groups
        self.whole = whole
        """True only if no group has a select list."""
        self.bounds = bounds
        """Start of each group in `indices`, and the end of the last group."""
        self.indices = indices
        """Indices of messages in the batch, ascending within each group."""

    def __len__(self) -> int:
        return len(self.groups)

    def of(self, number: int) -> Int64s:
        """Return the messages of group `number`."""
        return self.indices[self.bounds[number] : self.bounds[number + 1]]

    def divided(self, wanted: Callable[[G], bool]) -> tuple[GroupMatches[G], GroupMatches[G]]:
        """Split the matches by the predicate `wanted`."""
        true: list[tuple[G, Int64s]] = []
        false: list[tuple[G, Int64s]] = []
        answers = [*map(wanted, self.groups)]
        if all(answers):
            return self, matches_of(false)
        for number, answer in enumerate(answers):
            (true if answer else false).append((self.groups[number], self.of(number)))
        return matches_of(true), matches_of(false)


def matches_of(pairs: Sequence[tuple[G, Int64s]]) -> GroupMatches[G]:
    """Return the matches of groups, each with its messages."""
    bounds = [0, *accumulate([len(indices) for _, indices in pairs])]
    indices = np.concatenate([indices for _, indices in pairs]) if pairs else np.empty(0, I8)
    return GroupMatches([group for group, _ in pairs], bounds, indices)


class TopicFilters(Generic[G]):
    """All groups of one topic or one topic pattern."""

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self.groups: dict[G, ContentFilter] = {}
        self._selecting = 0
        """Number of groups with a select list."""
        self._indexes: dict[str, FilterIndex[G]] = {}
        """Filter indexes by message type."""

    def add(self, group: G, content: ContentFilter) -> None:
        for name in content.types:
            self._index(name)
        self.groups[group] = content
        self._selecting += content.select is not None
        for name, index in self._indexes.items():
            index.add(group, content.filter_of(name))

    def discard(self, group: G) -> None:
        self._selecting -= self.groups.pop(group).select is not None
        for index in self._indexes.values():
            index.discard(group)

    def _index(self, name: str) -> FilterIndex[G]:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = FilterIndex(message_type(name))
            for group, content in self.groups.items():
                index.add(group, content.filter_of(name))
        return index

    def search(self, batch: MessageBatch, which: Int64s) -> Generator[int, None, GroupMatches[G]]:
        """Match the messages `which` against all filters. Yield examined bytes, return the matches."""
        content = next(iter(self.groups.values()))
        by_type = content.by_type(batch, which)
        if len(by_type) == 1:
            return (yield from self._search(by_type[0][0], content, batch, which))
        parts: dict[G, list[Int64s]] = {}
        for name, own in by_type:
            found = yield from self._search(name, content, batch, own)
            for number, group in enumerate(found.groups):
                parts.setdefault(group, []).append(found.of(number))
        return matches_of([(group, np.sort(np.concatenate(own))) for group, own in parts.items()])

    def _search(
        self, name: str, content: ContentFilter, batch: MessageBatch, own: Int64s
    ) -> Generator[int, None, GroupMatches[G]]:
        index, offsets = self._index(name), batch.offsets
        with index.search() as search:
            at = 0
            while at < len(own):
                most = int(offsets[own[at]]) + filter_piece_bytes_max
                after = max(int(own.searchsorted(int(offsets.searchsorted(most, "right")) - 1)), at + 1)
                piece = own[at : min(after, at + index_piece_messages_max)]
                bodies = bodies_of(batch, piece)
                context = content.context(index.needs, batch, piece.tolist()) if index.needs else None
                yield sum(map(len, bodies))
                for steps in search.look_at(bodies, context, at):
                    yield steps * _STEP_BYTES
                at += len(piece)
            matches = search.matches()
        content.count_unreadable(matches.unreadable)
        indices = own[matches.indices]
        if set(map(len, matches.keys)) == {1}:
            whole = not self._selecting
            return GroupMatches([group for (group,) in matches.keys], matches.bounds, indices, whole)
        return matches_of([(group, own[some]) for group, some in matches])


class FilteredGroups(Generic[G]):
    """Groups whose filters an index can hold (see `is_indexed`)."""

    def __init__(self) -> None:
        self._by_topic: dict[str, TopicFilters[G]] = {}
        self._by_pattern: PatternMap[TopicFilters[G]] = PatternMap()

    def add(self, group: G) -> None:
        """Add a group."""
        interest = group.interest
        assert interest.content is not None
        if interest.pattern is not None:
            topics = self._by_pattern.setdefault(interest.pattern, lambda: TopicFilters(interest))
        else:
            topics = self._by_topic.setdefault(interest.topic, TopicFilters(interest))
        topics.add(group, interest.content)

    def discard(self, group: G) -> None:
        """Remove a group."""
        interest = group.interest
        if interest.pattern is None:
            topics = self._by_topic[interest.topic]
            topics.discard(group)
            if not topics.groups:
                del self._by_topic[interest.topic]
        else:
            self._by_pattern[interest.pattern].discard(group)
            if not self._by_pattern[interest.pattern].groups:
                del self._by_pattern[interest.pattern]

    def groups(self) -> Iterator[G]:
        """Yield all groups."""
        for topics in [*self._by_topic.values(), *self._by_pattern.values()]:
            yield from topics.groups

    def apart(self) -> Iterator[FilteredGroups[G]]:
        """Yield the groups of each topic separately, then all groups with patterns together."""
        for topic, topics in self._by_topic.items():
            one: FilteredGroups[G] = FilteredGroups()
            one._by_topic[topic] = topics
            yield one
        if self._by_pattern:
            patterns: FilteredGroups[G] = FilteredGroups()
            patterns._by_pattern = self._by_pattern
            yield patterns

    def may_cover(self, topics: Sequence[str]) -> bool:
        """Return whether a group may cover one of `topics`, without a pattern search."""
        return any(topic in self._by_topic for topic in topics) or self._by_pattern.may_fit(topics)

    def search(self, batch: MessageBatch) -> Iterator[int | GroupMatches[G]]:
        """Yield examined bytes and then the matches in `batch`, for each topic and pattern."""
        named = [topic for topic in batch.topics if topic in self._by_topic]
        for topic, indices in indices_of_topics(batch, named):
            topics = self._by_topic.get(topic)
            if topics is not None:
                yield (yield from topics.search(batch, indices))
        for found in self._by_pattern.found(batch.topics):
            if isinstance(found, int):
                yield found
                continue
            topics, own = found
            indices = rows_of_topics(batch, own).nonzero()[0].astype(I8)
            if topics.groups and len(indices):
                yield (yield from topics.search(batch, indices))
