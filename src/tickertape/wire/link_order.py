"""Order of the frames of one replication link, as both of its ends check it.

Each end passes all commands of the link, sent and received, in the order in which it sends and receives them.
Frames on the way only make the state of their sender newer, so neither end refuses commands that the other
may send.

Invariants:
- A refused command changes nothing.
- Memory is bounded by the credit of the source, the numbers of origins, and `link_name_frames_max`.
"""

from __future__ import annotations

from collections import ChainMap, deque
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import BadLink
from tickertape.base.limits import link_name_frames_max
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.wire.commands import Command, Goodbye, Heartbeat
from tickertape.wire.link import (
    DestinationCommand,
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOpen,
    LinkOpened,
    LinkRequest,
    LinkRuns,
    SourceCommand,
    link_name_bytes,
    link_place_bytes,
)
from tickertape.wire.link_checks import (
    check_goodbye,
    check_open,
    check_opened,
    check_origin_numbers,
    check_origins,
    check_runs,
)
from tickertape.wire.link_rows import decode_holes, decode_names, decode_positions

_ANY_TIME: Final = (Goodbye, Heartbeat)


class _NameFrame(NamedTuple):
    """A sent `LinkNames` whose rows the destination may still request."""

    rows_end: int
    """Position after its last row."""
    before: int
    """`end` of the frame before it."""
    end: int


class _RequestedRow(NamedTuple):
    """A requested row without an answer."""

    position: int
    before: int
    end: int
    """`before` and `end` of its frame."""


