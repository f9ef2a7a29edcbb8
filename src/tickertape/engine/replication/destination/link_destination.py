"""Destination of a link: takes the frames of one source into this log, in their order.

Pure. The driver passes validated commands to `received`, calls `step` while `pending`, and sends the commands
of `take_commands`. Frames behind a requested row are held, within the credit of the source.

Invariants:
- Nothing behind a requested row is appended before its answer.
- An acknowledgement covers only rows whose place is persisted here.
- Credit is returned only for processed frames, and not while the link is paused.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, NamedTuple

from tickertape.base.errors import BadLink
from tickertape.base.limits import link_window_bytes_max
from tickertape.batch import MessageBatch, slice_batch
from tickertape.engine.limits import (
    link_packed_bytes_max,
    link_step_holes_max,
    link_step_messages_max,
    link_step_names_max,
    link_step_runs_max,
    link_unpacked_frames_max,
)
from tickertape.engine.replication.destination.run_intake import ReplicatedLog, RunIntake
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpened,
    LinkPlace,
    LinkRequest,
    LinkRuns,
    LinkSide,
)
from tickertape.wire.link_rows import (
    HoleRows,
    NameRows,
    decode_holes,
    decode_names,
    encode_names,
    encode_pairs,
    encode_positions,
)

PauseReason = Literal["sow_full", "journal_full", "journal_congested", "journal_stopping"]


class _HeldFrame:
    """A frame of the source that is not processed yet."""

    __slots__ = ("_content", "_named", "_packed", "behind", "cost", "count", "done", "end", "first_row")

    def __init__(self, end: int, cost: int, content: MessageBatch | NameRows | HoleRows) -> None:
        self.end: int | None = end
        """Position below which the log has all rows of the source after the frame. None: more frames follow
        before it has."""
        self.cost = cost
        self._content: MessageBatch | NameRows | HoleRows | None = content
        self._packed = b""
        self._named = isinstance(content, NameRows)
        self.count = content.count if isinstance(content, MessageBatch) else len(content.publishers)
        self.done = 0
        """Processed messages, names or first holes."""
        self.behind = False
        """The source has removed rows that this log lacks."""
        self.first_row = 0
        """Position of the first named row."""

    def pack(self) -> None:
        """Hold the rows as bytes, if they are few: their columns need more memory than the rows cost."""
        content = self._content
        if isinstance(content, MessageBatch) and content.nbytes <= link_packed_bytes_max:
            self._content, self._packed = None, content.encode()
        elif isinstance(content, NameRows) and self.cost <= link_packed_bytes_max:
            self._content, self._packed = None, encode_names(content)

    @property
    def content(self) -> MessageBatch | NameRows | HoleRows:
        """Rows of the frame."""
        if self._content is None:
            packed, self._packed = self._packed, b""
            self._content = decode_names(packed) if self._named else MessageBatch.parse(packed)
        return self._content


class _ProcessedEnd(NamedTuple):
    """Position of the source up to which all rows were taken."""

    position: int
    """It is persisted when this log is persisted beyond this position."""
    end: int


class LinkDestination:
    """The end of one link that takes rows."""

    def __init__(
        self, log: ReplicatedLog, source: LinkSide, *, window_bytes: int = link_window_bytes_max
    ) -> None:
        """`source`: the validated facts of the source."""
        self._log = log
        self._commits = log.writer.commits
        self._source = source
        self._window: Final = window_bytes
        self._intake = RunIntake(log, source)
        self._frames: deque[_HeldFrame] = deque()
        self._answers: deque[_HeldFrame] = deque()
        self._named = 0
        """Rows of all names. The next one has this position."""
        self._requested = 0
        """Requested rows without an appended answer, all in the first frame."""
        self._pause: PauseReason | None = None
        self.answer_bytes = 0
        """Size of the held answers, which cost no credit."""
        self._requests: list[LinkRequest] = []
        self._processed: deque[_ProcessedEnd] = deque()
        self._durable = self._acknowledged = 0
        self._credit = 0
        """Cost of the processed frames whose credit was not returned yet."""
        self._expired = False

    def opened(self, side: LinkSide, *, reached: bool = False) -> LinkOpened:
        """Return the answer to the source, with the facts `side` of this server.

        `reached`: other links brought rows of the source."""
        places = self._log.places.persisted.of(self._source.log)
        rows = [(place.start, place.position) for place in reversed(places)]
        return LinkOpened(
            side=side,
            place=LinkPlace(*rows[-1]) if rows else None,
            places=encode_pairs(*zip(*rows, strict=True)) if rows else b"",
            reached=reached,
            holes=self._log.exact.known.count,
            credit=self._window,
        )

    # -- inputs ---------------------------------------------------------------------------------------

    def received(self, command: LinkHoles | LinkRuns | LinkNames, batch: MessageBatch | None = None) -> None:
        """Take a command of the source that `LinkOrder` accepted. Raises `CorruptBatch`."""
        if isinstance(command, LinkHoles):
            holes = decode_holes(command.rows)
            frame = _HeldFrame(command.position, len(command.rows), holes)
            frame.behind = command.behind
            if command.more:
                frame.end = None
            self._hold(frame)
            return
        self._intake.add_origins(command.origins)
        if isinstance(command, LinkNames):
            self._hold_names(command)
            return
        if batch is None:
            raise BadLink("Invalid link frame: runs without a batch. Report the defect of the source.")
        batch.verify()
        if command.answers:
            self._answers.append(_HeldFrame(command.end, 0, batch))
            self.answer_bytes += batch.cost
        else:
            self._hold(_HeldFrame(command.end, batch.cost, batch))

    def _hold_names(self, command: LinkNames) -> None:
        names = decode_names(command.rows)
        count = len(names.publishers)
        last = self._frames[-1] if self._frames else None
        if not count and last is not None and last.end is not None and not last.cost:
            last.end = command.end  # a frame without rows costs no credit, so memory holds only one
            return
        frame = _HeldFrame(command.end, len(command.rows), names)
        frame.first_row = self._named
        self._named += count
        self._hold(frame)

    def _hold(self, frame: _HeldFrame) -> None:
        if len(self._frames) >= link_unpacked_frames_max:
            frame.pack()
        self._frames.append(frame)

    def log_persisted(self, end: int) -> None:
        """Note that this log is persisted up to `end`."""
        while self._processed and self._processed[0].position < end:
            self._durable = self._processed.popleft().end

    def pause(self, reason: PauseReason | None) -> None:
        """Stop to take frames and to return credit, or continue with None. The link stays open."""
        self._pause = reason

    @property
    def durable(self) -> int:
        """Position of the source before which all rows are persisted here."""
        return self._durable

    @property
    def held_frames(self) -> int:
        """Frames that are not processed yet."""
        return len(self._frames) + len(self._answers)

    # -- work -----------------------------------------------------------------------------------------

    @property
    def paused(self) -> PauseReason | None:
        """Cause for which no frames are taken now."""
        if self._pause is None and self._commits.stopping:
            return "journal_stopping"
        if self._pause is None and self._commits.full:
            return "journal_full"
        if self._pause is None and self._commits.congested:
            return "journal_congested"
        return self._pause

    @property
    def pending(self) -> bool:
        """Whether `step` has work."""
        return bool(self._next) and self.paused is None

    @property
    def _next(self) -> deque[_HeldFrame]:
        """The frames to process next: behind a requested row only answers."""
        return self._answers if self._requested else self._frames

    def step(self) -> None:
        """Append up to `link_step_messages_max` messages, of up to `link_step_runs_max` runs.

        Raises `PublisherCollision`, `LimitReached` or `BadLink`: the link must end."""
        try:
            self._take_frames()
        finally:  # also the rows before a refused one
            self._log.exact.write_soon()

    def _take_frames(self) -> None:
        left = link_step_messages_max
        while left > 0 and self.pending:
            frame = self._next[0]
            content = frame.content
            if isinstance(content, MessageBatch):
                work = self._append_piece(frame, content, left)
                if not work:
                    break
            elif isinstance(content, NameRows):
                work = self._take_names(frame, content)
            else:
                work = self._open_holes(frame, content)
            left -= work

    def _append_piece(self, frame: _HeldFrame, batch: MessageBatch, left: int) -> int:
        """Append the next run of a batch, or a part of a large one. Return its work, in messages: 0 for more
        than `left`. A small run and a control record count as several messages."""
        starts, least = batch.run_starts, max(link_step_messages_max // link_step_runs_max, 1)
        end = int(starts[starts.searchsorted(frame.done, side="right")])
        each = 1 if batch.kinds is None or not batch.kinds[frame.done] else least
        count = min(end - frame.done, link_step_messages_max // each)
        work = max(count * each, least)
        if work > left:
            return 0
        self._intake.append(slice_batch(batch, frame.done, frame.done + count))
        frame.done += count
        if frame.done == frame.count:
            if self._requested:
                self._answers.popleft()
                self.answer_bytes -= batch.cost
                self._requested -= batch.run_count
            if not self._requested:
                self._complete_done()
        return work

    def _take_names(self, frame: _HeldFrame, rows: NameRows) -> int:
        """Request those of the next named rows that the log lacks. They are processed when they are here."""
        first, frame.done = frame.done, min(frame.done + link_step_names_max, frame.count)
        lacking = self._intake.lacking(NameRows._make(column[first : frame.done] for column in rows))
        if len(lacking):
            self._requested = len(lacking)
            self._requests.append(LinkRequest(positions=encode_positions(lacking + frame.first_row + first)))
        else:
            self._complete_done()
        return max((frame.done - first) * (link_step_messages_max // link_step_names_max), 1)

    def _open_holes(self, frame: _HeldFrame, rows: HoleRows) -> int:
        piece = slice(frame.done, frame.done + link_step_holes_max)
        self._intake.open_holes(HoleRows(rows.publishers[piece], rows.highest[piece]))
        frame.done = min(piece.stop, frame.count)
        if frame.done == frame.count:
            self._expired = self._expired or (frame.behind and frame.end is not None)
        self._complete_done()
        return max((frame.done - piece.start) * (link_step_messages_max // link_step_holes_max), 1)

    def _complete_done(self) -> None:
        """Note that all rows of the first frame are in the log, if they are."""
        frame = self._frames[0]
        if frame.done < frame.count:
            return
        self._frames.popleft()
        self._credit += frame.cost
        if frame.end is None:
            return
        position = self._intake.move_place(frame.end)
        if self._processed and self._processed[-1].position == position:
            self._processed.pop()
        self._processed.append(_ProcessedEnd(position, frame.end))
        self.log_persisted(self._commits.persisted_end)

    # -- outputs --------------------------------------------------------------------------------------

    def take_commands(self) -> list[LinkRequest | LinkAck | LinkCredit]:
        """Return the commands to send to the source, in order: at most one acknowledgement."""
        commands: list[LinkRequest | LinkAck | LinkCredit] = [*self._requests]
        self._requests.clear()
        if self._durable > self._acknowledged:
            self._acknowledged = self._durable
            commands.append(LinkAck(durable=self._durable, level=self._log.level))
        if self.paused is None:
            while self._credit:
                credit = min(self._credit, link_window_bytes_max)
                self._credit -= credit
                commands.append(LinkCredit(bytes=credit))
        return commands

    def take_expired(self) -> bool:
        """Return once whether open subscriptions miss messages: the source removed rows that this log never
        had, so their places are expired."""
        expired, self._expired = self._expired, False
        return expired
