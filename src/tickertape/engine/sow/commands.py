"""State commands: deltas and deletes of a publish frame, resolved at the accepted state of their keys.

Deltas become whole messages, and deletes become records of their keys, before the log.

Invariants:
- Rows of a frame count in their order: a delta or delete sees the rows before it.
- Duplicates are neither merged nor resolved.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from tickertape.base.client_limits import message_too_large
from tickertape.base.errors import (
    BadBatch,
    BadBody,
    BadSowKey,
    BadTopic,
    LimitReached,
    TickertapeError,
)
from tickertape.base.limits import sow_deltas_per_frame_max, sow_searches_per_frame_max
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, Stamp
from tickertape.batch.format import FLAG_DELTA, I8, U8, Bools, Bytes8
from tickertape.engine.limits import (
    sow_delete_round_rows,
    sow_delete_rounds_max,
    sow_deletes_per_frame_max,
)
from tickertape.engine.log_reads.log_reads import Steps
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.accepted import Overlay, TopicDelete, TopicKeys, named_by
from tickertape.engine.sow.accepted_row import AcceptedRow
from tickertape.engine.sow.record_search import DeleteSearch, KeySearch, NameSearch, RecordSearch
from tickertape.engine.sow.registry import StateRegistry
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteRecord, decode, encode
from tickertape.engine.sow.topic import StateTopic
from tickertape.journal.reading.log_reader import find_bookmark, row_at
from tickertape.payload import Unreadable
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, decode_delete


class FrameDelete(NamedTuple):
    """Outcome of a delete of a frame."""

    row: int
    """Index in the batch."""
    record: DeleteRecord | None
    """None: a duplicate whose record is not in the log any more."""
    position: int | None = None
    """Position of the record of a duplicate in the log."""


class _Request(NamedTuple):
    row: int
    topic: StateTopic
    keys: list[bytes]
    """Keys to delete, without a search."""
    search: DeleteSearch | None


class StateCommands:
    """Deltas and deletes of a batch. Messages in `known` are duplicates.

    `topics` are the keys of the other messages for SOW topics."""

    def __init__(
        self,
        states: StateRegistry,
        session: Session,
        batch: MessageBatch,
        known: Bools,
        topics: list[TopicKeys],
    ) -> None:
        self._states = states
        self._batch = batch
        self._known = known
        self._keys = {own.topic: dict(zip(own.rows.tolist(), own.keys, strict=True)) for own in topics}
        self._session = session
        self.bad: dict[int, TickertapeError] = {}
        """Refused messages by index."""
        self.deletes: list[FrameDelete] = []
        """Outcomes of the deletes in order, also of duplicates."""
        self.merged = False
        """Whether a delta was merged."""
        self._searches = 0
        self._direct = 0
        """Keys of deletes without a search."""
        self._deltas = self._delta_rows()
        """Indices of deltas that are not duplicates."""
        self._repeated, self._requests = self._asked()
        self._frames: dict[StateTopic, _FrameRows] = {}
        self._bad_rows: list[int] = []
        """Rows in `bad` during the execution, ascending."""

    @property
    def topics(self) -> set[StateTopic]:
        """SOW topics with deletes."""
        return {request.topic for request in self._requests}

    def _delta_rows(self) -> set[int]:
        flags = self._batch.message_flags
        if flags is None:
            return set()
        rows = ((flags & FLAG_DELTA != 0) & ~self._known).nonzero()[0]
        if len(rows) > sow_deltas_per_frame_max:
            raise BadBatch(
                f"Invalid frame with {len(rows):,} deltas. Send at most {sow_deltas_per_frame_max:,}."
            )
        return set(rows.tolist())

    def _asked(self) -> tuple[list[int], list[_Request]]:
        batch = self._batch
        if SOW_TOPIC not in batch.topics:
            return [], []
        if batch.topic_index is None:
            rows = list(range(batch.count))
        else:
            rows = (batch.topic_index == batch.topics.index(SOW_TOPIC)).nonzero()[0].tolist()
        new = [row for row in rows if not self._known[row]]
        if len(new) > sow_deletes_per_frame_max:
            raise BadBatch(
                f"Invalid frame with {len(new):,} deletes of records. Send at most "
                f"{sow_deletes_per_frame_max:,}."
            )
        requests = []
        for row in rows:
            if not self._known[row]:
                try:
                    request = self._request(row, decode_delete(bytes(batch.body(row))))
                    self._searches += request.search is not None
                    if self._searches > sow_searches_per_frame_max:
                        raise LimitReached(
                            "Cannot delete records: the frame has too many deletes that need a search, such "
                            f"as those by filter. Send at most {sow_searches_per_frame_max} in one frame."
                        )
                    requests.append(request)
                except TickertapeError as error:
                    self.bad[row] = error
        return [row for row in rows if self._known[row]], requests

    def _request(self, row: int, delete: SowDelete) -> _Request:
        """Return a delete after its checks. Raises its refusal."""
        topic = self._states.of(delete.topic)
        if topic is None:
            raise BadTopic(
                f"Cannot delete records of {shown(delete.topic)}: it is not a SOW topic. Name a SOW topic."
            )
        if delete.filter is not None:
            test = topic.record_filter(delete.topic, delete.filter, self._session.subscriber)
            return _Request(row, topic, [], RecordSearch(topic, test))
        topic.check_names(delete.keys)
        if delete.keys and topic.searches_keys(delete.topic):
            wanted = topic.key_filter(delete.topic, delete.keys, self._session.subscriber)
            search = NameSearch(topic, wanted, delete.keys, self._states.memory)
            return _Request(row, topic, [], search)
        keys = list(dict.fromkeys(_keys_of(topic, delete)))
        topic.check_keys(keys)
        if len(keys) > 1 and self._direct + len(keys) > sow_delete_round_rows:
            return _Request(row, topic, [], KeySearch(topic, keys))
        self._direct += len(keys)
        return _Request(row, topic, keys, None)

    # -- steps before the frame is accepted ---------------------------------------------------------------

    def look_up(self) -> Steps[None]:
        """Find the records of repeated deletes, and search for the records of deletes by filter or name."""
        for row in self._repeated:
            found = None
            with suppress(TickertapeError):  # a part of the log that cannot be read: the counts are lost
                found = yield from self._stored(row)
            if found is None and self._refused_before(row):
                continue
            self.deletes.append(found or FrameDelete(row, None))
        searches = [request.search for request in self._requests if request.search is not None]
        for search in searches:
            for _ in search.scan(self._overlay(search.topic)):
                yield None
        rounds = yield from _scan_rounds(searches, 0)
        for search in searches:
            yield from search.merge()
        yield from _scan_rounds(searches, rounds)  # keys that were accepted during the merge

    def _refused_before(self, row: int) -> bool:
        """Refuse a repeated delete that is invalid. The log does not have it, and a lost connection may have
        lost its refusal. Return whether it is refused."""
        try:
            self._request(row, decode_delete(bytes(self._batch.body(row))))
        except TickertapeError as error:
            self.bad[row] = error
        return row in self.bad

    def close(self) -> None:
        """End the searches of deletes."""
        for request in self._requests:
            if request.search is not None:
                request.search.close()

    def _stored(self, row: int) -> Steps[FrameDelete | None]:
        """Return a duplicate with the record that is stored for it, or None without one."""
        publisher, sequence = self._session.publisher, int(self._batch.sequences[row])
        kept = self._states.accepted_rows.delete_of(publisher, sequence)
        if kept is not None:
            return FrameDelete(row, *kept)
        view = self._states.view
        position = yield from find_bookmark(view, publisher, sequence)
        if position is None:
            return None
        stored = yield from row_at(view, position)
        return None if stored is None else FrameDelete(row, decode(stored.body(0)), position)

    def _overlay(self, topic: StateTopic) -> Overlay:
        return self._states.accepted_rows.overlay(topic)

    # -- the step that accepts the frame ------------------------------------------------------------------

    def execute(self, bodies: list[bytes], kinds: Bytes8, stamp: Stamp) -> list[TopicDelete]:
        """Merge deltas and resolve deletes, in the order of the frame. Changes `bodies` and `kinds`.

        `stamp` is the stamp of the frame in the log. Returns the resolved deletes."""
        requests = {request.row: request for request in self._requests}
        deltas = self._deltas
        used = {request.topic for request in self._requests}
        used.update(topic for topic, keys in self._keys.items() if not deltas.isdisjoint(keys))
        for topic in used:
            self._frames[topic] = _FrameRows(self._overlay(topic), self._batch, bodies)
            self._frames[topic].expect(
                [key for row, key in self._keys.get(topic, {}).items() if row in deltas]
            )
        rows = {row: (topic, key) for topic in used for row, key in self._keys.get(topic, {}).items()}
        found: list[TopicDelete] = []
        failure = self._states.fold.failure
        self._bad_rows = sorted(self.bad)
        for row in sorted({*rows, *requests}):
            if failure is not None and (row in requests or row in deltas):
                self._refuse(row, failure)  # the state does not have the messages before it
                continue
            stamped = Stamp(stamp.publisher, self._sequence(row, stamp), stamp.timestamp)
            request = requests.get(row)
            try:
                if request is not None:
                    record = self._resolve(request)
                    bodies[row], kinds[row] = encode(record), 1
                    found.append(TopicDelete(request.topic, row, record))
                    self.deletes.append(FrameDelete(row, record))
                    self._frames[request.topic].end(record)
                else:
                    topic, key = rows[row]
                    if row in deltas:
                        self._merge(topic, key, row, bodies)
                    self._frames[topic].publish(key, row, stamped)
            except TickertapeError as error:
                self._refuse(row, error)
        return found

    def _refuse(self, row: int, error: TickertapeError) -> None:
        if row not in self.bad:
            insort(self._bad_rows, row)
        self.bad[row] = error

    def _sequence(self, row: int, stamp: Stamp) -> int:
        """Return the sequence that a message of the frame has in the log."""
        if stamp.first_sequence == 0:  # the sequences are those of the client
            return int(self._batch.sequences[row])
        return stamp.first_sequence + row - bisect_left(self._bad_rows, row)

    def _merge(self, topic: StateTopic, key: bytes, row: int, bodies: list[bytes]) -> None:
        name = self._batch.topic(row)
        merger = topic.merger(name)
        frame = self._frames[topic]
        (latest,) = frame.latest([key])
        if not latest.live or not merger.merges:
            return
        try:
            merged = merger.merge(frame.body(latest), bodies[row])
        except Unreadable as error:
            raise BadBody(
                f"Cannot merge a delta for {shown(name)}: {str(error).rstrip('.')}. "
                "Publish the whole message."
            ) from None
        most = self._states.message_bytes_max
        if len(merged) > most:
            raise message_too_large(len(merged), most)
        bodies[row] = merged
        self.merged = True

    def _resolve(self, request: _Request) -> DeleteRecord:
        """Return the record of a delete."""
        topic, frame, keys = request.topic, self._frames[request.topic], request.keys
        if request.search is not None:
            return request.search.finish(*frame.rows())
        latest = frame.latest(keys)
        builder = DeleteBuilder(topic.name, topic.key_fingerprint)
        builder.add(
            keys,
            np.array([row.publisher for row in latest], U8),
            np.array([row.sequence for row in latest], U8),
            np.array([row.order_stamp for row in latest], I8),
            topics=topic.topics_of(keys),
            live=np.array([row.live for row in latest], np.bool_),
        )
        matches = sum(row.live for row in latest)
        return builder.build(matches, max(matches, topic.fold.records.record_count))


def _scan_rounds(searches: Sequence[DeleteSearch], rounds: int) -> Generator[None, None, int]:
    """Look up changed keys until one step can look up the rest. Return the number of rounds until now."""
    while sum(search.left for search in searches) > sow_delete_round_rows:
        if rounds == sow_delete_rounds_max:
            for search in searches:
                search.hold()
        rounds += 1
        for search in searches:
            yield from search.scan_changed()
    return rounds


def _keys_of(topic: StateTopic, delete: SowDelete) -> Sequence[bytes]:
    """Return the canonical keys of a delete by keys or by data. Raises `BadSowKey`."""
    if delete.canonical:
        return delete.canonical
    if delete.data is None:
        return topic.explicit_keys(delete.topic, delete.keys)
    read = topic.key_of(delete.topic, delete.data)
    if isinstance(read, bytes):
        return [read]
    cure = "Correct the data" if topic.definition.key else "Delete by keys or by filter"
    raise BadSowKey(f"Cannot delete the record of {shown(delete.topic)}: {read.rstrip('.')}. {cure}.")


class _FrameRows:
    """Latest rows of one SOW topic, with those of a frame before the current one."""

    def __init__(self, overlay: Overlay, batch: MessageBatch, bodies: list[bytes]) -> None:
        self.overlay = overlay
        self._batch = batch
        self._bodies = bodies
        """Bodies of the batch, with merged deltas."""
        self._rows: dict[bytes, AcceptedRow] = {}
        self._before: dict[bytes, AcceptedRow] = {}
        self._ended: list[DeleteRecord] = []
        """Deletes whose keys are not in `_rows` yet."""

    def expect(self, keys: list[bytes]) -> None:
        """Look up keys at once for later calls of `latest`."""
        self._before.update(zip(keys, self.overlay.latest(keys), strict=True))

    def publish(self, key: bytes, row: int, stamp: Stamp) -> None:
        self._enter_ended()
        self._rows[key] = AcceptedRow(
            True, stamp.publisher, stamp.first_sequence, stamp.timestamp, self._batch, row, _IN_FRAME
        )

    def end(self, record: DeleteRecord) -> None:
        self._ended.append(record)  # its keys are needed only for later rows of the frame

    def _enter_ended(self) -> None:
        for record in self._ended:
            for key, named in zip(record.keys(), named_by(record), strict=True):
                self._rows[key] = AcceptedRow(False, *named, None, 0, _IN_FRAME)
        self._ended.clear()

    def latest(self, keys: list[bytes]) -> list[AcceptedRow]:
        """Return the latest candidate of each key."""
        self._enter_ended()
        found = [self._rows.get(key) or self._before.get(key) for key in keys]
        absent = [at for at, row in enumerate(found) if row is None]
        if absent:
            for at, row in zip(absent, self.overlay.latest([keys[at] for at in absent]), strict=True):
                found[at] = row
        return [row for row in found if row is not None]

    def body(self, row: AcceptedRow) -> bytes:
        """Return the body of a live row."""
        return self._bodies[row.place] if row.position == _IN_FRAME else self.overlay.body(row)

    def rows(self) -> tuple[list[bytes], list[AcceptedRow], list[bytes | None]]:
        """Return the keys of the frame, their rows and their bodies, None for ended ones."""
        self._enter_ended()
        rows = [*self._rows.values()]
        return [*self._rows], rows, [self.body(row) if row.live else None for row in rows]


_IN_FRAME = -1
"""Position of rows of the frame, which are not accepted yet."""
