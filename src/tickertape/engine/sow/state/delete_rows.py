"""Delete rows: the collected rows of a delete or expiry, sorted and merged in bounded pieces."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

import numpy as np

from tickertape.batch.format import I8, U8, Bools, Int64s, UInt64s
from tickertape.engine.limits import sow_delete_sort_rows
from tickertape.engine.sow.state.key_order import PackedKeys

_SAMPLE_ROWS: Final = 128
"""Rows of a part for each sample."""


class DeleteRows(NamedTuple):
    """Columns of collected rows."""

    key_bytes: bytes
    lengths: Int64s
    """Sizes of the keys."""
    publishers: Int64s
    """Numbers in the table of the builder. 0 without a message."""
    sequences: UInt64s
    order_stamps: Int64s
    topics: Int64s
    """Numbers in the table of the builder."""
    live: Bools
    removed: Bools
    """Which rows only remove an earlier row of their key."""

    def select(self, rows: Int64s) -> DeleteRows:
        """Return copies of some rows, in this order."""
        lengths = self.lengths[rows]
        return DeleteRows(
            self._keys_of(rows, lengths),
            lengths,
            self.publishers[rows],
            self.sequences[rows],
            self.order_stamps[rows],
            self.topics[rows],
            self.live[rows],
            self.removed[rows],
        )

    def part(self, low: int, high: int) -> DeleteRows:
        """Return the rows from `low` to `high`."""
        start = int(self.lengths[:low].sum())
        end = start + int(self.lengths[low:high].sum())
        return DeleteRows(
            self.key_bytes[start:end],
            self.lengths[low:high],
            self.publishers[low:high],
            self.sequences[low:high],
            self.order_stamps[low:high],
            self.topics[low:high],
            self.live[low:high],
            self.removed[low:high],
        )

    def _keys_of(self, rows: Int64s, lengths: Int64s) -> bytes:
        size = int(self.lengths[0]) if len(rows) else 0
        if size and (self.lengths == size).all():
            return np.frombuffer(self.key_bytes, f"V{size}")[rows].tobytes()
        starts = (self.lengths.cumsum() - self.lengths)[rows]
        body = self.key_bytes
        return b"".join(
            [body[low:high] for low, high in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
        )

    def sort(self) -> DeleteRows:
        """Return the last row of each key, by topic and key."""
        order, repeated = self._packed.order(self.topics)
        return self.select(order[~repeated])

    def kept(self) -> DeleteRows:
        """Return the rows that do not remove their key."""
        return self.select(np.flatnonzero(~self.removed)) if self.removed.any() else self

    def places(self, others: DeleteRows) -> tuple[Int64s, Bools]:
        """Return for each key of `others` how many of these sorted keys are below it, and whether one is
        equal."""
        return self._packed.places(self.topics, others._packed, others.topics)

    def with_later(self, later: DeleteRows) -> DeleteRows:
        """Return these rows, sorted and distinct, with few sorted later ones in their places."""
        places, equal = self.places(later)
        stays = np.ones(len(self.lengths), np.bool_)
        stays[places[equal]] = False
        added = np.flatnonzero(~later.removed)
        new, places = later.select(added), places[added]
        below = stays.cumsum()  # rows that stay, up to each row
        at = np.where(places > 0, below[places - 1], 0) if len(stays) else places
        return DeleteRows(
            self._spliced(places, stays, new),
            np.insert(self.lengths[stays], at, new.lengths),
            np.insert(self.publishers[stays], at, new.publishers),
            np.insert(self.sequences[stays], at, new.sequences),
            np.insert(self.order_stamps[stays], at, new.order_stamps),
            np.insert(self.topics[stays], at, new.topics),
            np.insert(self.live[stays], at, new.live),
            np.insert(self.removed[stays], at, new.removed),
        )

    def _spliced(self, places: Int64s, stays: Bools, new: DeleteRows) -> bytes:
        """Return the keys of the rows that stay, with new ones before the rows `places`."""
        offsets = offsets_of(self.lengths)
        cuts = np.unique(np.concatenate((places, np.flatnonzero(~stays), np.flatnonzero(~stays) + 1)))
        new_keys = new._keys()
        pieces: list[bytes] = []
        low, at = 0, 0
        for high in [*cuts.tolist(), len(stays)]:
            if high > low and stays[low]:
                pieces.append(self.key_bytes[int(offsets[low]) : int(offsets[high])])
            while at < len(new_keys) and int(places[at]) == high:
                pieces.append(new_keys[at])
                at += 1
            low = high
        return b"".join(pieces)

    def _keys(self) -> list[bytes]:
        ends = self.lengths.cumsum().tolist()
        return [self.key_bytes[low:high] for low, high in zip([0, *ends[:-1]], ends, strict=False)]

    @property
    def _packed(self) -> PackedKeys:
        return PackedKeys(offsets_of(self.lengths), self.key_bytes)


def merged(parts: Sequence[DeleteRows]) -> Generator[None, None, list[DeleteRows]]:
    """Merge sorted parts, one bounded piece for each yield. Return parts in ascending order without a key in
    common, with the last row of each key, and without removed ones.

    A piece has about `sow_delete_sort_rows`, and at most `_SAMPLE_ROWS` of each part beyond that."""
    samples: list[DeleteRows] = []
    for part in parts:
        samples.append(part.select(np.arange(_SAMPLE_ROWS - 1, len(part.lengths), _SAMPLE_ROWS)))
        yield None
    bounds = joined(samples).sort()
    step = max(1, sow_delete_sort_rows // _SAMPLE_ROWS)
    bounds = bounds.select(np.arange(step, len(bounds.lengths), step))
    cuts: list[list[int]] = []
    for part in parts:
        cuts.append([0, *part.places(bounds)[0].tolist(), len(part.lengths)])
        yield None
    found: list[DeleteRows] = []
    for number in range(len(bounds.lengths) + 1):
        pieces = [
            part.part(cut[number], cut[number + 1])
            for part, cut in zip(parts, cuts, strict=True)
            if cut[number] < cut[number + 1]
        ]
        if pieces:
            found.append(joined(pieces).sort().kept())
            yield None
    return found


def joined(parts: Sequence[DeleteRows]) -> DeleteRows:
    """Return the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none, no = np.empty(0, I8), np.empty(0, np.bool_)
        return DeleteRows(b"", none, none, np.empty(0, U8), none, none, no, no)
    keys, *columns = zip(*parts, strict=True)
    return DeleteRows(b"".join(keys), *map(np.concatenate, columns))


def offsets_of(lengths: Int64s) -> Int64s:
    """Return the offsets of values with these lengths, and the end."""
    offsets = np.zeros(len(lengths) + 1, I8)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
