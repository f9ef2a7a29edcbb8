"""Queue definition: the configured options of one queue, read and checked.

Reference: docs/reference/queues.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Semantics = Literal["at-least-once", "at-most-once"]
Fairness = Literal["fast", "round-robin", "proportional"]
ExpirationModel = Literal["minimum", "message", "queue"]
Leasing = Literal["lenient", "strict"]

SEMANTICS: Final[tuple[Semantics, ...]] = ("at-least-once", "at-most-once")
FAIRNESS: Final[tuple[Fairness, ...]] = ("fast", "round-robin", "proportional")
EXPIRATION_MODELS: Final[tuple[ExpirationModel, ...]] = ("minimum", "message", "queue")
LEASING: Final[tuple[Leasing, ...]] = ("lenient", "strict")


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """One queue. Numbers that are None have no limit."""

    name: str
    underlying: str = ""
    """Name or pattern of the topics whose messages enter; empty: that of the queue itself."""
    default_publish_target: str | None = None
    """Where a message that is published to the name of the queue goes; None: it is refused, unless the queue
    and its topic have one name, or `underlying` is a name."""
    filter: str | None = None
    """What a message must pass to enter."""
    semantics: Semantics = "at-least-once"
    lease_period: float | None = None
    """Seconds that a consumer may keep a message."""
    fairness: Fairness | None = None
    """None: proportional, or round-robin for at-most-once."""
    max_backlog: int | None = None
    """Unacknowledged messages of all consumers together."""
    max_per_subscription_backlog: int | None = None
    max_deliveries: int | None = None
    max_cancels: int | None = None
    expiration: float | None = None
    """Seconds that a message may wait."""
    expiration_model: ExpirationModel = "minimum"
    priority: str | None = None
    barrier_expression: str | None = None
    leasing: Leasing = "lenient"
    recovery_point: str = "epoch"
    file_backed_metadata: bool = False
    target_queue_depth: int | None = None
    dead_letter: str | None = None
    """Topic to which messages that expire are published."""

    @property
    def topic(self) -> str:
        """Name or pattern of the topics whose messages enter."""
        return self.underlying or self.name

    @property
    def at_most_once(self) -> bool:
        """What is delivered has left the queue."""
        return self.semantics == "at-most-once"

    @property
    def sharing(self) -> Fairness:
        """How messages are shared out."""
        if self.fairness is not None:
            return self.fairness
        return "round-robin" if self.at_most_once else "proportional"
