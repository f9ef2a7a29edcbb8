"""Transaction coordinator: handles transaction commands and commits transactions one at a time.

It opens the files of the parts, reserves a segment with space for all messages, and appends one chain of
commits. The last commit of the chain contains the transaction record, so the transaction is persisted
atomically.

Invariants:
- No message of a transaction is delivered before the whole transaction is persisted.
- A transaction is committed once.
- Publishers do not wait while a transaction waits for space.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tickertape.base.errors import (
    BadBatch,
    BadOption,
    BadTopic,
    JournalFull,
    LimitReached,
    NotReady,
    StagingFailed,
    TickertapeError,
    TransactionBusy,
    TransactionUnknown,
)
from tickertape.base.limits import transaction_name_bytes_max, transaction_parts_max
from tickertape.base.names import check_transaction
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.engine.commands.publish_checks import PublishChecks
from tickertape.engine.limits import (
    binding_bytes_max,
    commits_waiting_each_max,
    commits_waiting_max,
    transaction_empty_number_max,
)
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.registry import SessionRegistry
from tickertape.engine.sessions.session import Session
from tickertape.engine.transactions.records import (
    CommittedTransactions,
    TransactionRecord,
    record_batch,
)
from tickertape.engine.transactions.staging_area import StagingArea, describe
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.format.staging_file import PreparedPart
from tickertape.wire.commands import (
    Abort,
    Commit,
    Committed,
    Prepare,
    Publish,
    Stage,
    Staged,
    Transaction,
)
from tickertape.wire.settlement import QUEUE_TOPIC


@dataclass(eq=False, slots=True)
class _CommitInProgress:
    """A transaction that is being committed."""

    transaction: Transaction
    parts: tuple[str, ...]
    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Commands to answer: connection and id."""
    opening: dict[int, str] = field(default_factory=dict)
    """Parts whose files are being opened, by token."""
    opened: dict[str, list[MessageBatch]] = field(default_factory=dict)
    room: int = 0
    """Bytes that it needs in a segment, once all parts are open."""
    end: int | None = None
    """Position up to which the log must be persisted, once it is appended."""
    record: TransactionRecord | None = None
    answer: Committed | None = None


