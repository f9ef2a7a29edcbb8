"""Source machine of a replication link: sends the persisted log to one destination, in log order.

Pure: reads are requests of `LogReads`. Commands of the destination are validated before (`LinkOrder`).

Invariants:
- All rows below the `end` of a frame were sent, named, or are not for the link.
- Without credit it reads nothing but the bodies of requested rows.
- Retention keeps all rows that the destination lacks on its disk, and those that it may request.
- Rows on the topic `$link` alone cause no frame.
"""

from __future__ import annotations

from typing import Literal

from tickertape.engine.limits import link_step_frames_max
from tickertape.engine.replication.places import LinkStart, SourceFacts, StartRefused, link_start
from tickertape.engine.replication.routes import DestinationRoutes
from tickertape.engine.replication.source.first_holes import FirstHoles, missing_at
from tickertape.engine.replication.source.link_frames import CutFrame, FrameCutter, LinkFrame
from tickertape.engine.replication.source.named_rows import NamedRows
from tickertape.engine.replication.source.routed_log import RoutedLog, SourceLog
from tickertape.journal.format.replication_records import LogPlace
from tickertape.journal.format.retired_state import NOTHING_HIGHEST
from tickertape.wire.link import LinkAck, LinkCredit, LinkNames, LinkOpened, LinkRequest, LinkRuns
from tickertape.wire.link_rows import decode_places, decode_positions, encode_positions


