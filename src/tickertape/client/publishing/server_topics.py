"""Server topics: which topics the server records and validates, as it said at logon.

It also decides what that means for messages that are kept from before the logon.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tickertape.base.errors import BadCommand, BadTopic
from tickertape.base.limits import message_bytes_max
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import servers_hurried_max
from tickertape.client.publish_store.protocol import Stored
from tickertape.wire.settlement import QUEUE_TOPIC

if TYPE_CHECKING:
    from tickertape.filter.topic_set import TopicSet

Flags = npt.NDArray[np.bool_]
"""One for each message of a batch."""


class ServerTopics:
    """Before the first logon every topic counts as recorded. Settlements always do: a server without queues
    refuses them.
    """

    def __init__(self) -> None:
        self._recorded: TopicSet | None = None
        self._validated: frozenset[str] = frozenset()
        self.message_bytes_max = message_bytes_max
        """The longest message that the server takes."""
        self._before: tuple[TopicSet | None, frozenset[str], int] = (None, frozenset(), message_bytes_max)
        self._assumed: tuple[int, int] | None = None
        """Sequences of messages that were accepted before a server said anything; None until one has."""
        self._seen: dict[frozenset[str] | None, TopicSet | None] = {}
        """Topics that servers recorded so far, each answer once."""

    def update(
        self, recorded: Iterable[str] | None, validated: Iterable[str], bytes_max: int = message_bytes_max
    ) -> None:
        """Take in the server's report: names and patterns that it records, None = all; names that it
        validates; the longest message that it takes.

        Raises `BadCommand` for an invalid pattern: then nothing has changed.
        """
        topics: TopicSet | None = None
        said = None if recorded is None else frozenset(recorded)
        if said is not None:
            # The language of filters takes longer to import than all the rest of a client.
            from tickertape.filter.topic_set import TopicSet

            try:
                topics = TopicSet(said)
            except BadTopic as error:
                raise BadCommand(f"what the server records cannot be told: {error}") from None
        self._before = self._recorded, self._validated, self.message_bytes_max
        self._recorded = topics
        self._validated = frozenset(validated)
        self.message_bytes_max = min(bytes_max, message_bytes_max)
        if len(self._seen) < servers_hurried_max or said in self._seen:
            self._seen[said] = topics
        else:
            self._seen[None] = None  # nobody asks so many servers: from here on all topics count as recorded

    def take_back(self) -> None:
        """The server that spoke last is not used after all: what the one before it said counts again."""
        self._recorded, self._validated, self.message_bytes_max = self._before

    def assume(self, first: int, last: int) -> None:
        """Messages `first` to `last` were accepted while every topic counted as recorded. Only the first call
        after a server spoke counts."""
        if self._seen and self._assumed is None:
            self._assumed = first, last

    @property
    def known(self) -> bool:
        """Whether a server has listed its recorded topics."""
        return bool(self._seen)

    def restart(self, first: int, last: int) -> None:
        """Use a publish store whose messages `first` to `last` were accepted while every topic counted as
        recorded. Later messages were not, if a server has listed its recorded topics."""
        self._assumed = (first, last) if self._seen else None

    def promised(self, batch: MessageBatch, apart: Flags) -> str | None:
        """The topic of a message of `batch`, one of those `apart`, that was accepted as recorded; or None.

        A message was not when it was accepted before the first logon, to a topic that no server recorded.
        """
        first, last = self._assumed or (1, 0)
        others = [
            i
            for i, topic in enumerate(batch.topics)
            if any(one is None or topic in one for one in self._seen.values())
        ]
        index = np.zeros(batch.count, np.int32) if batch.topic_index is None else batch.topic_index
        promised = apart & ((batch.sequences < first) | (batch.sequences > last) | np.isin(index, others))
        return batch.topics[int(index[promised.argmax()])] if promised.any() else None

    def __contains__(self, topic: str) -> bool:
        return self._recorded is None or topic in self._recorded or topic == QUEUE_TOPIC

    def unrecorded(self, batch: MessageBatch) -> Flags | None:
        """Which messages of `batch` are of topics that are not recorded; None when there is none."""
        others = [index for index, topic in enumerate(batch.topics) if topic not in self]
        if not others:
            return None
        index = batch.topic_index
        return np.ones(batch.count, bool) if index is None else np.isin(index, others)

    def last_certain(self, held: Sequence[Stored], last: int) -> int:
        """Up to which sequence what is held is settled, where `last` is the last persisted one.

        Below it may be some that were refused for their bodies or their length, and whose refusal was lost
        with the connection. Sent again, they are refused again; the others are known there.
        """
        if not self._validated and self.message_bytes_max == message_bytes_max:
            return last
        for first, _, batch in held:
            if first > last:
                break
            refused = not self._validated.isdisjoint(batch.topics)
            if refused or int(np.diff(batch.offsets).max()) > self.message_bytes_max:
                return first - 1
        return last
