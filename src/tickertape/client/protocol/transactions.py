"""Transactions of a client: gathers messages, stages them and commits them, as steps.

Invariant: nothing is published before the commit, and never a part of a transaction.
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
"""Of a character in UTF-8, at most."""
_NOT_STAGED: Final = (TransactionUnknown, StagingFailed)
"""Errors after which a transaction must be staged again before it can be committed."""
_NOTHING_SAID: Final = (Closed, Disconnected, TimedOut, TransactionBusy, LimitReached)
"""Errors that leave open whether it is on its way into the log."""
_NO_ROOM: Final = (TransactionTooLarge, StagingFull, LimitReached)
"""Refusals of a stage in which parts of earlier attempts count."""
Make: TypeAlias = Callable[[int], commands.Command]
Steps: TypeAlias = Generator[tuple[Make, MessageBatch | None], object, commands.Committed]
"""What is to be asked one after the other: commands that are made of their ids, and what they carry; it is
sent each answer, see `onward`."""


Next = TypeVar("Next")


class ConnectionPin:
    """Sees to it that all that is asked for one attempt goes over one connection: what was staged and not
    prepared is dropped with the connection, and what is staged behind that would be committed without it."""

    def __init__(self) -> None:
        self._first: commands.LoggedOn | None = None

    def check(self, logged_on: commands.LoggedOn | None) -> None:
        """`logged_on`: what the server said at the logon of the connection that there is now, if there is
        one. Raises `Disconnected` when it is another one than the first time."""
        if self._first is None:
            self._first = logged_on
        elif logged_on is not None and logged_on is not self._first:
            raise Disconnected(
                "the connection was lost, and another one made, while a transaction was staged"
            )


def asking(
    core: ClientProtocol, make: Make, batch: MessageBatch | None, same: ConnectionPin | None
) -> Callable[[Waiter], None]:
    """Return the start of a call for a transaction; over the `same` connection as before, if given."""

    def begin(call: Waiter) -> None:
        if same is not None:
            same.check(core.logon.logged_on)
        core.ask(call, make, batch)

    return begin


class CommittedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a transaction."""

    name: str
    repeated: bool
    """It was committed before: nothing was published now."""
    messages: int
    """How many messages were published now."""
    bookmark: str | None
    """Of the last of them; None when there is none, or it was repeated."""


