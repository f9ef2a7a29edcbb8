"""Publish handler: checks publish frames and appends them to the log or delivers them.

While the messages that a settlement names are looked up, later publishes, flushes and subscriptions of the
connection wait in order, and nothing more is read from it.

Invariant: no sequence of a publisher overtakes an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tickertape.base.errors import BadBatch, BadCommand, BadTopic, CorruptBatch, JournalFull, TickertapeError
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.engine.commands.ack_tracker import AckTracker
from tickertape.engine.commands.body_validation import PartialRejection
from tickertape.engine.commands.publish_checks import PublishChecks
from tickertape.engine.commands.settlements import Settlements
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.log_reads.read_tasks import ReadTask
from tickertape.engine.queues.registry import QueueRegistry
from tickertape.engine.runtime.log_writer import LogWriter, last_sequence
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.transient.delivery import TransientDelivery
from tickertape.wire.commands import Ack, Flush, Processed, Publish, Rejected
from tickertape.wire.settlement import QUEUE_TOPIC


class _PublishFrame(NamedTuple):
    """A publish frame."""

    command: Publish
    batch: MessageBatch


class SettlementLookup(ReadTask[None]):
    """Look-up of the messages that the settlements of a frame name; later frames of the connection wait."""

    def __init__(self, session: Session, frame: _PublishFrame, settlements: Settlements) -> None:
        super().__init__(settlements.look_up(), session.conn)
        self.session = session
        self.frame = frame
        self.settlements = settlements
        self.waiting: deque[_PublishFrame | Callable[[], None]] = deque()


class PublishHandler:
    """Handles publish frames and flushes."""

    def __init__(
        self,
        writer: LogWriter,
        acks: AckTracker,
        checks: PublishChecks,
        queues: QueueRegistry,
        transient: TransientDelivery,
        outbox: Outbox,
        throttle: ReadThrottle,
        reads: LogReads,
    ) -> None:
        self._writer = writer
        self._acks = acks
        self._checks = checks
        self._queues = queues
        self._transient = transient
        self._outbox = outbox
        self._throttle = throttle
        self._reads = reads
        self._held: dict[int, SettlementLookup] = {}
        """Look-ups under way, by connection."""

    # -- inputs -----------------------------------------------------------------------------------------

    def publish(self, session: Session, command: Publish, batch: MessageBatch) -> None:
        """Handle a publish frame, now or in its turn. Raises what ends the connection."""
        held = self._held.get(session.conn)
        if held is None:
            self._take(session, _PublishFrame(command, batch))
        else:
            held.waiting.append(_PublishFrame(command, batch))

    def flush(self, session: Session, command: Flush) -> None:
        """Answer once everything that the connection published is processed, or persisted."""
        answer = Ack(id=command.id)

        def persisted() -> None:
            self._acks.add_answer(session, lambda: answer)
            self.pause_for_log(session)

        def processed() -> None:
            self._outbox.send(session.conn, answer)

        if command.level not in ("persisted", "processed"):
            text = f"no flush level {shown(command.level)}"
            self._outbox.send(session.conn, Ack(id=command.id, code="bad_option", text=text))
            return
        act = persisted if command.level == "persisted" else processed
        held = self._held.get(session.conn)
        # What was published to unrecorded topics before may still have to be handed on.
        if held is None:
            self._transient.after(act)
        else:
            held.waiting.append(lambda: self._transient.after(act))
        self.pause_for_transient(session)

    def after(self, session: Session, act: Callable[[], None]) -> None:
        """Call `act` once earlier publishes of the connection are handled."""
        held = self._held.get(session.conn)
        if held is None:
            act()
        else:
            held.waiting.append(act)

    def drop(self, session: Session) -> None:
        """Handle waiting frames of a connection that is gone, without look-ups.

        Frames from the first settlement with a sequence on are dropped: the client sends them again, and the
        duplicate filter would drop them then."""
        held = self._held.pop(session.conn, None)
        if held is None:
            return
        self._reads.drop(held)
        if self._writer.stopping:
            return
        try:
            if held.frame.command.sequenced:
                return
            self._settle(session, held.frame, held.settlements)
            for waiting in held.waiting:
                if isinstance(waiting, _PublishFrame):
                    if waiting.command.sequenced and QUEUE_TOPIC in waiting.batch.topics:
                        return
                    self._take(session, waiting, look_up=False)
        except TickertapeError:
            return  # what would have ended the connection

    # -- one frame --------------------------------------------------------------------------------------

    def _take(self, session: Session, frame: _PublishFrame, *, look_up: bool = True) -> None:
        command, batch = frame
        recorded = self._checked(session, command, batch)
        if recorded is None:
            return
        good, numbers, rejections = self._checks.admit(command, batch)
        for split in rejections:
            self._reject(session, split)
        if good is None:
            return
        if not recorded or QUEUE_TOPIC not in good.topics:
            self._accept(session, command, good, recorded=recorded)
            return
        known = self._writer.known(session.publisher, good) if command.sequenced else 0
        settlements = Settlements(self._queues, session, good, known, numbers)
        if look_up:
            self._resolve_settlements(session, _PublishFrame(command, good), settlements)
        else:
            self._settle(session, _PublishFrame(command, good), settlements)

    def _checked(self, session: Session, command: Publish, batch: MessageBatch) -> bool | None:
        """Return whether the topics are recorded; None: the frame was rejected."""
        try:
            recorded = self._checks.check_frame(session, command, batch)
            if recorded:
                self._writer.check_room(batch)
        except (BadBatch, CorruptBatch, BadCommand):
            raise
        except (BadTopic, JournalFull) as error:
            if command.sequenced and isinstance(error, JournalFull):
                # A refusal for now must not drop what a store keeps, nor let later sequences overtake it.
                raise
            last = last_sequence(batch) if command.sequenced else 0
            rejected = Rejected(frame=command.frame, sequence=last, code=error.code, text=str(error))
            self._outbox.reject_with(session.conn, rejected, error)
            return None
        return recorded

    def _resolve_settlements(self, session: Session, frame: _PublishFrame, settlements: Settlements) -> None:
        """Look up the messages that settlements name."""
        lookup = SettlementLookup(session, frame, settlements)
        self._held[session.conn] = lookup
        if self._reads.run(lookup):
            self.looked_up(lookup)
        if session.conn in self._held:
            self._throttle.pause(session.conn, "settling")

    def looked_up(self, lookup: SettlementLookup) -> None:
        """Go on after a look-up. Raises what ends the connection."""
        session = lookup.session
        del self._held[session.conn]
        if self._writer.stopping:
            return  # nothing can be written any more: it is not acknowledged, and the client sends it again
        self._settle(session, lookup.frame, lookup.settlements)
        self._resume(session, lookup.waiting)

    def _resume(self, session: Session, waiting: deque[_PublishFrame | Callable[[], None]]) -> None:
        """Handle waiting frames, up to the next one that needs a look-up."""
        while waiting:
            following = waiting.popleft()
            if isinstance(following, _PublishFrame):
                self._take(session, following)
            else:
                following()
            held = self._held.get(session.conn)
            if held is not None:
                held.waiting.extend(waiting)
                return
        self._throttle.resume(session.conn, "settling")

    def _settle(self, session: Session, frame: _PublishFrame, settlements: Settlements) -> None:
        """Settle, and append the frame with the outcomes."""
        command, batch = frame
        self._writer.check_room(batch)
        settled, refusals = settlements.settle(command)
        for split in refusals:
            self._reject(session, split)
        if settled is not None:
            self._accept(session, command, settled, recorded=True)

    def _accept(self, session: Session, command: Publish, batch: MessageBatch, *, recorded: bool) -> None:
        session.published(batch, recorded=recorded)
        if recorded:
            last = 0
            if command.sequenced:
                last = self._writer.append_from(session.publisher, session.name, batch)
            else:
                self._writer.append_derived(session.derived, session.name, batch)
            self._acks.add(session, command.frame, last)
            self.pause_for_log(session)
            return
        self._queues.unrecorded(batch)
        processed = Processed(frame=command.frame)
        self._transient.publish(batch, lambda: self._outbox.send(session.conn, processed))
        self.pause_for_transient(session)

    def _reject(self, session: Session, split: PartialRejection) -> None:
        first, *others = split.rejections
        self._outbox.reject_with(session.conn, first, split.error)
        for rejection in others:
            self._outbox.send(session.conn, rejection)

    # -- who brings too much ----------------------------------------------------------------------------

    def pause_for_log(self, session: Session) -> None:
        """Stop reading from a publisher that is ahead of the disk."""
        if self.log_backpressure:
            self._throttle.pause(session.conn, "journal")

    def pause_for_transient(self, session: Session) -> None:
        """Stop reading from a publisher that is ahead of transient delivery."""
        if self._transient.congested:
            self._throttle.pause(session.conn, "unrecorded")

    @property
    def log_backpressure(self) -> bool:
        """Whether more waits for the disk than should."""
        return self._writer.congested or self._acks.overloaded