class LinkSource:
    """The link to one destination, from its handshake to the end of its connection.

    Call `opened` with the answer of the destination, and `step` while `has_work`. Its reads have it as their
    holder: after each answer `has_work` may change."""

    def __init__(self, log: SourceLog, routes: DestinationRoutes, reporters: frozenset[bytes]) -> None:
        """`reporters`: logs that have reported rows of this log."""
        self._log = log
        self._routes = routes
        self._reporters = reporters
        self._cutter = FrameCutter(log.starts.journal, log.origins)
        self._names = NamedRows(log, self)
        self._holes: FirstHoles | None = None
        self._routed: RoutedLog | None = None
        self._window = 0
        self._spent = 0
        """Cost of all frames."""
        self._returned = 0
        """Credit that the destination has returned."""
        self._short = False
        """Whether the next frame needs more credit."""
        self._moved_end = 0
        """Position after the last row that moves the place of the destination, of the taken rows."""
        self._goal = 0
        """End of the log at the handshake."""
        self._goal_end: int | None = None
        """`end` when all rows before `_goal` were sent or named. None before."""
        self.end = 0
        """`end` of the last frame."""
        self.durable = 0
        """Position before which all rows are durable at the destination."""
        self.level: Literal["local", "written"] | None = None
        """Durability of the acknowledged rows. None before the first acknowledgement."""

    # -- inputs ---------------------------------------------------------------------------------------

    def opened(self, command: LinkOpened) -> LinkStart | StartRefused:
        """Start the stream as the places of the destination demand. A refused link has no stream."""
        view, starts = self._log.view, self._log.starts
        rows = decode_places(command.places)
        pairs = zip(rows.starts.tolist(), rows.positions.tolist(), strict=True)
        places = [LogPlace(starts.journal, start, position) for start, position in pairs]
        destination = command.side.log
        reporters = self._reporters - {destination} if command.reached else self._reporters
        facts = SourceFacts(starts, view.first_position, view.end_position, reporters)
        start = link_start(facts, destination, places[::-1])
        if isinstance(start, StartRefused):
            return start
        highest = None
        if start.behind_removed:
            highest = NOTHING_HIGHEST if view.retired is None else view.retired.highest
            highest = missing_at(destination, starts.journal, highest)
        self._holes = FirstHoles(start.position, highest)
        self._routed = RoutedLog(self._log, self._routes, start.position, self)
        self._window = command.credit
        self._goal = view.end_position
        self.end = self.durable = start.position
        if start.position >= self._goal:
            self._goal_end = start.position
        return start

    def received(self, command: LinkRequest | LinkAck | LinkCredit) -> None:
        """Handle a command of the destination. Raises `BadLink` for a request of rows that it has
        processed."""
        if isinstance(command, LinkRequest):
            self._names.request(decode_positions(command.positions))
        elif isinstance(command, LinkAck):
            self.durable, self.level = command.durable, command.level
            self._names.acknowledged(command.durable)
        else:
            self._returned += command.bytes
            self._short = False
            self._names.returned(self._returned)

    def stop(self) -> None:
        """Stop reading, at the end of the connection."""
        self._names.stop()
        if self._routed is not None:
            self._routed.stop()

    # -- outputs --------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` can return frames, start a read or raise an error without further input."""
        if self._routed is None or self._holes is None:
            return False
        if self._names.has_work:
            return True
        return self._has_credit and (not self._holes.over or self._routed.has_work)

    def step(self) -> list[LinkFrame]:
        """Do a bounded piece of work. Return the frames to send, in order.

        Raises `JournalCorrupt`, errors of reading, and `BookmarkExpired` if retention has removed rows that
        the destination lacks. Then the link must end."""
        if self._routed is None or self._holes is None:
            return []
        if not self._holes.over:
            return self._start(self._holes)
        bodies = self._names.bodies()
        if bodies is not None:
            answers = LinkRuns(end=self.end, answers=encode_positions(bodies.rows))
            return [LinkFrame(answers, self._cutter.for_link(bodies.batch))]
        return self._stream(self._routed) if self._has_credit else []

    def oldest_needed(self) -> int | None:
        """Return the lowest position of the log that the link needs. None before its start."""
        if self._routed is None:
            return None
        named = self._names.oldest
        return self.durable if named is None else min(self.durable, named)

    @property
    def resynced(self) -> bool:
        """Whether the destination has all rows on its disk that were persisted at the handshake."""
        return self._goal_end is not None and self.durable >= self._goal_end

    @property
    def covered(self) -> int:
        """Position before which the destination has all rows for it on its disk."""
        if self._routed is None:
            return 0
        # Without unacknowledged frames the rows behind `durable` are not for the link.
        return self._routed.passed if self.durable == self.end else self.durable

    @property
    def behind(self) -> int:
        """Rows of the persisted log that the destination may lack on its disk."""
        return 0 if self._routed is None else self._log.view.end_position - self.covered

    @property
    def unsent(self) -> int:
        """Rows of the persisted log that it has not examined yet."""
        return 0 if self._routed is None else self._log.view.end_position - self._routed.passed

    # -- frames ---------------------------------------------------------------------------------------

    def _start(self, holes: FirstHoles) -> list[LinkFrame]:
        """Return the next frame of first holes."""
        cut = holes.cut(self._credit, alone=self._alone)
        if cut is None:
            self._short = True
            return []
        self._spent += cut.cost
        return [cut.frame]

    def _stream(self, routed: RoutedLog) -> list[LinkFrame]:
        """Return frames of the next piece of the log."""
        piece = routed.piece()
        if piece is None:
            return []
        frames: list[LinkFrame] = []
        while not piece.over and len(frames) < link_step_frames_max:
            cut = self._cutter.cut(piece, self._credit, alone=self._alone)
            if cut is None:
                self._short = True
                break
            frames.append(self._sent(cut, piece.position))
        if piece.over:
            routed.done()
            self._moved_end = max(self._moved_end, piece.moved_end)
            if self._moved_end > self.end:
                self.end = piece.end
                frames.append(LinkFrame(LinkNames(end=piece.end)))
        if self._goal_end is None and routed.passed >= self._goal:
            self._goal_end = self.end
        return frames

    def _sent(self, cut: CutFrame, end: int) -> LinkFrame:
        self._spent += cut.cost
        self.end = end
        if cut.spans is not None:
            self._names.add(cut.spans, self._spent, end)
        return cut.frame

    # -- credit ---------------------------------------------------------------------------------------

    @property
    def _credit(self) -> int:
        return self._window - self._spent + self._returned

    @property
    def _alone(self) -> bool:
        """Whether nothing is outstanding."""
        return self._spent == self._returned

    @property
    def _has_credit(self) -> bool:
        return not self._short and (self._alone or self._credit > 0)
