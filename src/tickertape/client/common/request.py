"""Subscription request, and the context of its messages."""

from __future__ import annotations

import msgspec

from tickertape.batch.delivery_context import Discards, SowKeys
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
    sow_keys: SowKeys | None = None
    """Keys of records, and of the messages that follow a query."""


class RecordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of a query of records."""

    keys: tuple[str, ...] = ()
    """Generated or explicit keys to select. Empty: all."""
    order_by: str = ""
    top_n: int | None = None
    skip_n: int = 0
    batch_size: int = 0
    """Records of a frame, 0 for the choice of the server."""
    follow: bool = False
    """Whether the messages after the result follow it."""
    renewed: bool = False
    """Whether each connection sends the query again, instead of continuing after its result. Its call does
    not wait for the result."""
    groups: bool = False
    """Whether a stream has the messages `group_begin` and `group_end`. Handlers always get them."""


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
    query: RecordQuery | None = None
    """The query whose result comes first, or None for a plain subscription."""

    @property
    def limited(self) -> bool:
        """Whether the subscription is bounded, so that an early end is an error."""
        if self.query is not None:
            return not self.query.follow
        return self.until_caught_up or self.positions is not None

    @property
    def call(self) -> str:
        """Name of its call, for errors."""
        sub_id = self.context.sub_id
        if self.query is None:
            return f"subscribe {sub_id}"
        return f"sow_and_subscribe {sub_id}" if self.query.follow else f"sow {sub_id}"
