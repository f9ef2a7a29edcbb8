"""Transactions of a client: gather messages, stage them and commit them, as steps.

Invariant: nothing is published before the commit, and a transaction is never published in part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar
from uuid import uuid4

import msgspec

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import (
    Closed,
    Disconnected,
    LimitReached,
    StagingFailed,
    StagingFull,
    TickertapeError,
    TimedOut,
    TransactionBusy,
    TransactionTooLarge,
    TransactionUnknown,
    UsageError,
)
from tickertape.base.limits import publish_messages_max, publish_topics_max
from tickertape.base.names import check_client_name, check_topic, check_transaction
from tickertape.base.units import parse_size
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.client.common.effects import Waiter
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.limits import client_transaction_bytes_max, stage_frame_bytes
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publishing.bulk import chunks_from_arrow, chunks_of_messages
from tickertape.payload.bodies import encode
from tickertape.wire import commands

_TEXT_BYTES: Final = 4
"""Most bytes of a character in UTF-8."""
_NOT_STAGED: Final = (TransactionUnknown, StagingFailed)
"""Errors after which a transaction must be staged again before a commit."""
_NOTHING_SAID: Final = (Closed, Disconnected, TimedOut, TransactionBusy, LimitReached)
"""Errors after which the commit may still succeed."""
_NO_ROOM: Final = (TransactionTooLarge, StagingFull, LimitReached)
"""Errors of a stage that parts of earlier attempts can cause."""
Make: TypeAlias = Callable[[int], commands.Command]
Steps: TypeAlias = Generator[tuple[Make, MessageBatch | None], object, commands.Committed]
"""Steps of a transaction: each yields a command factory (of an id) and an optional batch.

The answer is sent back (see `onward`).
"""


Next = TypeVar("Next")


class ConnectionPin:
    """Ensures that all commands of one attempt use the same connection.

    A lost connection discards staged but unprepared messages. Later stages would be committed without them.
    """

    def __init__(self) -> None:
        self._first: commands.LoggedOn | None = None

    def check(self, logged_on: commands.LoggedOn | None) -> None:
        """Compare the logon answer of the present connection, if any, with the one of the first call.

        Raises `Disconnected` for another connection.
        """
        if self._first is None:
            self._first = logged_on
        elif logged_on is not None and logged_on is not self._first:
            raise Disconnected(
                "Cannot commit the transaction: the client reconnected during the commit. Commit it again."
            )


def asking(
    core: ClientProtocol, make: Make, batch: MessageBatch | None, same: ConnectionPin | None
) -> Callable[[Waiter], None]:
    """Return a function that starts a call of a transaction, on the `same` connection as before if given."""

    def begin(call: Waiter) -> None:
        if same is not None:
            same.check(core.logon.logged_on)
        core.ask(call, make, batch)

    return begin


class CommittedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a committed transaction.

    `name` is the idempotency key. `repeated` is True if a transaction with this name was committed before.
    This commit then published nothing. `message_count` is the number of messages that this commit
    published, and `bookmark` the bookmark of the last one (None without a message).
    """

    name: str
    """Name of the transaction, its idempotency key."""
    repeated: bool
    """Whether the transaction was committed before, so that nothing was published now."""
    message_count: int
    """Number of messages published now."""
    bookmark: str | None
    """Bookmark of the last published message. None for an empty or a repeated transaction."""


