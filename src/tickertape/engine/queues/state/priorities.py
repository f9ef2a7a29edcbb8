"""Owns what messages are worth to the priority expression of a queue.

Must never fail for a body: what gives no number has priority 0.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.limits import filter_piece_bytes_max
from tickertape.base.queue_limits import queue_step_messages_max
from tickertape.batch import MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.matching.content_filter import bodies_of
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.filter.compiler.numeric import NumericExpression, compile_value
from tickertape.payload import message_type


class Priorities:
    """One expression, over messages of any type."""

    def __init__(self, text: str, surroundings: FilterContext) -> None:
        """Raises `BadFilter` for what is no expression."""
        self._text = text
        self._surroundings = surroundings
        self._values: dict[str, NumericExpression] = {}

    def reach(self, batch: MessageBatch, low: int) -> int:
        """Before which message a piece ends that begins with message `low`."""
        offsets = batch.offsets
        high = int(offsets.searchsorted(int(offsets[low]) + filter_piece_bytes_max, "right")) - 1
        return min(max(high, low + 1), low + queue_step_messages_max, batch.count)

    def of(self, batch: MessageBatch, indices: Int64s) -> list[int]:
        """The priority of each of the messages `indices`."""
        if not len(indices):
            return []
        found = [0] * len(indices)
        types = self._surroundings.types
        names = [types.get(topic, "json") for topic in batch.topics]
        numbers = [0] * len(indices) if batch.topic_index is None else batch.topic_index[indices].tolist()
        kinds = np.array([names[number] for number in numbers])
        for name in dict.fromkeys(kinds.tolist()):
            at = (kinds == name).nonzero()[0]
            for place, value in zip(
                at.tolist(), self._of_type(name)(bodies_of(batch, indices[at])), strict=True
            ):
                found[place] = value or 0
        return found

    def _of_type(self, name: str) -> NumericExpression:
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = compile_value(self._text, message_type(name))
        return values
