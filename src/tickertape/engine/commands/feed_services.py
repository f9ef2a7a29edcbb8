"""Feed services: log delivery, transient delivery, queues, states and queries, which serve all feeds.

Actions that apply to all services are implemented here once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tickertape.engine.delivery.log_delivery import LogDelivery
from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.queue_feed import QueueFeed
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.feed import SowFeed
from tickertape.engine.sow.queries import RecordQueries
from tickertape.engine.sow.registry import StateRegistry
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.transient.delivery import TransientDelivery

if TYPE_CHECKING:  # only servers with synchronous links import it
    from tickertape.engine.runtime.durability import DurableHorizon


class DurableTopics(Protocol):
    """Topics with messages that other servers must have."""

    def horizon_of(self, topic: str) -> DurableHorizon | None:
        """Return the horizon of a topic or a pattern. None: no topic has a synchronous link."""
        ...


class FeedServices:
    """The services of feeds."""

    def __init__(
        self,
        log: LogDelivery,
        transient: TransientDelivery,
        queues: QueueRegistry,
        states: StateRegistry,
        *,
        durable: DurableTopics | None = None,
    ) -> None:
        """`durable`: topics with synchronous links. None: no topic has one."""
        self.log = log
        self.transient = transient
        self.queues = queues
        self.states = states
        self.durable = durable
        self.records = RecordQueries(states.fold, log, states.clock, states.memory)
        self.pending: Pending = (
            *log.pending,
            *queues.pending,
            *transient.pending,
            *states.pending,
            *self.records.pending,
        )
        """Not empty while `step` has messages to deliver."""

    def step(self) -> None:
        """Execute one bounded step of delivery."""
        self.log.step()
        self.queues.step()
        self.transient.step()
        self.step_states()
        self.records.step()

    def step_states(self) -> None:
        """Execute one bounded step of the fold, and start queries that wait for it."""
        self.states.step()
        self.records.folded()

    def read_done(self, holder: object) -> None:
        """Resume the holder of a reader of the log after the answer to its read."""
        if holder is self.states.fold:
            self.states.wake()
        elif isinstance(holder, SowFeed):
            self.records.credit(holder)
        else:
            self.queues.read_done(holder)

    def writable(self, session: Session) -> None:
        """Resume sending to a connection that is writable again."""
        self.log.writable(session)
        self.transient.writable(session)
        self.queues.writable(session)
        self.records.writable(session)

    def drop(self, session: Session) -> None:
        """Release the leases and memory that feeds of a closed connection hold for others. The feeds of log
        and transient delivery and of queries are removed later."""
        self.log.drop(session)
        self.transient.drop(session)
        self.queues.drop(session)

    def stop(self) -> None:
        """Start a clean stop: send messages held by conflation."""
        self.log.stop()
        self.transient.stop()

    def take_ended(self) -> list[LogFeed | QueueFeed | QueueBrowser | SowFeed]:
        """Return the feeds that ended by themselves since the last call."""
        return [*self.log.take_ended(), *self.queues.take_ended(), *self.records.take_ended()]
