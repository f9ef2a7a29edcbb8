"""Derived batches: slices, selections, reorderings, merges with stamps, new bodies or topics.

Only `reorder` changes the order of messages. Runs that lose messages or get new bodies have a new checksum,
all others keep theirs. A merge for a commit copies bodies once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from tickertape.base.errors import UsageError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import message_cost_bytes
from tickertape.batch.encode import assemble, check_body_bytes
from tickertape.batch.format import (
    CORRELATION_IDS,
    EXPIRATIONS,
    HEADER_BYTES,
    HEADERS,
    I1,
    I4,
    I8,
    KEYS,
    KIND_MESSAGE,
    KINDS,
    MESSAGE_FLAGS,
    ORDER_STAMPS,
    RUN,
    RUN_BY_SERVER,
    RUN_BYTES,
    RUN_DTYPE,
    RUN_LATE,
    RUN_MERGED,
    SEQUENCES,
    AnyArray,
    Bools,
    Bytes8,
    Columns,
    Int32s,
    Int64s,
    Labels,
    Run,
    UInt64s,
    lengths_of,
    numbered,
    offsets_from,
    run_crc,
    run_crcs,
)
from tickertape.batch.message_batch import MessageBatch

_TOPICS_ONE_BY_ONE: Final = 2
"""Number of topics up to which one scan per topic is cheaper than sorting the batch."""

ColumnArray = TypeVar("ColumnArray", Int64s, Bytes8)


def slice_batch(batch: MessageBatch, start: int, stop: int) -> MessageBatch:
    """Return messages `start` to `stop` (exclusive), or the batch itself for the full range.

    Bodies are not copied. Cut runs get a new checksum, marked as computed by the server. Unused topics and
    columns are dropped. Raises `UsageError` for an empty or invalid range.
    """
    if not 0 <= start < stop <= batch.count:
        raise UsageError(
            f"Invalid slice from {start} to {stop} of {batch.count} messages. Use a range in the batch."
        )
    if stop - start == batch.count:
        return batch
    offsets = batch.offsets
    begin, end = int(offsets[start]), int(offsets[stop])
    return take_part(
        batch, slice(start, stop), offsets[start : stop + 1] - offsets[start], batch.bodies[begin:end]
    )


def select(batch: MessageBatch, mask_or_indices: AnyArray) -> MessageBatch:
    """Return the messages of a boolean mask or of increasing indices, or the batch itself for all.

    Runs are kept. If messages are missing inside a run, the result has a sequence column. Runs that lost
    messages get a new checksum, marked as computed by the server. Unused topics and columns are dropped.
    Raises `UsageError` for an empty selection and for an invalid mask or invalid indices.
    """
    if mask_or_indices.dtype == np.bool_:
        if len(mask_or_indices) != batch.count:
            raise UsageError(
                f"Invalid mask of {len(mask_or_indices)} values for a batch of {batch.count} messages. "
                "Use one value per message."
            )
        indices: Int64s = mask_or_indices.nonzero()[0]
    else:
        indices = mask_or_indices.astype(I8)
        if len(indices) and (
            indices[0] < 0 or indices[-1] >= batch.count or (lengths_of(indices) <= 0).any()
        ):
            raise UsageError(f"Invalid indices. Use increasing indices from 0 to {batch.count - 1}.")
    if not len(indices):
        raise UsageError("Cannot select messages: the selection is empty. Select at least one message.")
    return _take(batch, indices)


def reorder(batch: MessageBatch, order: Int64s) -> MessageBatch:
    """Return all messages in a new order: message `i` of the result is message `order[i]` of `batch`.

    `order` has each index exactly once.

    A run is split where another run comes between its messages, or where its sequences no longer increase.
    All runs get new checksums, marked as computed by the server. Raises `UsageError` if `order` is not a
    permutation of the indices.
    """
    if not np.array_equal(np.sort(order), np.arange(batch.count)):
        raise UsageError(
            f"Invalid order of {len(order)} indices for a batch of {batch.count} messages. "
            "Use each index exactly once."
        )
    of_run = np.arange(batch.run_count).repeat(batch.runs["count"])[order]
    sequences = batch.sequences[order]
    new = np.ones(batch.count, np.bool_)
    new[1:] = (of_run[1:] != of_run[:-1]) | (sequences[1:] <= sequences[:-1])
    begins: Int64s = new.nonzero()[0]
    counts: Int64s = np.diff(begins, append=batch.count)
    offsets, bodies = _gather(batch.offsets, batch.bodies, order)
    runs = batch.runs[of_run[begins]].copy()
    runs["count"], runs["first_sequence"] = counts, sequences[begins]
    runs["flags"] |= RUN_BY_SERVER
    runs["crc"] = run_crcs(offsets, bodies, begins, counts)
    own = None if (sequences == numbered(runs)).all() else sequences
    return _assembled(batch, order, offsets, bodies, None, runs.tobytes(), of_run[begins], own)


def select_topic(batch: MessageBatch, topic: str) -> MessageBatch | None:
    """Return the messages published to `topic`, or None without such messages.

    The batch itself is returned if it has only those messages. Control records are never selected.
    """
    if topic not in batch.topics:
        return None
    index, kinds = batch.topic_index, batch.kinds
    if index is None:
        if kinds is None:
            return batch
        mask: Bools = kinds == KIND_MESSAGE
    else:
        mask = index == batch.topics.index(topic)
        if kinds is not None:
            mask &= kinds == KIND_MESSAGE
    indices = mask.nonzero()[0]
    return _take(batch, indices, (topic,)) if len(indices) else None


def split_topics(batch: MessageBatch, topics: Sequence[str]) -> Iterator[tuple[str, MessageBatch]]:
    """Yield each of `topics` that has messages, with the result of `select_topic`. Evaluated lazily.

    Other topics are skipped. More than two topics need only one scan of the batch.
    """
    if len(topics) <= _TOPICS_ONE_BY_ONE or batch.topic_index is None:
        for topic in topics:
            chosen = select_topic(batch, topic)
            if chosen is not None:
                yield topic, chosen
        return
    for topic, indices in indices_of_topics(batch, topics):
        yield topic, _take(batch, indices, (topic,))


def indices_of_topics(batch: MessageBatch, topics: Sequence[str]) -> Iterator[tuple[str, Int64s]]:
    """Yield each of `topics` that has messages, with the increasing indices of the messages.

    Other topics are skipped. Control records are excluded. The batch is scanned only once.
    """
    if not topics:
        return
    index = batch.topic_index
    order: Int64s = np.arange(batch.count, dtype=I8) if index is None else index.argsort(kind="stable")
    numbers = np.zeros(batch.count, np.int32) if index is None else index[order]
    edges = numbers.searchsorted(np.arange(len(batch.topics) + 1))
    place = {topic: number for number, topic in enumerate(batch.topics)}
    for topic in topics:
        number = place.get(topic)
        if number is None:
            continue
        indices = order[edges[number] : edges[number + 1]]
        if batch.kinds is not None:
            indices = indices[batch.kinds[indices] == KIND_MESSAGE]
        if len(indices):
            yield topic, indices


def message_costs(batch: MessageBatch) -> Int64s:
    """Return the flow-control cost of each message in bytes (see `MessageBatch.cost`)."""
    costs: Int64s = lengths_of(batch.offsets).astype(I8) + message_cost_bytes
    for labels in (batch.correlation_ids, batch.keys, batch.headers):
        if labels is not None:
            costs += lengths_of(labels.offsets)
    return costs


def _take(batch: MessageBatch, indices: Int64s, topics: tuple[str, ...] | None = None) -> MessageBatch:
    """Return a batch of the messages `indices`. `topics` are their topics, if known."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first == len(indices) - 1:
        return slice_batch(batch, first, last + 1)
    offsets, bodies = _gather(batch.offsets, batch.bodies, indices)
    return take_part(batch, indices, offsets, bodies, topics)


