"""Staging area: staged and uncommitted parts of transactions, with their limits.

Invariants:
- Staged messages are neither in the log nor delivered.
- A part is prepared when its file is durable, and aborted when its removal is durable.
- The files of a committed part remain until the log with its messages is durable.
- Unprepared parts of a lost connection are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tickertape.base.errors import (
    LimitReached,
    StagingFailed,
    StagingFull,
    TickertapeError,
    TransactionTooLarge,
    TransactionUnknown,
)
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.engine.limits import (
    staged_age_seconds_default,
    staged_bytes_max_default,
    staged_parts_max,
    staging_jobs_max,
    staging_unwritten_bytes_max,
    transaction_batches_max,
    transaction_bytes_max_default,
)
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.journal.format.staging_file import (
    PreparedPart,
    StagedPartLabel,
    StageDrop,
    StageForget,
    StageOpen,
    StagePrepare,
    StageWrite,
    StagingTask,
    block_bytes,
    label_bytes,
)
from tickertape.wire.commands import Ack, Command, Staged, Transaction


@dataclass(slots=True)
class StagingLimits:
    """Limits in bytes and seconds. See `[transactions]` in the configuration reference."""

    disk_bytes: int = staged_bytes_max_default
    transaction_bytes: int = transaction_bytes_max_default
    age_seconds: float = staged_age_seconds_default


@dataclass(eq=False, slots=True)
class StagedPart:
    """A part of a transaction, in its own file."""

    transaction: Transaction
    name: str
    file: int
    conn: int | None
    """Connection that stages the part. None after it is prepared."""
    touched: float
    """Monotonic time (seconds) of the last change."""
    offset: int = 0
    """Size of its file, including writes in progress."""
    messages: int = 0
    blocks: int = 0
    prepared: bool = False
    dropped: bool = False


class _Forgetting(NamedTuple):
    """Files that are being removed, and the command to answer when the removal is durable."""

    files: list[tuple[Transaction, int]]
    conn: int | None = None
    id: int = 0


class StagingArea:
    """All staged parts."""

    def __init__(
        self,
        journal_id: bytes,
        limits: StagingLimits,
        outbox: Outbox,
        clock: EngineClock,
        throttle: ReadThrottle,
    ) -> None:
        self._journal_id = journal_id
        self.limits = limits
        self._outbox = outbox
        self._clock = clock
        self._throttle = throttle
        self._parts: dict[Transaction, dict[str, StagedPart]] = {}
        self._next_file = 1
        self._under_way: dict[int, tuple[StagedPart, int, Command, int]] = {}
        """Writes and prepares by token: part, connection, answer and size in bytes."""
        self._dropping: dict[int, StagedPart] = {}
        """Removals that no command waits for, by token."""
        self._forgetting: dict[int, _Forgetting] = {}
        """Removals that a command waits for, by token."""
        self._left: dict[Transaction, list[int]] = {}
        """Files of dropped parts that could not be removed. An abort of the transaction tries again."""
        self.unwritten_bytes = 0
        self.bytes = 0
        """Disk space of all uncommitted parts, in bytes."""
        self.count = 0
        self.unsynced: deque[tuple[int, list[StagedPart]]] = deque()
        """Committed parts whose files are still needed. The first element of each entry is a log position.
        Until the log is synced up to it, a power loss may remove the messages from the log."""
        self._committed_bytes = self._committed_count = 0
        self._look_at: float | None = None
        self.expired = 0
        """Transactions dropped for their age since the start."""

    def restore(self, found: Iterable[PreparedPart]) -> None:
        """Add the parts that recovery found on disk. Their age starts now."""
        for prepared in found:
            label = prepared.label
            transaction = Transaction(publisher=label.publisher, space=label.space, name=label.name)
            part = StagedPart(transaction, label.part, prepared.file, None, self._clock.mono)
            part.offset, part.messages, part.prepared = prepared.bytes, prepared.messages, True
            part.blocks = prepared.blocks
            older = self._parts.get(transaction, {}).get(label.part)
            if older is not None:
                self._drop(older)  # the part was restarted, and its first file was not removed yet
            self._add(part)
            self._next_file = max(self._next_file, prepared.file + 1)

    # -- staging ----------------------------------------------------------------------------------------

    def write(
        self, session: Session, transaction: Transaction, name: str, batch: MessageBatch, id: int
    ) -> None:
        """Append a batch to a part, or start a new part with it.

        Raises `StagingFull`, `TransactionTooLarge` or `LimitReached`."""
        part = self.part(transaction, name)
        size = block_bytes(batch.nbytes)
        label = None
        if part is None or part.conn != session.conn:
            label = StagedPartLabel(
                journal=self._journal_id,
                publisher=transaction.publisher,
                space=transaction.space,
                name=transaction.name,
                part=name,
            )
            size += label_bytes(label)
        replaced = None if label is None else part
        self._check_room(transaction, size, beginning=part is None, replaced=replaced)
        if label is not None:
            if replaced is not None:
                self._drop(replaced)
            part = StagedPart(transaction, name, self._next_file, session.conn, self._clock.mono)
            self._next_file += 1
            self._add(part)
        assert part is not None
        task = StageWrite(part.file, part.offset, label, batch.count, list(batch.buffers()))
        part.offset += size
        part.messages += batch.count
        part.blocks += 1
        part.touched = self._clock.mono
        self.bytes += size
        self.unwritten_bytes += size
        self._submit(part, session.conn, Ack(id=id), size, task)

    def prepare(self, session: Session, transaction: Transaction, name: str, id: int) -> None:
        """Complete a part of the connection. Raises `TransactionUnknown`."""
        part = self.part(transaction, name)
        if part is None or part.conn != session.conn:
            raise TransactionUnknown(
                f"Cannot prepare {describe(transaction, name)}: this connection has staged no messages "
                "for it. Stage its messages again."
            )
        part.touched = self._clock.mono
        task = StagePrepare(part.file, part.offset, part.messages, part.blocks)
        part.conn = None
        self._submit(part, session.conn, Staged(id=id, messages=part.messages), 0, task)

    def _check_room(
        self, transaction: Transaction, size: int, *, beginning: bool, replaced: StagedPart | None
    ) -> None:
        """Raise an error unless `size` more bytes are permitted, with the part `replaced` removed."""
        limits = self.limits
        parts = [part for part in self._parts.get(transaction, {}).values() if part is not replaced]
        freed = 0 if replaced is None else replaced.offset
        if sum([part.offset for part in parts]) + size > limits.transaction_bytes:
            raise TransactionTooLarge(
                f"Cannot stage more than {limits.transaction_bytes} bytes for {describe(transaction)}. "
                "Commit smaller transactions, or raise bytes_max of [transactions]."
            )
        if sum([part.blocks for part in parts]) >= transaction_batches_max:
            raise TransactionTooLarge(
                f"Cannot stage more than {transaction_batches_max} batches for {describe(transaction)}. "
                "Stage larger batches, or commit smaller transactions."
            )
        if self.bytes - freed + size > limits.disk_bytes:
            raise StagingFull(
                f"Cannot stage more than {limits.disk_bytes} bytes in total. Commit or abort staged "
                "transactions, or raise disk_limit of [transactions]."
            )
        if beginning and self.count >= staged_parts_max:
            raise LimitReached(
                f"Cannot stage more than {staged_parts_max} parts of transactions in total. Commit or abort "
                "staged transactions."
            )

    def _submit(self, part: StagedPart, conn: int, answer: Command, size: int, task: StagingTask) -> None:
        self._under_way[self._outbox.stage(task)] = part, conn, answer, size
        if self.unwritten_bytes > staging_unwritten_bytes_max or self._waiting > staging_jobs_max:
            self._throttle.pause(conn, "staging")

    @property
    def _waiting(self) -> int:
        """Number of jobs that a command waits for."""
        return len(self._under_way) + len(self._forgetting)

    def done(self, token: int, error: TickertapeError | None) -> bool:
        """Handle the answer to a job. Return whether it is a job of the staging area."""
        if token in self._dropping:
            part = self._dropping.pop(token)
            if error is not None:
                self._left.setdefault(part.transaction, []).append(part.file)
            return True
        if token in self._forgetting:
            self._forgotten(self._forgetting.pop(token), error)
            self._lift()
            return True
        found = self._under_way.pop(token, None)
        if found is None:
            return False
        part, conn, answer, size = found
        self.unwritten_bytes -= size
        self._lift()
        if part.dropped and error is None:
            # Another connection may have dropped the part. The connection that staged it needs an answer.
            what = describe(part.transaction, part.name)
            error = TransactionUnknown(
                f"Cannot stage {what}: it was dropped or restarted elsewhere. Stage it again."
            )
        if error is not None:
            if not part.dropped:
                self._drop(part)
            self._outbox.reject(conn, answer.id, error)  # type: ignore[attr-defined]
            return True
        if isinstance(answer, Staged):
            part.prepared = True
            part.touched = self._clock.mono
        self._outbox.send(conn, answer)
        return True

    def _lift(self) -> None:
        few = self._waiting <= staging_jobs_max // 2
        if few and self.unwritten_bytes <= staging_unwritten_bytes_max // 2:
            self._throttle.resume_all("staging")

    # -- parts ------------------------------------------------------------------------------------------

    def part(self, transaction: Transaction, name: str) -> StagedPart | None:
        """Return the part with this name, or None."""
        return self._parts.get(transaction, {}).get(name)

    def parts(self, transaction: Transaction) -> Mapping[str, StagedPart]:
        """Return all parts of a transaction. Callers must not change the mapping."""
        return self._parts.get(transaction, {})

    @property
    def transactions(self) -> list[Transaction]:
        """Transactions with staged parts."""
        return list(self._parts)

    def open(self, part: StagedPart) -> int:
        """Request the blocks of a prepared part. Return the token."""
        return self._outbox.stage(StageOpen(part.file))

    def drop_all(self, transaction: Transaction) -> None:
        """Drop all parts of a transaction."""
        for part in list(self._parts.get(transaction, {}).values()):
            self._drop(part)

    def abort(self, session: Session, transaction: Transaction, id: int) -> None:
        """Drop all parts of a transaction, and answer when the removal is durable."""
        files = [(transaction, file) for file in (*self._take(transaction), *self._left.pop(transaction, ()))]
        # Requested even without files, because removals of an earlier abort may be in progress.
        self._submit_forget(_Forgetting(files, session.conn, id))
        if self._waiting > staging_jobs_max:
            self._throttle.pause(session.conn, "staging")

    def _submit_forget(self, forgetting: _Forgetting) -> None:
        task = StageForget(tuple([file for _, file in forgetting.files]))
        self._forgetting[self._outbox.stage(task)] = forgetting

    def _forgotten(self, forgetting: _Forgetting, error: TickertapeError | None) -> None:
        if error is not None:
            for transaction, file in forgetting.files:
                self._left.setdefault(transaction, []).append(file)
        if forgetting.conn is None:
            return
        if error is None:
            self._outbox.send(forgetting.conn, Ack(id=forgetting.id))
        else:
            failed = StagingFailed(
                f"Cannot abort the transaction durably: {str(error).rstrip('.')}. Abort it again."
            )
            self._outbox.reject(forgetting.conn, forgetting.id, failed)

    def _take(self, transaction: Transaction) -> list[int]:
        """Remove the parts of a transaction from memory. Return their files."""
        parts = list(self._parts.get(transaction, {}).values())
        for part in parts:
            self._forget(part)
        return [part.file for part in parts]

    def committed(self, transaction: Transaction, end: int) -> None:
        """Keep the files of a committed transaction until the log is synced up to `end`."""
        parts = list(self._parts.get(transaction, {}).values())
        for part in parts:
            self._forget(part)
            self._committed_bytes += part.offset
        self._committed_count += len(parts)
        self.unsynced.append((end, parts))

    def synced(self, end: int) -> None:
        """Remove files of transactions that are in the log synced up to `end`."""
        while self.unsynced and self.unsynced[0][0] <= end:
            _, parts = self.unsynced.popleft()
            self._committed_count -= len(parts)
            for part in parts:
                self._committed_bytes -= part.offset
                self._remove(part)

    @property
    def wants_sync(self) -> bool:
        """Whether many parts wait for a sync of the log. With the policy `never` it must be requested."""
        return (
            4 * self._committed_count >= staged_parts_max
            or 4 * self._committed_bytes >= self.limits.disk_bytes
        )

    def gone(self, conn: int) -> None:
        """Drop the unprepared parts of a closed connection."""
        for parts in list(self._parts.values()):
            for part in list(parts.values()):
                if part.conn == conn:
                    self._drop(part)

    def expire(self, but: Iterable[Transaction]) -> None:
        """Drop expired transactions, except the transactions `but`."""
        if self._look_at is None or self._clock.mono < self._look_at:
            return
        kept = set(but)
        files: list[tuple[Transaction, int]] = []
        for transaction, parts in list(self._parts.items()):
            newest = max(part.touched for part in parts.values())
            if transaction not in kept and self._clock.mono >= newest + self.limits.age_seconds:
                self.expired += 1
                self._log_expired(transaction, parts.values())
                files += [(transaction, file) for file in self._take(transaction)]
        if files:
            self._submit_forget(_Forgetting(files))
        oldest = [max(part.touched for part in parts.values()) for parts in self._parts.values()]
        # Expired transactions that are excepted now are checked again later.
        soonest = self._clock.mono + self.limits.age_seconds / 16
        self._look_at = max(min(oldest) + self.limits.age_seconds, soonest) if oldest else None

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which to call `expire`, or None."""
        return self._look_at

    def _add(self, part: StagedPart) -> None:
        self._parts.setdefault(part.transaction, {})[part.name] = part
        self.count += 1
        self.bytes += part.offset
        if self._look_at is None:
            self._look_at = part.touched + self.limits.age_seconds
            self._clock.announce(self)

    def _drop(self, part: StagedPart) -> None:
        self._forget(part)
        self._remove(part)

    def _forget(self, part: StagedPart) -> None:
        part.dropped = True
        parts = self._parts[part.transaction]
        del parts[part.name]
        if not parts:
            del self._parts[part.transaction]
        self.count -= 1
        self.bytes -= part.offset

    def _remove(self, part: StagedPart) -> None:
        self._dropping[self._outbox.stage(StageDrop(part.file))] = part

    def _log_expired(self, transaction: Transaction, parts: Collection[StagedPart]) -> None:
        fields: dict[str, str | int] = {"publisher": transaction.publisher, "transaction": transaction.name}
        if transaction.space:
            fields["space"] = transaction.space
        fields |= {"parts": len(parts), "bytes": sum([part.offset for part in parts])}
        self._outbox.log_event("transaction_expired", True, fields)


def describe(transaction: Transaction, part: str | None = None) -> str:
    """Return the name of a transaction or of a part, for messages."""
    space = f" of {shown(transaction.space)}" if transaction.space else ""
    which = "" if part is None else f"part {shown(part)} of "
    return f"{which}transaction {shown(transaction.name)}{space} of {shown(transaction.publisher)}"
