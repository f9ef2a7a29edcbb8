"""SOW handler: starts queries of records, alone or with the messages that follow them."""

from __future__ import annotations

from tickertape.engine.commands.feed_services import FeedServices
from tickertape.engine.commands.subscribe_checks import check_id_and_credit, check_replaces
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.checks import check_query, query_options
from tickertape.engine.sow.feed import SowFeed
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.subscriptions.subscription import Subscription
from tickertape.engine.subscriptions.subscription_registry import SubscriptionRegistry
from tickertape.journal.journal import Journal
from tickertape.wire.commands import Ack, Sow


class SowHandler:
    """Executes queries of records."""

    def __init__(
        self,
        journal: Journal,
        compiler: InterestCompiler,
        outbox: Outbox,
        services: FeedServices,
        registry: SubscriptionRegistry,
    ) -> None:
        self._journal = journal
        self._compiler = compiler
        self._outbox = outbox
        self._services = services
        self._registry = registry

    def query(self, session: Session, command: Sow) -> None:
        """Start a query. Raises the errors of `check_query`, and those of an invalid id or credit."""
        options = query_options(command.options, follow=command.follow)
        held = self._registry.of(session.conn)
        check_id_and_credit(held, command, self._compiler.limits, replaces=options.replace)
        selection = check_query(
            session, command, options, self._services.states, self._services.queues, self._compiler
        )
        old = held.get(command.sub_id)
        if old is not None:
            check_replaces(old)
        # A refusal leaves no trace: nothing is refused from here on.
        self._registry.end(held, command.sub_id)
        sub = Subscription(session, command.sub_id, command.credit)
        log_feed = None
        if selection.follow is not None and selection.groups:
            log_feed = LogFeed(sub, selection.follow, self._services.log)
            log_feed.replays = True
        feed = SowFeed(sub, command.topic, selection, self._services.records, self._outbox, log_feed)
        sub.feeds.append(feed)
        if log_feed is not None:
            sub.feeds.append(log_feed)
        self._registry.hold(session)[command.sub_id] = sub
        self._outbox.send(session.conn, Ack(id=command.id))
        self._services.records.add(feed, self._journal.commits.persisted_end)
