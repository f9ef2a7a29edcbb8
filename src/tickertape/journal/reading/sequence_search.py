"""Sequence search: finds which sequences of a publisher in a range the log has, and the first of them.

Unreadable blocks are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np

from tickertape.base.errors import JournalCorrupt, TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.batch.format import U8, Bools, Int64s, UInt64s
from tickertape.journal.reading.log_reader import LogReader, after_damage
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest


def find_sequences(
    view: LogView, publisher: int, low: int, high: int
) -> Generator[ReadRequest | None, Buffer, UInt64s]:
    """Return the ascending sequences from `low` to `high` of the persisted messages of a publisher.

    Yields None to let other work run, and is sent `b""` for it."""
    found: list[UInt64s] = [np.empty(0, U8)]

    def take(part: LogPart) -> bool:
        found.append(part.batch.sequences[_rows_between(part.batch, publisher, low, high)])
        return False

    yield from _search(view, publisher, low, high, None, take)
    return np.unique(np.concatenate(found))


def first_between(
    view: LogView, publisher: int, low: int, high: int, stop: int
) -> Generator[ReadRequest | None, Buffer, int]:
    """Return the position of the first persisted message of a publisher from `low` to `high` before the
    position `stop`. `stop` without one.

    Yields None to let other work run, and is sent `b""` for it."""
    first = stop

    def take(part: LogPart) -> bool:
        nonlocal first
        rows = _rows_between(part.batch, publisher, low, high)
        if len(rows):
            first = min(int(part.positions_of(rows[:1])[0]), stop)
        return bool(len(rows))

    yield from _search(view, publisher, low, high, stop, take)
    return first


def _search(
    view: LogView, publisher: int, low: int, high: int, stop: int | None, take: Callable[[LogPart], bool]
) -> Generator[ReadRequest | None, Buffer, None]:
    """Pass the parts of the log that may have messages of a range to `take`, in order, until it returns True,
    or up to the position `stop`."""
    for segment in [*view.segments]:
        for place in segment.index.places_between(publisher, low, high):
            if stop is not None and place.first_position >= stop:
                return
            end = segment.end_position if place.next_position is None else place.next_position
            end = end if stop is None else min(end, stop)
            reader = LogReader(view, place.first_position)
            while view.has(segment) and reader.position < end:
                try:
                    step = reader.poll()
                    if step is None:
                        break
                    parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
                except JournalCorrupt as error:
                    reader = LogReader(view, after_damage(view, reader.position, error.offset))
                    continue
                except TickertapeError:
                    if view.has(segment):
                        raise
                    break  # retention removed the segment meanwhile
                if any(map(take, parts)):
                    return
                yield None


def _rows_between(batch: MessageBatch, publisher: int, low: int, high: int) -> Int64s:
    """Return the rows of the messages of a publisher from `low` to `high` in a batch."""
    sequences = batch.sequences
    mine: Bools = batch.publishers == np.uint64(publisher)
    found: Int64s = (mine & (sequences >= np.uint64(low)) & (sequences <= np.uint64(high))).nonzero()[0]
    return found
