"""Filter for commits when a task reads journal files directly, equivalent to the server's filter.

It selects messages by position, topic and filter, skips control records, and reads bodies only for a filter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import numpy as np

from tickertape.base.client_limits import filter_bytes_most
from tickertape.base.errors import BadOption
from tickertape.base.names import is_pattern
from tickertape.batch import KIND_MESSAGE, select
from tickertape.filter import FilterInputs, Pattern, compile_topic_pattern
from tickertape.filter.batch_filter import SUBSCRIBER_INPUTS, BatchFilter
from tickertape.filter.functions.registry import SUBSCRIBER_FUNCTIONS
from tickertape.journal.offline.range_reader import StoredCommit
from tickertape.spark.common.column_block import ColumnBlock, block_of_batch, plain_block

_DEFAULT_TYPE: Final = "json"


class FileScan:
    """The messages of one partition. `types` maps topics to their message types other than JSON."""

    def __init__(
        self, topic: str, start: int, end: int, filter: str | None, types: Mapping[str, str]
    ) -> None:
        """Raise `BadFilter`, or `BadOption` for a filter that depends on the subscriber."""
        self._start, self._end = start, end
        self._pattern: Pattern | None = compile_topic_pattern(topic) if is_pattern(topic) else None
        self._fitting: dict[str, bool] = {} if self._pattern is not None else {topic: True}
        """Known topics, and whether they are selected."""
        self._filter: BatchFilter | None = None
        if filter is not None:
            self._filter = BatchFilter(
                filter, lambda name: types.get(name, _DEFAULT_TYPE), bytes_max=filter_bytes_most
            )
            _check_inputs(self._filter.needs)

    def block(self, commit: StoredCommit) -> ColumnBlock | None:
        """Return the selected messages of a commit, or None."""
        first, count = commit.header.first_position, commit.header.messages
        if self._filter is None and self._start <= first and first + count <= self._end:
            piece = plain_block(commit.body, first)
            if piece is not None and piece.messages == count:
                return piece if self._fits(piece.topics[0]) else None
        batch = commit.batch()
        own = [self._fits(topic) for topic in batch.topics]
        if not any(own):
            return None
        wanted = np.zeros(count, np.bool_)
        wanted[max(self._start - first, 0) : min(self._end - first, count)] = True
        if batch.topic_index is not None:
            wanted &= np.array(own)[batch.topic_index]
        if batch.kinds is not None:
            wanted &= batch.kinds == KIND_MESSAGE
        rows = wanted.nonzero()[0]
        if self._filter is not None:
            rows = self._filter.matching_rows(batch, rows, FilterInputs(now=time.time()))
        return block_of_batch(select(batch, rows), rows + first) if len(rows) else None

    def _fits(self, topic: str) -> bool:
        known = self._fitting.get(topic)
        if known is None:
            known = self._fitting[topic] = self._pattern is not None and self._pattern.search(topic)
        return known


def _check_inputs(needs: frozenset[str]) -> None:
    asked = sorted(name for name, field in SUBSCRIBER_FUNCTIONS.items() if field in needs & SUBSCRIBER_INPUTS)
    if asked:
        raise BadOption(
            f"Option filter uses {', '.join(asked)}, which only a server can evaluate. Omit option journal."
        )
