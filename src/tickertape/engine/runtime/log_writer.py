"""Owns publishing: what a publish frame must be, the duplicate filter, and who is told when messages are
durable.

Must never let a sequence at or below the highest one seen enter the log again, acknowledge anything that is
not persisted, or reorder a publisher's recorded messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.base.errors import BadBatch, BadCommand, BadTopic
from tickertape.base.limits import last_persisted_max, publish_messages_max, publish_topics_max
from tickertape.base.names import check_topic
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, Stamp, slice_batch
from tickertape.engine.limits import known_topics_bytes_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, PublisherDirectory
from tickertape.engine.sessions.session import Session
from tickertape.filter import TopicSet
from tickertape.journal.journal import Journal
from tickertape.wire.commands import Publish
from tickertape.wire.settlement import QUEUE_TOPIC

_NAME_BYTES = 128
"""What a name that is remembered counts beside its text: its place in the set, which has room to grow."""


class LogWriter:
    """The one way into the log."""

    def __init__(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        clock: EngineClock,
        recorded: frozenset[str] | None,
    ) -> None:
        """`recorded` are names and patterns of topics that the log records, None: all."""
        self._journal = journal
        self._registry = registry
        self._clock = clock
        self._recorded = None if recorded is None else TopicSet(recorded)
        self.also_recorded: frozenset[str] = frozenset((QUEUE_TOPIC,))
        """Names beside them of what goes into the log: settlements, and what is published to queues."""
        self._good_topics: set[str] = set()
        self._good_topics_bytes = 0
        self._assigned_spaces: set[int] = set()
        self.duplicates = 0
        """Messages dropped by the duplicate filter since the start."""

    def is_recorded(self, topic: str) -> bool:
        """Whether the log records `topic`."""
        if topic in self.also_recorded:
            return True
        return topic != CONTROL_TOPIC and (self._recorded is None or topic in self._recorded)

    @property
    def records_everything(self) -> bool:
        """Whether there is no topic that is not recorded."""
        return self._recorded is None

    def inspect(self, session: Session, command: Publish, batch: MessageBatch) -> bool:
        """Check a frame; True when its topics are recorded, False when they are not.

        Raises `BadCommand`, `BadBatch`, `CorruptBatch` for what no well-behaved client sends, `BadTopic` for
        names."""
        if command.frame != session.frames + 1:
            raise BadCommand(
                f"publish frame {command.frame} after {session.frames}: they are numbered without gaps"
            )
        session.frames = command.frame
        self._check_batch(batch)
        if command.sequenced:
            if batch.run(0).publisher != session.publisher:
                raise BadBatch("a run with sequences names the publisher that logged on")
            _check_rising(batch)
        elif batch.has_sequences:
            raise BadBatch("a frame without sequences has no column of them")
        for topic in batch.topics:
            self._check_name(topic)
        recorded = {self.is_recorded(topic) for topic in batch.topics}
        if len(recorded) > 1 or (command.sequenced and False in recorded):
            raise BadTopic(
                "recorded and unrecorded topics do not share a frame, and unrecorded ones carry no sequence"
            )
        return recorded.pop()

    def inspect_staged(self, batch: MessageBatch) -> None:
        """Check a batch that is staged. Raises `BadBatch`, `CorruptBatch` for what no well-behaved client
        sends, `BadTopic` for names, and for topics that no transaction can reach."""
        self._check_batch(batch)
        if batch.has_sequences:
            raise BadBatch(
                "a batch that is staged has no sequences: its messages get theirs when they are committed"
            )
        for topic in batch.topics:
            check_topic(topic)
            if not self.is_recorded(topic):
                raise BadTopic(f"{shown(topic)} is not recorded: a transaction is part of the log")

    def _check_batch(self, batch: MessageBatch) -> None:
        if batch.run_count != 1 or batch.kinds is not None:
            raise BadBatch("a publish frame has one run and no control records")
        if batch.count > publish_messages_max or len(batch.topics) > publish_topics_max:
            raise BadBatch(
                f"a publish frame of {batch.count} messages to {len(batch.topics)} topics: at most "
                f"{publish_messages_max} to {publish_topics_max} are allowed"
            )
        batch.verify()

    def _check_name(self, topic: str) -> None:
        if topic in self._good_topics or topic == QUEUE_TOPIC:
            return
        check_topic(topic)
        size = topic.__sizeof__() + _NAME_BYTES
        if self._good_topics_bytes + size > known_topics_bytes_max:
            self._good_topics.clear()
            self._good_topics_bytes = 0
        self._good_topics.add(topic)
        self._good_topics_bytes += size

    def append_from(self, publisher: int, name: str, batch: MessageBatch) -> int:
        """Append messages with sequences of a client's own, but for those that the log has; return the last
        sequence."""
        self._bind(publisher, name, derived=False)
        last = last_sequence(batch)
        highest = self._journal.highest.get(publisher, 0)
        if last <= highest:
            self.duplicates += batch.count
            return last
        if batch.run(0).first_sequence <= highest:
            known = self.known(publisher, batch)
            self.duplicates += known
            # A copy: a slice would keep the whole frame in memory for as long as the log's end stays there.
            batch = MessageBatch.parse(slice_batch(batch, known, batch.count).encode())
        stamp = Stamp(publisher, batch.run(0).first_sequence, self._journal.log_time(self._clock.now))
        self._journal.append(batch, stamp, last, self._clock.now)
        return last

    def append_derived(self, publisher: int, name: str, batch: MessageBatch) -> None:
        """Append messages without sequences: they get the next ones of a client's derived publisher id."""
        self._bind(publisher, name, derived=True)
        self._append(publisher, batch)

    def append_control(self, batch: MessageBatch) -> None:
        """Append messages of the server itself."""
        self._append(CONTROL_PUBLISHER, batch)

    def append_chain(
        self, publisher: int, name: str, batches: Sequence[MessageBatch], record: MessageBatch
    ) -> int:
        """Append the messages of a transaction and the record that commits it, all or nothing; return the
        last sequence of the messages."""
        self._bind(publisher, name, derived=True)
        time = self._journal.log_time(self._clock.now)
        sequence = self._next_sequence(publisher)
        chain: list[tuple[MessageBatch, Stamp]] = []
        for batch in batches:
            chain.append((batch, Stamp(publisher, sequence, time)))
            sequence += batch.count
        chain.append((record, Stamp(CONTROL_PUBLISHER, self._next_sequence(CONTROL_PUBLISHER), time)))
        self._journal.append_chain(chain, self._clock.now)
        return sequence - 1

    def known(self, publisher: int, batch: MessageBatch) -> int:
        """Return how many messages of a batch with sequences, from the front, the log has."""
        highest = self._journal.highest.get(publisher, 0)
        return int(np.searchsorted(batch.sequences, np.uint64(highest), side="right"))

    def _append(self, publisher: int, batch: MessageBatch) -> None:
        first = self._next_sequence(publisher)
        stamp = Stamp(publisher, first, self._journal.log_time(self._clock.now))
        self._journal.append(batch, stamp, first + batch.count - 1, self._clock.now)

    def _bind(self, publisher: int, name: str, *, derived: bool) -> None:
        """Record in the log whose a publisher id is, before its first message."""
        if not self._registry.is_bound(publisher):
            self._append(CONTROL_PUBLISHER, self._registry.bind(publisher, name, derived=derived))

    def _next_sequence(self, publisher: int) -> int:
        """Return the next sequence of a publisher whose sequences the server assigns."""
        highest = self._journal.highest.get(publisher, 0)
        if publisher not in self._assigned_spaces:
            # What an earlier run accepted and lost is never given again: the clock is above it.
            self._assigned_spaces.add(publisher)
            highest = max(highest, self._clock.wall * 1000)
        return highest + 1


def last_sequence(batch: MessageBatch) -> int:
    """Sequence of the last message of a batch of one run."""
    if batch.has_sequences:
        return int(batch.sequences[-1])
    return batch.run(0).first_sequence + batch.count - 1


def _check_rising(batch: MessageBatch) -> None:
    rises = True
    if batch.has_sequences:
        sequences = batch.sequences
        rises = not bool((sequences[1:] <= sequences[:-1]).any())
    if batch.run(0).first_sequence == 0 or not rises:
        raise BadBatch("sequences start at 1 and rise within a run")
    last = last_sequence(batch)
    if last > last_persisted_max:
        # Its own clients could never log on again: they refuse a server that persisted so high a sequence.
        raise BadBatch(
            f"Cannot store sequence {last}: sequences go up to {last_persisted_max}. Publish under another "
            "client name, which begins at 1."
        )
