"""Frame requests: settlements, deletes of records and deltas of a publish frame, executed in one step.

Requests are replaced by their outcomes before the frame reaches the log. A connection is not read while its
requests are looked up. Its earlier input waits in order.

Invariants:
- Execution starts only after the look-ups of all requests of the frame are done.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch, with_bodies
from tickertape.batch.format import I1, I8, Bools, Int64s
from tickertape.engine.commands.body_validation import PartialRejection, refusing
from tickertape.engine.commands.feed_services import FeedServices
from tickertape.engine.commands.frame_settlements import Settlements
from tickertape.engine.commands.key_checks import KeyCheck
from tickertape.engine.log_reads.log_reads import LogReads, ReadTask, Steps
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.accepted import TopicDelete, TopicKeys
from tickertape.engine.sow.commands import StateCommands
from tickertape.engine.sow.registry import FrameKeys
from tickertape.engine.sow.state.delete import NO_COUNTS
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.wire.commands import Deleted, Publish
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC


class PublishFrame(NamedTuple):
    """A publish frame."""

    command: Publish
    batch: MessageBatch


class FrameParts(NamedTuple):
    """A checked publish frame."""

    command: Publish
    batch: MessageBatch
    known: Bools
    """Messages that are duplicates."""
    numbers: Sequence[int] | None
    """Numbers of the messages in the frame. None: all."""
    keys: FrameKeys | None
    """Keys of the messages for SOW topics."""


class DeleteAnswer(NamedTuple):
    """Answer to a delete, once its frame is persisted."""

    answer: Deleted
    back: int
    """Messages of the frame from the delete to the last one. 0: the log had the delete before."""

    def at(self, position: int) -> Deleted:
        """Return the answer with the position of the delete, which was stored."""
        return msgspec.structs.replace(self.answer, position=position)


class Executed(NamedTuple):
    """Result of the execution of a frame."""

    batch: MessageBatch | None
    """The frame with the outcomes. None if all messages are refused."""
    keys: FrameKeys | None
    rejections: list[PartialRejection]
    answers: list[DeleteAnswer]


class FrameRequests:
    """Requests of a publish frame."""

    def __init__(
        self, services: FeedServices, writer: LogWriter, session: Session, frame: FrameParts
    ) -> None:
        self._writer = writer
        self._session = session
        self._frame = frame
        self._accepted = services.states.accepted_rows
        batch, known, keys = frame.batch, frame.known, frame.keys
        self._settlements: Settlements | None = None
        if QUEUE_TOPIC in batch.topics:
            self._settlements = Settlements(services.queues, session, batch, known)
        self._state: StateCommands | None = None
        if SOW_TOPIC in batch.topics or batch.message_flags is not None:
            topics = [] if keys is None else keys.topics
            self._state = StateCommands(services.states, session, batch, known, topics)

    @property
    def numbers(self) -> Sequence[int] | None:
        """Numbers of the messages in the frame. None: all."""
        return self._frame.numbers

    def look_up(self) -> Steps[None]:
        """Read everything that the requests need from the log and the states. Before, wait for searches of
        other frames in the same states."""
        while self._waits:
            yield None
        if self._settlements is not None:
            yield from self._settlements.look_up()
        if self._state is not None:
            yield from self._state.look_up()

    @property
    def _waits(self) -> bool:
        held = self._accepted.held
        if not held:
            return False
        keys, state = self._frame.keys, self._state
        topics = set() if state is None else state.topics
        topics.update(() if keys is None else [own.topic for own in keys.topics])
        return not topics.isdisjoint(held)

    def close(self) -> None:
        """End searches of records."""
        if self._state is not None:
            self._state.close()

    def execute(self) -> Executed:
        """Execute the requests. The frame must be appended in the same step."""
        command, batch, _, _, keys = self._frame
        if self._settlements is None and self._state is None:
            return Executed(batch, keys, [], [])
        bodies = batch.bodies_list()
        kinds = np.zeros(batch.count, I1)
        bad: dict[int, TickertapeError] = {}
        if self._settlements is not None:
            self._settlements.settle(bodies, kinds)
            bad.update(self._settlements.bad)
        deletes: list[TopicDelete] = []
        state = self._state
        if state is not None:
            session, sequenced = self._session, command.sequenced
            publisher = session.publisher if sequenced else session.derived
            stamp = self._writer.begin_run(publisher, session.name, derived=not sequenced)
            state.bad.update(bad)
            deletes = state.execute(bodies, kinds, stamp)
            bad = state.bad
        merged = state is not None and state.merged
        made = with_bodies(batch, bodies, kinds if kinds.any() else None, merged=merged, flags=False)
        rest, rejections = self._without_bad(bad, made)
        return Executed(rest, _kept(keys, deletes, bad, batch.count), rejections, self._answers(sorted(bad)))

    def _answers(self, bad: list[int]) -> list[DeleteAnswer]:
        """Return the answers to the deletes of a frame with the refused messages `bad`, ascending."""
        if self._state is None:
            return []
        command, batch, known, numbers, _ = self._frame
        answers = []
        for row, record, position in self._state.deletes:
            number = row if numbers is None else numbers[row]
            sequence = int(batch.sequences[row]) if command.sequenced else number
            counts = NO_COUNTS if record is None else record.counts
            answer = Deleted(
                frame=command.frame,
                sequence=sequence,
                matches=counts.matches,
                topic_matches=counts.topic_matches,
                deleted=counts.deleted,
                more=record is not None and record.more,
                position=position,
                counted=record is not None,
            )
            refused = len(bad) - bisect_left(bad, row)
            answers.append(DeleteAnswer(answer, 0 if known[row] else batch.count - row - refused))
        return answers

    def _without_bad(
        self, refused: dict[int, TickertapeError], settled: MessageBatch
    ) -> tuple[MessageBatch | None, list[PartialRejection]]:
        command, _, _, numbers, _ = self._frame
        rejections: list[PartialRejection] = []
        names = range(settled.count) if numbers is None else numbers
        places = {index: names[index] for index in refused}
        rest: MessageBatch | None = settled
        left: Sequence[int] | None = numbers
        for code in dict.fromkeys(error.code for error in refused.values()):
            assert rest is not None
            now = range(rest.count) if left is None else left
            wanted = {places[index] for index, error in refused.items() if error.code == code}
            bad = [index for index, number in enumerate(now) if number in wanted]
            error = next(error for error in refused.values() if error.code == code)
            split = refusing(command, rest, bad, error, left)
            rejections.append(split)
            rest, left = split.rest, split.numbers
        return rest, rejections


class ResentSearch:
    """Search of the log for messages of a frame that links may not have brought."""

    def __init__(
        self, steps: Generator[ReadRequest | None, Buffer, None], numbers: Sequence[int] | None
    ) -> None:
        self._steps = steps
        self.numbers = numbers
        """Numbers of the messages in the frame. None: all."""

    def look_up(self) -> Steps[None]:
        """Search the log."""
        yield from self._steps

    def close(self) -> None:
        """End the search early."""
        self._steps.close()


class RequestLookup(ReadTask[None]):
    """Look-up for the requests of a frame, check of its keys, or search for its messages. Later frames of
    the connection wait."""

    def __init__(
        self, session: Session, frame: PublishFrame, requests: FrameRequests | KeyCheck | ResentSearch
    ) -> None:
        super().__init__(requests.look_up(), session.conn)
        self.session = session
        self.frame = frame
        self.requests = requests
        self.waiting: deque[PublishFrame | Callable[[], None]] = deque()


class RequestLookups:
    """Look-ups in progress, at most one per connection."""

    def __init__(self, reads: LogReads, throttle: ReadThrottle) -> None:
        self._reads = reads
        self._throttle = throttle
        self.by_conn: dict[int, RequestLookup] = {}
        """Look-up of each connection. Callers must not change it."""

    def begin(self, lookup: RequestLookup) -> bool:
        """Start a look-up. Return whether it is done at once."""
        self.by_conn[lookup.conn] = lookup
        return self._reads.run(lookup)

    def done(self, lookup: RequestLookup) -> None:
        """Remove a look-up that is done."""
        del self.by_conn[lookup.conn]

    def drop(self, conn: int) -> RequestLookup | None:
        """Remove and return the look-up of a closed connection."""
        lookup = self.by_conn.pop(conn, None)
        if lookup is not None:
            self._reads.drop(lookup)
        return lookup

    def pause_or_resume(self, conn: int) -> None:
        """Read from a connection, unless its look-up is in progress."""
        if conn in self.by_conn:
            self._throttle.pause(conn, "settling")
        else:
            self._throttle.resume(conn, "settling")


def _kept(
    keys: FrameKeys | None, deletes: list[TopicDelete], bad: dict[int, TickertapeError], count: int
) -> FrameKeys | None:
    """Return the keys and deletes of a frame without the messages `bad`."""
    if keys is None and not deletes:
        return None
    topics = [] if keys is None else keys.topics
    if not bad:
        return FrameKeys(topics, {}, deletes)
    good = np.ones(count, np.bool_)
    good[[*bad]] = False
    places: Int64s = np.cumsum(good, dtype=I8) - 1
    left = []
    for topic, rows, names in topics:
        own = good[rows]
        kept = [name for name, stays in zip(names, own.tolist(), strict=True) if stays]
        left.append(TopicKeys(topic, places[rows[own]], kept))
    return FrameKeys(left, {}, [one._replace(row=int(places[one.row])) for one in deletes])


def has_requests(batch: MessageBatch) -> bool:
    """Return whether a batch has settlements or deletes of records."""
    return QUEUE_TOPIC in batch.topics or SOW_TOPIC in batch.topics
