"""Owns the groups of subscriptions that have filters: by topic, and for each message type in an index, so
that a batch is tested only against the filters that can match.

Must never look at more than a bounded piece of a batch between two results.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

from tickertape.base.limits import (
    filter_piece_bytes_max,
    filter_piece_steps_max,
    index_piece_messages_max,
)
from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.content import Content, bodies_of
from tickertape.engine.cover import Cover
from tickertape.filter.index import FilterIndex
from tickertape.payload import message_type

_STEP_BYTES = filter_piece_bytes_max // filter_piece_steps_max
"""What a step of a search counts, in bytes looked at."""


class Grouped(Protocol):
    """Somebody who covers something."""

    cover: Cover


G = TypeVar("G", bound=Grouped)


def is_indexed(cover: Cover) -> bool:
    """Whether it has a filter whose answer is the same for everybody."""
    content = cover.content
    return content is not None and content.filter is not None and not content.is_of_subscriber


class _Topics(Generic[G]):
    """All groups of one topic, or one pattern of topics."""

    def __init__(self, cover: Cover) -> None:
        self.cover = cover
        self.groups: dict[G, Content] = {}
        self._indexes: dict[str, FilterIndex[G]] = {}
        """By message type."""

    def add(self, group: G, content: Content) -> None:
        self.groups[group] = content
        for name, index in self._indexes.items():
            index.add(group, content.filter_of(name))

    def discard(self, group: G) -> None:
        del self.groups[group]
        for index in self._indexes.values():
            index.discard(group)

    def _index(self, name: str) -> FilterIndex[G]:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = FilterIndex(message_type(name))
            for group, content in self.groups.items():
                index.add(group, content.filter_of(name))
        return index

    def search(self, batch: MessageBatch, which: Int64s) -> Generator[int, None, list[tuple[G, Int64s]]]:
        """Which of the messages `which` each group's filter matches; yields bytes looked at."""
        content = next(iter(self.groups.values()))
        found: dict[G, list[Int64s]] = {}
        for name, own in content.by_type(batch, which):
            for group, indices in (yield from self._search(name, content, batch, own)):
                found.setdefault(group, []).append(indices)
        return [
            (group, parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts)))
            for group, parts in found.items()
        ]

    def _search(
        self, name: str, content: Content, batch: MessageBatch, own: Int64s
    ) -> Generator[int, None, Iterator[tuple[G, Int64s]]]:
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
        return ((group, own[indices]) for group, indices in matches)


class Filtered(Generic[G]):
    """Groups with filters that an index can hold (see `is_indexed`)."""

    def __init__(self) -> None:
        self._by_topic: dict[str, _Topics[G]] = {}
        self._patterns: dict[str, _Topics[G]] = {}

    def add(self, group: G) -> None:
        """It takes part from now on."""
        cover = group.cover
        assert cover.content is not None
        place = self._patterns if cover.literal is None else self._by_topic
        topics = place.get(cover.topic)
        if topics is None:
            topics = place[cover.topic] = _Topics(cover)
        topics.add(group, cover.content)

    def discard(self, group: G) -> None:
        """It takes part no more."""
        cover = group.cover
        place = self._patterns if cover.literal is None else self._by_topic
        topics = place[cover.topic]
        topics.discard(group)
        if not topics.groups:
            del place[cover.topic]

    def covers(self, topic: str) -> bool:
        """Whether one of the groups does."""
        return topic in self._by_topic or any(each.cover.covers(topic) for each in self._patterns.values())

    def search(self, batch: MessageBatch) -> Iterator[int | list[tuple[G, Int64s]]]:
        """For one topic or pattern after the other: bytes looked at, in pieces, and then which messages of
        `batch` each group is to get, if it gets any."""
        literal = [self._by_topic[topic] for topic in batch.topics if topic in self._by_topic]
        for topics in [*literal, *self._patterns.values()]:
            mask = topics.cover.mask(batch) if topics.groups else None
            if mask is not None:
                yield (yield from topics.search(batch, mask.nonzero()[0].astype(I8)))
