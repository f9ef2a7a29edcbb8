"""Content filter of a subscription: the filter and the select list for messages of any type.

Both are compiled once for each message type. A type that cannot have the fields of the filter never matches
it. A type that cannot have the fields of the select list is sent with whole bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from tickertape.base.errors import BadFilter, BadOption, BadPath
from tickertape.batch import MessageBatch, with_bodies
from tickertape.batch.format import I8, Int64s
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.sessions.session import Subscriber
from tickertape.filter import Filter, FilterInputs
from tickertape.filter.batch_filter import (
    SUBSCRIBER_INPUTS,
    BatchFilter,
    filter_inputs,
    piece_end,
    rows_by_type,
)
from tickertape.filter.index.terms import Terms, terms_of
from tickertape.filter.language.ast import Literal
from tickertape.filter.limits import filter_piece_steps_max
from tickertape.payload import message_type, parse_select

Project = Callable[[bytes], bytes]


class ContentFilter:
    """A filter, a select list, or both, for topics of any message type."""

    __slots__ = (
        "_filter",
        "_filter_context",
        "_projects",
        "_subscriber",
        "filter",
        "filter_key",
        "key",
        "select",
    )

    def __init__(
        self,
        filter: str | None,
        select: str | None,
        expected: Iterable[str],
        filter_context: FilterContext,
        subscriber: Subscriber,
    ) -> None:
        """`expected` are the known message types of the topics. Raises `BadFilter` or `BadOption` if no type
        accepts the filter or the select list."""
        self.filter = filter
        self.select = select
        self._filter_context = filter_context
        self._subscriber = subscriber
        self._filter: BatchFilter | None = None
        self._projects: dict[str, Project] = {}
        if filter is not None:
            most = filter_context.filter_bytes_of(subscriber)
            self._filter = BatchFilter(filter, filter_context.type_of, bytes_max=most)
            _refuse_misfits([self._filter.prepare(name) for name in expected])
        if select is not None:
            _refuse_misfits([self._prepare_select(name) for name in expected])
        self.filter_key: Hashable = (filter, subscriber if self.depends_on_subscriber else None)
        """Content filters with equal keys select the same messages."""
        self.key: Hashable = (select, self.filter_key)

    @property
    def depends_on_subscriber(self) -> bool:
        """Whether the filter depends on the subscriber (its user, name or version)."""
        return self._filter is not None and bool(self._filter.needs & SUBSCRIBER_INPUTS)

    @property
    def work(self) -> int:
        """Maximum steps per message, over the types seen."""
        return 1 if self._filter is None else self._filter.work

    def _prepare_select(self, name: str) -> BadOption | None:
        """Compile the select list for a message type. Return the error, if any."""
        assert self.select is not None
        try:
            self._projects[name] = message_type(name).projector(parse_select(self.select))
        except BadPath as refused:
            self._projects[name] = bytes
            return BadOption(f"Invalid option select: {refused}")
        return None

    def piece_end(self, batch: MessageBatch, low: int) -> int:
        """Return the end of the piece that starts at message `low`."""
        return piece_end(batch, low, filter_piece_steps_max // self.work)

    def matching_rows(
        self, batch: MessageBatch, indices: Int64s, constants: FilterInputs | None = None
    ) -> Int64s:
        """Return the messages among `indices` (of one piece) that pass the filter.

        `constants` are the inputs that are equal for all messages. None: those of now."""
        matcher = self._filter
        if matcher is None:
            return indices
        before = matcher.unreadable
        if constants is None and matcher.needs:
            constants = self._filter_context.constants_for(self._subscriber)
        passed = matcher.matching_rows(batch, indices, constants)
        self._filter_context.count_unreadable(matcher.unreadable - before)
        return passed

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `FilterInputs` that the filter reads."""
        return frozenset() if self._filter is None else self._filter.needs

    def constants(self) -> FilterInputs:
        """Return the inputs of filter functions that are equal for all messages."""
        return self._filter_context.constants_for(self._subscriber)

    def passing(self, bodies: Sequence[bytes], type_name: str, inputs: FilterInputs | None) -> Int64s:
        """Return the indices of the bodies of one message type that pass the filter, ascending.

        `inputs` has the inputs in `needs`, one value of each column for each body.
        """
        matcher = self._filter
        if matcher is None:
            return np.arange(len(bodies), dtype=I8)
        before = matcher.unreadable
        passed = matcher.passing(bodies, type_name, inputs)
        self._filter_context.count_unreadable(matcher.unreadable - before)
        return passed

    @property
    def types(self) -> list[str]:
        """Message types for which the filter is compiled."""
        return [] if self._filter is None else self._filter.types

    def filter_of(self, name: str) -> Filter:
        """Return the filter for messages of a type."""
        assert self._filter is not None
        return self._filter.filter_of(name)

    def required(self) -> Terms:
        """Return conditions on fields that all matching messages fulfil, with each type.

        Empty without a filter, and if the filters of two types require different values. No message matches
        the filter of a type that is a false constant."""
        found: Terms | None = None
        for name in self.types:
            tree = self.filter_of(name).tree
            if isinstance(tree, Literal) and not tree.value:
                continue
            terms = terms_of(tree)
            if found is not None and (found.choices, found.intervals) != (terms.choices, terms.intervals):
                return Terms()
            found = terms
        return found or Terms()

    def count_unreadable(self, bodies: int) -> None:
        """Count bodies that could not be read."""
        self._filter_context.count_unreadable(bodies)

    def context(self, needs: frozenset[str], batch: MessageBatch, which: list[int]) -> FilterInputs:
        """Return the inputs of filter functions for some messages."""
        return filter_inputs(self._filter_context.constants_for(self._subscriber), needs, batch, which)

    def project(self, batch: MessageBatch) -> MessageBatch:
        """Return the messages with their bodies projected to the select list."""
        if self.select is None:
            return batch
        bodies = batch.bodies_list()
        for name, which in self.by_type(batch, np.arange(batch.count, dtype=I8)):
            project = self._project_of(name)
            for i in which.tolist():
                bodies[i] = project(bodies[i])
        return with_bodies(batch, bodies)

    def project_bodies(self, bodies: Sequence[bytes], type_name: str) -> list[bytes]:
        """Return the bodies of one message type projected to the select list, which is not None."""
        return list(map(self._project_of(type_name), bodies))

    def _project_of(self, name: str) -> Project:
        if name not in self._projects:
            self._prepare_select(name)
        return self._projects[name]

    def by_type(self, batch: MessageBatch, indices: Int64s) -> list[tuple[str, Int64s]]:
        """Group the messages `indices` by the message types of their topics."""
        return rows_by_type(self._filter_context.type_of, batch, indices)


def _refuse_misfits(errors: list[BadFilter | None] | list[BadOption | None]) -> None:
    """Raise the first error if no message type accepts the filter or the select list."""
    if errors and all(errors):
        raise next(error for error in errors if error is not None)
