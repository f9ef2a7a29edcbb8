"""Publish handler: validates publish frames, and appends them to the log or delivers them.

During the look-up of a settlement's messages the connection is not read. Its later publishes, flushes and
subscriptions wait in order.

Invariants:
- A sequence of a publisher never overtakes an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tickertape.base.errors import (
    BadBatch,
    BadCommand,
    BadTopic,
    CorruptBatch,
    JournalFull,
    SowFull,
    TickertapeError,
)
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch, with_bodies
from tickertape.batch.format import MESSAGE_FLAGS, Bools
from tickertape.engine.commands.body_validation import PartialRejection
from tickertape.engine.commands.feed_services import FeedServices
from tickertape.engine.commands.frame_requests import (
    DeleteAnswer,
    FrameParts,
    FrameRequests,
    PublishFrame,
    RequestLookup,
    RequestLookups,
    ResentSearch,
    has_requests,
)
from tickertape.engine.commands.key_checks import KeyCheck
from tickertape.engine.commands.publish_checks import PublishChecks
from tickertape.engine.runtime.exact_append import last_sequence
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.ack_tracker import AckTracker
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.registry import FrameKeys
from tickertape.wire.commands import Ack, Deleted, Flush, Processed, Publish, Rejected
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

_REQUEST_TOPICS: Final = frozenset((QUEUE_TOPIC, SOW_TOPIC))


class PublishHandler:
    """Handles publish frames and flushes."""

    def __init__(
        self,
        writer: LogWriter,
        acks: AckTracker,
        checks: PublishChecks,
        services: FeedServices,
        outbox: Outbox,
        lookups: RequestLookups,
    ) -> None:
        self._writer = writer
        self._acks = acks
        self._checks = checks
        self._services = services
        self._queues = services.queues
        self._transient = services.transient
        self._states = services.states
        self._has_states = bool(services.states)
        self._outbox = outbox
        self._lookups = lookups

    # -- inputs -----------------------------------------------------------------------------------------

    def publish(self, session: Session, command: Publish, batch: MessageBatch) -> None:
        """Handle a publish frame, now or in order. Raises errors that end the connection."""
        held = self._lookups.by_conn.get(session.conn)
        if held is None:
            self._take(session, PublishFrame(command, batch))
        else:
            held.waiting.append(PublishFrame(command, batch))

    def flush(self, session: Session, command: Flush) -> None:
        """Answer once everything that the connection published is processed or persisted."""
        answer = Ack(id=command.id)

        def persisted() -> None:
            self._acks.add_answer(session, lambda: answer)
            self._acks.pause_if_behind(session)

        def processed() -> None:
            self._outbox.send(session.conn, answer)

        if command.level not in ("persisted", "processed"):
            text = f"Invalid flush level {shown(command.level)}. Use persisted or processed."
            self._outbox.send(session.conn, Ack(id=command.id, code="bad_option", text=text))
            return
        act = persisted if command.level == "persisted" else processed
        held = self._lookups.by_conn.get(session.conn)
        # Earlier publishes to non-persistent topics may still wait for delivery.
        if held is None:
            self._transient.after(act)
        else:
            held.waiting.append(lambda: self._transient.after(act))
        self._transient.pause_if_behind(session)

    def after(self, session: Session, act: Callable[[], None]) -> None:
        """Call `act` once earlier publishes of the connection are handled."""
        held = self._lookups.by_conn.get(session.conn)
        if held is None:
            act()
        else:
            held.waiting.append(act)

    def drop(self, session: Session) -> None:
        """Handle waiting frames of a closed connection, without look-ups.

        Frames are dropped from the first sequenced settlement on: the client sends them again, and
        deduplication must not drop them then."""
        held = self._lookups.drop(session.conn)
        if held is None:
            return
        held.requests.close()
        if self._writer.commits.stopping:
            return
        try:
            if held.frame.command.sequenced:
                return
            if isinstance(held.requests, KeyCheck):
                check = held.requests
                self._continue(session, held.frame, check.numbers, check, recorded=True, look_up=False)
            elif isinstance(held.requests, FrameRequests):
                self._execute(session, held.frame, held.requests)
            for waiting in held.waiting:
                if isinstance(waiting, PublishFrame):
                    if waiting.command.sequenced and has_requests(waiting.batch):
                        return
                    self._take(session, waiting, look_up=False)
        except TickertapeError:
            return  # this would have ended the connection

    # -- one frame --------------------------------------------------------------------------------------

    def _take(self, session: Session, frame: PublishFrame, *, look_up: bool = True) -> None:
        command, batch = frame
        recorded = self._checked(session, command, batch)
        if recorded is None:
            return
        good, numbers, rejections = self._checks.admit(command, batch)
        for split in rejections:
            self._reject(session, split)
        if good is not None:
            self._admitted(session, PublishFrame(command, good), numbers, recorded, look_up=look_up)

    def _admitted(
        self,
        session: Session,
        frame: PublishFrame,
        numbers: Sequence[int] | None,
        recorded: bool,
        *,
        look_up: bool,
    ) -> None:
        """Handle a checked frame."""
        command, good = frame
        if look_up and recorded and command.sequenced and self._writer.exact is not None:
            search = self._writer.exact.look_up(session.publisher, good, session.publishing)
            if search is not None:
                self._look_up(RequestLookup(session, frame, ResentSearch(search, numbers)))
                return
        if not (recorded and self._has_states):
            self._continue(session, frame, numbers, None, recorded, look_up=look_up)
            return
        known = self._known(session, command, good)
        check = KeyCheck(self._states, command, good, known, session.publisher, numbers)
        if look_up and check.needs_look_up():
            self._look_up(RequestLookup(session, frame, check))
        else:
            self._continue(session, frame, numbers, check, recorded, look_up=look_up)

    def _continue(
        self,
        session: Session,
        frame: PublishFrame,
        numbers: Sequence[int] | None,
        check: KeyCheck | None,
        recorded: bool,
        *,
        look_up: bool,
    ) -> None:
        """Handle a frame behind the check of its keys."""
        command, good = frame
        keys: FrameKeys | None = None
        if check is not None:
            keys, refused = check.result()
            if refused is not None:
                self._reject(session, refused)
                if refused.rest is None:
                    return
                good, numbers = refused.rest, refused.numbers
        outcomes = not _REQUEST_TOPICS.isdisjoint(good.topics) or (
            keys is not None and bool(self._states.accepted_rows.held)
        )
        if not outcomes and not good.columns & MESSAGE_FLAGS:
            if keys is None or self._has_memory(session, command, good, keys):
                self._accept(session, command, good, recorded=recorded, keys=keys)
            return
        if not recorded:
            self._publish_deltas(session, command, good)
            return
        parts = FrameParts(command, good, self._known(session, command, good), numbers, keys)
        requests = FrameRequests(self._services, self._writer, session, parts)
        if outcomes and look_up:
            self._look_up(RequestLookup(session, PublishFrame(command, good), requests))
        else:
            self._execute(session, PublishFrame(command, good), requests)

    def _has_memory(self, session: Session, command: Publish, batch: MessageBatch, keys: FrameKeys) -> bool:
        """Return whether the records of a frame fit the memory. Otherwise the frame is rejected. Raises
        `SowFull`, as `_checked` raises `JournalFull`."""
        try:
            self._states.memory.check(batch, keys.topics)
        except SowFull as error:
            if command.sequenced:
                raise
            self._reject_frame(session, command, error)
            return False
        return True

    def _reject_frame(self, session: Session, command: Publish, error: TickertapeError) -> None:
        """Reject a frame without sequences."""
        rejected = Rejected(frame=command.frame, code=error.code, text=str(error))
        self._outbox.reject_with(session.conn, rejected, error)

    def _known(self, session: Session, command: Publish, batch: MessageBatch) -> Bools:
        """Return which messages of a frame are duplicates."""
        if command.sequenced:
            return self._writer.known(session.publisher, batch, session.publishing)
        return np.zeros(batch.count, np.bool_)

    def _publish_deltas(self, session: Session, command: Publish, batch: MessageBatch) -> None:
        """Deliver a frame with deltas for non-persistent topics, as if they were whole messages."""
        plain = with_bodies(batch, batch.bodies_list(), flags=False)
        self._accept(session, command, plain, recorded=False)

    def _checked(self, session: Session, command: Publish, batch: MessageBatch) -> bool | None:
        """Return whether the topics are persistent. None: the frame was rejected."""
        try:
            recorded = self._checks.check_frame(session, command, batch)
            if recorded and self._writer.commits.full:
                self._writer.check_room(batch)
        except (BadBatch, CorruptBatch, BadCommand):
            raise
        except (BadTopic, JournalFull) as error:
            if command.sequenced and isinstance(error, JournalFull):
                # A temporary rejection must not drop stored messages, nor let later sequences overtake them.
                raise
            last = last_sequence(batch) if command.sequenced else 0
            rejected = Rejected(frame=command.frame, sequence=last, code=error.code, text=str(error))
            self._outbox.reject_with(session.conn, rejected, error)
            return None
        return recorded

    def _look_up(self, lookup: RequestLookup) -> None:
        """Start a look-up. Later frames of the connection wait."""
        if self._lookups.begin(lookup):
            self.looked_up(lookup)
        else:
            self._lookups.pause_or_resume(lookup.conn)

    def looked_up(self, lookup: RequestLookup) -> None:
        """Continue after a look-up. Raises errors that end the connection."""
        session = lookup.session
        self._lookups.done(lookup)
        if self._writer.commits.stopping:
            lookup.requests.close()
            return  # no writes any more: without an acknowledgement, the client sends the frame again
        requests = lookup.requests
        if isinstance(requests, ResentSearch) or self._is_outdated(lookup):
            if isinstance(requests, ResentSearch):
                lookup.result()
            requests.close()
            self._admitted(session, lookup.frame, requests.numbers, recorded=True, look_up=True)
        elif isinstance(requests, KeyCheck):
            self._continue(session, lookup.frame, requests.numbers, requests, recorded=True, look_up=True)
        else:
            self._execute(session, lookup.frame, requests)
        self._resume(session, lookup.waiting)

    def _is_outdated(self, lookup: RequestLookup) -> bool:
        """Return whether links raised the highest sequence during a look-up above messages of its frame, so
        that they must be searched first."""
        exact, (command, batch) = self._writer.exact, lookup.frame
        if exact is None or not command.sequenced:
            return False
        session = lookup.session
        return exact.look_up(session.publisher, batch, session.publishing) is not None

    def _resume(self, session: Session, waiting: deque[PublishFrame | Callable[[], None]]) -> None:
        """Handle waiting frames, up to the next one that needs a look-up."""
        held = self._lookups.by_conn.get(session.conn)
        if held is not None:  # a frame with a checked key needs another look-up
            held.waiting.extend(waiting)
            return
        while waiting:
            following = waiting.popleft()
            if isinstance(following, PublishFrame):
                self._take(session, following)
            else:
                following()
            held = self._lookups.by_conn.get(session.conn)
            if held is not None:
                held.waiting.extend(waiting)
                return
        self._lookups.pause_or_resume(session.conn)

    def _execute(self, session: Session, frame: PublishFrame, requests: FrameRequests) -> None:
        """Execute the requests of a frame, and append it with the outcomes."""
        command, batch = frame
        try:
            self._writer.check_room(batch)
            executed = requests.execute()
            for split in executed.rejections:
                self._reject(session, split)
            if executed.batch is not None:
                self._writer.check_room(executed.batch)
                keys, answers = executed.keys, executed.answers
                if keys is not None:
                    self._states.memory.check(executed.batch, keys.topics)
                self._accept(session, command, executed.batch, recorded=True, keys=keys, answers=answers)
        except (JournalFull, SowFull) as error:
            if command.sequenced:
                raise  # as in `_checked`
            self._reject_frame(session, command, error)
        finally:
            self._writer.end_run()
            requests.close()  # searches that a full log left open

    def _accept(
        self,
        session: Session,
        command: Publish,
        batch: MessageBatch,
        *,
        recorded: bool,
        keys: FrameKeys | None = None,
        answers: Sequence[DeleteAnswer] = (),
    ) -> None:
        session.published(batch, recorded=recorded)
        if recorded:
            last, before = 0, self._writer.end
            if command.sequenced:
                publishing = session.publishing
                last = self._writer.append_from(session.publisher, session.name, batch, publishing)
                if publishing.opened is not None:
                    self._outbox.put(publishing.opened.event(session.name))
                    publishing.opened = None
            else:
                self._writer.append_derived(session.derived, session.name, batch)
            for answer in answers:
                self._acks.add_outcome(session, self._placed(answer, batch), batch)
            self._acks.add(session, command.frame, last, batch)
            if keys is not None and self._writer.end > before:  # not if the log has all of them
                self._keep_keys(session, keys, batch)
            self._acks.pause_if_behind(session)
            return
        self._queues.unrecorded(batch)
        processed = Processed(frame=command.frame)
        self._transient.publish(batch, lambda: self._outbox.send(session.conn, processed))
        self._transient.pause_if_behind(session)

    def _placed(self, answer: DeleteAnswer, batch: MessageBatch) -> Deleted:
        """Return the answer to a delete of a batch that was just appended."""
        row = batch.count - answer.back
        return answer.at(self._writer.position_of(batch, row)) if answer.back else answer.answer

    def _keep_keys(self, session: Session, keys: FrameKeys, batch: MessageBatch) -> None:
        """Keep the keys of a batch that was just appended, maybe in parts."""
        if not self._writer.parts:
            self._states.accepted(session, keys, batch)
        for part in self._writer.parts:
            self._states.accepted(session, keys.of_rows(part.rows), part.batch, part.accepted)

    def _reject(self, session: Session, split: PartialRejection) -> None:
        first, *others = split.rejections
        self._outbox.reject_with(session.conn, first, split.error)
        for rejection in others:
            self._outbox.send(session.conn, rejection)
