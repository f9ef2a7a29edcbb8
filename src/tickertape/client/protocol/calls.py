"""Pending calls: commands without an answer yet, and the effect of each answer on subscriptions.

Invariant: every call gets exactly one `ResolveCall`, at the latest when its connection is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tickertape.base.errors import (
    BadCommand,
    BookmarkExpired,
    BookmarkUnknown,
    NotReady,
    TickertapeError,
    error_from_code,
)
from tickertape.base.interfaces import Now
from tickertape.batch import MessageBatch
from tickertape.client.common.effects import Effect, ReportError, ResolveCall, Send, Waiter
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.limits import resubscription_retry_seconds
from tickertape.client.publishing.publisher import Publisher
from tickertape.client.publishing.resend import AFTER_RESEND
from tickertape.client.subscriptions.registry import SubscriptionRegistry
from tickertape.client.subscriptions.resubscribe import ResubscribeRound
from tickertape.wire import commands

Answer: TypeAlias = commands.Ack | commands.Resolved | commands.Staged | commands.Committed
"""The server's answer to a command with an id."""


_ANSWERS: Final[dict[type[commands.Command], type[Answer]]] = {
    commands.Resolve: commands.Resolved,
    commands.Prepare: commands.Staged,
    commands.Commit: commands.Committed,
}
"""Success answer per command. All other commands are answered with `Ack`."""


_LOST_PLACE: Final = (BookmarkExpired.code, BookmarkUnknown.code)
"""Errors of a subscribe whose bookmark is not in the log."""


class _Call(NamedTuple):
    token: Waiter | ResubscribeRound | None  # None: no caller waits
    command: commands.Command
    request: SubscribeRequest | None = None  # the request of a subscribe