def take_part(
    batch: MessageBatch,
    which: slice | Int64s,
    offsets: Int32s,
    bodies: Buffer,
    topics: tuple[str, ...] | None = None,
) -> MessageBatch:
    """Return a batch of the messages `which`. `bodies` has only their bodies, at `offsets`."""
    part = _cut_one_run if batch.run_count == 1 else _cut_runs
    runs, kept, sequences = part(batch, which, offsets, bodies)
    return _assembled(batch, which, offsets, bodies, topics, runs, kept, sequences)


def _assembled(
    batch: MessageBatch,
    which: slice | Int64s,
    offsets: Int32s,
    bodies: Buffer,
    topics: tuple[str, ...] | None,
    runs: bytes,
    kept: slice | Int64s,
    sequences: UInt64s | None,
) -> MessageBatch:
    """Return the messages `which`. `kept` are the old indices of their new `runs`."""
    topic_index = None
    if topics is None:
        topics, topic_index = batch.topics, batch.topic_index
        if topic_index is not None:
            topics, topic_index = _used_topics(topics, topic_index[which])
    optional = None
    if batch.columns or sequences is not None or topic_index is not None:
        expirations, kinds, flags = batch.expirations, batch.kinds, batch.message_flags
        stamps = batch.order_stamps
        optional = Columns(
            topic_index=topic_index,
            sequences=sequences,
            expirations=None if expirations is None else _unless_zero(expirations[which]),
            correlation_ids=_part_of_labels(batch.correlation_ids, which),
            keys=_part_of_labels(batch.keys, which),
            kinds=None if kinds is None else _unless_zero(kinds[which]),
            message_flags=None if flags is None else _unless_zero(flags[which]),
            order_stamps=None if stamps is None else _unless_timestamps(stamps[kept], runs),
            headers=_part_of_labels(batch.headers, which),
        )
    taken = assemble(runs=runs, offsets=offsets.tobytes(), bodies=bodies, topics=topics, optional=optional)
    taken.context = batch.context
    return taken