class TransactionBuffer:
    """The messages of a transaction, in frames as they are staged, at most `bytes_max` bytes of them.

    Which transaction it is, is said by `publisher` (the name under whose id its messages come), `space` and
    `name`; see `Client.transaction`. Raises `BadOption`, `BadName` for `publisher`."""

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
        """A commit was asked for, and what came of it is not known: it may be in the log."""
        self._asked: tuple[str, ...] | None = None
        """The parts of which the server was asked to commit it, when it was."""
        self._left = False
        """An earlier attempt staged something: the server may still have it."""
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
        """Add one message, as `Client.publish` takes it. Raises `BadTopic`, `BadMessage`,
        `MessageTooLarge`, `TransactionTooLarge` (it is then not added), `UsageError` when it is over, or
        `uncertain`."""
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
        """Add many messages. Raises as `publish`; those before the one that raised are added."""
        self._check_adding()
        check_topic(topic)
        for chunk in chunks_of_messages(topic, messages, lambda: stage_frame_bytes):
            self._add_frame(chunk.make())

    def publish_arrow(self, topic: str, table: object, *, column: str | None = None) -> None:
        """Add each value of an Arrow column, as `Client.publish_arrow` takes it. Raises as `publish_batch`,
        and `UsageError` where there is no such column."""
        self._check_adding()
        check_topic(topic)
        for chunk in chunks_from_arrow(topic, table, column, lambda: stage_frame_bytes):
            self._add_frame(chunk.make())

    def __len__(self) -> int:
        """How many messages were added."""
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
        """Whether a message fits into the frame that is open: the server takes no larger one."""
        builder = self._builder
        return (
            builder.size_bytes + cost <= stage_frame_bytes
            and builder.count < publish_messages_max
            and (builder.topic_count < publish_topics_max or builder.has_topic(topic))
        )

    def _check_adding(self) -> None:
        self._check_open()
        if self.uncertain:
            raise UsageError(
                "a commit of this transaction was asked for and not answered: commit it again, or begin "
                "another one"
            )
        self._asked = None  # what was staged for a commit that was refused is not all of it any more

    def _check_open(self) -> None:
        if self.result is not None or self.aborted:
            raise UsageError("this transaction is over: begin another one")

    def _check_room(self, nbytes: int) -> None:
        if self._bytes + self._builder.size_bytes + nbytes > self.bytes_max:
            raise TransactionTooLarge(
                f"this transaction gathers at most {self.bytes_max} bytes in memory: commit less at a time, "
                "or give it a larger bytes_max"
            )

    # -- asking the server ------------------------------------------------------------------------------

    def committing(self) -> Steps:
        """Yield the commands that commit it; may be started again when it was cut short."""
        self._check_open()
        self._close_frame()
        if self._asked is not None:
            # It may be in the log, or on its way there, or still be staged.
            with suppress(*_NOT_STAGED):
                return (yield from self._commit_parts(self._asked))
        parts: tuple[str, ...] = ()
        if self._frames:
            # Of a name of its own: what an earlier attempt staged on this connection must not be added to.
            parts = (uuid4().hex,)
            yield from self._stage(parts[0])
        return (yield from self._commit_parts(parts))

    def _stage(self, part: str) -> Generator[tuple[Make, MessageBatch | None], object, None]:
        """Stage all of it, and drop what earlier attempts staged, which counts against the same limits.

        That is safe: the server knows of no commit of this name (it answers `TransactionBusy` if there is
        one), and a commit drops every part but its own anyway."""
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
        # A process that ended may have left parts under this name; nobody else can know theirs.
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
        """Take in that it is in the log."""
        last = Bookmark(answer.publisher, answer.sequence)
        self.result = CommittedTransaction(
            name=self.key.name,
            repeated=answer.repeated,
            messages=answer.messages,
            bookmark=str(last) if answer.sequence else None,
        )
        self._frames, self.uncertain, self._left = [], False, False
        return self.result

    def aborting(self) -> Make | None:
        """Forget all of it; the command that drops what the server may have of it, if there is something.
        Raises `UsageError` once it was committed, or may have been."""
        if self.result is not None:
            raise UsageError("this transaction was committed")
        if self.uncertain:
            raise UsageError(
                "its commit was asked for and not answered, so it may be in the log: commit it again to know"
            )
        self.aborted = True
        self._frames = []
        self._builder = BatchBuilder()
        left, self._left = self._left, False
        return aborting(self.key) if left else None


def staging(
    key: commands.Transaction, part: str, frames: Iterable[MessageBatch]
) -> Generator[tuple[Make, MessageBatch | None], object, None]:
    """Yield the commands to have `frames` staged and durable as a part of a transaction. Raises
    `TransactionUnknown` when the server says that it has something else than all of them."""
    messages = 0
    for frame in frames:
        yield (lambda number: commands.Stage(id=number, transaction=key, part=part)), frame
        messages += frame.count
    answer = yield (lambda number: commands.Prepare(id=number, transaction=key, part=part)), None
    if isinstance(answer, commands.Staged) and answer.messages != messages:
        raise TransactionUnknown(
            f"{answer.messages} of {messages} messages are staged for a part of {key.name}: it was dropped, "
            "and begun again, meanwhile; nothing of it is published, commit it again"
        )


def onward(steps: Generator[Next, object, object], answer: object) -> Next:
    """Tell the steps what the last one came to, an answer or an error; the next one. Raises `StopIteration`
    with the outcome, and errors after which there is none."""
    return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def aborting(key: commands.Transaction) -> Make:
    """The command that drops what is staged for a transaction."""
    return lambda number: commands.Abort(id=number, transaction=key)