@dataclass(eq=False, repr=False)
class PendingCalls:
    """Pending calls of one client.

    `encode(command, batch)` encodes a frame for the present connection. New effects go to `effects`.
    """

    _encode: Callable[..., Send]
    _publishing: Publisher
    _subscriptions: SubscriptionRegistry
    _effects: list[Effect]
    _waiting: dict[int, _Call] = field(default_factory=dict)
    _flushes: deque[tuple[int, Waiter]] = field(default_factory=deque)
    """Pending flushes: the last frame that must be answered, and the waiter."""
    _last_id: int = 0
    postponed: list[ResubscribeRound] = field(default_factory=list)
    """Resubscription rounds with temporarily refused subscriptions. `retry` continues them."""
    retry_at: float | None = None
    """Time of the next `retry` in monotonic seconds, or None."""

    def new_id(self) -> int:
        """Return the id for the next command. Its answer has the same id."""
        self._last_id += 1
        return self._last_id

    def ask(
        self,
        call_id: int,
        command: commands.Command,
        token: Waiter | ResubscribeRound | None,
        request: SubscribeRequest | None = None,
        begin: Callable[[], None] | None = None,
        batch: MessageBatch | None = None,
    ) -> None:
        """Send `command` with id `call_id` and an optional batch. Its answer resolves `token`.

        `begin` runs before the command is sent. If encoding or `begin` fails, nothing changes.
        """
        frame = self._encode(command, batch)
        if begin is not None:
            begin()
        self._waiting[call_id] = _Call(token, command, request)
        self._effects.append(frame)

    def leave(self, sub_id: str) -> None:
        """Unsubscribe without waiting for the answer."""
        command = commands.Unsubscribe(id=self.new_id(), sub_ids=(sub_id,))
        self.ask(command.id, command, None)
        self._subscriptions.unsubscribe_sent(sub_id)

    def answered(self, answer: Answer) -> None:
        """Process the server's answer to a command. Raises `BadCommand` for an unexpected answer."""
        call = self._waiting.get(answer.id)
        if call is None:
            raise BadCommand(
                f"Unexpected answer to command {answer.id}, which is not pending. Update the server."
            )
        _check_kind(call.command, answer)
        del self._waiting[answer.id]
        token = call.token
        if isinstance(token, ResubscribeRound):
            assert isinstance(answer, commands.Ack), "a subscribe is answered only with Ack"
            self._placed_again(call, token, answer)
            return
        outcome: object = answer
        if call.request is not None and isinstance(answer, commands.Ack):
            outcome = self._subscribed(token, call.request, answer)
        elif isinstance(answer, commands.Ack) and answer.code:
            outcome = error_from_code(answer.code, answer.text, available=answer.available)
        elif isinstance(call.command, commands.Flush):
            outcome = None
        elif isinstance(call.command, commands.Unsubscribe):
            for sub_id in self._subscriptions.known_to(call.command.sub_ids, answer.id):
                self._subscriptions.end(sub_id, "unsubscribed", None)
        elif isinstance(call.command, commands.Pause | commands.Resume):
            meant = self._subscriptions.known_to(call.command.sub_ids, answer.id)
            self._subscriptions.paused(meant, paused=isinstance(call.command, commands.Pause))
        if token is not None and not (outcome is answer and self._waits_for_result(token, call.request)):
            self._effects.append(ResolveCall(token, outcome))

    def _waits_for_result(self, token: Waiter, request: SubscribeRequest | None) -> bool:
        """Return whether `token` waits for the start of the result of a query that was accepted."""
        if request is None or request.query is None or request.query.renewed:
            return False
        return self._subscriptions.opens(request, token)

    def _subscribed(self, token: Waiter | None, request: SubscribeRequest, answer: commands.Ack) -> object:
        outcome: object = answer
        if answer.code:
            outcome = error = error_from_code(answer.code, answer.text, available=answer.available)
            credit, left = self._subscriptions.refused(request, answer.code, error)
            if credit is not None:
                self._effects.append(self._encode(credit))
        else:
            try:
                left = self._subscriptions.accepted(request, answer)
            except BadCommand as bad:
                if token is not None:
                    self._effects.append(ResolveCall(token, bad))
                raise
        if left:
            self.leave(request.context.sub_id)
        return outcome

    # -- resubscription ---------------------------------------------------------------------------------

    def place_next(self, placing: ResubscribeRound) -> None:
        """Resubscribe as many subscriptions of the round as may be pending.

        Resolve the token of the round once all are answered.
        """
        while (sub_id := placing.next()) is not None:
            call_id = self.new_id()
            try:
                asked = self._subscriptions.place_again(sub_id, call_id)
            except TickertapeError as error:
                self._subscriptions.failed(sub_id, error)
                placing.answered(sub_id, error)
                continue
            if asked is None:
                placing.answered(sub_id, None)
            else:
                request, command, paused = asked
                self.ask(call_id, command, placing, request)
                if paused and isinstance(command, commands.Sow):  # a query has no option `pause`
                    pause = commands.Pause(id=self.new_id(), sub_ids=(sub_id,))
                    self.ask(pause.id, pause, None)
        if placing.over:
            self._effects.append(ResolveCall(placing.token, placing.refused))

    def retry_later(self, now: Now) -> None:
        """Schedule `retry` for subscriptions that were temporarily refused."""
        self.retry_at = now.mono + resubscription_retry_seconds

    def retry(self) -> None:
        """Resubscribe the subscriptions that were temporarily refused."""
        postponed, self.postponed = self.postponed, []
        self.retry_at = None
        for placing in postponed:
            placing.retry()
            self.place_next(placing)

    def _placed_again(self, call: _Call, placing: ResubscribeRound, answer: commands.Ack) -> None:
        assert call.request is not None
        error: TickertapeError | None = None
        sub_id = call.request.context.sub_id
        if answer.code == NotReady.code and placing.postpone(sub_id):
            self._subscriptions.postponed(call.request)
            if placing not in self.postponed:
                self.postponed.append(placing)
            self.place_next(placing)
            return
        if answer.code in _LOST_PLACE and self._subscriptions.query_again(call.request):
            placing.again(sub_id)
            self.place_next(placing)
            return
        if answer.code:
            text = f"Cannot resubscribe {sub_id!r}: {answer.text}"
            error = error_from_code(answer.code, text, available=answer.available)
            self._subscriptions.refused(call.request, answer.code, error)
            self._effects.append(ReportError(error))
        else:
            try:
                if self._subscriptions.accepted(call.request, answer):
                    self.leave(sub_id)
            except BadCommand as bad:  # a connection retry would fail in the same way
                error = BadCommand(f"Cannot resubscribe {sub_id!r}: {bad}")
                self._subscriptions.misplaced(call.request, error)
        placing.answered(sub_id, error)
        self.place_next(placing)

    def flush(self, frame: int, token: Waiter) -> None:
        """Resolve `token` once every frame up to `frame` (from `Publisher.flush`) is answered."""
        self._flushes.append((frame, token))
        self.settle_flushes()

    def settle_flushes(self) -> None:
        """Resolve the flushes whose frames are answered."""
        while self._flushes and self._publishing.answered(self._flushes[0][0]):
            self._effects.append(ResolveCall(self._flushes.popleft()[1], None))

    def hurry(self) -> None:
        """Ask for the next acknowledgement if resending depends on it and acknowledgements are conflated."""
        if self._publishing.eager and not self._publishing.answered(AFTER_RESEND):
            self.hasten()

    def hasten(self) -> None:
        """Ask for an acknowledgement that the server delays because of conflation."""
        command = commands.Flush(id=self.new_id())
        self.ask(command.id, command, None)

    def unanswered(self) -> None:
        """Apply pending commands to subscriptions that outlive the lost connection.

        Unsubscribed ones end with the connection. Paused and resumed ones are resubscribed in that state.
        """
        for call_id, call in self._waiting.items():
            if call.token is None or not isinstance(
                call.command, commands.Unsubscribe | commands.Pause | commands.Resume
            ):
                continue
            meant = self._subscriptions.known_to(call.command.sub_ids, call_id)
            if isinstance(call.command, commands.Unsubscribe):
                self._subscriptions.given_up(meant)
            else:
                self._subscriptions.to_be_paused(meant, paused=isinstance(call.command, commands.Pause))

    def lost(self, error: TickertapeError) -> None:
        """Fail all pending calls, because the connection is lost."""
        asked = [call.token for call in self._waiting.values()]
        tokens = [token for token in asked if not isinstance(token, ResubscribeRound)]
        tokens.extend(token for _, token in self._flushes)
        rounds = {token for token in asked if isinstance(token, ResubscribeRound)}.union(self.postponed)
        tokens.extend(placing.token for placing in rounds)
        self.postponed.clear()
        self.retry_at = None
        self._waiting.clear()
        self._flushes.clear()
        self._effects.extend(ResolveCall(token, error) for token in tokens if token is not None)


def _check_kind(command: commands.Command, answer: Answer) -> None:
    """Raise `BadCommand` for an answer of the wrong type. An error `Ack` is valid for every command."""
    expected = _ANSWERS.get(type(command), commands.Ack)
    if not isinstance(answer, expected) and not (isinstance(answer, commands.Ack) and answer.code):
        asked, given = type(command).__name__, type(answer).__name__
        raise BadCommand(
            f"Invalid answer to command {answer.id} ({asked}): got {given} instead of "
            f"{expected.__name__}. Update the older side."
        )