class TransactionBuffer:
    """Messages of a transaction, in frames for staging, at most `bytes_max` bytes.

    The transactions of both clients write into it. `publisher` (the client name of the publisher id), `space`
    and `name` identify the transaction. See `Client.transaction`. Raises `BadOption`, and `BadName` for an
    invalid `publisher`.
    """

    def __init__(
        self, publisher: str, name: str | None, space: str = "", bytes_max: int | str | None = None
    ) -> None:
        name = uuid4().hex if name is None else name
        check_client_name(publisher)
        check_transaction(space, name)
        self.key = commands.Transaction(publisher=publisher, space=space, name=name)
        self.bytes_max = client_transaction_bytes_max if bytes_max is None else parse_size(bytes_max)
        self.result: CommittedTransaction | None = None
        self.aborted = False
        self.uncertain = False
        """Whether a commit was requested and its outcome is unknown."""
        self._asked: tuple[str, ...] | None = None
        """Parts of the requested commit, or None."""
        self._left = False
        """Whether an earlier attempt staged messages, which the server may still have."""
        self._builder = BatchBuilder()
        self._frames: list[MessageBatch] = []
        self._bytes = 0

    def publish(
        self,
        topic: str,
        data: object,
        *,
        expiration: float | str | None = None,
        correlation_id: str | None = None,
        sow_key: str | None = None,
    ) -> None:
        """See `ClientTransaction.publish`."""
        self._check_adding()
        check_topic(topic)
        body = encode(data)
        self._check_room(len(body))
        life, correlation, key = extras(expiration, correlation_id, sow_key)
        texts = _TEXT_BYTES * (len(topic) + len(correlation) + len(key))
        if not self._has_room(topic, len(body) + texts):
            self._close_frame()
        self._builder.add(topic, body, expiration_ms=life, correlation_id=correlation, key=key)

    def publish_batch(self, topic: str, messages: Iterable[object]) -> None:
        """See `ClientTransaction.publish_batch`."""
        self._check_adding()
        check_topic(topic)
        for chunk in chunks_of_messages(topic, messages, lambda: stage_frame_bytes):
            self._add_frame(chunk.make())

    def publish_arrow(self, topic: str, table: object, *, column: str | None = None) -> None:
        """See `ClientTransaction.publish_arrow`."""
        self._check_adding()
        check_topic(topic)
        for chunk in chunks_from_arrow(topic, table, column, lambda: stage_frame_bytes):
            self._add_frame(chunk.make())

    def __len__(self) -> int:
        """Return the number of added messages."""
        return sum(frame.count for frame in self._frames) + self._builder.count

    def _add_frame(self, frame: MessageBatch) -> None:
        self._check_room(frame.nbytes)
        self._close_frame()
        self._frames.append(frame)
        self._bytes += frame.nbytes

    def _close_frame(self) -> None:
        if self._builder.count:
            frame = self._builder.build()
            self._builder = BatchBuilder()
            self._frames.append(frame)
            self._bytes += frame.nbytes

    def _has_room(self, topic: str, cost: int) -> bool:
        """Return whether a message fits into the open frame within the limits of the server."""
        builder = self._builder
        return (
            builder.size_bytes + cost <= stage_frame_bytes
            and builder.count < publish_messages_max
            and (builder.topic_count < publish_topics_max or builder.has_topic(topic))
        )

    def _check_adding(self) -> None:
        if self.result is not None or self.aborted:
            raise self._finished()
        if self.uncertain:
            raise UsageError(
                f"Cannot add to transaction {self.key.name!r}: the outcome of its commit is unknown. "
                "Commit it again, or start another transaction."
            )
        self._asked = None  # the staged parts of a refused commit are no longer complete

    def _check_open(self) -> None:
        if self.result is not None or self.aborted:
            raise self._finished()

    def _finished(self) -> UsageError:
        return UsageError(f"Cannot use transaction {self.key.name!r}: it is finished. Start another one.")

    def _check_room(self, nbytes: int) -> None:
        if self._bytes + self._builder.size_bytes + nbytes > self.bytes_max:
            raise TransactionTooLarge(
                f"Transaction {self.key.name!r} exceeds {self.bytes_max} bytes in memory. "
                "Commit less at a time, or use a larger bytes_max."
            )

    # -- commands ---------------------------------------------------------------------------------------

    def committing(self) -> Steps:
        """Yield the commands of a commit. It may be restarted after an interruption."""
        self._check_open()
        self._close_frame()
        if self._asked is not None:
            # The transaction may be committed, being committed, or still be staged.
            with suppress(*_NOT_STAGED):
                return (yield from self._commit_parts(self._asked))
        parts: tuple[str, ...] = ()
        if self._frames:
            # A new part name avoids appending to a part that an earlier attempt staged on this connection.
            parts = (uuid4().hex,)
            try:
                yield from self._stage(parts[0])
            except TimedOut as error:
                raise TimedOut(
                    f"Cannot commit transaction {self.key.name!r}: the server did not answer in time while "
                    "the client sent the messages. Nothing was published. Repeat the call."
                ) from error
        return (yield from self._commit_parts(parts))

    def _stage(self, part: str) -> Generator[tuple[Make, MessageBatch | None], object, None]:
        """Stage all messages, and discard parts of earlier attempts, which count against the same limits.

        This is safe: the server knows no commit of this name (otherwise it answers `TransactionBusy`), and a
        commit discards all other parts anyway.
        """
        left, self._left = self._left, True
        if left:
            yield aborting(self.key), None
        try:
            yield from staging(self.key, part, self._frames)
        except _NO_ROOM:
            if left:
                raise
        else:
            return
        # A dead process may have left parts under this name. No other process can know their names.
        yield aborting(self.key), None
        yield from staging(self.key, part, self._frames)

    def _commit_parts(self, parts: tuple[str, ...]) -> Steps:
        self._asked, self.uncertain = parts, True
        try:
            answer = yield (
                (lambda number: commands.Commit(id=number, transaction=self.key, parts=parts)),
                None,
            )
        except _NOTHING_SAID:
            raise
        except TickertapeError:
            self.uncertain = False
            raise
        assert isinstance(answer, commands.Committed)
        return answer

    def committed(self, answer: commands.Committed) -> CommittedTransaction:
        """Record that the transaction is in the log."""
        last = Bookmark(answer.publisher, answer.sequence)
        self.result = CommittedTransaction(
            name=self.key.name,
            repeated=answer.repeated,
            message_count=answer.messages,
            bookmark=str(last) if answer.sequence else None,
        )
        self._frames, self.uncertain, self._left = [], False, False
        return self.result

    def aborting(self) -> Make | None:
        """Discard all messages. Return the abort command if the server may have parts, or None.

        Raises `UsageError` after a commit, or if its outcome is unknown.
        """
        if self.result is not None:
            raise UsageError(
                f"Cannot abort transaction {self.key.name!r}: it was already committed. Publish messages "
                "that correct it."
            )
        if self.uncertain:
            raise UsageError(
                f"Cannot abort transaction {self.key.name!r}: the outcome of its commit is unknown. "
                "Commit it again to learn the outcome."
            )
        self.aborted = True
        self._frames = []
        self._builder = BatchBuilder()
        left, self._left = self._left, False
        return aborting(self.key) if left else None


def staging(
    key: commands.Transaction, part: str, frames: Iterable[MessageBatch]
) -> Generator[tuple[Make, MessageBatch | None], object, None]:
    """Yield the commands that stage `frames` durably as a part of a transaction.

    Raises `TransactionUnknown` if the server has another number of messages.
    """
    messages = 0
    for frame in frames:
        yield (lambda number: commands.Stage(id=number, transaction=key, part=part)), frame
        messages += frame.count
    answer = yield (lambda number: commands.Prepare(id=number, transaction=key, part=part)), None
    if isinstance(answer, commands.Staged) and answer.messages != messages:
        raise TransactionUnknown(
            f"Cannot commit transaction {key.name!r}: the server has only {answer.messages} of the "
            f"transaction's {messages} messages. The others were dropped before the commit, for example "
            "because they expired. Nothing was published. Repeat the call: it sends all messages again."
        )


def onward(steps: Generator[Next, object, object], answer: object) -> Next:
    """Pass an answer or an error to the steps, and return the next step.

    Raises `StopIteration` with the outcome, and errors that end the steps.
    """
    return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def aborting(key: commands.Transaction) -> Make:
    """Return the command that discards the staged parts of a transaction."""
    return lambda number: commands.Abort(id=number, transaction=key)
