"""Settlement: acknowledges, cancels, extends or expires messages of a queue.

`look_up` finds the messages without a lease, which may require reads. `settle` then decides and acts at once.
The table of outcomes is in docs/reference/queues.md.

Invariants:
- A connection cannot end the lease of another connection by bookmark.
- Each message is settled at most once.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from pyroaring import BitMap64

from tickertape.base.interfaces import Buffer, Now
from tickertape.batch.format import I8
from tickertape.engine.limits import step_bytes_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.queues.queue_feed import FeedQueue, QueueFeed
from tickertape.engine.queues.state.queue import Held
from tickertape.engine.queues.state.records import Outcome, Reason, array_of, bitmap_of, record_bodies
from tickertape.engine.sessions.session import Session
from tickertape.journal.reading.log_reader import LogReader, positions_of_run
from tickertape.journal.reading.log_view import LogView, ReadRequest
from tickertape.wire.settlement import Runs, Settlement

Found = Generator[ReadRequest | None, Buffer, BitMap64]
"""Yields reads. It yields None to let other work run first, and then receives `b""`."""

_MILLIS: Final = 1000
_RUNS_A_STEP: Final = 64
"""Number of bookmark runs to look up before other work runs."""


def look_up(
    queue: FeedQueue,
    view: LogView,
    settlement: Settlement,
    runs: Runs,
    content: ContentFilter | None,
    end: int,
) -> Found:
    """Find the messages of the queue that a settlement names, except messages that only a lease may name.

    With a filter (`content`), only messages below position `end` are found: the end of the log at the
    request."""
    if content is not None:
        return (yield from _passing(queue, view, content, end))
    if queue.definition.leasing == "strict" or queue.definition.at_most_once:
        return BitMap64()
    if settlement.action not in ("ack", "expire"):
        return BitMap64()
    held, unknown = queue.leases.find(runs)
    # The lease may have ended by the time of `settle`.
    found = BitMap64.union(*(positions for _, positions in held)) if held else BitMap64()
    waiting = [waits.max() for waits in (queue.state.ready, queue.state.inactive) if waits]
    if not waiting:
        return found
    before = max(waiting) + 1
    for number, (publisher, first, count) in enumerate(unknown.tolist(), 1):
        found |= bitmap_of((yield from positions_of_run(view, publisher, first, count, before)))
        if number % _RUNS_A_STEP == 0:
            yield None
    return found


class Settled(NamedTuple):
    """Result of a settlement."""

    bodies: list[bytes]
    """Bodies of its records."""
    holders: list[QueueFeed]
    """Consumers that hold fewer messages now."""


def settle(
    queue: FeedQueue, session: Session, settlement: Settlement, runs: Runs, found: BitMap64, now: Now
) -> Settled:
    """Execute a settlement. `found` is the result of `look_up`."""
    held, waiting = _named(queue, session, settlement, runs, found)
    if queue.definition.at_most_once:
        if settlement.action == "ack":
            _release(queue, held)
        outcomes: list[Outcome] = []
    elif settlement.action == "extend":
        _extend(queue, held, now.mono + settlement.extend_ms / _MILLIS)
        outcomes = []
    else:
        outcomes = _outcomes(queue, settlement, _release(queue, held), waiting, now)
    for outcome in outcomes:
        queue.apply(outcome)
    holders = [] if settlement.action == "extend" else [lease.holder for lease, _ in held]
    if queue.passed_over and (held or waiting):
        holders += [consumer for consumer in queue.passed_over if consumer.session is session]
        for consumer in holders:
            queue.passed_over.pop(consumer, None)
    return Settled(record_bodies(queue.name, outcomes, settlement.runs), [*dict.fromkeys(holders)])


def _outcomes(
    queue: FeedQueue, settlement: Settlement, held: BitMap64, waiting: BitMap64, now: Now
) -> list[Outcome]:
    if settlement.action == "ack":
        done = held | waiting
        return [queue.done(done)] if done else []
    if settlement.action == "cancel":
        return queue.given_back(held, Reason.CANCELLED, now.wall) if held else []
    outcomes = []
    if held:
        outcomes.append(queue.expired(held, Reason.EXPIRE, delivered=True))
    if waiting:
        outcomes.append(queue.expired(waiting, Reason.EXPIRE, delivered=False))
    return outcomes


def _named(
    queue: FeedQueue, session: Session, settlement: Settlement, runs: Runs, found: BitMap64
) -> tuple[Held[QueueFeed], BitMap64]:
    """Return the leased messages that a settlement may settle, and the waiting messages."""
    lenient = queue.definition.leasing == "lenient"
    by_filter = settlement.filter is not None
    # A message found without a lease may be leased by now. The runs name it then, and it is settled only
    # once.
    held = queue.leases.of_positions(found) if by_filter else queue.leases.find(runs)[0]
    if not (by_filter and lenient):
        held = [(lease, positions) for lease, positions in held if lease.holder.session is session]
    waiting = BitMap64()
    if lenient and found:
        waiting = (found & queue.state.ready) | (found & queue.state.inactive)
    return held, waiting


def _release(queue: FeedQueue, held: Held[QueueFeed]) -> BitMap64:
    released = BitMap64()
    for lease, positions in held:
        queue.release(lease, positions)
        released |= positions
    return released


def _extend(queue: FeedQueue, held: Held[QueueFeed], deadline: float) -> None:
    if queue.definition.lease_period is not None:
        for lease, positions in held:
            queue.leases.extend(lease, positions, deadline)


def _passing(queue: FeedQueue, view: LogView, content: ContentFilter, before: int) -> Found:
    """Find messages of the queue below a position that pass a filter, including unacknowledged messages of
    at-most-once queues."""
    state = queue.state
    found = BitMap64()
    inside = state.ready | state.inactive | state.leased | state.owed
    inside = inside[: inside.rank(before - 1)] if before else found
    if not inside:
        return found
    end, looked_at = int(inside.max()) + 1, 0
    reader = LogReader(view, int(inside.min()))
    while reader.position < end and (step := reader.poll()) is not None:
        parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
        for part in parts:
            span = BitMap64()
            span.add_range(max(part.first_position, 0), part.end_position)
            positions = array_of(inside & span)
            at = positions - part.first_position
            indices = at if part.positions is None else part.positions.searchsorted(positions).astype(I8)
            low = 0
            while low < len(indices):
                high = content.piece_end(part.batch, int(indices[low]))
                stop = int(indices.searchsorted(high))
                passed = content.matching_rows(part.batch, indices[low:stop])
                if len(passed):
                    chosen = part.positions_of(passed)
                    found |= bitmap_of(chosen)
                low = stop
                yield None
            looked_at += part.batch.nbytes
            if looked_at > step_bytes_max:
                looked_at = 0
                yield None
    return found
