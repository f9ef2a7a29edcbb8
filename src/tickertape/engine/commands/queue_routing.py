"""Queue routing: the topics of messages that are published to the name of a queue.

Invariant: the log has no message under the name of a queue whose topics have other names.
"""

from __future__ import annotations

from tickertape.base.errors import BadTopic
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, with_topics
from tickertape.engine.commands.body_validation import PartialRejection, refusing
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.wire.commands import Publish


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