_ONLY_RUN: Final = slice(0, 1)


def _cut_one_run(
    batch: MessageBatch, which: slice | Int64s, offsets: Int32s, bodies: Buffer
) -> tuple[bytes, slice, UInt64s | None]:
    """Return the rest of the only run, its old index, and its sequence column if it has gaps."""
    run = batch.first_run
    lengths = lengths_of(offsets)
    count = len(lengths)
    sequences: UInt64s | None = None
    if batch.has_sequences or not isinstance(which, slice):
        sequences = batch.sequences[which]
        first = int(sequences[0])
        if int(sequences[-1]) - first == count - 1:
            sequences = None
    else:
        first = run.first_sequence + which.start
    crc, flags = run.crc, run.flags
    if count < run.message_count:
        crc, flags = run_crc(lengths.data, bodies), flags | RUN_BY_SERVER
    row = RUN.pack(run.publisher, first, run.timestamp, count, crc, flags, run.origin)
    return row, _ONLY_RUN, sequences


def _cut_runs(
    batch: MessageBatch, which: slice | Int64s, offsets: Int32s, bodies: Buffer
) -> tuple[bytes, slice | Int64s, UInt64s | None]:
    """Return the remaining runs, their old indices, and their sequence column if a run has gaps."""
    starts = batch.run_starts
    sequences: UInt64s | None = None
    kept: slice | Int64s
    if isinstance(which, slice):
        first = int(starts.searchsorted(which.start, "right")) - 1
        last = int(starts.searchsorted(which.stop))
        kept = slice(first, last)
        edges = starts[first : last + 1] - which.start
        lost, edges[0] = -edges[0], 0
        edges[-1] = which.stop - which.start
        counts, begins = lengths_of(edges), edges[:-1]
    else:
        edges = which.searchsorted(starts).astype(I8, copy=False)
        counts = lengths_of(edges)
        kept = counts.nonzero()[0]
        counts, begins = counts[kept], edges[kept]
    old = batch.runs[kept]
    runs = old.copy()
    runs["count"] = counts
    if batch.has_sequences or not isinstance(which, slice):
        sequences = batch.sequences[which]
        runs["first_sequence"] = sequences[begins]
        if (sequences == numbered(runs)).all():
            sequences = None
    else:  # only the first run can lose messages at its start
        runs["first_sequence"][0] += np.uint64(lost)
    cut = (counts < old["count"]).nonzero()[0]
    if len(cut):
        runs["flags"][cut] |= RUN_BY_SERVER
        runs["crc"][cut] = run_crcs(offsets, bodies, begins[cut], counts[cut])
    return runs.tobytes(), kept, sequences


