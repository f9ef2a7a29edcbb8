"""Report of `verify`: data classes for segments, removed segments, damage and notes."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["sealed", "active", "reserved", "unreadable"]


class VerifyFinding(msgspec.Struct, frozen=True, order=True):
    """A finding: file (relative to the data directory), offset and text."""

    file: str
    offset: int
    what: str

    def __str__(self) -> str:
        place = f"{self.file} at offset {self.offset}" if self.offset else self.file
        return f"{place}: {self.what}"


class SegmentSummary(msgspec.Struct, kw_only=True):
    """Summary of one segment file."""

    number: int
    file: str
    state: State
    bytes: int
    """Size of the file."""
    used: int = 0
    """Bytes up to the end of the last valid commit."""
    epoch: int = 0
    first_position: int = 0
    end_position: int = 0
    """Position after the last message."""
    begun: int = 0
    """Creation time, microseconds since 1970 UTC."""
    last: int = 0
    """Log time of the last commit, microseconds since 1970 UTC."""
    commits: int = 0
    """Valid commits, including marks and the seal."""
    messages: int = 0
    publishers: int = 0
    """Publishers with messages in the segment."""


class RetiredSummary(msgspec.Struct, kw_only=True):
    """Summary of all segments that retention removed."""

    through: int
    """The removed segments are 1 to this number."""
    first_position: int
    """Position of the first message after them."""
    bytes: int
    publishers: int
    """Publishers whose highest sequence is stored."""
    last: int
    """Log time of their last commit, microseconds since 1970 UTC. 0 if they had none."""
    unfinished: int
    """Their files that still exist. The server removes them."""
    text: str


class VerifyReport(msgspec.Struct, kw_only=True):
    """Result of `survey` and `verify`."""

    journal: str = ""
    """Journal id, 32 hexadecimal digits."""
    segments: list[SegmentSummary] = msgspec.field(default_factory=list)
    retired: RetiredSummary | None = None
    """None if retention never removed a segment."""
    damage: list[VerifyFinding] = msgspec.field(default_factory=list)
    """Once durable, or required, bytes that cannot be read."""
    notes: list[VerifyFinding] = msgspec.field(default_factory=list)
    """Deviations from a clean stop that are not damage."""

    @property
    def whole(self) -> bool:
        """Whether the journal has no damage."""
        return not self.damage
