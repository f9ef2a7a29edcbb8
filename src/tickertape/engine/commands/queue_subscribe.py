"""Queue subscriptions: begins, replaces and ends subscriptions to queues.

Invariant: a subscription that is over has no lease.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tickertape.base.errors import BadOption
from tickertape.engine.commands.subscription_registry import ConnectionSubscriptions, SubscriptionRegistry
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import NO_TOPICS, Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.consumer import QueueFeed
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import CreditWindow
from tickertape.engine.subscriptions.options import SubscribeOptions
from tickertape.wire.commands import Ack, Resolve, Subscribe

Asking = TypeVar("Asking", Subscribe, Resolve)


class QueueSubscribeHandler:
    """Subscriptions to queues, beside others in the registry."""

    def __init__(
        self,
        queues: QueueRegistry,
        compiler: InterestCompiler,
        outbox: Outbox,
        registry: SubscriptionRegistry,
    ) -> None:
        self._queues = queues
        self._compiler = compiler
        self._outbox = outbox
        self._registry = registry

    def content(
        self,
        session: Session,
        command: Subscribe,
        interest: Interest,
        options: SubscribeOptions,
        workers: list[QueueWorker],
    ) -> ContentFilter | None:
        """Return the content filter for messages of queues, compiled for their topics."""
        if interest.content is None or interest.topic_name is None or not workers:
            return interest.content
        topic = workers[0].queue.definition.topic
        return self._compiler.compile(topic, command.filter, options.select, session.subscriber).content

    def consume(
        self,
        session: Session,
        command: Subscribe,
        content: ContentFilter | None,
        workers: list[QueueWorker],
        backlog: int,
        allowance: CreditWindow,
    ) -> None:
        """Start to consume queues, or replace what a subscription consumes."""
        held = self._registry.of(session.conn)
        old = held.of_queues.get(command.sub_id)
        if not workers:
            if old is not None:
                self.end(held, command.sub_id)
            return
        if isinstance(old, QueueFeed):
            self._queues.replace(old, command.topic, content, workers, backlog)
            return
        if old is not None:
            self.end(held, command.sub_id)
        consumer = QueueFeed(session, command.sub_id, command.topic, content, allowance, backlog)
        self._registry.hold(session).of_queues[command.sub_id] = consumer
        self._queues.subscribe(consumer, workers)

    def browse(
        self,
        session: Session,
        command: Subscribe,
        interest: Interest,
        options: SubscribeOptions,
        workers: list[QueueWorker],
    ) -> None:
        """Start to browse a queue."""
        if interest.topic_name is None:
            raise BadOption("browse reads one queue: name it")
        self._queues.check(session, workers, None)
        content = self.content(session, command, interest, options, workers)
        allowance = CreditWindow(command.credit)
        self._outbox.send(session.conn, Ack(id=command.id))
        browsing = self._queues.browse(session, command.sub_id, workers[0], content, allowance)
        self._registry.hold(session).of_queues[command.sub_id] = browsing

    def ended(self, sub: QueueFeed | QueueBrowser) -> None:
        """Forget a subscription that ended by itself."""
        held = self._registry.of(sub.session.conn)
        if held.of_queues.get(sub.sub_id) is sub:
            self.end(held, sub.sub_id)
            self._registry.forget_if_empty(sub.session.conn)

    def end(self, held: ConnectionSubscriptions, sub_id: str) -> None:
        """End a subscription, if it is to queues."""
        sub = held.of_queues.pop(sub_id, None)
        if isinstance(sub, QueueFeed):
            self._queues.drop(sub)
        elif sub is not None:
            self._queues.stop_browser(sub)


def of_underlying(catalog: TopicCatalog, command: Asking) -> Asking:
    """Return a replay of a queue as one of its underlying topics."""
    topic = catalog.underlying(command.topic)
    return command if topic == command.topic else msgspec.structs.replace(command, topic=topic)


def without_queues(interest: Interest, workers: list[QueueWorker]) -> Interest:
    """Return the interest of a subscription beside its queues."""
    if not workers:
        return interest
    if interest.topic_name is not None:
        return NO_TOPICS
    names = frozenset(worker.queue.name for worker in workers)
    return Interest(
        interest.topic, lambda topic: topic not in names and interest.covers(topic), interest.content, names
    )