def _used_topics(topics: tuple[str, ...], index: Int32s) -> tuple[tuple[str, ...], Int32s | None]:
    """Return the topics that `index` uses, in order, and the new index, or None for a single topic."""
    used = np.zeros(len(topics), np.bool_)
    used[index] = True
    if used.all():
        return topics, index
    numbers = used.nonzero()[0].tolist()
    if len(numbers) == 1:
        return (topics[numbers[0]],), None
    return tuple([topics[i] for i in numbers]), (used.cumsum(dtype=I4) - I4.type(1))[index]


def _gather(offsets: Int32s, buffer: Buffer, indices: Int64s) -> tuple[Int32s, bytes]:
    """Return the entries `indices` of a table of `offsets` into `buffer`: new offsets and joined bytes."""
    begins = offsets[indices]
    ends = offsets[indices + 1]
    gaps = (begins[1:] != ends[:-1]).nonzero()[0]  # adjacent entries are copied together
    firsts = [int(begins[0]), *begins[gaps + 1].tolist()]
    lasts = [*ends[gaps].tolist(), int(ends[-1])]
    view = memoryview(buffer)
    return offsets_from(ends - begins), b"".join([view[a:b] for a, b in zip(firsts, lasts, strict=True)])


def _part_of_labels(labels: Labels | None, which: slice | Int64s) -> Labels | None:
    if labels is None:
        return None
    if isinstance(which, slice):
        offsets = labels.offsets[which.start : which.stop + 1]
        text: Buffer = memoryview(labels.text)[int(offsets[0]) : int(offsets[-1])]
        offsets = offsets - offsets[0]
    else:
        offsets, text = _gather(labels.offsets, labels.text, which)
    return Labels(offsets, text) if len(text) else None


def _unless_zero(column: ColumnArray) -> ColumnArray | None:
    return column if column.any() else None


def _unless_timestamps(stamps: Int64s, runs: bytes) -> Int64s | None:
    """Return the order stamps of `runs`, or None if they are the timestamps."""
    return stamps if (stamps != np.frombuffer(runs, RUN_DTYPE)["timestamp"]).any() else None


# -- merges -------------------------------------------------------------------------------------------


_FIRST_RUN_END: Final = HEADER_BYTES + RUN_BYTES
_STAMP: Final = Struct("<QQq")
"""Publisher, first sequence and timestamp: the first fields of a run."""
_STAMP_END: Final = HEADER_BYTES + _STAMP.size


class Stamp(NamedTuple):
    """Publisher id, first sequence and timestamp (microseconds since 1970 UTC) of a run. The server sets
    them."""

    publisher: int
    first_sequence: int
    timestamp: int


