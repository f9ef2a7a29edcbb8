"""Subscription registry: a client's subscriptions, their deliveries and credit, and resubscription.

A subscription under replacement continues until the server answers. Deliveries before the answer belong to
the old subscription, later ones to the new one. Where subscriptions are kept, those with a handler outlive
their connection and are resubscribed. Deliveries before a subscription is accepted belong to an earlier one
with its id. Credit is granted again once half of the window is consumed. `IdleCredit` grants the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import (
    BadCommand,
    BookmarkExpired,
    CorruptBatch,
    PeerError,
    TickertapeError,
    UsageError,
    error_from_code,
)
from tickertape.base.interfaces import Now
from tickertape.batch.derive import select
from tickertape.batch.format import I8
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common import effects
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.limits import place_notice_seconds
from tickertape.client.subscriptions.bookmark_tracker import BookmarkTracker, forget
from tickertape.client.subscriptions.duplicates import Deduplicated, drop_duplicates, dropped_of
from tickertape.client.subscriptions.resubscribe import place_after, replay_of
from tickertape.client.subscriptions.routing import Route, RouteCache, positions_of, routes_of
from tickertape.client.subscriptions.subscription import IdleCredit, Leases, Subscription
from tickertape.wire.commands import (
    Ack,
    Completed,
    Credit,
    Deliver,
    Ended,
    GroupBegin,
    GroupEnd,
    PersistedNotice,
    Records,
    Sow,
    Subscribe,
)

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles

MESSAGES_A_RUN_CHECKED: Final = 8
"""Least average number of messages per run for which checksums of runs are verified on delivery."""


class SubscriptionRegistry:
    """Subscriptions of one client."""

    def __init__(self, effects: list[effects.Effect], leases: Leases, *, keep: bool = False) -> None:
        self._effects = effects
        self._leases = leases
        self._by_id: dict[str, Subscription] = {}
        self._idle_credit = IdleCredit()
        self._routes = RouteCache()
        self._placed = 0
        """Number of subscriptions created."""
        self.store: BookmarkStore | None = None
        """Bookmark store of bookmark subscriptions, or None."""
        self._report_duplicates = False
        self._journal = ""
        """Log of the server."""
        self.keep = keep
        """Whether subscriptions with a handler outlive their connection."""
        self.grants: list[Credit] = []
        """Pending credit that the protocol core must send."""
        self.leaving: list[str] = []
        """Subscriptions that ended here and that the protocol core must unsubscribe."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sub_id: object) -> bool:
        return sub_id in self._by_id

    def has_only(self, request: SubscribeRequest | None) -> bool:
        """Return whether it has the subscription of `request` at most. None: no subscription."""
        by_id = self._by_id
        if not by_id or request is None:
            return not by_id
        present = by_id.get(request.context.sub_id)
        return present is not None and present.request is request and len(by_id) == 1

    def handled(self, sub_id: str) -> bool:
        """Return whether messages of that id go to a handler, a pending replacement included."""
        present = self._by_id.get(sub_id)
        while present is not None and not present.request.handled:
            present = present.successor
        return present is not None

    def logged_on(self, journal: str) -> None:
        """Record the log of the server of this connection."""
        self._journal = journal

    def report_duplicates(self, *, enabled: bool) -> None:
        """Enable or disable the report of each dropped duplicate."""
        self._report_duplicates = enabled

    # -- start and end ----------------------------------------------------------------------------------

    def use_store(self, store: BookmarkStore | None) -> None:
        """Set the bookmark store. Raises `UsageError` during a bookmark subscription."""
        for sub_id, subscription in self._by_id.items():
            if subscription.replay is not None:
                raise UsageError(
                    f"Cannot change the bookmark store: bookmark subscription {sub_id!r} is active. "
                    "Unsubscribe first."
                )
        self.store = store

    def prepare(self, request: SubscribeRequest, sink: effects.Sink) -> Subscription:
        """Create a subscription for `begin`. Raises `SubscriptionExists` and errors of the bookmark store."""
        sub_id = request.context.sub_id
        present = self._by_id.get(sub_id)
        if present is not None and present.unsubscribe_sent:
            present = (
                None  # the server processes commands in order, so this one ends before the new one starts
            )
        if present is not None:
            present.check_replaceable(request)
        self._placed += 1
        replay = replay_of(request, self.store, fresh=present is None, keep=self.keep)
        subscription = Subscription(request, sink, replay, self._placed)
        if replay is not None and replay.tracker is not None:
            if replay.tracker.comes_again:
                subscription.context = msgspec.structs.replace(request.context, store=self.store)
            replay.tracker.resumed(conflated=subscription.terms.conflated)
        return subscription

    def begin(self, subscription: Subscription) -> None:
        """Register a prepared subscription, so that it receives deliveries."""
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
        """Process the success answer of a subscribe. A replaced subscription ends.

        Return whether its stream lost its reader meanwhile. Raises `BadCommand` for an invalid start.
        """
        sub_id = request.context.sub_id
        place = place_after(answer.after) if answer.after else None
        places = _decoded(answer.places, b"")[0] if answer.places else ()
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
        if present.replay is not None:
            try:
                if answer.after:
                    present.replay.began(place, places)
                else:
                    present.replay.answered(places)
            except TickertapeError as error:
                self.failed(sub_id, error)
        if present.replay is not None and (present.result is None or present.result.complete):
            self._effects.append(effects.Started(present.sink, answer.after, answer.found))
        abandoned, present.abandoned = present.abandoned, False
        return abandoned

    def refused(
        self, request: SubscribeRequest, reason: str, error: TickertapeError
    ) -> tuple[Credit | None, bool]:
        """Process the error answer of a subscribe. A subscription to be replaced continues.

        Return its pending credit, and whether its stream lost its reader meanwhile.
        """
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
        """Record that its stream has no reader. Return whether to unsubscribe now."""
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
        """Return the `sub_ids` that the server had when it executed this command.

        Others were subscribed after it.
        """
        by_id = self._by_id
        return [sub_id for sub_id in sub_ids if sub_id in by_id and by_id[sub_id].command_id < call_id]

    def unsubscribe_sent(self, sub_id: str) -> None:
        """Record that the unsubscribe of an abandoned stream was sent. Its id is available again."""
        present = self._by_id.get(sub_id)
        if present is not None:
            present.unsubscribe_sent = True

    def completed(self, command: Completed) -> None:
        """Record that the replay caught up or reached its end."""
        subscription = self._accepted(command.sub_id)
        if subscription is not None:
            if subscription.replay is not None:
                subscription.replay.completed = True
            self._effects.append(effects.CaughtUp(subscription.sink))

    def ended(self, command: Ended) -> None:
        """Process the end of a subscription reported by the server."""
        subscription = self._accepted(command.sub_id)
        if subscription is None:
            return
        if not command.code:
            if subscription.result is not None:
                subscription.result.check_complete()
            self.end(command.sub_id, "complete", None)
            return
        error = error_from_code(command.code, command.text)
        if subscription.request.handled:
            self._effects.append(effects.ReportError(error))
        self.end(command.sub_id, command.code, error)

    def failed(self, sub_id: str, error: TickertapeError) -> None:
        """End a subscription with a local error, and schedule its unsubscribe.

        A pending replacement that would continue it fails too, because its first messages would be missing.
        """
        self._effects.append(effects.ReportError(error))
        present = self._by_id[sub_id]
        successor, placed = present.successor, present.placed
        if successor is not None and successor.replay is None:
            present.successor = None
        self.end(sub_id, error.code, error)
        if successor is not None and present.successor is None:
            self._effects.append(effects.End(successor.sink, error.code, error))
        if placed and sub_id not in self._by_id:  # otherwise a replacement is active
            self.leaving.append(sub_id)

    def end(self, sub_id: str, reason: str, error: TickertapeError | None) -> None:
        """Remove a subscription, if present, and notify its sink. A pending replacement takes its place."""
        subscription = self._by_id.pop(sub_id, None)
        if subscription is None:
            return
        self._idle_credit.forget(sub_id)
        subscription.end_leases()
        self._leases.ended(sub_id)
        self._effects.append(effects.End(subscription.sink, reason, error))
        self._effects += subscription.open(error)
        if subscription.successor is not None:
            self._by_id[sub_id] = subscription.successor
        elif not subscription.request.named and subscription.context.store is not None:
            error = forget(self.store, sub_id)
            if error is not None:
                self._effects.append(effects.ReportError(error))

    # -- connections ------------------------------------------------------------------------------------

    def lost(self, reason: str, error: TickertapeError, *, keep: bool = False) -> None:
        """Process a lost connection. All subscriptions end, except the kept ones."""
        for sub_id in list(self._by_id):
            present = self._by_id[sub_id]
            held = not (present.abandoned or present.unsubscribe_sent)
            if keep and held and present.outlives:
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
        """End subscriptions whose unsubscribe was pending when the connection was lost."""
        for sub_id in sub_ids:
            if self._by_id[sub_id].request.handled:
                self.end(sub_id, "unsubscribed", None)

    def to_be_paused(self, sub_ids: Sequence[str], *, paused: bool) -> None:
        """Apply a pause or resume that was pending when the connection was lost.

        Subscriptions for which the server would have refused it stay unchanged.
        """
        found = [self._by_id[sub_id] for sub_id in sub_ids]
        if all(subscription.replay is not None for subscription in found):
            for subscription in found:
                subscription.terms.pause(paused=paused)

    def kept(self) -> list[str]:
        """Return the ids that wait for resubscription, in the order of their first subscribe."""
        waiting = [subscription for subscription in self._by_id.values() if not subscription.placed]
        return [subscription.context.sub_id for subscription in sorted(waiting, key=attrgetter("order"))]

    def leave_kept(self, request: SubscribeRequest) -> bool:
        """End a subscription that waits for resubscription. Return whether it was one."""
        present = self._of(request)
        if present is None or present.placed:
            return False
        self.end(present.context.sub_id, "unsubscribed", None)
        return True

    def drop_kept(self, sub_ids: Sequence[str]) -> tuple[str, ...]:
        """End the subscriptions that wait for resubscription. Return the others."""
        rest = []
        for sub_id in dict.fromkeys(sub_ids):
            if sub_id in self._by_id and not self._by_id[sub_id].placed:
                self.end(sub_id, "unsubscribed", None)
            else:
                rest.append(sub_id)
        return tuple(rest)

    def place_again(self, sub_id: str, call_id: int) -> tuple[SubscribeRequest, Subscribe | Sow, bool] | None:
        """Return the request, the command to resubscribe, and whether it is paused.

        None for an ended subscription.

        Raises the errors of the bookmark store.
        """
        subscription = self._by_id.get(sub_id)
        if subscription is None or subscription.placed:
            return None
        replay = subscription.replay
        if replay is not None and replay.tracker is not None:
            replay.tracker.resumed(conflated=subscription.terms.conflated)
        command = subscription.command_again(call_id, self._journal)
        subscription.placed = True
        return subscription.request, command, subscription.terms.paused

    def query_again(self, request: SubscribeRequest) -> bool:
        """Let the query be sent again, because the log no longer has the messages after its result.

        Return False if it was the query that the server refused, and for other subscriptions.
        """
        present = self._of(request)
        if present is None or not present.query_again():
            return False
        present.lose()
        return True

    def postponed(self, request: SubscribeRequest) -> None:
        """Record that the server temporarily refused the resubscription. It waits."""
        present = self._of(request)
        if present is not None:
            present.lose()

    def misplaced(self, request: SubscribeRequest, error: TickertapeError) -> None:
        """End a subscription for which the server answered an invalid start."""
        if self._of(request) is not None:
            self.failed(request.context.sub_id, error)

    def _of(self, request: SubscribeRequest) -> Subscription | None:
        """Return the present subscription of `request`."""
        present = self._by_id.get(request.context.sub_id)
        return present if present is not None and present.request is request else None

    # -- results of queries -----------------------------------------------------------------------------

    def opens(self, request: SubscribeRequest, waiter: effects.Waiter) -> bool:
        """Let `waiter` wait for the start of the result of a query. Return False without a subscription."""
        present = self._of(request)
        if present is not None:
            present.opening = waiter
        return present is not None

    def found(self, command: GroupBegin | Records | GroupEnd, batch: MessageBatch | None, now: Now) -> None:
        """Process a part of the result of a query. Raises `BadCommand`."""
        subscription = self._accepted(command.sub_id)
        if subscription is None:
            return
        if type(command) is GroupBegin:
            try:
                self._effects += subscription.begin_group(command, self._journal)
            except PeerError:
                raise
            except TickertapeError as error:  # of the bookmark store
                self.failed(command.sub_id, error)
        elif type(command) is GroupEnd:
            self._effects += subscription.end_group(command)
        elif type(command) is Records and batch is not None and self._intact(batch, (command.sub_id,)):
            lease = subscription.browse_lease(command.queue, self._leases) if command.queue else None
            records = subscription.queried(command).records(command, batch, lease)
            subscription.check_credit(batch.count, batch.cost)
            self._idle_credit.delivered(subscription, batch.cost, now.mono)
            self._effects.append(effects.DeliverBatch(subscription.sink, records))

    # -- delivery ---------------------------------------------------------------------------------------

    def deliver(self, command: Deliver, batch: MessageBatch, now: Now) -> None:
        """Deliver a received batch, or fail its subscriptions if it is corrupt. Raises `BadCommand`."""
        several = bool(command.sub_ids or command.counts or command.indices)
        if several and (command.sub_id or not command.sub_ids):
            raise BadCommand("Invalid delivery: it names one subscription and several. Update the server.")
        if several and command.queue:
            raise BadCommand(
                "Invalid delivery: a queue delivery must be for one subscription. Update the server."
            )
        routes = routes_of(command, batch) if several else []
        if command.positions:
            batch.positions = positions_of(command.positions, batch.count)
        if not self._intact(batch, command.sub_ids or (command.sub_id,)):
            return
        if several:
            self.delivered_to_all(command, routes, batch, now)
        else:
            self.delivered(command, batch, now)

    def _intact(self, batch: MessageBatch, sub_ids: Sequence[str]) -> bool:
        """Return whether a batch matches its checksums. Fails its subscriptions otherwise."""
        try:
            # Publisher checksums. With many small runs the checksum of the frame must suffice.
            if batch.run_count * MESSAGES_A_RUN_CHECKED <= batch.count:
                batch.verify()
        except CorruptBatch as error:
            self.damaged(sub_ids, error)
            return False
        return True

    def delivered(self, command: Deliver, batch: MessageBatch, now: Now) -> None:
        """Deliver a batch for one subscription. Batches for an ended subscription are dropped.

        Raises `BadCommand` for a batch above the credit.
        """
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
        self._passed(subscription, command, batch, batch.count - 1, now.mono)

    def delivered_to_all(
        self, command: Deliver, routes: Sequence[Route], batch: MessageBatch, now: Now
    ) -> None:
        """Deliver the shares of a batch for several subscriptions.

        Raises `BadCommand` for a share above the credit, after delivery of the shares before it.
        """
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
                    self._passed(subscription, command, batch, rows[-1], mono)
        if parts:
            self._effects.append(effects.DeliverShared(shared, parts))
        if beyond is not None:
            raise beyond

    def _passed(
        self, subscription: Subscription, command: Deliver, batch: MessageBatch, last: int, mono: float
    ) -> None:
        """Record from time to time up to which position of the log of the server everything was delivered.

        A server that replicates sends notices only at the end of its log."""
        replay = subscription.replay
        if replay is None or not replay.places or mono < replay.next_place or subscription.terms.live:
            return
        replay.next_place = mono + place_notice_seconds
        try:
            replay.passed(Bookmark(batch.publisher(last), batch.sequence(last)), command.next)
        except TickertapeError as error:
            self.failed(subscription.context.sub_id, error)

    def _accepted(self, sub_id: str) -> Subscription | None:
        """Return the subscription with this id if the server has accepted it."""
        subscription = self._by_id.get(sub_id)
        return subscription if subscription is not None and subscription.accepted else None

    def damaged(self, sub_ids: Sequence[str], error: TickertapeError) -> None:
        """Fail the subscriptions of a corrupt batch."""
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
        """Return the new rows of a batch, and report the others."""
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
        """Process a new recovery point: the server sent these subscriptions all messages up to it."""
        bookmark = Bookmark(command.publisher, command.sequence)
        places, holes = _decoded(command.places, command.missing)
        for sub_id in command.sub_ids:
            subscription = self._accepted(sub_id)
            if subscription is None:
                continue
            replay = subscription.replay
            if replay is not None and replay.tracker is not None:
                try:
                    replay.noticed(bookmark, places, holes)
                except TickertapeError as error:
                    self.failed(sub_id, error)
                    continue
            self._effects.append(effects.Notice(subscription.sink, str(bookmark)))
            if command.expired:
                self._effects.append(effects.ReportError(_expired(sub_id)))

    def take_pending(self) -> tuple[list[Credit], list[str]]:
        """Return and clear the pending credit and the subscriptions to unsubscribe."""
        grants, leaving = self.grants, self.leaving
        self.grants, self.leaving = [], []
        return grants, leaving

    # -- credit -----------------------------------------------------------------------------------------

    def consumed(self, sub_id: str, cost: int, request: SubscribeRequest | None = None) -> Credit | None:
        """Record that the application consumed `cost` from the subscription of `request`.

        The subscription may have been replaced since. Return the credit to grant now, or None.
        """
        subscription = self._by_id.get(sub_id)
        if subscription is None or (request is not None and subscription.request is not request):
            return None
        return subscription.take(cost)

    def consumed_all(self, takings: Sequence[tuple[SubscribeRequest, int]]) -> list[Credit]:
        """Record consumption of several subscriptions (see `consumed`)."""
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
        """Record that the server paused or resumed subscriptions.

        The server may read the log once for all subscriptions of one resume.
        """
        for sub_id in sub_ids:
            if sub_id in self._by_id:
                self._by_id[sub_id].terms.pause(paused=paused)
        if not paused:
            sinks = [self._by_id[sub_id].sink for sub_id in dict.fromkeys(sub_ids) if sub_id in self._by_id]
            if len(sinks) > 1:
                self._effects.append(effects.OrderTogether(sinks))

    def next_deadline(self) -> float | None:
        """Return when to call `wake` (monotonic seconds), or None."""
        return self._idle_credit.next_deadline()

    def wake(self, now: Now) -> list[Credit]:
        """Return the credit to grant for subscriptions without recent deliveries."""
        return self._idle_credit.wake(now.mono)


def _expired(sub_id: str) -> BookmarkExpired:
    """Return the error of a subscription that may lack removed messages. It continues."""
    return BookmarkExpired(
        f"Cannot deliver all messages to subscription {sub_id!r}: the server lacks messages that another "
        "server had removed. Read them from a server that has them, or from the archive."
    )


def _decoded(places: bytes, missing: bytes) -> tuple[Sequence[Bookmark], Sequence[OpenHoles]]:
    """Return the places and holes of a server that replicates. Raises `BadCommand`."""
    if not places and not missing:
        return (), ()
    from tickertape.wire.link_rows import decode_notice_places, decode_open_holes

    return decode_notice_places(places), decode_open_holes(missing)
