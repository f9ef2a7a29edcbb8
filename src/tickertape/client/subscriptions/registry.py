"""Subscription registry: a client's subscriptions, their deliveries and credit, and resubscription.

A subscription that is to be replaced goes on until the server answers: deliveries before the answer are the
old one's, deliveries behind it the new one's. Where subscriptions are kept, those with a handler outlive
their connection and are placed again. Deliveries before a subscription was accepted belong to an earlier one
of its id. Credit is given back when half of the window was consumed; `IdleCredit` returns the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import (
    BadCommand,
    CorruptBatch,
    SubscriptionExists,
    TickertapeError,
    UsageError,
    error_from_code,
)
from tickertape.base.interfaces import Now
from tickertape.batch.derive import select
from tickertape.batch.format import I8, U8, UInt64s
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common import effects
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.subscriptions.bookmark_tracker import BookmarkTracker, forget, tracker_of
from tickertape.client.subscriptions.duplicates import Deduplicated, drop_duplicates, dropped_of
from tickertape.client.subscriptions.resubscribe import ReplayState, place_after
from tickertape.client.subscriptions.routing import Route, RouteCache, routes_of
from tickertape.client.subscriptions.subscription import IdleCredit, Leases, Subscription
from tickertape.wire.commands import Ack, Completed, Credit, Deliver, Ended, PersistedNotice, Subscribe

MESSAGES_A_RUN_CHECKED: Final = 8
"""Runs are checked on delivery when they have this many messages on average."""


class SubscriptionRegistry:
    """The subscribing half of the client machine."""

    def __init__(self, effects: list[effects.Effect], leases: Leases, *, keep: bool = False) -> None:
        self._effects = effects
        self._leases = leases
        self._by_id: dict[str, Subscription] = {}
        self._idle_credit = IdleCredit()
        self._routes = RouteCache()
        self._placed = 0
        """Subscriptions that were begun."""
        self.store: BookmarkStore | None = None
        """Remembers what bookmark subscriptions were delivered."""
        self._report_duplicates = False
        self.keep = keep
        """Whether subscriptions with a handler outlive their connection."""
        self.grants: list[Credit] = []
        """Credit to give back, for the core to send."""
        self.leaving: list[str] = []
        """Subscriptions that are over here and not at the server, for the core to tell."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sub_id: object) -> bool:
        return sub_id in self._by_id

    def handled(self, sub_id: str) -> bool:
        """Whether the messages of that id go to a handler, or will when what was asked for stands."""
        present = self._by_id.get(sub_id)
        while present is not None and not present.request.handled:
            present = present.successor
        return present is not None

    def report_duplicates(self, *, enabled: bool) -> None:
        """Report each message that duplicate detection drops, or none."""
        self._report_duplicates = enabled

    # -- begin and end ----------------------------------------------------------------------------------

    def use_store(self, store: BookmarkStore | None) -> None:
        """Remember in `store` from now on. Raises `UsageError` while a bookmark subscription runs."""
        for sub_id, subscription in self._by_id.items():
            if subscription.replay is not None:
                raise UsageError(
                    f"bookmark subscription {sub_id!r} runs: change the bookmark store without one"
                )
        self.store = store

    def prepare(self, request: SubscribeRequest, sink: effects.Sink) -> Subscription:
        """Make a subscription for `begin`. Raises `SubscriptionExists`, and errors of the bookmark store."""
        sub_id = request.context.sub_id
        present = self._by_id.get(sub_id)
        if present is not None and present.unsubscribe_sent:
            present = None  # the server works in order: this one is over there before the new one begins
        if present is not None:
            if not request.replace:
                raise SubscriptionExists(f"subscription id {sub_id!r} is in use on this connection")
            if present.successor is not None:
                raise SubscriptionExists(f"subscription {sub_id!r} is just being replaced")
            if not present.placed:
                raise SubscriptionExists(f"subscription {sub_id!r} is to be placed again first")
        self._placed += 1
        replay = None
        if request.bookmark is not None or request.positions is not None:
            tracker = None
            if request.bookmark is not None:
                made_up = not request.named and present is None
                kept = self.keep and request.handled
                tracker = tracker_of(self.store, sub_id, made_up=made_up, kept=kept)
            replay = ReplayState(
                request.bookmark, request.options, tracker, until_caught_up=request.until_caught_up
            )
        subscription = Subscription(request, sink, replay, self._placed)
        if replay is not None and replay.tracker is not None:
            if replay.tracker.comes_again:
                subscription.context = msgspec.structs.replace(request.context, store=self.store)
            replay.tracker.resumed(conflated=subscription.terms.conflated)
        return subscription

    def begin(self, subscription: Subscription) -> None:
        """Expect deliveries to it."""
        sub_id = subscription.context.sub_id
        present = self._by_id.get(sub_id)
        if present is not None and present.unsubscribe_sent:
            self.end(sub_id, "unsubscribed", None)
            present = None
        if present is None:
            self._by_id[sub_id] = subscription
        else:
            present.successor = subscription

    def accepted(self, request: SubscribeRequest, answer: Ack) -> bool:
        """The server took it; what it replaces is over. Whether its stream was left meanwhile. Raises
        `BadCommand` for a place that is none."""
        sub_id = request.context.sub_id
        place = place_after(answer.after) if answer.after else None
        present = self._by_id.get(sub_id)
        if present is not None and present.successor is not None and present.successor.request is request:
            successor = present.successor
            successor.take_over(present)
            self.end(sub_id, "replaced", None)
            present = successor
        if present is None or present.request is not request:
            return False
        present.accepted = True
        self._leases.granted(sub_id, answer.backlog)
        if present.replay is not None and answer.after:
            self._begun(present, present.replay, place)
        if present.replay is not None:
            self._effects.append(effects.Started(present.sink, answer.after, answer.found))
        abandoned, present.abandoned = present.abandoned, False
        return abandoned

    def _begun(self, subscription: Subscription, replay: ReplayState, place: Bookmark | None) -> None:
        try:
            replay.began(place)
        except TickertapeError as error:
            self.failed(subscription.context.sub_id, error)

    def refused(
        self, request: SubscribeRequest, reason: str, error: TickertapeError
    ) -> tuple[Credit | None, bool]:
        """The server did not take it. What it was to replace goes on: the credit to give back for that, and
        whether its stream was left meanwhile."""
        sub_id = request.context.sub_id
        present = self._by_id.get(sub_id)
        if present is None:
            return None, False
        if present.request is request:
            self.end(sub_id, reason, error)
            return None, False
        successor = present.successor
        if successor is None or successor.request is not request:
            return None, False
        present.successor = None
        self._effects.append(effects.End(successor.sink, reason, error))
        abandoned, present.abandoned = present.abandoned, False
        return (present.give_back() if present.consumed else None), abandoned

    def leave(self, request: SubscribeRequest) -> bool:
        """Note that its stream has no reader any more; whether to unsubscribe now."""
        present = self._by_id.get(request.context.sub_id)
        if present is None or present.unsubscribe_sent:
            return False
        successor = present.successor
        if present.request is request:
            present.abandoned = successor is not None
            return successor is None
        if successor is not None and successor.request is request:
            successor.abandoned = True
        return False

    def known_to(self, sub_ids: Sequence[str], call_id: int) -> list[str]:
        """Those of them that the server had when it carried out this command: others were asked for behind
        it."""
        by_id = self._by_id
        return [sub_id for sub_id in sub_ids if sub_id in by_id and by_id[sub_id].command_id < call_id]

    def unsubscribe_sent(self, sub_id: str) -> None:
        """The server was told that nobody holds its stream any more: its id is free for another one."""
        present = self._by_id.get(sub_id)
        if present is not None:
            present.unsubscribe_sent = True

    def completed(self, command: Completed) -> None:
        """The replay has caught up or reached its stop."""
        subscription = self._accepted(command.sub_id)
        if subscription is not None:
            if subscription.replay is not None:
                subscription.replay.completed = True
            self._effects.append(effects.CaughtUp(subscription.sink))

    def ended(self, command: Ended) -> None:
        """The server says that it is over."""
        subscription = self._accepted(command.sub_id)
        if subscription is None:
            return
        if not command.code:
            self.end(command.sub_id, "complete", None)
            return
        error = error_from_code(command.code, command.text)
        if subscription.request.handled:
            self._effects.append(effects.ReportError(error))
        self.end(command.sub_id, command.code, error)

    def failed(self, sub_id: str, error: TickertapeError) -> None:
        """It cannot go on here; the server is to be told. What was to go on where it ends fails with it: what
        comes before that stands would be missing."""
        self._effects.append(effects.ReportError(error))
        present = self._by_id[sub_id]
        successor, placed = present.successor, present.placed
        if successor is not None and successor.replay is None:
            present.successor = None
        self.end(sub_id, error.code, error)
        if successor is not None and present.successor is None:
            self._effects.append(effects.End(successor.sink, error.code, error))
        if placed and sub_id not in self._by_id:  # else it was just being replaced
            self.leaving.append(sub_id)

    def end(self, sub_id: str, reason: str, error: TickertapeError | None) -> None:
        """Forget a subscription and tell its sink; nothing when there is none. What was to replace it is in
        its place then."""
        subscription = self._by_id.pop(sub_id, None)
        if subscription is None:
            return
        self._idle_credit.forget(sub_id)
        subscription.end_leases()
        self._leases.ended(sub_id)
        self._effects.append(effects.End(subscription.sink, reason, error))
        if subscription.successor is not None:
            self._by_id[sub_id] = subscription.successor
        elif not subscription.request.named and subscription.context.store is not None:
            error = forget(self.store, sub_id)
            if error is not None:
                self._effects.append(effects.ReportError(error))

    # -- connections ------------------------------------------------------------------------------------

    def lost(self, reason: str, error: TickertapeError, *, keep: bool = False) -> None:
        """The connection is gone, and all of its subscriptions but those that are kept."""
        for sub_id in list(self._by_id):
            present = self._by_id[sub_id]
            held = not (present.abandoned or present.unsubscribe_sent)
            if keep and held and present.request.handled and present.accepted:
                self._lose(sub_id, present, reason, error)
            else:
                while sub_id in self._by_id:
                    self.end(sub_id, reason, error)

    def _lose(self, sub_id: str, present: Subscription, reason: str, error: TickertapeError) -> None:
        successor, present.successor = present.successor, None
        if successor is not None:
            self._effects.append(effects.End(successor.sink, reason, error))
        self._idle_credit.forget(sub_id)
        present.lose()
        replay = present.replay
        if replay is not None and replay.completed and replay.ends:
            self.end(sub_id, "complete", None)
        elif replay is not None and replay.tracker is not None and replay.tracker.comes_again:
            self._effects.append(effects.WillRedeliver(present.sink))

    def given_up(self, sub_ids: Sequence[str]) -> None:
        """The connection is gone with the answer to what ends them: they are over all the same."""
        for sub_id in sub_ids:
            if self._by_id[sub_id].request.handled:
                self.end(sub_id, "unsubscribed", None)

    def to_be_paused(self, sub_ids: Sequence[str], *, paused: bool) -> None:
        """The connection is gone with the answer: they come back so, unless the server would have refused."""
        found = [self._by_id[sub_id] for sub_id in sub_ids]
        if all(subscription.replay is not None for subscription in found):
            for subscription in found:
                subscription.terms.pause(paused=paused)

    def kept(self) -> list[str]:
        """Return the ids that wait to be placed again, in the order of the first placement."""
        waiting = [subscription for subscription in self._by_id.values() if not subscription.placed]
        return [subscription.context.sub_id for subscription in sorted(waiting, key=attrgetter("order"))]

    def leave_kept(self, request: SubscribeRequest) -> bool:
        """End a subscription that waits to be placed again; whether it was one."""
        present = self._by_id.get(request.context.sub_id)
        if present is None or present.request is not request or present.placed:
            return False
        self.end(present.context.sub_id, "unsubscribed", None)
        return True

    def drop_kept(self, sub_ids: Sequence[str]) -> tuple[str, ...]:
        """End those that wait to be placed again; the others."""
        rest = []
        for sub_id in dict.fromkeys(sub_ids):
            if sub_id in self._by_id and not self._by_id[sub_id].placed:
                self.end(sub_id, "unsubscribed", None)
            else:
                rest.append(sub_id)
        return tuple(rest)

    def place_again(self, sub_id: str, call_id: int) -> tuple[SubscribeRequest, Subscribe] | None:
        """What asks for it on this connection; None when it is over meanwhile. Raises what the bookmark
        store raises."""
        subscription = self._by_id.get(sub_id)
        if subscription is None or subscription.placed:
            return None
        replay = subscription.replay
        if replay is not None and replay.tracker is not None:
            replay.tracker.resumed(conflated=subscription.terms.conflated)
        command = subscription.command_again(call_id)
        subscription.placed = True
        return subscription.request, command

    def postponed(self, request: SubscribeRequest) -> None:
        """The server refused for now to place it again: it waits."""
        present = self._by_id.get(request.context.sub_id)
        if present is not None and present.request is request:
            present.lose()

    def misplaced(self, request: SubscribeRequest, error: TickertapeError) -> None:
        """The server placed it again where nobody can say: it is over."""
        present = self._by_id.get(request.context.sub_id)
        if present is not None and present.request is request:
            self.failed(request.context.sub_id, error)

    # -- delivery ---------------------------------------------------------------------------------------

    def deliver(self, command: Deliver, batch: MessageBatch, now: Now) -> None:
        """A batch came: give it to whom it is for, or tell them that it is damaged. Raises `BadCommand`."""
        several = bool(command.sub_ids or command.counts or command.indices)
        if several and (command.sub_id or not command.sub_ids):
            raise BadCommand("a delivery is for one subscription or for several, not for both")
        if several and command.queue:
            raise BadCommand("a delivery out of a queue is for one subscription")
        routes = routes_of(command, batch) if several else []
        if command.positions:
            batch.positions = _positions(command.positions, batch.count)
        try:
            # Checksums made by the publishers; with many small runs the frame's own has to do.
            if batch.run_count * MESSAGES_A_RUN_CHECKED <= batch.count:
                batch.verify()
        except CorruptBatch as error:
            self.damaged(command.sub_ids or (command.sub_id,), error)
            return
        if several:
            self.delivered_to_all(routes, batch, now)
        else:
            self.delivered(command, batch, now)

    def delivered(self, command: Deliver, batch: MessageBatch, now: Now) -> None:
        """A batch came; one for a subscription that is over was on its way when it ended. Raises `BadCommand`
        for more than the credit allows."""
        subscription = self._accepted(command.sub_id)
        if subscription is None:
            return
        subscription.check_credit(batch.count, batch.cost)
        self._idle_credit.delivered(subscription, batch.cost, now.mono)
        context, replay = subscription.context, subscription.replay
        if replay is not None and replay.tracker is not None:
            replay.came = True
            rows, _, context, _ = self._deduplicated(subscription, replay.tracker, batch, None, batch.cost)
            if rows is not None:
                if not rows:
                    return
                batch = select(batch, np.array(rows, I8))
        batch.context = subscription.leased(command, self._leases) if command.queue else context
        self._effects.append(effects.DeliverBatch(subscription.sink, batch))

    def delivered_to_all(self, routes: Sequence[Route], batch: MessageBatch, now: Now) -> None:
        """A batch came for several subscriptions: each gets its share of it. Raises `BadCommand` for more
        than the credit of one allows, once those before it have theirs."""
        shared = self._routes.add(batch)
        parts: list[effects.Part] = []
        beyond: BadCommand | None = None
        by_id, share, mono = self._by_id, shared.share, now.mono
        for sub_id, rows, cost in routes:
            subscription = by_id.get(sub_id)
            if subscription is not None and subscription.accepted:
                try:
                    subscription.check_credit(len(rows), cost)
                except BadCommand as error:
                    beyond = error
                    break
                self._idle_credit.delivered(subscription, cost, mono)
                context, replay = subscription.context, subscription.replay
                if replay is not None and replay.tracker is not None:
                    replay.came = True
                    left, cost, context, _ = self._deduplicated(
                        subscription, replay.tracker, batch, rows, cost
                    )
                    rows = left or ()
                if cost:
                    parts.append((subscription.sink, share(rows, cost, context), rows))
        if parts:
            self._effects.append(effects.DeliverShared(shared, parts))
        if beyond is not None:
            raise beyond

    def _accepted(self, sub_id: str) -> Subscription | None:
        """Return the subscription of an id if the server has accepted it."""
        subscription = self._by_id.get(sub_id)
        return subscription if subscription is not None and subscription.accepted else None

    def damaged(self, sub_ids: Sequence[str], error: TickertapeError) -> None:
        """A batch for these came that cannot be used."""
        for sub_id in sub_ids:
            if self._accepted(sub_id) is not None:
                self.failed(sub_id, error)

    def _deduplicated(
        self,
        subscription: Subscription,
        tracker: BookmarkTracker,
        batch: MessageBatch,
        rows: Sequence[int] | None,
        cost: int,
    ) -> Deduplicated:
        """Return the rows of a batch that are new, and report the others."""
        try:
            left_over = drop_duplicates(tracker, batch, rows, cost, subscription.context)
        except TickertapeError as error:
            self.failed(subscription.context.sub_id, error)
            return Deduplicated((), 0, subscription.context)
        if left_over.dropped is not None:
            if self._report_duplicates:
                dropped = dropped_of(batch, left_over.dropped, subscription.context)
                self._effects.append(effects.DuplicatesDropped(dropped))
            credit = subscription.take(cost - left_over.cost)
            if credit is not None:
                self.grants.append(credit)
        return left_over

    def noticed(self, command: PersistedNotice) -> None:
        """Subscriptions were sent everything of theirs up to a bookmark: each may resume there."""
        bookmark = Bookmark(command.publisher, command.sequence)
        for sub_id in command.sub_ids:
            subscription = self._accepted(sub_id)
            if subscription is None:
                continue
            replay = subscription.replay
            if replay is not None and replay.tracker is not None:
                try:
                    replay.tracker.noticed(bookmark)
                except TickertapeError as error:
                    self.failed(sub_id, error)
                    continue
                replay.begun, replay.after = True, bookmark
            self._effects.append(effects.Notice(subscription.sink, str(bookmark)))

    def take_pending(self) -> tuple[list[Credit], list[str]]:
        """Return the credit to give back, and the subscriptions to end at the server."""
        grants, leaving = self.grants, self.leaving
        self.grants, self.leaving = [], []
        return grants, leaving

    # -- credit -----------------------------------------------------------------------------------------

    def consumed(self, sub_id: str, cost: int, request: SubscribeRequest | None = None) -> Credit | None:
        """The application took `cost` of the subscription that `request` asked for, which may have been
        replaced since; the credit to give back now, if any."""
        subscription = self._by_id.get(sub_id)
        if subscription is None or (request is not None and subscription.request is not request):
            return None
        return subscription.take(cost)

    def consumed_all(self, takings: Sequence[tuple[SubscribeRequest, int]]) -> list[Credit]:
        """Take in what was consumed of several subscriptions; see `consumed`."""
        grants = []
        by_id = self._by_id
        for request, cost in takings:
            subscription = by_id.get(request.context.sub_id)
            if subscription is not None and subscription.request is request:
                credit = subscription.take(cost)
                if credit is not None:
                    grants.append(credit)
        return grants

    def paused(self, sub_ids: Sequence[str], *, paused: bool) -> None:
        """The server paused or resumed them: it may read the log once for all that one command resumed."""
        for sub_id in sub_ids:
            if sub_id in self._by_id:
                self._by_id[sub_id].terms.pause(paused=paused)
        if not paused:
            sinks = [self._by_id[sub_id].sink for sub_id in dict.fromkeys(sub_ids) if sub_id in self._by_id]
            if len(sinks) > 1:
                self._effects.append(effects.OrderTogether(sinks))

    def next_deadline(self) -> float | None:
        """When `wake` wants to be called (monotonic seconds), or None."""
        return self._idle_credit.next_deadline()

    def wake(self, now: Now) -> list[Credit]:
        """The credit to give back for subscriptions that have been quiet for a moment."""
        return self._idle_credit.wake(now.mono)


def _positions(encoded: bytes, count: int) -> UInt64s:
    """Return the positions of the messages of a batch. Raises `BadCommand`."""
    if len(encoded) == U8.itemsize:
        return np.arange(count, dtype=U8) + np.frombuffer(encoded, U8)
    if len(encoded) != U8.itemsize * count:
        raise BadCommand(f"{len(encoded)} bytes of positions for a batch of {count} messages")
    positions = np.frombuffer(encoded, U8)
    if (positions[1:] <= positions[:-1]).any():
        raise BadCommand("the positions of a batch do not rise")
    return positions
