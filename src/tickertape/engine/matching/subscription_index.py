"""Subscription index: finds the subscriptions that a batch matches.

Subscriptions with the same interest share one lookup. At most one bounded piece of a batch is examined
between two matches. A subscription that leaves for a short time is suspended: it matches nothing, but keeps
its entry in the filter index, because removing and adding a filter is expensive.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from tickertape.batch import MessageBatch, indices_of_topics, select, split_topics
from tickertape.batch.format import Int64s
from tickertape.engine.matching.filter_groups import FilteredGroups, GroupMatches, is_indexed
from tickertape.engine.matching.interest import Interest, rows_of_topics
from tickertape.engine.matching.topic_patterns import PatternMap


class HasInterest(Protocol):
    """A subscription."""

    interest: Interest


S = TypeVar("S", bound=HasInterest)


class InterestGroup(Generic[S]):
    """Subscriptions with the same interest."""

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self.subs: dict[S, None] = {}
        self.suspended = 0
        """Number of further subscriptions, which are suspended."""


G = TypeVar("G", bound="InterestGroup[Any]")


class Match(NamedTuple, Generic[G]):
    """Matching messages of a batch for one group, or for several groups with filters."""

    batch: MessageBatch | None
    """None if a piece was examined without a match."""
    group: G | None
    """None if `batch` is None."""
    looked_at: int
    """Examined bytes of bodies."""
    indices: Int64s | None = None
    """Indices of the messages of `batch` in the examined batch."""
    found: GroupMatches[G] | None = None
    """Matches of several groups, instead of `batch` and `group`."""


class SubscriptionIndex(Generic[S, G]):
    """Index of subscriptions, which are grouped in instances of `group_type`."""

    def __init__(self, group_type: type[G]) -> None:
        self._group_type = group_type
        self._by_topic: dict[str, G] = {}
        """Groups that cover one whole topic."""
        self._groups: dict[Hashable, G] = {}
        """All other groups, by interest key."""
        self._filtered: FilteredGroups[G] = FilteredGroups()
        """Other groups whose filters are in an index."""
        self._count = 0
        self._suspended: dict[S, int] = {}
        """Suspended subscriptions in order, with the position at that time. All of them have an indexed
        filter."""
        self._vacant: dict[G, None] = {}
        """Groups that have lost their last subscription in `take_filtered`, to be removed by `expire`."""
        self._alone: dict[str, dict[G, None]] = {}
        """Other groups that are tested one by one, by topic."""
        self._by_pattern: PatternMap[dict[G, None]] = PatternMap()
        """Other groups that are tested one by one, by pattern."""
        self._odd: dict[G, None] = {}
        """Other groups that are tested for every topic."""

    def __len__(self) -> int:
        return self._count

    @property
    def entries(self) -> int:
        """Number of subscriptions, including suspended ones."""
        return self._count + len(self._suspended)

    def __iter__(self) -> Iterator[S]:
        for group in self.groups():
            yield from group.subs

    def groups(self) -> Iterator[G]:
        """Yield all groups."""
        yield from self._by_topic.values()
        yield from self._groups.values()

    def add(self, sub: S) -> G:
        """Add a subscription, or resume a suspended one. Return its group."""
        interest = sub.interest
        groups, key = self._place(interest)
        group = groups.get(key)
        if group is None:
            group = groups[key] = self._group_type(interest)
            if is_indexed(interest):
                self._filtered.add(group)
            elif interest.pattern is not None:
                self._by_pattern.setdefault(interest.pattern, dict)[group] = None
            elif interest.has_exclusions:
                self._odd[group] = None
            elif groups is self._groups and interest.topic_name is not None:
                self._alone.setdefault(interest.topic_name, {})[group] = None
        if sub not in group.subs:
            self._count += 1
            group.subs[sub] = None
            if self._suspended.pop(sub, None) is not None:
                group.suspended -= 1
        return group

    def suspend(self, sub: S, position: int) -> None:
        """Let a subscription match nothing until it is added again. Its interest must not change meanwhile.

        Without an indexed filter it is removed, because adding it again is cheap."""
        if not is_indexed(sub.interest):
            self.discard(sub)
            return
        group = self._groups[sub.interest.key]
        del group.subs[sub]
        self._count -= 1
        group.suspended += 1
        self._suspended[sub] = position

    def is_suspended(self, sub: S) -> bool:
        """Return whether a subscription is suspended."""
        return sub in self._suspended

    def expire(self, position: int, entries_max: int) -> None:
        """Remove subscriptions that were suspended before `position`, and then vacant groups, at most
        `entries_max` of each."""
        for sub, since in [*islice(self._suspended.items(), entries_max)]:
            if since >= position:
                break
            self.discard(sub)
        for group in [*islice(self._vacant, entries_max)]:
            del self._vacant[group]
            self._discard_if_empty(self._groups, group)

    def discard(self, sub: S) -> None:
        """Remove a subscription, if it is in the index or suspended."""
        groups, key = self._place(sub.interest)
        group = groups.get(key)
        if group is None:
            return
        if sub in group.subs:
            del group.subs[sub]
            self._count -= 1
        elif self._suspended.pop(sub, None) is not None:
            group.suspended -= 1
        else:
            return
        self._discard_if_empty(groups, group)

    def _discard_if_empty(self, groups: dict[Any, G], group: G) -> None:
        if not (group.subs or group.suspended):
            interest = group.interest
            del groups[self._place(interest)[1]]
            self._vacant.pop(group, None)
            if is_indexed(interest):
                self._filtered.discard(group)
            elif groups is self._groups:
                self._discard_alone(group)

    def _discard_alone(self, group: G) -> None:
        pattern, topic_name = group.interest.pattern, group.interest.topic_name
        self._odd.pop(group, None)
        if pattern is not None:
            del self._by_pattern[pattern][group]
            if not self._by_pattern[pattern]:
                del self._by_pattern[pattern]
        elif topic_name is not None:
            del self._alone[topic_name][group]
            if not self._alone[topic_name]:
                del self._alone[topic_name]

    def take_filtered(self) -> list[SubscriptionIndex[S, G]]:
        """Move groups with indexed filters to new indexes: one for each topic, and one for all patterns.
        Suspended subscriptions are removed. Groups without others become vacant, because removing many
        filters at once takes too long."""
        self._suspended.clear()
        self._vacant.clear()
        taken = []
        for filtered in self._filtered.apart():
            other: SubscriptionIndex[S, G] = SubscriptionIndex(self._group_type)
            other._filtered = filtered
            for group in filtered.groups():
                del self._groups[group.interest.key]
                other._groups[group.interest.key] = group
                other._count += len(group.subs)
                group.suspended = 0
                if not group.subs:
                    other._vacant[group] = None
            self._count -= other._count
            if other:
                taken.append(other)
        self._filtered = FilteredGroups()
        return taken

    def _place(self, interest: Interest) -> tuple[dict[Any, G], Hashable]:
        if interest.topic_name is not None and interest.plain:
            return self._by_topic, interest.topic_name
        return self._groups, interest.key

    def may_match(self, batch: MessageBatch) -> bool:
        """Return whether a group may cover a topic of a batch, without a pattern search."""
        return (
            any(topic in self._by_topic or topic in self._alone for topic in batch.topics)
            or self._by_pattern.may_fit(batch.topics)
            or self._filtered.may_cover(batch.topics)
            or any(group.interest.covers(topic) for group in self._odd for topic in batch.topics)
        )

    def matches(self, batch: MessageBatch, *, parted: bool = False) -> Iterator[Match[G]]:
        """Yield the matches of a batch for the groups that are in the index at that time. With `parted`,
        groups without a select list that match together share one `Match`."""
        wanted = [topic for topic in batch.topics if topic in self._by_topic]
        for topic, chosen in split_topics(batch, wanted):
            group = self._by_topic.get(topic)
            if group is not None:
                yield Match(chosen, group, 0)
        for found in self._filtered.search(batch):
            if isinstance(found, int):
                yield Match(None, None, found)
                continue
            if parted and found.whole:
                yield Match(None, None, 0, found=found)
                continue
            if parted:
                whole, found = found.divided(_is_whole)
                if whole:
                    yield Match(None, None, 0, found=whole)
            for number, group in enumerate(found.groups):
                if group.subs:
                    yield _of(batch, group, found.of(number))
        for topic, indices in indices_of_topics(batch, [t for t in batch.topics if t in self._alone]):
            for group in [*self._alone.get(topic, ())]:
                yield from _of_group(batch, group, indices)
        yield from self._offers_to_odd(batch)
        for matched in self._by_pattern.found(batch.topics):
            if isinstance(matched, int):
                yield Match(None, None, matched)
                continue
            groups, own = matched
            indices = rows_of_topics(batch, own).nonzero()[0]
            for group in [*groups]:
                yield from _of_group(batch, group, indices)

    def _offers_to_odd(self, batch: MessageBatch) -> Iterator[Match[G]]:
        for group in [*self._odd]:
            mask = group.interest.mask(batch)
            if mask is not None:
                yield from _of_group(batch, group, mask.nonzero()[0])


def _is_whole(group: InterestGroup[Any]) -> bool:
    """Return whether the group has no select list."""
    return group.interest.content is None or group.interest.content.select is None


def _of_group(batch: MessageBatch, group: G, indices: Int64s) -> Iterator[Match[G]]:
    content = group.interest.content
    if content is not None and content.filter is not None:
        passed: list[Int64s] = []
        at = 0
        while at < len(indices):
            low = int(indices[at])
            high = content.piece_end(batch, low)
            after = int(indices.searchsorted(high))
            passed.append(content.matching_rows(batch, indices[at:after]))
            at = after
            yield Match(None, None, int(batch.offsets[high]) - int(batch.offsets[low]))
        indices = np.concatenate(passed) if passed else indices
    if len(indices) and group.subs:
        yield _of(batch, group, indices)


def _of(batch: MessageBatch, group: G, indices: Int64s) -> Match[G]:
    """Return the match of a group with the messages `indices`."""
    content = group.interest.content
    chosen = select(batch, indices)
    if content is None or content.select is None:
        return Match(chosen, group, 0, indices)
    return Match(content.project(chosen), group, chosen.body_bytes, indices)
