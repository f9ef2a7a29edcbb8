"""Pending deletes: calls that wait for the answers to their deletes of records.

Invariant: every waiter gets exactly one outcome: an answer, a rejection, or the error that ends the wait.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base.errors import BadCommand, TickertapeError, error_from_code
from tickertape.client.common.effects import Effect, ResolveCall, Waiter
from tickertape.client.publishing.send_buffer import FrameInFlight
from tickertape.wire.commands import Deleted, Rejected


class DeleteResult(NamedTuple):
    """Result of a persisted delete of records.

    A client with a publish store resends a delete after a lost connection. If the server had already
    executed the delete, and retention has removed this delete from the log, all counts are None. One delete
    removes at most 250,000 records, and without counts the client does not know whether more match. Repeat
    the delete in this case.

    Example:
        >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
        >>> client.publish_flush()
        >>> deleted = client.sow_delete("positions", filter="/qty > 6")
        >>> deleted.records, deleted.matches, deleted.topic_matches
        (1, 1, 2)
    """

    records: int | None
    """Number of deleted records. None: unknown."""
    matches: int | None
    """Number of records that matched the delete. None: unknown."""
    topic_matches: int | None
    """Number of all records of the topic before the delete. None: unknown."""
    position: int | None = None
    """Position of the delete in the log of the server, or of the last of several deletes. None: unknown.

    A query result includes the delete if its `as_of_position` is higher."""


NOTHING_DELETED: Final = DeleteResult(0, 0, 0)


def with_answer(result: DeleteResult, answer: Deleted) -> DeleteResult:
    """Return the result after the answer to a repetition. Earlier answers reported more matches."""
    records, _, topic_matches, _ = result
    if not answer.counted or records is None or topic_matches is None:
        return DeleteResult(None, None, None, answer.position)
    return DeleteResult(
        records=records + answer.deleted,
        matches=records + answer.matches,
        topic_matches=max(topic_matches, answer.topic_matches),
        position=answer.position,
    )


class PendingDeletes:
    """Waiters by the sequence of their delete, or by its frame for a client without a publish store.

    The frame of a waiter has no other message."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._by_sequence: dict[int, Waiter] = {}
        self._by_frame: dict[int, Waiter] = {}

    def add(self, waiter: Waiter, sequence: int | None, frame: int) -> None:
        """Resolve `waiter` with the answer to the delete with this sequence, or in this frame without one."""
        if sequence is None:
            self._by_frame[frame] = waiter
        else:
            self._by_sequence[sequence] = waiter

    def abandon(self, waiter: Waiter) -> None:
        """Forget a waiter that waits no longer. A rejection of its delete is then one of a publish."""
        for waiters in (self._by_frame, self._by_sequence):
            for number, other in waiters.items():
                if other is waiter:
                    del waiters[number]
                    return

    def _take(self, number: int, frame: FrameInFlight) -> Waiter | None:
        if frame.batch is None:
            return self._by_frame.pop(number, None)
        return self._by_sequence.pop(frame.first, None)

    def answered(self, answer: Deleted, frame: FrameInFlight) -> None:
        """Resolve the waiter of a frame with the answer to its delete."""
        waiter = self._take(answer.frame, frame)
        if waiter is not None:
            self._effects.append(ResolveCall(waiter, answer))

    def rejected(self, command: Rejected, frame: FrameInFlight) -> bool:
        """Resolve the waiter of a rejected frame, and return whether it has one."""
        waiter = self._take(command.frame, frame)
        if waiter is not None:
            self._effects.append(ResolveCall(waiter, error_from_code(command.code, command.text)))
        return waiter is not None

    def persisted(self, frame: int, sequence: int) -> None:
        """Fail waiters of persisted deletes. A server sends their answers first."""
        if not self._by_frame and not self._by_sequence:
            return
        error = BadCommand(
            "Cannot confirm the delete: the server persisted it without an answer. Update the server."
        )
        for waiters, last in ((self._by_frame, frame), (self._by_sequence, sequence)):
            while waiters and (number := next(iter(waiters))) <= last:  # they ascend
                self._effects.append(ResolveCall(waiters.pop(number), error))

    def lost(self, error: TickertapeError, *, resent: bool) -> None:
        """Fail waiters because the connection is lost. `resent`: the client reconnects and sends stored
        deletes again, so that their waiters get an answer."""
        failed = list(self._by_frame.values())
        self._by_frame.clear()
        if not resent:
            failed += self._by_sequence.values()
            self._by_sequence.clear()
        self._effects.extend(ResolveCall(waiter, error) for waiter in failed)
