"""Publish checks: the form of publish frames and of staged batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tickertape.base.errors import BadBatch, BadCommand, BadTopic
from tickertape.base.limits import last_persisted_max, publish_messages_max, publish_topics_max
from tickertape.base.names import check_topic
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, with_topics
from tickertape.engine.commands.body_validation import BodyValidation, PartialRejection, refusing
from tickertape.engine.limits import known_topics_bytes_max
from tickertape.engine.runtime.log_writer import last_sequence
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session
from tickertape.wire.commands import Publish
from tickertape.wire.settlement import QUEUE_TOPIC


def reject_unroutable(
    catalog: TopicCatalog, command: Publish, batch: MessageBatch
) -> PartialRejection | None:
    """Reject messages to queues without a publish target; None, the usual case: there are none."""
    nowhere = [topic for topic in batch.topics if catalog.publish_target(topic) is None]
    if not nowhere:
        return None
    error = BadTopic(
        f"{shown(nowhere[0])} is a queue over {shown(catalog.underlying(nowhere[0]))} and has no "
        "default_publish_target: publish to one of its topics"
    )
    bad = [index for index in range(batch.count) if batch.topic(index) in nowhere]
    return refusing(command, batch, bad, error)


def redirect(catalog: TopicCatalog, batch: MessageBatch) -> MessageBatch:
    """Return the messages under the topics that they go to."""
    targets = {topic: catalog.publish_target(topic) for topic in batch.topics}
    moved = {topic: target for topic, target in targets.items() if target is not None and target != topic}
    return with_topics(batch, moved) if moved else batch


_NAME_BYTES: Final = 128
"""Memory of a remembered name beside its text: its entry in the set, which has room to grow."""


class Admission(NamedTuple):
    """What becomes of a batch."""

    batch: MessageBatch | None
    """The good messages under the topics that they go to; None: there are none."""
    numbers: Sequence[int] | None
    """Their numbers in the frame; None: all."""
    rejections: list[PartialRejection]


class PublishChecks:
    """Checks against the topic catalog. Valid names are remembered."""

    def __init__(self, catalog: TopicCatalog, validation: BodyValidation) -> None:
        self._catalog = catalog
        self._validation = validation
        self._good_topics: set[str] = set()
        self._good_topics_bytes = 0

    def check_frame(self, session: Session, command: Publish, batch: MessageBatch) -> bool:
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
        recorded = {self._catalog.recorded(topic) for topic in batch.topics}
        if len(recorded) > 1 or (command.sequenced and False in recorded):
            raise BadTopic(
                "recorded and unrecorded topics do not share a frame, and unrecorded ones carry no sequence"
            )
        return recorded.pop()

    def check_staged(self, batch: MessageBatch) -> None:
        """Check a batch that is staged. Raises `BadBatch`, `CorruptBatch` for what no well-behaved client
        sends, `BadTopic` for names, and for topics that no transaction can reach."""
        self._check_batch(batch)
        if batch.has_sequences:
            raise BadBatch(
                "a batch that is staged has no sequences: its messages get theirs when they are committed"
            )
        for topic in batch.topics:
            check_topic(topic)
            if not self._catalog.recorded(topic):
                raise BadTopic(f"{shown(topic)} is not recorded: a transaction is part of the log")

    def check_still_recorded(self, topics: Iterable[str]) -> None:
        """Raise `BadTopic` for topics of an earlier run that the log does not take any more."""
        for topic in topics:
            if not self._catalog.recorded(topic):
                raise BadTopic(f"{shown(topic)} is not recorded any more: the configuration has changed")
            if self._catalog.publish_target(topic) != topic:
                raise BadTopic(f"{shown(topic)} is a queue over other topics now: stage and commit again")

    def admit(self, command: Publish, batch: MessageBatch) -> Admission:
        """Split off the messages that cannot be stored, and move those for queues to the topics of these."""
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