def merge(batches: Sequence[MessageBatch], stamps: Sequence[Stamp] | None = None) -> MessageBatch:
    """Merge all runs of `batches`, in order. A single batch without stamps is returned unchanged.

    With `stamps` (one per batch), every batch must have exactly one run. The run gets the publisher, first
    sequence and timestamp of its stamp. A sequence column is kept if publisher and first sequence are the
    same as before. Otherwise the messages are numbered without gaps. Checksums of runs are kept. Raises
    `UsageError` without batches, for another number of stamps, and for stamps with a batch of several runs.
    Raises `MessageTooLarge` if all bodies together have 2 GiB or more.
    """
    if not batches:
        raise UsageError("Cannot merge batches: the list is empty. Pass at least one batch.")
    if stamps is None and len(batches) == 1:
        return batches[0]
    if stamps is not None and len(batches) == len(stamps) == 1:
        stamped = _stamped(batches[0], stamps[0])
        if stamped is not None:
            return stamped
    columns = 0
    for batch in batches:
        columns |= batch.columns
    check_body_bytes(sum([batch.body_bytes for batch in batches]))
    counts = [batch.count for batch in batches]
    runs = _runs(batches, stamps)
    topics, topic_index = _topics(batches, counts)
    offsets = _offsets(batches, counts)
    bodies = batches[0].bodies if len(batches) == 1 else b"".join([batch.bodies for batch in batches])
    optional = None
    if columns or topic_index is not None:
        optional = Columns(
            topic_index=topic_index,
            sequences=_sequences(batches, counts, runs, stamps) if columns & SEQUENCES else None,
            expirations=(
                _filled([b.expirations for b in batches], counts, I8) if columns & EXPIRATIONS else None
            ),
            correlation_ids=(
                _labels([b.correlation_ids for b in batches], counts) if columns & CORRELATION_IDS else None
            ),
            keys=_labels([b.keys for b in batches], counts) if columns & KEYS else None,
            kinds=_filled([b.kinds for b in batches], counts, I1) if columns & KINDS else None,
            message_flags=(
                _filled([b.message_flags for b in batches], counts, I1) if columns & MESSAGE_FLAGS else None
            ),
            order_stamps=_order_stamps(batches, runs) if columns & ORDER_STAMPS else None,
            headers=_labels([b.headers for b in batches], counts) if columns & HEADERS else None,
        )
    return assemble(runs=runs, offsets=offsets, bodies=bodies, topics=topics, optional=optional)


def _stamped(batch: MessageBatch, stamp: Stamp) -> MessageBatch | None:
    """Return the batch with `stamp` in its only run, or None if its sequences must change."""
    if batch.run_count != 1:
        return None
    run = batch.first_run
    if batch.has_sequences and run[:2] != stamp[:2]:
        return None
    head = batch._table
    stamped = MessageBatch(
        batch.count, 1, batch.head_bytes, batch.body_bytes, batch.columns, batch.topics, batch._places
    )
    stamped._table = b"".join((head[:HEADER_BYTES], _STAMP.pack(*stamp), head[_STAMP_END : batch.head_bytes]))
    stamped.bodies = batch.bodies
    stamped.first_run = stamped.last_run = Run(*stamp, *run[3:])
    return stamped


def _runs(batches: Sequence[MessageBatch], stamps: Sequence[Stamp] | None) -> bytes:
    """Return the encoded run table, with stamps."""
    if stamps is None:
        return b"".join([b._table[HEADER_BYTES : HEADER_BYTES + RUN_BYTES * b.run_count] for b in batches])
    if len(stamps) != len(batches):
        raise UsageError(
            f"Cannot merge {len(batches)} batches: `stamps` has {len(stamps)} values. Pass one per batch."
        )
    if any(b.run_count != 1 for b in batches):
        raise UsageError(
            "Cannot merge batches and keep their timestamps: one batch has several runs. Pass batches "
            "that have one run each."
        )
    runs = bytearray().join([b._table[HEADER_BYTES:_FIRST_RUN_END] for b in batches])
    table = np.frombuffer(runs, RUN_DTYPE)
    publishers, firsts, timestamps = zip(*stamps, strict=True)
    table["publisher"] = publishers
    table["first_sequence"] = firsts
    table["timestamp"] = timestamps
    return bytes(runs)


