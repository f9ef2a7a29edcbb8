"""Record filter: the filter and the topics of a query, applied to pieces of records."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from tickertape.batch.format import I8, Int64s
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.labels import texts_of
from tickertape.engine.sow.state.records import PublisherTable, RecordRows
from tickertape.filter import FilterInputs


class RecordFilter:
    """Filter of records of one SOW topic, whose topics may have different message types.

    `only` has the topics to select in a SOW over a pattern. None: all. Inputs that are equal for all
    records, such as the time, are those of the start of the query.
    """

    def __init__(
        self,
        content: ContentFilter,
        topics: RecordTopics,
        publishers: PublisherTable,
        only: Container[str] | None = None,
    ) -> None:
        self._content = content
        self._topics = topics
        self._publishers = publishers
        self._only = only
        self._needs = content.needs
        self._constants = content.constants()

    @property
    def needs_keys(self) -> bool:
        """Whether `passing` reads the canonical keys."""
        return self._topics.over_pattern or "sow_keys" in self._needs

    def passing(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes]) -> Int64s:
        """Return the indices of the records that pass, ascending. `keys` are their canonical keys."""
        at = np.arange(len(bodies))
        if self._only is not None:
            topics = self._topics.topics(keys)
            at = np.array([one for one, topic in enumerate(topics) if topic in self._only], I8)
            if len(at) < len(bodies):
                rows, chosen = rows.select(at), at.tolist()
                bodies, keys = [bodies[one] for one in chosen], [keys[one] for one in chosen]
        return at[self._passing(rows, bodies, keys)] if len(at) else at

    def _passing(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes]) -> Int64s:
        found = []
        for type_name, some in self._topics.by_type(keys):
            if some is None:
                inputs = self._inputs(rows, keys) if self._needs else None
                return self._content.passing(bodies, type_name, inputs)
            at = np.array(some, I8)
            part = [keys[one] for one in some]
            inputs = self._inputs(rows.select(at), part) if self._needs else None
            found.append(at[self._content.passing([bodies[one] for one in some], type_name, inputs)])
        return np.sort(np.concatenate(found))

    def _inputs(self, rows: RecordRows, keys: Sequence[bytes]) -> FilterInputs:
        """Return the inputs of filter functions."""
        needs, topics, count = self._needs, self._topics, len(rows.positions)
        inputs = FilterInputs(
            user=self._constants.user,
            client_name=self._constants.client_name,
            client_version=self._constants.client_version,
            now=self._constants.now,
        )
        if "topics" in needs:
            inputs.topics = topics.topics(keys) if topics.over_pattern else [topics.name] * count
        if "bookmarks" in needs:
            publishers = self._publishers.ids(rows.publishers).tolist()
            pairs = zip(publishers, rows.sequences.tolist(), strict=True)
            inputs.bookmarks = [f"{publisher}|{sequence}|" for publisher, sequence in pairs]
        if "correlation_ids" in needs:
            inputs.correlation_ids = texts_of(rows.labels, count)
        if "sow_keys" in needs:
            inputs.sow_keys = topics.record_keys(keys)
        return inputs


class RecordKeyFilter:
    """Filter by the keys of records as clients see them."""

    def __init__(
        self, topics: RecordTopics, wanted: frozenset[str], further: RecordFilter | None = None
    ) -> None:
        self._topics = topics
        self._wanted = wanted
        self._further = further

    def passing(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes], /) -> Int64s:
        """Return the indices of the records that pass, ascending."""
        wanted = self._wanted
        names = self._topics.record_keys(keys)
        mine = [at for at, name in enumerate(names) if name in wanted]
        at = np.array(mine, I8)
        if self._further is None or not mine:
            return at
        return at[
            self._further.passing(rows.select(at), [bodies[one] for one in mine], [keys[one] for one in mine])
        ]
