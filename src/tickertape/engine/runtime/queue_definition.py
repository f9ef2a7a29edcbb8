"""Queue definition: the validated configuration of one queue.

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
    """Configuration of one queue. None for a number means no limit."""

    name: str
    underlying: str = ""
    """Name or pattern of the topics whose messages enter the queue. Empty: the name of the queue."""
    default_publish_target: str | None = None
    """Topic for messages published to the name of the queue. None: they are rejected, unless the queue and
    its topic have the same name or `underlying` is a name."""
    filter: str | None = None
    """Filter for messages that enter the queue."""
    semantics: Semantics = "at-least-once"
    lease_period: float | None = None
    """Maximum lease of a consumer, in seconds."""
    fairness: Fairness | None = None
    """None: `proportional`, or `round-robin` for at-most-once."""
    max_backlog: int | None = None
    """Maximum number of unacknowledged messages of all consumers together."""
    max_per_subscription_backlog: int | None = None
    max_deliveries: int | None = None
    max_cancels: int | None = None
    expiration: float | None = None
    """Maximum time that a message waits, in seconds."""
    expiration_model: ExpirationModel = "minimum"
    priority: str | None = None
    barrier_expression: str | None = None
    leasing: Leasing = "lenient"
    recovery_point: str = "epoch"
    file_backed_metadata: bool = False
    target_queue_depth: int | None = None
    dead_letter: str | None = None
    """Topic to which expired messages are published."""

    @property
    def topic(self) -> str:
        """Name or pattern of the topics whose messages enter the queue."""
        return self.underlying or self.name

    @property
    def at_most_once(self) -> bool:
        """Whether delivery removes a message from the queue."""
        return self.semantics == "at-most-once"

    @property
    def sharing(self) -> Fairness:
        """Effective fairness model."""
        if self.fairness is not None:
            return self.fairness
        return "round-robin" if self.at_most_once else "proportional"
