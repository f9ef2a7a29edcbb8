"""Request of a subscription, and the context that its messages carry."""

from __future__ import annotations

import msgspec

from tickertape.batch.delivery_context import Discards
from tickertape.batch.queue_lease import Lease
from tickertape.client.limits import credit_bytes_default


class SubscriptionContext(msgspec.Struct, frozen=True):
    """The context of a subscription's messages."""

    sub_id: str
    with_bookmark: bool = False
    with_timestamp: bool = False
    command: str = "publish"
    store: Discards | None = None
    """The bookmark store of a bookmark subscription."""
    came_again: bool = False
    """Of a batch: whether messages in it may have been delivered before."""
    lease: Lease | None = None
    """Of a batch that came out of a queue."""


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as asked for. `depth_bytes` is the credit granted at first, in cost."""

    topic: str
    context: SubscriptionContext
    bookmark: str | None = None
    """Start point as on the wire, or MOST_RECENT."""
    filter: str | None = None
    options: str = ""
    replace: bool = False
    """Whether it may take the place of one with its id; `options` say so too."""
    depth_bytes: int = credit_bytes_default
    until_caught_up: bool = False
    positions: tuple[int, int] | None = None
    journal: str | None = None
    numbered: bool = False
    """Whether batches say where their messages stand in the log."""
    named: bool = True
    """Whether the application chose the id; one that was made up means nothing to the next process."""
    handled: bool = False
    """Whether its messages go to a handler: then it may outlive its connection."""

    @property
    def limited(self) -> bool:
        """Whether its end means that everything was read, so that being cut short is an error."""
        return self.until_caught_up or self.positions is not None
