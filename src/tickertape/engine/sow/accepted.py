"""Accepted rows: keys of messages, deletes and expiries on the way to the disk, until they are folded.

Each key is read once: at the intake, where a message without a key is refused. The overlay of a SOW topic has
the latest accepted row of each of its keys, from its first delta or delete on.

Invariants:
- A batch is kept until its whole commit is folded, so the overlay and the records together have each accepted
  row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.batch.format import CORRELATION_IDS, Int64s
from tickertape.engine.limits import (
    overlay_seconds,
    sow_delete_keys_max,
    sow_delete_round_rows,
)
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.sow.accepted_row import NO_CANDIDATE, AcceptedRow
from tickertape.engine.sow.state.delete import DeleteKind, DeleteRecord
from tickertape.engine.sow.state.labels import label_memory_of
from tickertape.engine.sow.topic import StateTopic
from tickertape.journal.journal import AcceptedBatch, Journal


class TopicKeys(NamedTuple):
    """Keys of the messages of one SOW topic in a batch."""

    topic: StateTopic
    rows: Int64s
    """Indices of the messages in the batch, ascending."""
    keys: list[bytes]


class TopicDelete(NamedTuple):
    """A delete or expiry of records in a batch."""

    topic: StateTopic
    row: int
    """Index in the batch."""
    record: DeleteRecord


class KeptKeys(NamedTuple):
    """Keys of an accepted batch at the positions `[first, end)`. The log may lack its first messages."""

    first: int
    end: int
    topics: tuple[TopicKeys, ...]
    deletes: tuple[TopicDelete, ...]
    """In the order of their rows."""
    batch: MessageBatch
    publisher: int
    order_stamp: int
    first_sequence: int
    """Sequence of the first message, unless the batch has sequences."""
    growth: int
    """Memory that its records need, at most."""

    def sequence(self, index: int) -> int:
        """Return the sequence of a message."""
        if self.batch.has_sequences:
            return int(self.batch.sequences[index])
        return self.first_sequence + index


class _LargeDelete:
    """A delete of many keys, which are listed by key when one is looked up."""

    def __init__(self, record: DeleteRecord, position: int) -> None:
        self.record = record
        self.position = position
        self._named: dict[bytes, tuple[int, int, int]] | None = None
        """Publisher, sequence and order stamp of the named message, by key."""

    def row(self, key: bytes) -> AcceptedRow | None:
        """Return the row of a key, or None if the delete does not name the key."""
        if self._named is None:
            self._named = dict(zip(self.record.keys(), named_by(self.record), strict=True))
        named = self._named.get(key)
        return None if named is None else AcceptedRow(False, *named, None, 0, self.position)


class Overlay:
    """Latest accepted rows of one SOW topic that are not folded, by key."""

    def __init__(self, topic: StateTopic, used: float) -> None:
        self.rows: dict[bytes, AcceptedRow] = {}
        """Without the keys of large deletes, which are above earlier rows."""
        self._large: deque[_LargeDelete] = deque()
        self.used = used
        """Monotonic time (seconds) of the last use."""
        self._topic = topic
        self._watched: list[set[bytes]] = []
        self._holds = 0

    @property
    def is_held(self) -> bool:
        """Whether publishes of clients wait for the last rounds of a search."""
        return self._holds > 0

    def hold(self) -> None:
        """Let publishes of clients wait, until `release`."""
        self._holds += 1

    def release(self) -> None:
        """End `hold`."""
        self._holds -= 1

    @property
    def is_watched(self) -> bool:
        """Whether a search needs the keys that are accepted."""
        return bool(self._watched)

    def watch(self) -> set[bytes]:
        """Return a set of the keys in the overlay, which gets each key that is accepted later."""
        watched = set(self.rows)
        for large in self._large:
            watched.update(large.record.keys())
        self._watched.append(watched)
        return watched

    def end_watch(self, watched: set[bytes]) -> None:
        """End `watch`."""
        self._watched = [one for one in self._watched if one is not watched]

    def body(self, row: AcceptedRow) -> bytes:
        """Return the body of a live row of `latest`, in the same step."""
        if row.batch is not None:
            return row.batch.body(row.place)
        body = self._topic.fold.records.body(row.place)
        assert body is not None
        return body

    def add(self, kept: KeptKeys) -> None:
        """Add the rows of a batch that was accepted after all others, in their order."""
        rows, keys = _rows_of(kept, self._topic)
        at = 0
        for delete in kept.deletes:
            if delete.topic is self._topic:
                stop = bisect_left(rows, delete.row)
                self._publish(kept, rows[at:stop], keys[at:stop])
                self._end(delete.record, kept.first + delete.row)
                at = stop
        self._publish(kept, rows[at:], keys[at:])
        for watched in self._watched:
            watched.update(_keys_of(kept, self._topic))

    def _publish(self, kept: KeptKeys, rows: Sequence[int], keys: Sequence[bytes]) -> None:
        batch, publisher, stamp = kept.batch, kept.publisher, kept.order_stamp
        for row, key in zip(rows, keys, strict=True):
            self.rows[key] = AcceptedRow(
                True, publisher, kept.sequence(row), stamp, batch, row, kept.first + row
            )

    def _end(self, record: DeleteRecord, position: int) -> None:
        """Apply a delete or an expiry. An expiry ends only the message that it names."""
        expiry = record.kind is DeleteKind.EXPIRED
        if not expiry and record.count > sow_delete_round_rows:
            self._large.append(_LargeDelete(record, position))
            return
        keys = record.keys()
        before = self.latest(keys) if expiry else []
        for at, (key, (publisher, sequence, stamp)) in enumerate(zip(keys, named_by(record), strict=True)):
            if not expiry or (before[at].publisher, before[at].sequence) == (publisher, sequence):
                self.rows[key] = AcceptedRow(False, publisher, sequence, stamp, None, 0, position)

    def latest(self, keys: Sequence[bytes]) -> list[AcceptedRow]:
        """Return the latest accepted candidate of each key."""
        found = [self.rows.get(key) for key in keys]
        for large in self._large:
            for at, key in enumerate(keys):
                row = found[at]
                if row is None or row.position < large.position:
                    found[at] = large.row(key) or row
        absent = [at for at, row in enumerate(found) if row is None]
        if absent:
            for at, row in zip(absent, self._topic.recorded([keys[at] for at in absent]), strict=True):
                found[at] = row
        return [NO_CANDIDATE if row is None else row for row in found]

    def forget(self, kept: KeptKeys) -> None:
        """Remove the rows of a batch that is folded."""
        rows, end = self.rows, kept.end
        while self._large and self._large[0].position < end:
            self._large.popleft()
        for key in _keys_of(kept, self._topic, sow_delete_round_rows):
            row = rows.get(key)
            if row is not None and row.position < end:
                del rows[key]


class AcceptedRows:
    """Accepted batches that are not folded, in the order of their positions, and the overlays."""

    def __init__(self, journal: Journal, clock: EngineClock) -> None:
        self._journal = journal
        self._clock = clock
        self._kept: deque[KeptKeys] = deque()
        self._overlays: dict[StateTopic, Overlay] = {}
        self._stopped = False
        self.growth = 0
        """Memory that the records of all batches need, at most."""

    def __len__(self) -> int:
        return len(self._kept)

    def appended(
        self,
        batch: MessageBatch,
        topics: Sequence[TopicKeys],
        deletes: Sequence[TopicDelete] = (),
        part: AcceptedBatch | None = None,
    ) -> None:
        """Keep the keys of a batch that was just appended. The log may have skipped its first messages.

        `part`: the appended batch, if it is not the last one."""
        if self._stopped:
            return
        last = part or self._journal.accepted[-1]
        assert last.batch is not None
        assert last.stamp is not None
        end, stamp = last.position + last.batch.count, last.stamp
        skipped = batch.count - last.batch.count
        kept = KeptKeys(
            end - batch.count,
            end,
            tuple(topics),
            tuple(deletes),
            batch,
            stamp.publisher,
            stamp.timestamp,
            stamp.first_sequence - skipped,
            sum(growth_of(batch, own) for own in topics),
        )
        self.growth += kept.growth
        self._kept.append(kept)
        if self._overlays:
            self._add_to_overlays(kept)

    def at(self, position: int) -> KeptKeys | None:
        """Return the first batch that ends above `position`, and forget those before it.

        The rows below `position` are folded in the same step."""
        self.forget(position)
        return self._kept[0] if self._kept else None

    def forget(self, folded: int) -> None:
        """Forget batches that end at or below the position `folded`."""
        kept = self._kept
        while kept and kept[0].end <= folded:
            old = kept.popleft()
            self.growth -= old.growth
            for overlay in self._overlays.values():
                overlay.forget(old)

    def stop(self) -> None:
        """Keep nothing more, because nothing is folded any more."""
        self._stopped = True
        self._kept.clear()
        self.growth = 0
        self._overlays.clear()

    # -- overlays ---------------------------------------------------------------------------------------

    @property
    def armed(self) -> list[StateTopic]:
        """SOW topics with an overlay."""
        return [*self._overlays]

    def overlay(self, topic: StateTopic) -> Overlay:
        """Return the overlay of a SOW topic for a use now."""
        overlay = self._overlays.get(topic)
        if overlay is None:
            overlay = self._overlays[topic] = Overlay(topic, self._clock.mono)
            for kept in self._kept:
                overlay.add(kept)
        overlay.used = self._clock.mono
        return overlay

    @property
    def held(self) -> list[StateTopic]:
        """SOW topics whose publishes wait."""
        return [topic for topic, overlay in self._overlays.items() if overlay.is_held]

    def delete_of(self, publisher: int, sequence: int) -> tuple[DeleteRecord, int] | None:
        """Return the kept record of a delete and its position, or None."""
        for kept in self._kept:
            if kept.publisher == publisher:
                for delete in kept.deletes:
                    if kept.sequence(delete.row) == sequence:
                        return delete.record, kept.first + delete.row
        return None

    def _add_to_overlays(self, kept: KeptKeys) -> None:
        unused = self._clock.mono - overlay_seconds
        for topic, overlay in [*self._overlays.items()]:
            if overlay.used < unused and not overlay.is_watched:
                del self._overlays[topic]
            else:
                overlay.add(kept)


def named_by(record: DeleteRecord) -> Iterator[tuple[int, int, int]]:
    """Yield publisher, sequence and order stamp of the message that each key of a delete names."""
    publishers = record.publishers_between(0, record.count).tolist()
    return zip(publishers, record.sequences.tolist(), record.order_stamps.tolist(), strict=True)


def growth_of(batch: MessageBatch, own: TopicKeys) -> int:
    """Return the memory that the records of the messages of a topic need, if all of their keys are new."""
    rows = own.rows
    if len(rows) == batch.count:
        bodies = int(batch.offsets[-1] - batch.offsets[0])
    else:
        bodies = int((batch.offsets[rows + 1] - batch.offsets[rows]).sum())
    labels = 0
    if batch.columns & CORRELATION_IDS:
        labels = int(label_memory_of(batch, rows).sum())
    return bodies + labels + sum(map(len, own.keys)) + own.topic.record_memory_bytes * len(rows)


def _rows_of(kept: KeptKeys, topic: StateTopic) -> tuple[list[int], list[bytes]]:
    for own in kept.topics:
        if own.topic is topic:
            return own.rows.tolist(), own.keys
    return [], []


def _keys_of(kept: KeptKeys, topic: StateTopic, most: int = sow_delete_keys_max) -> Iterator[bytes]:
    """Yield the keys of messages, and of deletes with at most `most` keys."""
    yield from _rows_of(kept, topic)[1]
    for delete in kept.deletes:
        if delete.topic is topic and delete.record.count <= most:
            yield from delete.record.keys()
