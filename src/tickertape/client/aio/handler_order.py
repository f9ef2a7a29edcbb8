"""Handler order: calls the handlers of subscriptions that were resumed together in one order.

One task gives the messages of all of them to the handlers, in the order of delivery. Invariant: a message is
taken from a subscription only after its own task has finished with everything before it joined. Only the
asyncio client has one; all handlers of a blocking client run on its receive thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from tickertape.base.limits import batch_bytes_target
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.waiting import Notifier
from tickertape.client.subscriptions.routing import in_order


class Member(Protocol):
    """A subscription with a handler."""

    def join(self, order: HandlerOrder) -> None:
        """Leave what is delivered from now on to `order`."""

    async def caught_up_by_itself(self) -> None:
        """Wait until its own task has finished with everything before it joined."""

    def take(self) -> MessageBatch | None:
        """Return the next batch, None when it was closed meanwhile; the one taken before is done."""

    async def hand(self, message: Message) -> None:
        """Call the handler, unless the stream is closed."""

    def settle(self) -> None:
        """The batch that was taken last is done."""

    @property
    def running(self) -> bool:
        """Whether more may come."""


Item = Sequence[tuple[Member, Sequence[int]]]
"""The members that got a batch, and which of its rows; for a single member they do not matter."""


class HandlerOrder:
    """Subscriptions whose handlers are called in one order. A slow one holds up the others."""

    def __init__(self) -> None:
        self._members: list[Member] = []
        self._items: deque[Item] = deque()
        self._changed = Notifier()
        self.over = True
        """Whether it needs a task that runs `hand_on`: it has none yet, or that one has ended."""

    def join(self, members: Sequence[Member]) -> None:
        """Call the handlers of these members for what is delivered from now on."""
        self._members = [member for member in self._members if member.running]
        self._members += members
        for member in members:
            member.join(self)

    def put(self, item: Item) -> None:
        """Add a batch, which is in the buffer of each member."""
        self._items.append(item)
        self._changed.wake()

    def look(self) -> None:
        """A member is over, or was closed."""
        self._changed.wake()

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the work of the task that it needs."""
        self.over = False
        return self.hand_on()

    async def hand_on(self) -> None:
        """Hand on everything until all members are over."""
        in_a_row_bytes = 0
        try:
            while self._items or any(member.running for member in self._members):
                if not self._items:
                    in_a_row_bytes = 0
                    await self._changed.wait()
                    continue
                in_a_row_bytes += await self._hand(self._items.popleft())
                if in_a_row_bytes >= batch_bytes_target:
                    in_a_row_bytes = 0
                    await asyncio.sleep(0)
        finally:
            self.over = True

    async def _hand(self, item: Item) -> int:
        """Hand on what came at a time; its cost."""
        shares = []
        for member, rows in item:
            await member.caught_up_by_itself()
            batch = member.take()
            if batch is not None:
                shares.append((member, batch, rows))
        if len(shares) == 1:
            member, batch, _ = shares[0]
            for message in batch:
                await member.hand(message)
        else:
            messages = [iter(batch) for _, batch, _ in shares]
            for _, number in in_order([rows for _, _, rows in shares]):
                await shares[number][0].hand(next(messages[number]))
        for member, _, _ in shares:
            member.settle()
        return sum(batch.cost for _, batch, _ in shares)
