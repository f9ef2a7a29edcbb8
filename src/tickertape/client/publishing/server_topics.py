"""Server topics: persistent and validated topics, as the server reported them at logon.

The module also classifies stored messages from before the logon.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tickertape.base.errors import BadCommand, BadTopic
from tickertape.base.limits import message_bytes_max
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.limits import servers_hurried_max
from tickertape.client.publish_store.protocol import Stored
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

if TYPE_CHECKING:
    from tickertape.filter.topic_set import TopicSet

Flags = npt.NDArray[np.bool_]
"""One boolean per message of a batch."""


class ServerTopics:
    """Persistent and validated topics of the server.

    Before the first logon every topic counts as persistent. The topics of settlements and of deletes of
    records always do: a server without queues or SOW topics rejects them.
    """

    def __init__(self) -> None:
        self._recorded: TopicSet | None = None
        self._validated: Container[str] = frozenset()
        self.message_bytes_max = message_bytes_max
        """Longest message that the server accepts, in bytes."""
        self.queues: frozenset[str] | None = None
        """Names of the queues, as last reported. None: unknown."""
        self._before: tuple[TopicSet | None, Container[str], int] = (
            None,
            frozenset(),
            message_bytes_max,
        )
        self._assumed: tuple[int, int] | None = None
        """First and last sequence accepted before the first report, or None before that report."""
        self._seen: dict[frozenset[str] | None, TopicSet | None] = {}
        """Distinct reports of persistent topics from all servers."""

    def update(
        self, recorded: Iterable[str] | None, validated: Iterable[str], bytes_max: int = message_bytes_max
    ) -> None:
        """Apply the server's report.

        `recorded`: names and patterns of persistent topics, None for all. `validated`: names and patterns of
        topics that validate bodies or keys. `bytes_max`: the longest message that the server accepts. Raises
        `BadCommand`, without effect, for an invalid pattern.
        """
        said = None if recorded is None else frozenset(recorded)
        topics = None if said is None else _topic_set(said, "persistent topics")
        checked = frozenset(validated)
        self._before = self._recorded, self._validated, self.message_bytes_max
        self._recorded = topics
        self._validated = _topic_set(checked, "validated topics") if checked else checked
        self.message_bytes_max = min(bytes_max, message_bytes_max)
        if len(self._seen) < servers_hurried_max or said in self._seen:
            self._seen[said] = topics
        else:
            self._seen[None] = None  # too many reports: from now on all topics count as persistent

    def take_back(self) -> None:
        """Restore the report before the last one, because the last server cannot be used."""
        self._recorded, self._validated, self.message_bytes_max = self._before

    def assume(self, first: int, last: int) -> None:
        """Note that messages `first` to `last` were accepted while every topic counted as persistent.

        Only the first call after the first report has an effect.
        """
        if self._seen and self._assumed is None:
            self._assumed = first, last

    @property
    def known(self) -> bool:
        """Whether a server has listed its persistent topics."""
        return bool(self._seen)

    def restart(self, first: int, last: int) -> None:
        """Start with a publish store whose messages `first` to `last` were accepted while every topic counted
        as persistent. Before the first report the range stays open."""
        self._assumed = (first, last) if self._seen else None

    def promised(self, batch: MessageBatch, apart: Flags) -> str | None:
        """Return the topic of the first message of `batch` flagged in `apart` that was accepted as
        persistent, or None.

        A message was not accepted as persistent if it was accepted before the first logon and its topic
        is persistent on no server.
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
        return self._recorded is None or topic in self._recorded or topic in (QUEUE_TOPIC, SOW_TOPIC)

    def unrecorded(self, batch: MessageBatch) -> Flags | None:
        """Return flags of the messages of `batch` with non-persistent topics, or None without any."""
        others = [index for index, topic in enumerate(batch.topics) if topic not in self]
        if not others:
            return None
        index = batch.topic_index
        return np.ones(batch.count, bool) if index is None else np.isin(index, others)

    def last_certain(self, held: Sequence[Stored], last: int) -> int:
        """Return the sequence up to which the `held` batches are settled. `last` is the last persisted one.

        The server may have rejected messages below `last` for their body, key or length, and the rejection
        may be lost with the connection. A resend repeats the rejection, and the server drops the other
        messages as duplicates. Likewise it repeats the answer to a delete of records.
        """
        for first, _, batch in held:
            if first > last:
                break
            refused = SOW_TOPIC in batch.topics or any(topic in self._validated for topic in batch.topics)
            if refused or int(np.diff(batch.offsets).max()) > self.message_bytes_max:
                return first - 1
        return last


def _topic_set(names: frozenset[str], which: str) -> TopicSet:
    """Return the set of topics with these names and patterns. Raises `BadCommand` for an invalid one."""
    # The filter package takes longer to import than the rest of the client.
    from tickertape.filter.topic_set import TopicSet

    try:
        return TopicSet(names)
    except BadTopic as error:
        raise BadCommand(
            f"Cannot log on: the {which} that the server reported are invalid. {error} Update the client or "
            "the server, whichever is older."
        ) from None
