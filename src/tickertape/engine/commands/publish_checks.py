"""Publish checks: validate publish frames and staged batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from tickertape.base.errors import BadBatch, BadCommand, BadOption, BadTopic
from tickertape.base.limits import last_persisted_max, publish_messages_max, publish_topics_max
from tickertape.base.names import check_topic
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, with_topics
from tickertape.batch.format import (
    CORRELATION_IDS,
    EXPIRATIONS,
    FLAG_DELTA,
    KEYS,
    MESSAGE_FLAGS,
    RUN_BY_SERVER,
    SEQUENCES,
)
from tickertape.engine.commands.body_validation import BodyValidation, PartialRejection, refusing
from tickertape.engine.limits import known_topics_bytes_max
from tickertape.engine.runtime.exact_append import last_sequence
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session
from tickertape.wire.commands import Publish
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC


def reject_unroutable(
    catalog: TopicCatalog, command: Publish, batch: MessageBatch
) -> PartialRejection | None:
    """Reject messages to queues without a publish target. None, the usual case, if all can be routed."""
    nowhere = [topic for topic in batch.topics if catalog.publish_target(topic) is None]
    if not nowhere:
        return None
    error = BadTopic(
        f"Cannot publish to {shown(nowhere[0])}: it is a queue over {shown(catalog.underlying(nowhere[0]))} "
        "without default_publish_target. Publish to one of its topics."
    )
    bad = [index for index in range(batch.count) if batch.topic(index) in nowhere]
    return refusing(command, batch, bad, error)


def redirect(catalog: TopicCatalog, batch: MessageBatch) -> MessageBatch:
    """Return the messages with their final topics."""
    targets = {topic: catalog.publish_target(topic) for topic in batch.topics}
    moved = {topic: target for topic, target in targets.items() if target is not None and target != topic}
    return with_topics(batch, moved) if moved else batch


_COLUMNS_OF_CLIENTS: Final = SEQUENCES | EXPIRATIONS | CORRELATION_IDS | KEYS


def check_from_client(batch: MessageBatch, *, deltas: bool = False) -> None:
    """Validate a batch that a client sent to be stored or staged: its limits, and that it has nothing that
    only the server writes. `deltas`: whether messages may be deltas.

    Raises `BadBatch` or `CorruptBatch`.
    """
    if batch.run_count != 1:
        raise BadBatch(
            f"Cannot store a batch of a client: the batch has {batch.run_count} runs. Send one run."
        )
    columns = batch.columns & ~_COLUMNS_OF_CLIENTS
    if deltas and batch.message_flags is not None and int(batch.message_flags.max()) == FLAG_DELTA:
        if (batch.message_flags | FLAG_DELTA != FLAG_DELTA).any():
            raise BadBatch(
                "Cannot store a batch of a client: only the server sets the message flag 'superseded'. "
                "Send no message flag other than 'delta'."
            )
        columns &= ~MESSAGE_FLAGS
    if columns:
        raise BadBatch(
            f"Cannot store a batch of a client: only the server writes columns "
            f"{columns:#x}. "
            "Send only sequences, expirations, correlation ids and keys."
        )
    run = batch.first_run
    if run.flags & ~RUN_BY_SERVER or run.origin:
        raise BadBatch(
            f"Cannot store a batch of a client: its run has flags {run.flags:#x} and origin {run.origin}. "
            f"Set origin to 0, and flags to 0 or {RUN_BY_SERVER:#x}."
        )
    if batch.count > publish_messages_max or len(batch.topics) > publish_topics_max:
        raise BadBatch(
            f"Invalid publish frame with {batch.count} messages for {len(batch.topics)} topics. "
            f"Send at most {publish_messages_max} messages for {publish_topics_max} topics."
        )
    batch.verify()


_NAME_BYTES: Final = 128
"""Memory overhead of a cached name: its entry in the set, with growth."""


class ReplicatedTopics(Protocol):
    """Topics that replication links send."""

    def replicates(self, topic: str) -> bool:
        """Return whether a link sends messages of a topic."""
        ...


class Admission(NamedTuple):
    """Result of `admit`."""

    batch: MessageBatch | None
    """The valid messages with their final topics. None if all messages are invalid."""
    numbers: Sequence[int] | None
    """Their numbers in the frame. None: all."""
    rejections: list[PartialRejection]


class PublishChecks:
    """Validation against the topic catalog. Valid names are cached. `replicated`: topics that links send."""

    def __init__(
        self, catalog: TopicCatalog, validation: BodyValidation, replicated: ReplicatedTopics | None = None
    ) -> None:
        self._catalog = catalog
        self._replicated = replicated
        self._validation = validation
        self._good_topics: set[str] = set()
        self._good_topics_bytes = 0

    def check_frame(self, session: Session, command: Publish, batch: MessageBatch) -> bool:
        """Validate a frame. Return whether its topics are persistent.

        Raises `BadCommand`, `BadBatch` or `CorruptBatch` for protocol violations, and `BadTopic` for invalid
        names."""
        if command.frame != session.frames + 1:
            raise BadCommand(
                f"Invalid publish frame {command.frame} after frame {session.frames}. "
                "Number frames consecutively."
            )
        session.frames = command.frame
        check_from_client(batch, deltas=True)
        if command.sequenced:
            if batch.first_run.publisher != session.publisher:
                raise BadBatch(
                    "Invalid publisher of a sequenced frame. Use the publisher id of the connection."
                )
            _check_rising(batch)
        elif batch.has_sequences:
            raise BadBatch("Invalid frame: it has sequences but is not sequenced. Remove the sequences.")
        persistent = other = False
        for topic in batch.topics:
            if topic not in self._good_topics:
                self._check_name(topic)
            if self._catalog.recorded(topic):
                persistent = True
            else:
                other = True
        if other and command.sequenced:
            raise BadTopic(
                "Cannot publish this frame: its messages have sequences, and one of its topics is not "
                "persistent. Send messages of non-persistent topics without sequences."
            )
        if other and persistent:
            raise BadTopic(
                "Cannot publish this frame: it has persistent and non-persistent topics. "
                "Send a separate frame for each kind."
            )
        return persistent

    def check_staged(self, batch: MessageBatch) -> None:
        """Validate a batch to be staged. Raises `BadBatch` or `CorruptBatch` for protocol violations, and
        `BadTopic` for invalid names and non-persistent topics, and `BadOption` for SOW topics and deletes of
        records."""
        check_from_client(batch)
        if batch.has_sequences:
            raise BadBatch(
                "Cannot stage a batch with sequences: the server assigns them at the commit. Remove the "
                "sequences."
            )
        if SOW_TOPIC in batch.topics:
            raise BadOption(
                "Cannot stage a delete of records: a transaction cannot change a SOW topic. Delete the "
                "records without a transaction."
            )
        self._check_persistent(batch.topics)

    def check_topics_of_transaction(self, topics: Sequence[str]) -> None:
        """Raise the errors of `check_staged` and `check_transactional` for topics without messages yet."""
        if len(topics) > publish_topics_max:
            raise BadOption(
                f"Cannot check {len(topics):,} topics of a transaction (limit {publish_topics_max:,}). "
                "Check fewer at a time."
            )
        self._check_persistent(topics)
        self.check_transactional([self._catalog.publish_target(topic) or topic for topic in topics])

    def _check_persistent(self, topics: Iterable[str]) -> None:
        for topic in topics:
            check_topic(topic)
            if not self._catalog.recorded(topic):
                raise BadTopic(
                    f"Cannot stage messages for {shown(topic)}: the topic is not persistent. "
                    "Use persistent topics in a transaction."
                )

    def check_transactional(self, topics: Iterable[str]) -> None:
        """Raise `BadOption` for messages of a transaction on topics of a SOW, and on topics that links send.

        A transaction is accepted in one step, and none of its messages can be refused at its commit. Links
        would send its messages one after the other."""
        for topic in topics:
            if self._replicated is not None and self._replicated.replicates(topic):
                raise BadOption(
                    f"Cannot add messages for {shown(topic)} to a transaction: the topic is replicated, and "
                    "links do not send transactions yet. Publish them without a transaction."
                )
            if self._catalog.sow_of(topic) is not None:
                raise BadOption(
                    f"Cannot add messages for {shown(topic)} to a transaction: it is a SOW topic, and a "
                    "transaction cannot change its records. Publish them without a transaction."
                )

    def check_still_recorded(self, topics: Iterable[str]) -> None:
        """Raise `BadTopic` for topics of an earlier run that are not persistent any more."""
        for topic in topics:
            if not self._catalog.recorded(topic):
                raise BadTopic(
                    f"Cannot commit messages for {shown(topic)}: after a configuration change, the topic "
                    "is not persistent. Make it persistent again, or abort the transaction."
                )
            if self._catalog.publish_target(topic) != topic:
                raise BadTopic(
                    f"Cannot commit messages for {shown(topic)}: the configuration has "
                    "changed, and this is now a queue that stores its messages in another topic. Abort the "
                    "transaction, and publish the messages to the queue."
                )

    def admit(self, command: Publish, batch: MessageBatch) -> Admission:
        """Split off messages that cannot be stored. Redirect messages for queues to the topics of the
        queues."""
        numbers: Sequence[int] | None = None
        rejections: list[PartialRejection] = []
        if self._catalog.queues:
            split = reject_unroutable(self._catalog, command, batch)
            if split is not None:
                rejections.append(split)
                if split.rest is None:
                    return Admission(None, None, rejections)
                batch, numbers = split.rest, split.numbers
            batch = redirect(self._catalog, batch)
        split = self._validation.split(command, batch, numbers)
        if split is None:
            return Admission(batch, numbers, rejections)
        return Admission(split.rest, split.numbers, [*rejections, split])

    def _check_name(self, topic: str) -> None:
        if topic in (QUEUE_TOPIC, SOW_TOPIC):
            return
        check_topic(topic)
        size = topic.__sizeof__() + _NAME_BYTES
        if self._good_topics_bytes + size > known_topics_bytes_max:
            self._good_topics.clear()
            self._good_topics_bytes = 0
        self._good_topics.add(topic)
        self._good_topics_bytes += size


def _check_rising(batch: MessageBatch) -> None:
    if batch.first_run.first_sequence == 0:
        raise BadBatch("Invalid sequence 0. Number the messages of a publisher from 1.")
    if batch.has_sequences:
        sequences = batch.sequences
        falls = np.flatnonzero(sequences[1:] <= sequences[:-1])
        if len(falls):
            at = int(falls[0])
            raise BadBatch(
                f"Invalid sequences: {sequences[at]} precedes {sequences[at + 1]} in a frame. Use increasing "
                "sequences."
            )
    last = last_sequence(batch)
    if last > last_persisted_max:
        # A higher sequence would lock its clients out: they reject a server that persisted it.
        raise BadBatch(
            f"Cannot store sequence {last}: the largest allowed sequence is {last_persisted_max}. Use "
            "another client name with a fresh publish store."
        )
