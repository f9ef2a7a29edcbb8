"""Pending calls: commands without an answer yet, and what each answer means for subscriptions.

Invariant: every call gets exactly one `ResolveCall`, at the latest when its connection is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from tickertape.base.errors import BadCommand, NotReady, TickertapeError, error_from_code
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
"""The answer to each command that succeeded; every other one is answered with `Ack`."""


class _Call(NamedTuple):
    token: Waiter | ResubscribeRound | None  # None: nobody waits
    command: commands.Command
    request: SubscribeRequest | None = None  # what a subscribe asks for


@dataclass(eq=False, repr=False)
class PendingCalls:
    """The calls of one client machine.

    `encode(command, batch)` makes the frame for the connection that there is. `effects` is where this leaves
    what is to be done.
    """

    _encode: Callable[..., Send]
    _publishing: Publisher
    _subscriptions: SubscriptionRegistry
    _effects: list[Effect]
    _waiting: dict[int, _Call] = field(default_factory=dict)
    _flushes: deque[tuple[int, Waiter]] = field(default_factory=deque)
    """Waiters for the answers to all frames up to a number."""
    _last_id: int = 0
    postponed: list[ResubscribeRound] = field(default_factory=list)
    """Rounds in which the server refused some for now; `retry` goes on with them."""
    retry_at: float | None = None
    """When that is due, monotonic seconds."""

    def new_id(self) -> int:
        """A number for the next command; it names its answer."""
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
        """Send `command`, which has `call_id`, with a batch that it may carry; its answer is for `token`.

        `begin` is what has to be done first. What cannot be encoded, or not begun, leaves no trace.
        """
        frame = self._encode(command, batch)
        if begin is not None:
            begin()
        self._waiting[call_id] = _Call(token, command, request)
        self._effects.append(frame)

    def leave(self, sub_id: str) -> None:
        """Unsubscribe at the server; no caller waits for the answer."""
        command = commands.Unsubscribe(id=self.new_id(), sub_ids=(sub_id,))
        self.ask(command.id, command, None)
        self._subscriptions.unsubscribe_sent(sub_id)

    def answered(self, answer: Answer) -> None:
        """The server answered a command. Raises `BadCommand` when nobody had asked, or not for this."""
        call = self._waiting.get(answer.id)
        if call is None:
            raise BadCommand(f"the server answered command {answer.id}, which is not waiting for an answer")
        _check_kind(call.command, answer)
        del self._waiting[answer.id]
        token = call.token
        if isinstance(token, ResubscribeRound):
            assert isinstance(answer, commands.Ack), "nothing else answers a subscribe"
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
        if token is not None:
            self._effects.append(ResolveCall(token, outcome))

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

    # -- subscriptions that are placed again ------------------------------------------------------------

    def place_next(self, placing: ResubscribeRound) -> None:
        """Ask for as many of them as may be under way at a time; its token is resolved when all are
        answered."""
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
                request, command = asked
                self.ask(call_id, command, placing, request)
        if placing.over:
            self._effects.append(ResolveCall(placing.token, placing.refused))

    def retry_later(self, now: Now) -> None:
        """Subscriptions were refused for now: `retry` is due in a while."""
        self.retry_at = now.mono + resubscription_retry_seconds

    def retry(self) -> None:
        """Place subscriptions again that were refused for now."""
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
        if answer.code:
            text = f"subscription {sub_id!r} could not be placed again: {answer.text}"
            error = error_from_code(answer.code, text, available=answer.available)
            self._subscriptions.refused(call.request, answer.code, error)
            self._effects.append(ReportError(error))
        else:
            try:
                if self._subscriptions.accepted(call.request, answer):
                    self.leave(sub_id)
            except BadCommand as bad:  # every other connection to that server would come to the same
                error = BadCommand(f"subscription {sub_id!r} could not be placed again: {bad}")
                self._subscriptions.misplaced(call.request, error)
        placing.answered(sub_id, error)
        self.place_next(placing)

    def flush(self, frame: int, token: Waiter) -> None:
        """`token` waits until every frame up to `frame`, as `flush` gave it, has its answer."""
        self._flushes.append((frame, token))
        self.settle_flushes()

    def settle_flushes(self) -> None:
        """Frames may have got their answers."""
        while self._flushes and self._publishing.answered(self._flushes[0][0]):
            self._effects.append(ResolveCall(self._flushes.popleft()[1], None))

    def hurry(self) -> None:
        """Resending goes on with acknowledgements: where they are conflated, ask for the next one."""
        if self._publishing.eager and not self._publishing.answered(AFTER_RESEND):
            self.hasten()

    def hasten(self) -> None:
        """Ask for the acknowledgement that the server holds back, where acknowledgements are conflated."""
        command = commands.Flush(id=self.new_id())
        self.ask(command.id, command, None)

    def unanswered(self) -> None:
        """The connection is gone: what the application asked of subscriptions that outlive it still holds.

        What was unsubscribed is over with the connection; what was paused or resumed comes back so.
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
        """The connection is gone, and every answer with it."""
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
    """Raise `BadCommand` for an answer of another kind than the command has; a refusal fits each."""
    expected = _ANSWERS.get(type(command), commands.Ack)
    if not isinstance(answer, expected) and not (isinstance(answer, commands.Ack) and answer.code):
        asked, given = type(command).__name__, type(answer).__name__
        raise BadCommand(
            f"the server answered command {answer.id}, {asked}, with {given} in place of {expected.__name__}"
        )
