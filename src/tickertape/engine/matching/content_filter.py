"""Owns what of the messages of its topics a subscription is sent: those that pass a filter, and the fields
of a select list.

Compiled once for each message type. Of a type that cannot have the fields nothing passes the filter, and
bodies are sent as they are. Must never look at more than a bounded piece at a time
(`filter_piece_bytes_max`, `filter_piece_steps_max`), or let a body that its type cannot read pass a filter
that reads fields.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

import numpy as np

from tickertape.base.errors import BadFilter, BadOption, BadPath
from tickertape.batch import MessageBatch, with_bodies
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import filter_piece_bytes_max
from tickertape.engine.matching.filter_context import FilterContext, Subscriber
from tickertape.filter import Filter, FilterInputs, compile_filter
from tickertape.filter.limits import filter_piece_steps_max
from tickertape.payload import message_type, parse_select

Project = Callable[[bytes], bytes]

_NOTHING: Final = "FALSE"
"""The filter that nothing passes."""
_OF_SUBSCRIBER: Final = frozenset({"user", "client_name", "client_version"})


class ContentFilter:
    """A filter, a select list, or both, for topics of any message type."""

    __slots__ = (
        "_filters",
        "_projects",
        "_subscriber",
        "_surroundings",
        "filter",
        "filter_key",
        "key",
        "select",
        "steps",
    )

    def __init__(
        self,
        filter: str | None,
        select: str | None,
        expected: Iterable[str],
        surroundings: FilterContext,
        subscriber: Subscriber,
    ) -> None:
        """`expected` are types of topics that are covered, as far as they are known; `subscriber` is who
        subscribes. Raises `BadFilter`, `BadOption` for what no type of `expected` takes."""
        self.filter = filter
        self.select = select
        self._surroundings = surroundings
        self._subscriber = subscriber
        self._filters: dict[str, Filter] = {}
        self._projects: dict[str, Project] = {}
        self.steps = 1
        """What one message costs its filter at most, in steps."""
        for of_part in (self._prepare_filter, self._prepare_select):
            misfits = [of_part(name) for name in expected]
            if misfits and all(misfits):
                raise next(error for error in misfits if error is not None)
        self.filter_key: Hashable = (filter, subscriber if self.is_of_subscriber else None)
        """Contents with the same one pass the same messages."""
        self.key: Hashable = (select, self.filter_key)

    @property
    def is_of_subscriber(self) -> bool:
        """Whether the filter asks who subscribed."""
        return any(compiled.needs & _OF_SUBSCRIBER for compiled in self._filters.values())

    def _prepare_filter(self, name: str) -> BadFilter | None:
        """Compile the filter for a type; why it cannot be, when it cannot."""
        error = None
        if self.filter is not None:
            kind = message_type(name)
            most = self._surroundings.filter_bytes_of(self._subscriber)
            try:
                compiled = compile_filter(self.filter, kind, bytes_max=most)
            except BadFilter as refused:
                compiled, error = compile_filter(_NOTHING, kind), refused
            self._filters[name] = compiled
            self.steps = max(self.steps, compiled.work)
        return error

    def _prepare_select(self, name: str) -> BadOption | None:
        """As `_prepare_filter`, for the select list."""
        error = None
        if self.select is not None:
            try:
                self._projects[name] = message_type(name).projector(parse_select(self.select))
            except BadPath as refused:
                self._projects[name], error = bytes, BadOption(f"select: {refused}")
        return error

    def reach(self, batch: MessageBatch, low: int) -> int:
        """Before which message a piece ends that begins with message `low`."""
        offsets = batch.offsets
        by_bytes = int(offsets.searchsorted(int(offsets[low]) + filter_piece_bytes_max, "right")) - 1
        by_steps = low + filter_piece_steps_max // self.steps
        return min(max(min(by_bytes, by_steps), low + 1), batch.count)

    def passing(self, batch: MessageBatch, indices: Int64s) -> Int64s:
        """Which of the messages `indices` of a piece pass the filter."""
        if self.filter is None or not len(indices):
            return indices
        passed = [which[self._select(name, batch, which)] for name, which in self.by_type(batch, indices)]
        return passed[0] if len(passed) == 1 else np.sort(np.concatenate(passed))

    @property
    def types(self) -> list[str]:
        """Message types for which its filter is compiled."""
        return list(self._filters)

    def filter_of(self, name: str) -> Filter:
        """The filter on messages of a type."""
        compiled = self._filters.get(name)
        if compiled is None:
            self._prepare_filter(name)
            compiled = self._filters[name]
        return compiled

    def count_unreadable(self, bodies: int) -> None:
        """So many could not be read."""
        self._surroundings.unreadable += bodies

    def _select(self, name: str, batch: MessageBatch, which: Int64s) -> list[int]:
        compiled = self.filter_of(name)
        context = self.context(compiled.needs, batch, which.tolist()) if compiled.needs else None
        before = compiled.unreadable
        found = compiled.select(bodies_of(batch, which), context)
        self.count_unreadable(compiled.unreadable - before)
        return found

    def context(self, needs: frozenset[str], batch: MessageBatch, which: list[int]) -> FilterInputs:
        """What the functions of filters give for some messages."""
        context = FilterInputs(
            user=self._subscriber.user,
            client_name=self._subscriber.name,
            client_version=self._subscriber.software,
            now=self._surroundings.wall / 1e6,
        )
        if "topics" in needs:
            context.topics = [batch.topic(i) for i in which]
        if "bookmarks" in needs:
            context.bookmarks = [batch.bookmark(i) for i in which]
        if "correlation_ids" in needs:
            context.correlation_ids = [batch.correlation_id(i) for i in which]
        if "sow_keys" in needs:
            context.sow_keys = [batch.key(i) for i in which]
        return context

    def project(self, batch: MessageBatch) -> MessageBatch:
        """What is sent of a batch that passed: the same messages, with bodies cut to the select list."""
        if self.select is None:
            return batch
        bodies = batch.bodies_list()
        for name, which in self.by_type(batch, np.arange(batch.count, dtype=I8)):
            if name not in self._projects:
                self._prepare_select(name)
            project = self._projects[name]
            for i in which.tolist():
                bodies[i] = project(bodies[i])
        return with_bodies(batch, bodies)

    def by_type(self, batch: MessageBatch, indices: Int64s) -> list[tuple[str, Int64s]]:
        """The messages `indices` by the types of their topics."""
        type_of, topics = self._surroundings.type_of, batch.topics
        if batch.topic_index is None:
            return [(type_of(topics[0]), indices)]
        numbers = batch.topic_index[indices]
        # Not all topics of the batch: each of thousands may be asked about here by itself.
        names = {number: type_of(topics[number]) for number in np.unique(numbers).tolist()}
        different = dict.fromkeys(names.values())
        if len(different) == 1:
            return [(name, indices) for name in different]
        return [
            (name, indices[np.isin(numbers, [n for n, other in names.items() if other == name])])
            for name in different
        ]


def bodies_of(batch: MessageBatch, which: Int64s) -> list[bytes]:
    """The bodies of the messages `which`, which rise."""
    first, last = int(which[0]), int(which[-1])
    if last - first == len(which) - 1:
        return batch.bodies_between(first, last + 1)
    begin, end = int(batch.offsets[first]), int(batch.offsets[last + 1])
    begins, ends = (batch.offsets[which] - begin).tolist(), (batch.offsets[which + 1] - begin).tolist()
    joined = bytes(batch.bodies[begin:end])
    return [joined[a:b] for a, b in zip(begins, ends, strict=True)]
