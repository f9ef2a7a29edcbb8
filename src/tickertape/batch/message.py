"""Message: a view of one row of a batch, as the application sees it.

Values are looked up in the batch when they are used; only the body is a copy.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from tickertape.batch.queue_lease import extension_ms, lease_of
from tickertape.payload.bodies import decode

if TYPE_CHECKING:
    from tickertape.batch.format import UInt64s
    from tickertape.batch.message_batch import MessageBatch
    from tickertape.batch.queue_lease import Action, Lease

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Discards(Protocol):
    """Where discarded messages are told."""

    def discard(self, sub_id: str, publisher: int, sequence: int, /) -> bool:
        """The application is done with a message. False when it was before."""

    def discard_all(self, sub_id: str, publishers: int | UInt64s, sequences: UInt64s, /) -> int:
        """The application is done with many; of how many it was not before."""


class DeliveryContext(Protocol):
    """What a subscription says about all the messages it delivers."""

    @property
    def sub_id(self) -> str:
        """Id of the subscription."""

    @property
    def with_bookmark(self) -> bool:
        """Whether messages show their bookmark."""

    @property
    def with_timestamp(self) -> bool:
        """Whether messages show the time at which the server accepted them."""

    @property
    def command(self) -> str:
        """Why a message was delivered: `publish`, `sow`, ..."""

    @property
    def store(self) -> Discards | None:
        """Where discarded messages are told; None when nobody keeps account of them."""

    @property
    def came_again(self) -> bool:
        """Whether there may be messages in the batch that were delivered before and not discarded then."""

    @property
    def lease(self) -> Lease | None:
        """What the client knows of the queue that the batch came out of; None when it came out of none."""


class Message(msgspec.Struct, frozen=True, eq=False):
    """One message. `data` is its body; everything else is looked up in the batch it came with.

    Messages compare by identity. One message keeps the memory of its whole batch: keep `data` to keep less.
    A pickled message is one message only; it can be read, but not discarded or settled.
    """

    data: bytes
    batch: MessageBatch
    index: int

    @property
    def topic(self) -> str:
        """Topic it was published to; of a message out of a queue, the queue's name."""
        batch = self.batch
        context = batch.context
        if context is not None and context.lease is not None:
            return context.lease.queue
        return batch.topic(self.index)

    @property
    def underlying_topic(self) -> str:
        """Topic it was published to, also of a message out of a queue."""
        return self.batch.topic(self.index)

    @property
    def command(self) -> str:
        """Why it was delivered: `publish` for a published message."""
        context = self.batch.context
        return "publish" if context is None else context.command

    @property
    def sub_id(self) -> str | None:
        """Id of the subscription that delivered it; None for a batch that no subscription delivered."""
        context = self.batch.context
        return None if context is None else context.sub_id

    @property
    def bookmark(self) -> str | None:
        """`publisher|sequence|`; None unless the subscription delivers bookmarks. Queues always do."""
        context = self.batch.context
        if context is None or not (context.with_bookmark or context.lease is not None):
            return None
        return self.batch.bookmark(self.index)

    @property
    def timestamp(self) -> datetime | None:
        """When the server accepted it, aware, UTC; None unless the subscription asked for timestamps."""
        context = self.batch.context
        if context is None or not context.with_timestamp:
            return None
        return _EPOCH + timedelta(microseconds=self.batch.timestamp(self.index))

    @property
    def publisher(self) -> str:
        """Publisher id, a decimal number."""
        return str(self.batch.publisher(self.index))

    @property
    def sequence(self) -> int:
        """Sequence the message has in its publisher's order."""
        return self.batch.sequence(self.index)

    @property
    def correlation_id(self) -> str | None:
        """What the publisher gave as correlation id, or None."""
        return self.batch.correlation_id(self.index)

    @property
    def sow_key(self) -> str | None:
        """The key that the publisher gave, or None."""
        return self.batch.key(self.index)

    @property
    def expiration(self) -> int | None:
        """Milliseconds of life that the publisher gave it, counted from `timestamp`, or None."""
        return self.batch.expiration(self.index)

    def discard(self) -> bool:
        """The application is done with it: a bookmark store does not let it come again.

        False when it was discarded before, and where there is nothing to do: the subscription has no
        bookmark, or its client no bookmark store. Raises what the store raises (`StoreFailed`, `Closed`).
        """
        return self.batch.discard_one(self.index)

    # -- out of a queue ---------------------------------------------------------------------------------

    @property
    def lease_expires(self) -> datetime | None:
        """When the lease on a message out of a queue ends unless it is extended, aware, UTC, as the server
        said when it delivered it. None for a lease without an end, and where there is none: the queue is
        at-most-once, or the message did not come out of a queue."""
        return self.batch.lease_expires

    def ack(self) -> None:
        """It is processed: the queue it came out of is done with it.

        Any thread may say so, a handler too. It is sent at once, or gathered as `ack_batch_size` and
        `ack_timeout` of the client say, and never waits for an answer; saying it twice changes nothing. With
        a publish store it is kept and sent again like a publish; without one it is lost with the connection,
        and the message comes again. Raises `UsageError` for a message that did not come out of a queue,
        `Disconnected` (without a publish store), `StoreError`, `Closed`, `PublisherTakenOver`.
        """
        batch = self.batch
        context = batch.context
        lease = None if context is None else context.lease
        if lease is None:
            lease = lease_of(batch, "acknowledge")
        index = self.index
        lease.ack(batch._publisher_numbers[index], batch._sequence_numbers[index])

    def cancel(self) -> None:
        """Give it back to its queue, which delivers it again, here or elsewhere, as often as it allows.

        Sent at once; no effect in an at-most-once queue. Raises as `ack`.
        """
        self._settle("cancel")

    def expire(self) -> None:
        """Take it out of its queue unprocessed: it goes where the queue puts its dead letters, if anywhere.

        Sent at once; no effect in an at-most-once queue. Raises as `ack`.
        """
        self._settle("expire")

    def extend(self, seconds: float | str) -> None:
        """Let its lease end so long from now: seconds, or text such as `"60s"`.

        Sent at once; no effect in an at-most-once queue. Raises `BadOption`, and as `ack`.
        """
        self._settle("extend", extension_ms(seconds))

    def _settle(self, action: Action, extend_ms: int = 0) -> None:
        batch, index = self.batch, self.index
        mark = (batch.publisher(index), batch.sequence(index))
        lease_of(batch, action).settle(action, (mark,), extend_ms)

    def json(self) -> Any:
        """The body, read as JSON. Raises `BadMessage` when it is not."""
        return decode(self.data)

    def __copy__(self) -> Message:
        return self  # it never changes

    def __deepcopy__(self, _: object) -> Message:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from tickertape.batch.pickling import reduced_message

        return reduced_message(self)

    def __repr__(self) -> str:
        return f"<Message {self.topic} {self.batch.bookmark(self.index)} {len(self.data)} bytes>"
