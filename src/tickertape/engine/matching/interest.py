"""Interest: the topics, filter and select list that define the messages of a subscription.

Subscriptions with equal keys receive the same messages. Control records are never covered. A body is read
only for a filter or a select list.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

import numpy as np

from tickertape.batch import KIND_MESSAGE, MessageBatch
from tickertape.batch.format import Bools
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.topic_patterns import TopicPattern


class Interest:
    """A topic name or pattern, and an optional `ContentFilter`."""

    __slots__ = ("__weakref__", "_fits", "content", "key", "pattern", "topic", "topic_name")

    def __init__(
        self,
        topic: str,
        fits: TopicPattern | Callable[[str], bool] | None = None,
        content: ContentFilter | None = None,
        beside: frozenset[str] = frozenset(),
    ) -> None:
        """`beside`: excluded names that match the pattern."""
        self.topic = topic
        """A name, or a pattern if `fits` is given."""
        self.topic_name = topic if fits is None else None
        self.pattern = fits if isinstance(fits, TopicPattern) else None
        """None for a name, all topics or no topic."""
        self.content = content
        self.key: Hashable = (topic, None if content is None else content.key, beside)
        self._fits = fits.fits if isinstance(fits, TopicPattern) else fits

    @property
    def has_exclusions(self) -> bool:
        """Whether only `covers` can decide, because the interest is neither a name nor a pattern."""
        return self.topic_name is None and self.pattern is None

    @property
    def plain(self) -> bool:
        """Whether the interest is one whole topic, without a content filter."""
        return self.topic_name is not None and self.content is None

    def covers(self, topic: str) -> bool:
        """Return whether a topic is covered."""
        if self._fits is None:
            return topic == self.topic
        return self._fits(topic)

    def mask(self, batch: MessageBatch) -> Bools | None:
        """Return the mask of messages on covered topics, without control records. None if no topic
        matches."""
        own = [self.covers(topic) for topic in batch.topics]
        return rows_of_topics(batch, np.array(own)) if any(own) else None


def rows_of_topics(batch: MessageBatch, own: Bools) -> Bools:
    """Return the mask of messages whose topic is True in `own`, without control records."""
    index, kinds = batch.topic_index, batch.kinds
    mask = np.full(batch.count, own[0]) if index is None else own[index]
    if kinds is not None:
        mask &= kinds == KIND_MESSAGE
    return mask


def _always(topic: str) -> bool:
    return topic is not None


def _never(topic: str) -> bool:
    return topic is None


NO_TOPICS: Final = Interest("no topic", _never)
"""Matches no message."""
ALL_TOPICS: Final = Interest("every topic", _always)
"""Matches all messages on all topics."""
