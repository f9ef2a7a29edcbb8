"""Subscription request, and the context of its messages."""

from __future__ import annotations

import msgspec

from tickertape.batch.delivery_context import Discards
from tickertape.batch.queue_lease import Lease
from tickertape.client.limits import credit_bytes_default


class SubscriptionContext(msgspec.Struct, frozen=True):
    """Context of the messages of a subscription."""

    sub_id: str
    with_bookmark: bool = False
    with_timestamp: bool = False
    command: str = "publish"
    store: Discards | None = None
    """Bookmark store of a bookmark subscription."""
    came_again: bool = False
    """Whether messages of the batch may have been delivered before."""
    lease: Lease | None = None
    """Lease of a batch from a queue."""


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a subscription. `depth_bytes` is the initial credit, in cost."""

    topic: str
    context: SubscriptionContext
    bookmark: str | None = None
    """Start point in wire format, or MOST_RECENT."""
    filter: str | None = None
    options: str = ""
    replace: bool = False
    """Whether it may replace a subscription with the same id. `options` contains the flag too."""
    depth_bytes: int = credit_bytes_default
    until_caught_up: bool = False
    positions: tuple[int, int] | None = None
    journal: str | None = None
    numbered: bool = False
    """Whether batches contain the log positions of their messages."""
    named: bool = True
    """Whether the application chose the id. A generated id is meaningless to the next process."""
    handled: bool = False
    """Whether a handler receives its messages. It may then outlive its connection."""

    @property
    def limited(self) -> bool:
        """Whether the subscription is bounded, so that an early end is an error."""
        return self.until_caught_up or self.positions is not None