def _offsets(batches: Sequence[MessageBatch], counts: list[int]) -> bytes:
    """Return the encoded offsets of all messages."""
    if len(batches) == 1:
        return batches[0].offsets.tobytes()
    if len(batches) == sum(counts):
        return offsets_from(np.array([b.body_bytes for b in batches], I4)).tobytes()
    tables = []
    for batch in batches:
        begin = HEADER_BYTES + RUN_BYTES * batch.run_count
        tables.append(batch._table[begin : begin + 4 * (batch.count + 1)])
    return _continued(np.frombuffer(b"".join(tables), I4), counts).tobytes()


def _continued(offsets: Int32s, counts: list[int]) -> Int32s:
    """Return one table for consecutive tables of `counts` + 1 offsets each."""
    lengths = lengths_of(offsets)
    inside = np.ones(len(lengths), np.bool_)
    inside[(np.array(counts[:-1], I8) + 1).cumsum() - 1] = (
        False  # from the end of a table to the 0 of the next one
    )
    return offsets_from(lengths[inside])


def _topics(batches: Sequence[MessageBatch], counts: list[int]) -> tuple[tuple[str, ...], Int32s | None]:
    """Return all topics in order of first appearance, and the topic index, or None for a single topic."""
    tables = dict.fromkeys([batch.topics for batch in batches])
    numbers: dict[str, int] = {}
    for names in tables:
        for name in names:
            numbers.setdefault(name, len(numbers))
    topics = tuple(numbers)
    if len(topics) == 1:
        return topics, None
    if all(len(names) == 1 for names in tables):
        return topics, np.repeat(np.array([numbers[b.topics[0]] for b in batches], I4), counts)
    new_numbers = {names: np.array([numbers[name] for name in names], I4) for names in tables}
    parts = []
    for batch in batches:
        new, old = new_numbers[batch.topics], batch.topic_index
        parts.append(np.repeat(new, batch.count) if old is None else new[old])
    return topics, np.concatenate(parts)


def _sequences(
    batches: Sequence[MessageBatch], counts: list[int], runs: bytes, stamps: Sequence[Stamp] | None
) -> UInt64s | None:
    """Return the sequence column, or None if no batch keeps one."""
    column: UInt64s | None = None
    end = 0
    for i, batch in enumerate(batches):
        begin, end = end, end + counts[i]
        if batch.columns & SEQUENCES and (stamps is None or stamps[i][:2] == batch.first_run[:2]):
            if column is None:
                column = numbered(np.frombuffer(runs, RUN_DTYPE))
            column[begin:end] = batch.sequences
    return column


def _order_stamps(batches: Sequence[MessageBatch], runs: bytes) -> Int64s | None:
    """Return the order stamps of the final `runs`. A run without one has its timestamp."""
    stamps: Int64s = np.frombuffer(runs, RUN_DTYPE)["timestamp"].copy()
    end = 0
    for batch in batches:
        begin, end = end, end + batch.run_count
        if batch.order_stamps is not None:
            stamps[begin:end] = batch.order_stamps
    return _unless_timestamps(stamps, runs)


def _filled(columns: list[ColumnArray | None], counts: list[int], kind: np.dtype[Any]) -> AnyArray:
    """Return the concatenated columns, with 0 for missing ones."""
    return np.concatenate(
        [np.zeros(n, kind) if c is None else c for c, n in zip(columns, counts, strict=True)]
    )


def _labels(columns: list[Labels | None], counts: list[int]) -> Labels:
    offsets = [np.zeros(n + 1, I4) if c is None else c.offsets for c, n in zip(columns, counts, strict=True)]
    return Labels(
        _continued(np.concatenate(offsets), counts), b"".join([c.text for c in columns if c is not None])
    )