class TransactionCoordinator:
    """All transactions of a server."""

    def __init__(
        self,
        writer: LogWriter,
        sessions: SessionRegistry,
        checks: PublishChecks,
        staging: StagingArea,
        outbox: Outbox,
        committed: CommittedTransactions,
    ) -> None:
        self._writer = writer
        self._commits = writer.commits
        self._sessions = sessions
        self._checks = checks
        self.staging = staging
        self._outbox = outbox
        self._committed = committed
        self._current: _CommitInProgress | None = None
        self._next: deque[_CommitInProgress] = deque()
        self._under_way: dict[Transaction, _CommitInProgress] = {}
        """The current and the next commits, by transaction."""
        self._asked: Counter[int] = Counter()
        """Unanswered commit commands by connection. `_asked_all` is their sum."""
        self._asked_all = 0
        self._advancing = False
        self.committed = 0
        """Transactions committed since the start."""
        self.repeated = 0
        """Repeated commits of committed transactions since the start."""
        self.aborted = 0
        """Staged transactions aborted since the start."""

    @property
    def waiting(self) -> int:
        """Number of transactions that are being committed."""
        return len(self._under_way)

    # -- commands ---------------------------------------------------------------------------------------

    def take(
        self,
        session: Session,
        command: Stage | Prepare | Commit | Abort,
        batch: MessageBatch | None,
    ) -> None:
        """Handle a transaction command, and answer its errors. Raises errors that end the connection."""
        try:
            self._check(session, command.transaction)
            if isinstance(command, Stage):
                self._stage(session, command, batch)
            elif isinstance(command, Prepare) and command.topics:
                self._checks.check_topics_of_transaction(command.topics)
                self._outbox.send(session.conn, Staged(id=command.id, messages=0))
            elif isinstance(command, Prepare):
                self._check_free(command.transaction)
                self.staging.prepare(session, command.transaction, command.part, command.id)
            elif isinstance(command, Commit):
                self._commit(session, command)
            else:
                self._check_free(command.transaction)
                self.aborted += bool(self.staging.parts(command.transaction))
                self.staging.abort(session, command.transaction, command.id)
        except BadBatch:
            raise
        except TickertapeError as error:
            self._outbox.reject(session.conn, command.id, error)

    def _check(self, session: Session, transaction: Transaction) -> None:
        self._sessions.check_name(session, transaction.publisher)
        check_transaction(transaction.space, transaction.name)
        self._sessions.derived_id(transaction.publisher)

    def _check_free(self, transaction: Transaction) -> None:
        """Raise `TransactionBusy` while a transaction is being committed."""
        if transaction in self._under_way:
            raise TransactionBusy(
                f"Cannot change {describe(transaction)}: it is being committed. Wait for the answer to "
                "the commit."
            )

    def _stage(self, session: Session, command: Stage, batch: MessageBatch | None) -> None:
        if batch is None:
            raise BadOption(
                "Cannot stage messages: the command has no batch. Send a batch with each stage command."
            )
        size = len(command.part.encode())
        if size > transaction_name_bytes_max:
            raise BadOption(
                f"Invalid part name {shown(command.part)}: it has {size} bytes. Use at most "
                f"{transaction_name_bytes_max} bytes."
            )
        self._checks.check_staged(batch)
        if QUEUE_TOPIC in batch.topics:
            raise BadTopic(
                "Cannot stage queue acknowledgements: transactions contain only messages. Send them "
                "separately."
            )
        self._check_free(command.transaction)
        batch = self._admitted(batch)
        self._checks.check_transactional(batch.topics)
        self.staging.write(session, command.transaction, command.part, batch, command.id)

    def _admitted(self, batch: MessageBatch) -> MessageBatch:
        """Return the batch with its final topics. Raises the first rejection."""
        admitted, _, rejections = self._checks.admit(Publish(frame=0), batch)
        if rejections:
            raise rejections[0].error
        assert admitted is not None
        return admitted

    def _commit(self, session: Session, command: Commit) -> None:
        transaction = command.transaction
        if len(set(command.parts)) != len(command.parts) or len(command.parts) > transaction_parts_max:
            raise BadOption(
                f"Invalid parts of a transaction. Use at most {transaction_parts_max} parts with "
                "distinct names."
            )
        if transaction in self._committed:
            self.repeated += 1
            self.staging.drop_all(transaction)
            self._outbox.send(session.conn, self._before(transaction, command.id))
            return
        if transaction.space and not command.parts and int(transaction.name) > transaction_empty_number_max:
            raise BadOption(
                f"Cannot commit {describe(transaction)}: the name of a transaction without messages must be "
                f"a number up to {transaction_empty_number_max:,}. Use a smaller number."
            )
        if self._asked_all >= commits_waiting_max:
            raise LimitReached(
                f"Cannot commit: the server already executes {commits_waiting_max} commits, its limit. "
                "Try again later."
            )
        if self._asked[session.conn] >= commits_waiting_each_max:
            raise LimitReached(
                f"Cannot commit: this connection already has {commits_waiting_each_max} commits in progress, "
                "the limit of a connection. Wait for one of their answers."
            )
        committing = self._under_way.get(transaction)
        if committing is None:
            self._check_prepared(transaction, command.parts)
            committing = _CommitInProgress(transaction, command.parts)
            self._next.append(committing)
            self._under_way[transaction] = committing
        elif committing.parts != command.parts:
            raise TransactionBusy(
                f"Cannot commit {describe(transaction)}: another commit of this transaction, with other "
                "messages, is in progress. Commit it again later."
            )
        committing.waiting.append((session.conn, command.id))
        self._asked[session.conn] += 1
        self._asked_all += 1
        self._advance()

    def _before(self, transaction: Transaction, command: int) -> Committed:
        """Return the answer for an already committed transaction."""
        return Committed(id=command, repeated=True, highest=self._committed.highest(transaction))

    def _check_prepared(self, transaction: Transaction, names: Sequence[str]) -> None:
        staged = self.staging.parts(transaction)
        missing = [name for name in names if name not in staged or not staged[name].prepared]
        if missing:
            raise TransactionUnknown(
                f"Cannot commit {describe(transaction, missing[0])}: this server does not have all of its "
                f"staged messages ({len(missing)} of {len(names)} parts are missing). The transaction "
                "expired, was aborted, or was staged on another server. Create it again, with the same name "
                "and messages, and commit it."
            )

    # -- other inputs -----------------------------------------------------------------------------------

    def done(self, token: int, result: list[memoryview] | TickertapeError) -> None:
        """Handle the answer to a `StagingJob`."""
        current = self._current
        if current is not None and token in current.opening:
            name = current.opening.pop(token)
            if isinstance(result, TickertapeError):
                self._refuse(result)
                return
            try:
                current.opened[name] = [MessageBatch.parse(block) for block in result]
            except TickertapeError as error:
                self._refuse(
                    StagingFailed(
                        f"Cannot read {describe(current.transaction, name)}: {str(error).rstrip('.')}. "
                        "Stage it again."
                    )
                )
                return
            if not current.opening:
                self._opened(current)
            return
        self.staging.done(token, result if isinstance(result, TickertapeError) else None)

    def log_advanced(self) -> None:
        """Continue the current commit after the journal persisted more or gained space."""
        if self.staging.unsynced:
            self.staging.synced(self._commits.synced_end)
        current = self._current
        if current is None or current.opening:
            return
        if current.end is None:
            self._write(current)
        elif self._commits.persisted_end >= current.end:
            self._finish(current)

    def wake(self) -> None:
        """Drop expired transactions."""
        self.staging.expire(self._under_way)

    def gone(self, conn: int) -> None:
        """Drop unprepared parts of a closed connection. Its commits continue."""
        self.staging.gone(conn)

    def restore(self, found: Iterable[PreparedPart]) -> None:
        """Add the parts that recovery found on disk, except parts of committed transactions."""
        self.staging.restore(found)
        for transaction in self.staging.transactions:
            if transaction in self._committed:
                self.staging.drop_all(transaction)

    # -- into the log -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start the next commit."""
        if self._advancing:
            return  # a rejected commit called this, and the loop below continues
        self._advancing = True
        try:
            while self._current is None and self._next:
                self._begin(self._next.popleft())
        finally:
            self._advancing = False

    def _begin(self, current: _CommitInProgress) -> None:
        self._current = current
        if current.transaction in self._committed:
            # A higher number of its space was committed meanwhile.
            self.repeated += 1
            self.staging.drop_all(current.transaction)
            self._answer(current, self._before(current.transaction, 0))
            return
        try:
            self._check_prepared(current.transaction, current.parts)
            self._committed.check_room(current.transaction)
        except (TransactionUnknown, LimitReached) as error:
            self._refuse(error)
            return
        for name in current.parts:
            part = self.staging.part(current.transaction, name)
            assert part is not None
            current.opening[self.staging.open(part)] = name
        if not current.parts:
            self._opened(current)

    def _opened(self, current: _CommitInProgress) -> None:
        """Compute the space that the opened parts need."""
        batches = [batch for name in current.parts for batch in current.opened[name]]
        topics = {topic for batch in batches for topic in batch.topics}
        try:
            self._checks.check_still_recorded(topics)
            self._checks.check_transactional(sorted(topics))
        except (BadTopic, BadOption) as error:
            self._refuse(error)
            return
        record = record_batch(self._committed.record(current.transaction, sum(b.count for b in batches)))
        # The record that binds the publisher id may precede them.
        current.room = sum([commit_bytes_of(batch) for batch in (*batches, record)]) + binding_bytes_max
        self._write(current)

    def _write(self, current: _CommitInProgress) -> None:
        """Append the transaction once the segment has space for all of it."""
        commits = self._commits
        if commits.stopping:
            self._refuse(
                NotReady(
                    "Cannot commit: the server is stopping. Commit the transaction again after a reconnect."
                )
            )
        elif commits.has_room(current.room):
            self._append(current)
        elif commits.full:
            self._writer.reserve(0)
            why = commits.full_reason
            self._refuse(JournalFull(f"Cannot commit {describe(current.transaction)}: {why}."))
        else:
            self._writer.reserve(current.room)

    def _append(self, current: _CommitInProgress) -> None:
        transaction = current.transaction
        publisher = self._sessions.derived_id(transaction.publisher)
        batches = [batch for name in current.parts for batch in current.opened[name]]
        messages = sum([batch.count for batch in batches])
        current.record = self._committed.record(transaction, messages)
        last = self._writer.append_chain(
            publisher, transaction.publisher, batches, record_batch(current.record)
        )
        current.opened = {}
        current.end = self._commits.accepted_end
        current.answer = Committed(
            id=0,
            messages=messages,
            publisher=publisher if messages else 0,
            sequence=last if messages else 0,
        )

    def _finish(self, current: _CommitInProgress) -> None:
        answer, record = current.answer, current.record
        assert answer is not None
        assert record is not None
        # Only now, because a repeated commit would be answered as already in the log.
        self._committed.take(record)
        self.committed += 1
        assert current.end is not None
        self.staging.committed(current.transaction, current.end)
        self.staging.synced(self._commits.synced_end)
        if self.staging.wants_sync:
            self._writer.sync_soon()
        self._answer(current, answer)
        self._advance()

    def _answer(self, current: _CommitInProgress, answer: Committed) -> None:
        """Finish the current commit with an answer."""
        self._over(current)
        for conn, command in current.waiting:
            self._outbox.send(conn, msgspec.structs.replace(answer, id=command))

    def _over(self, current: _CommitInProgress) -> None:
        self._current = None
        del self._under_way[current.transaction]
        for conn, _ in current.waiting:
            self._asked[conn] -= 1
            if not self._asked[conn]:
                del self._asked[conn]
        self._asked_all -= len(current.waiting)

    def _refuse(self, error: TickertapeError) -> None:
        """Finish the current commit with an error. Its parts remain staged."""
        current = self._current
        assert current is not None
        self._over(current)
        for conn, command in current.waiting:
            self._outbox.reject(conn, command, error)
        self._advance()