class LinkOrder:
    """State of one link: the earlier commands, as far as they restrict later ones."""

    def __init__(self) -> None:
        self.end = 0
        """Position of the log below which the source sent or named everything."""
        self.durable = 0
        """Position of the log below which everything is durable at the destination."""
        self.credit = 0
        """Credit of the source in cost bytes. Negative after a single message above the credit."""
        self.named = 0
        """Rows of all `LinkNames`. The next row has this position."""
        self.origins: dict[int, bytes] = {}
        """Logs of the known origin numbers. 0, the log of the source, is not among them."""
        self._window = 0
        self._versions: tuple[int, ...] | None = None
        self._opened = False
        self._stream: tuple[int, bool] | None = None  # position and `behind` of the first LinkHoles
        self._started = False  # whether the last LinkHoles was sent
        self._holes_end = 0  # publisher of the last first hole
        self._frames: deque[_NameFrame] = deque()
        self._asked: deque[_RequestedRow] = deque()
        self._askable = 0  # first row that may be requested

    @property
    def unanswered(self) -> int:
        """Number of requested rows whose bodies the source has not sent yet."""
        return len(self._asked)

    @property
    def _outstanding(self) -> int:
        """Cost of the frames whose credit the destination has not returned."""
        return self._window - self.credit

    # -- from the source ------------------------------------------------------------------------------

    def from_source(self, command: SourceCommand, batch: MessageBatch | None = None) -> None:
        """Take a command of the source with its batch. Raises `BadLink` for one that it may not send now."""
        if isinstance(command, _ANY_TIME):
            _check_any_time(command)
        elif isinstance(command, LinkOpen):
            if self._versions is not None:
                raise _bad("the link is open already", "source")
            check_open(command)
            self._versions = command.side.versions
        elif not self._opened:
            raise _bad(f"{_name(command)} precedes the answer of the destination", "source")
        elif isinstance(command, LinkHoles):
            self._take_holes(command)
        elif not self._started:
            raise _bad(f"{_name(command)} precedes the first holes", "source")
        elif isinstance(command, LinkNames):
            self._take_names(command)
        elif batch is None:
            raise _bad(f"{_name(command)} has no batch", "source")
        elif command.answers:
            self._take_answers(command, batch)
        else:
            self._take_runs(command, batch)

    def _take_holes(self, command: LinkHoles) -> None:
        if self._started:
            raise _bad("first holes follow the start of the stream", "source")
        stream = command.position, command.behind
        if self._stream not in (None, stream):
            raise _bad("first holes of one stream have different positions", "source")
        publishers = decode_holes(command.rows).publishers
        if len(publishers):
            if not command.behind:
                raise _bad("first holes of a stream that is not behind removed messages", "source")
            if int(publishers[0]) <= self._holes_end:
                raise _bad("publishers of first holes are not ascending", "source")
        elif command.more:
            raise _bad("first holes without rows announce more", "source")
        self._spend(len(publishers) * link_place_bytes, len(publishers))
        self._stream = stream
        self._started = not command.more
        if len(publishers):
            self._holes_end = int(publishers[-1])
        self.end = command.position

    def _take_names(self, command: LinkNames) -> None:
        self._check_end(command.end)
        rows = decode_names(command.rows)
        count = len(rows.publishers)
        if not count and command.end == self.end:
            raise _bad("names without rows do not move the end", "source")
        found = check_origins(command.origins, self.origins)
        check_origin_numbers(np.unique(rows.origins).tolist(), ChainMap(found, self.origins))
        self._spend(count * link_name_bytes, count)
        self.origins |= found
        self.named += count
        if count:
            before = self.end
            if len(self._frames) == link_name_frames_max:  # the two newest become one, which allows more
                before = self._frames.pop().before
            self._frames.append(_NameFrame(self.named, before, command.end))
        self.end = command.end

    def _take_runs(self, command: LinkRuns, batch: MessageBatch) -> None:
        self._check_end(command.end)
        found = check_origins(command.origins, self.origins)
        check_runs(batch, ChainMap(found, self.origins))
        self._spend(batch.cost, batch.count)
        self.origins |= found
        self.end = command.end

    def _take_answers(self, command: LinkRuns, batch: MessageBatch) -> None:
        if command.end != self.end:
            raise _bad(f"answers have end {command.end}, and the last frame has {self.end}", "source")
        positions = decode_positions(command.answers).tolist()
        if len(positions) > len(self._asked) or any(
            position != asked.position for position, asked in zip(positions, self._asked, strict=False)
        ):
            raise _bad("answers are not for the rows that were requested next", "source")
        if batch.run_count != len(positions):
            raise _bad(f"{batch.run_count} runs answer {len(positions)} rows", "source")
        found = check_origins(command.origins, self.origins)
        check_runs(batch, ChainMap(found, self.origins))
        self.origins |= found
        for _ in positions:
            self._asked.popleft()

    def _check_end(self, end: int) -> None:
        if end < self.end:
            raise _bad(f"the end goes back from {self.end} to {end}", "source")

    def _spend(self, cost: int, count: int) -> None:
        """Subtract the cost of a frame. Only a single message or row may exceed the credit, if nothing is
        outstanding."""
        if cost and cost > self.credit and (count > 1 or self.credit < self._window):
            raise _bad(f"a frame of cost {cost:,} exceeds the credit of {self.credit:,}", "source")
        self.credit -= cost

    # -- from the destination -------------------------------------------------------------------------

    def from_destination(self, command: DestinationCommand) -> None:
        """Take a command of the destination. Raises `BadLink` for one that it may not send now."""
        if isinstance(command, _ANY_TIME):
            _check_any_time(command)
        elif isinstance(command, LinkOpened):
            if self._versions is None or self._opened:
                raise _bad("the answer to the handshake is not the first one", "destination")
            check_opened(command, self._versions)
            self._opened = True
            self.credit = self._window = command.credit
        elif isinstance(command, LinkCredit) and self._stream is not None:
            self._take_credit(command)  # first holes may cost more than the window
        elif not self._started:
            raise _bad(f"{_name(command)} precedes the start of the stream", "destination")
        elif isinstance(command, LinkRequest):
            self._take_request(command)
        elif isinstance(command, LinkAck):
            self._take_ack(command)

    def _take_request(self, command: LinkRequest) -> None:
        positions = decode_positions(command.positions).tolist()
        if positions[0] < self._askable:
            raise _bad(f"row {positions[0]} was requested, passed or acknowledged before", "destination")
        if positions[-1] >= self.named:
            raise _bad(f"row {positions[-1]} was requested, but only {self.named} are named", "destination")
        if self._outstanding < (len(self._asked) + len(positions)) * link_name_bytes:
            raise _bad("rows were requested whose credit was returned before", "destination")
        for position in positions:
            while self._frames[0].rows_end <= position:
                self._frames.popleft()
            frame = self._frames[0]
            self._asked.append(_RequestedRow(position, frame.before, frame.end))
        self._askable = positions[-1] + 1

    def _take_ack(self, command: LinkAck) -> None:
        durable = command.durable
        if not self.durable <= durable <= self.end:
            raise _bad(
                f"durable position {durable} is not between the last one, {self.durable}, and the end, "
                f"{self.end}",
                "destination",
            )
        if self._asked:
            first = self._asked[0]
            if durable >= first.end and durable > first.before:
                raise _bad(f"durable position {durable} is behind a requested row", "destination")
        self.durable = durable
        # At `end == durable` frames of the same end may be on their way.
        while self._frames and self._frames[0].end < durable:
            self._askable = max(self._askable, self._frames.popleft().rows_end)

    def _take_credit(self, command: LinkCredit) -> None:
        if command.bytes > self._outstanding - len(self._asked) * link_name_bytes:
            raise _bad(
                f"{command.bytes:,} bytes of credit are more than the source has spent without the requested "
                "rows",
                "destination",
            )
        self.credit += command.bytes


def _check_any_time(command: Goodbye | Heartbeat) -> None:
    if isinstance(command, Goodbye):
        check_goodbye(command)


def _name(command: Command) -> str:
    return f"{type(command).__name__} ({shown(str(command.__struct_config__.tag))})"


def _bad(cause: str, side: str) -> BadLink:
    return BadLink(f"Invalid link frame: {cause}. Report the defect of the {side}.")