# -- other bodies or topics ---------------------------------------------------------------------------


def with_bodies(
    batch: MessageBatch,
    bodies: Sequence[bytes],
    kinds: Bytes8 | None = None,
    *,
    merged: bool = False,
    flags: bool = True,
) -> MessageBatch:
    """Return the messages of `batch` with new bodies, with new `kinds` unless None, and without message flags
    unless `flags`.

    Runs get new checksums, marked as computed by the server, and as merged if `merged`. Raises `UsageError`
    unless `bodies` has one per message, `MessageTooLarge` for 2 GiB or more in total.
    """
    if len(bodies) != batch.count:
        raise UsageError(
            f"Cannot use {len(bodies)} bodies for a batch of {batch.count} messages. "
            "Pass one body per message."
        )
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    check_body_bytes(int(lengths.sum()))
    offsets = offsets_from(lengths)
    joined = b"".join(bodies)
    runs = batch.runs.copy()
    runs["flags"] |= RUN_BY_SERVER | RUN_MERGED if merged else RUN_BY_SERVER
    starts = batch.run_starts
    runs["crc"] = run_crcs(offsets, joined, starts[:-1], lengths_of(starts))
    made = assemble(
        runs=runs.tobytes(),
        offsets=offsets.tobytes(),
        bodies=joined,
        topics=batch.topics,
        optional=_columns(batch, batch.topic_index, batch.kinds if kinds is None else kinds, flags=flags),
    )
    made.context = batch.context
    return made


def as_late(batch: MessageBatch) -> MessageBatch:
    """Return a copy of the batch with all runs marked as late."""
    data = bytearray(batch.encode())
    np.frombuffer(data, RUN_DTYPE, batch.run_count, HEADER_BYTES)["flags"] |= RUN_LATE
    late = MessageBatch.parse(bytes(data))
    late.context = batch.context
    return late


def as_linked(batch: MessageBatch, origin: int, order_stamp: int, *, late: bool) -> MessageBatch:
    """Return a copy of a batch of one run as another log stores it, with the number `origin` there.

    The timestamp of its log stays until a merge. The run is marked as late, or not, for the other log.
    """
    run = batch.first_run
    flags = run.flags | RUN_LATE if late else run.flags & ~RUN_LATE
    columns = _columns(batch, batch.topic_index, batch.kinds) or Columns()
    return assemble(
        runs=RUN.pack(*run[:5], flags, origin),
        offsets=batch.offsets.tobytes(),
        bodies=bytes(batch.bodies),
        topics=batch.topics,
        optional=structs.replace(columns, order_stamps=np.array([order_stamp], I8)),
    )


def with_topics(batch: MessageBatch, names: Mapping[str, str]) -> MessageBatch:
    """Return the messages of `batch` with topics renamed by `names`. Other topics stay."""
    renamed = [names.get(topic, topic) for topic in batch.topics]
    topics = tuple(dict.fromkeys(renamed))
    index = batch.topic_index
    if index is not None:
        places = np.array([topics.index(topic) for topic in renamed], I4)
        index = places[index] if len(topics) > 1 else None
    made = assemble(
        runs=batch.runs.tobytes(),
        offsets=batch.offsets.tobytes(),
        bodies=batch.bodies,
        topics=topics,
        optional=_columns(batch, index, batch.kinds),
    )
    made.context = batch.context
    return made


def _columns(
    batch: MessageBatch, index: Int32s | None, kinds: Bytes8 | None, *, flags: bool = True
) -> Columns | None:
    if not batch.columns and index is None and kinds is None:
        return None
    return Columns(
        topic_index=index,
        sequences=batch.sequences if batch.has_sequences else None,
        expirations=batch.expirations,
        correlation_ids=batch.correlation_ids,
        keys=batch.keys,
        kinds=kinds,
        message_flags=batch.message_flags if flags else None,
        order_stamps=batch.order_stamps,
        headers=batch.headers,
    )
