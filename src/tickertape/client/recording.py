"""Owns what the server said at logon about topics: which ones it records, and whose bodies it validates; and
what that means for messages kept from before.

Must never be asked about a name that was not checked: here it is only compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tickertape.base.names import is_pattern
from tickertape.batch.layout import MessageBatch
from tickertape.client.publish_store.protocol import Stored

Flags = npt.NDArray[np.bool_]
"""One for each message of a batch."""


class Recording:
    """Before the first logon every topic counts as recorded."""

    def __init__(self) -> None:
        self._names: frozenset[str] | None = None
        self._patterns: tuple[re.Pattern[str], ...] = ()
        self._validated: frozenset[str] = frozenset()

    def told(self, recorded: Iterable[str] | None, validated: Iterable[str]) -> None:
        """What the server said: names and patterns that it records, None = all; names that it validates."""
        names = None if recorded is None else frozenset(recorded)
        self._names = names
        self._patterns = tuple(re.compile(name) for name in sorted(names or ()) if is_pattern(name))
        self._validated = frozenset(validated)

    def __contains__(self, topic: str) -> bool:
        names = self._names
        return names is None or topic in names or any(p.search(topic) for p in self._patterns)

    def validates(self, topics: Iterable[str]) -> bool:
        """Whether bodies of one of `topics` may be refused."""
        return not self._validated.isdisjoint(topics)

    def unrecorded(self, batch: MessageBatch) -> Flags | None:
        """Which messages of `batch` are of topics that are not recorded; None when there is none."""
        others = [index for index, topic in enumerate(batch.topics) if topic not in self]
        if not others:
            return None
        index = batch.topic_index
        return np.ones(batch.count, bool) if index is None else np.isin(index, others)

    def last_certain(self, held: Sequence[Stored], last: int) -> int:
        """Up to which sequence what is held is settled, where `last` is the last persisted one.

        Below it may be some that were refused for their bodies, and whose refusal was lost with the
        connection. Sent again, they are refused again; the others are known there.
        """
        for first, _, batch in held:
            if first > last:
                break
            if self.validates(batch.topics):
                return first - 1
        return last
