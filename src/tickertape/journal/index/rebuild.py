"""Index rebuild: recreates the index of a segment from its commits, many commits at a time.

A batch that the fast check does not accept goes through `MessageBatch.parse`, which raises the precise error.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from tickertape.base.errors import BadBatch
from tickertape.batch import MessageBatch
from tickertape.batch.format import (
    COLUMNS_KNOWN,
    HEADER_BYTES,
    RUN_BYTES,
    RUN_DTYPE,
    RUN_LATE,
    SEQUENCES,
)
from tickertape.journal.format.commit_headers import CommitHeaders
from tickertape.journal.format.segment import CommitHeader, CommitKind
from tickertape.journal.index.segment_index import (
    DataCommits,
    SegmentIndex,
    Span,
    Spans,
    late_spans,
    publisher_spans,
)
from tickertape.journal.limits import commit_header_bytes

_TOPIC_ENDS: Final = Struct("<ii")
_NAMES_MAX: Final = 10_000
"""Topic names that are cached while a segment is read."""


_HEAD: Final = np.dtype(
    [
        ("total_bytes", "<u4"),
        ("version", "u1"),
        ("codec", "u1"),
        ("columns", "<u2"),
        ("count", "<u4"),
        ("runs", "<u4"),
        ("topics", "<u4"),
        ("head_bytes", "<u4"),
        ("body_bytes", "<u4"),
        ("reserved", "<u4"),
    ]
)
Places = npt.NDArray[np.int64]


class IndexRebuild:
    """Builds `index`, `highest` and `unproven` from the commits of a segment, given in order."""

    def __init__(self, header_first_commit: int) -> None:
        self.index = SegmentIndex()
        self.highest: dict[int, int] = {}
        """Highest sequence of each publisher."""
        self._first_commit = header_first_commit
        self._offsets = array("Q")
        self._time = 0
        self._synced_through = 0
        self._names: dict[bytes, str] = {}
        self._single: dict[bytes, tuple[str, ...]] = {}

    def take(self, header: CommitHeader, body: memoryview) -> None:
        """Add one commit. Raises `BadBatch`."""
        if header.kind is CommitKind.DATA:
            batch = MessageBatch.parse(bytes(body))
            self.index.add(header.offset, header.end, header.first_position, self._time, batch)
            self._raise_highest(publisher_spans(batch))
        self._offsets.append(header.offset)
        self._time = header.timestamp
        self._synced_through = max(self._synced_through, header.synced_through)

    def take_many(self, heads: CommitHeaders) -> None:
        """Add many commits. Raises `BadBatch`."""
        rows = heads.rows
        times = np.concatenate((np.array([self._time]), rows["timestamp"]))
        data = np.flatnonzero(rows["kind"] == CommitKind.DATA)
        if len(data):
            chosen = rows[data]
            begins = np.array(heads.starts)[data] + commit_header_bytes
            topics, spans = self._digests(heads.window, begins, chosen)
            commits = DataCommits(
                chosen["offset"].tolist(),
                chosen["first_position"].tolist(),
                times[data].tolist(),
                topics,
                int(chosen["offset"][-1]) + commit_header_bytes + int(chosen["body_bytes"][-1]),
            )
            self._raise_highest(self.index.add_many(commits, spans))
        self._offsets.frombytes(rows["offset"].tobytes())
        self._time = int(times[-1])
        self._synced_through = max(self._synced_through, int(rows["synced_through"].max()))

    def unproven(self, end: int) -> int:
        """Return the offset of the first commit that no later commit proves durable, or `end` without one."""
        proven = max(0, self._synced_through + 1 - self._first_commit)
        return self._offsets[proven] if proven < len(self._offsets) else end

    def _raise_highest(self, spans: Iterable[Span]) -> None:
        highest = self.highest
        for publisher, _, high in spans:
            if high > highest.get(publisher, 0):
                highest[publisher] = high

    def _digests(
        self, window: bytes, begins: Places, rows: npt.NDArray[np.void]
    ) -> tuple[list[tuple[str, ...]], Spans]:
        """Return topics and spans of the batches at `begins`, whose commits have the headers `rows`."""
        heads = _gathered(window, begins)
        runs, counts = heads["runs"].astype(np.int64), heads["count"].astype(np.int64)
        ends_at = (HEADER_BYTES + RUN_BYTES * runs + 4 * (counts + 1) + 7) & ~7
        names_at = ends_at + 4 * (heads["topics"].astype(np.int64) + 1)
        plain = _plain(heads, rows) & (names_at <= heads["head_bytes"])
        topics: list[tuple[str, ...]] = []
        tables: list[bytes] = []
        parsed: list[tuple[int, ...]] = []
        ends = (begins + heads["head_bytes"]).tolist()
        columns = zip(
            begins.tolist(),
            (begins + ends_at).tolist(),
            (begins + names_at).tolist(),
            heads["topics"].tolist(),
            ends,
            plain.tolist(),
            (RUN_BYTES * runs).tolist(),
            strict=True,
        )
        for at, (begin, ends_begin, names_begin, count, end, is_plain, table_bytes) in enumerate(columns):
            names = self._topics(window, ends_begin, names_begin, count, end) if is_plain else None
            if names is None:
                batch = MessageBatch.parse(window[begin : begin + int(rows["body_bytes"][at])])
                parsed.extend((at, *span, 0) for span in publisher_spans(batch))
                parsed.extend((at, *span, 1) for span in late_spans(batch))
                topics.append(batch.topics)
                tables.append(b"")
            else:
                topics.append(names)
                tables.append(window[begin + HEADER_BYTES : begin + HEADER_BYTES + table_bytes])
        return topics, _spans(tables, parsed)

    def _topics(self, window: bytes, ends_at: int, at: int, count: int, end: int) -> tuple[str, ...] | None:
        """Return the topic names of a batch, or None if it needs the full parser."""
        if count > 1:
            return self._many_names(window, ends_at, at, count, end)
        low, high = _TOPIC_ENDS.unpack_from(window, ends_at)
        name = window[at : at + high]
        known = self._single.get(name)
        if known is not None and not low:
            return known
        if low or not 0 < high <= end - at:
            return None
        names = self._new_names([name])
        if names is not None:
            self._single[name] = names
        return names

    def _many_names(
        self, window: bytes, ends_at: int, at: int, count: int, end: int
    ) -> tuple[str, ...] | None:
        ends = np.frombuffer(window, "<i4", count + 1, ends_at).tolist()
        if ends[0] or ends != sorted(ends) or at + ends[-1] > end:
            return None
        raw = [window[at + low : at + high] for low, high in pairwise(ends)]
        try:
            return tuple([self._names[name] for name in raw])
        except KeyError:
            return self._new_names(raw)

    def _new_names(self, raw: list[bytes]) -> tuple[str, ...] | None:
        if len(self._names) > _NAMES_MAX:
            self._names.clear()
            self._single.clear()
        try:
            names = tuple([name.decode() for name in raw])
        except UnicodeDecodeError:
            return None
        self._names.update(zip(raw, names, strict=True))
        return names


def _gathered(window: bytes, begins: Places) -> npt.NDArray[np.void]:
    """Return the batch headers at `begins`."""
    heads = b"".join([window[at : at + HEADER_BYTES] for at in begins.tolist()])
    if len(heads) != HEADER_BYTES * len(begins):
        raise BadBatch(f"a batch has at least {HEADER_BYTES} bytes")
    return np.frombuffer(heads, _HEAD)


def _plain(heads: npt.NDArray[np.void], rows: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Select valid-looking batches whose runs describe all publishers (no column of sequences)."""
    size = heads["head_bytes"].astype(np.int64) + heads["body_bytes"]
    plain: npt.NDArray[np.bool_] = (heads["total_bytes"] == rows["body_bytes"]) & (heads["reserved"] == 0)
    plain &= (heads["version"] == 0) & (heads["codec"] == 0) & (heads["count"] == rows["messages"])
    plain &= (heads["columns"] & np.uint16(SEQUENCES | ~COLUMNS_KNOWN & 0xFFFF)) == 0
    plain &= (heads["runs"] >= 1) & (heads["runs"] <= heads["count"]) & (heads["topics"] >= 1)
    plain &= ((size + 7) & ~7) == heads["total_bytes"]
    return plain


def _spans(tables: list[bytes], slow: list[tuple[int, ...]]) -> Spans:
    """Return the runs of several commits as columns.

    `slow` has (commit, publisher, lowest, highest, late) of the commits that were parsed in full."""
    runs: npt.NDArray[np.void] = np.frombuffer(b"".join(tables), RUN_DTYPE)
    counts = np.array([len(table) // RUN_BYTES for table in tables], np.int64)
    commits = np.repeat(np.arange(len(tables)), counts)
    lows = runs["first_sequence"]
    highs = lows + (runs["count"].astype(np.uint64) - np.uint64(1))
    late = (runs["flags"] & np.uint32(RUN_LATE)) != 0
    if not slow:
        return Spans(commits, runs["publisher"], lows, highs, late)
    columns = np.array(slow, np.uint64).T
    return Spans(
        np.concatenate((commits, columns[0].astype(np.int64))),
        np.concatenate((runs["publisher"], columns[1])),
        np.concatenate((lows, columns[2])),
        np.concatenate((highs, columns[3])),
        np.concatenate((late, columns[4] != 0)),
    )
