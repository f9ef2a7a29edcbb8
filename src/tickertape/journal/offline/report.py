"""Verify report: data classes for segments, removed segments, damage and remarks."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["sealed", "active", "reserved", "unreadable"]


class VerifyFinding(msgspec.Struct, frozen=True, order=True):
    """A finding: its file (relative to the data directory), its offset, and its text."""

    file: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.file} at {self.offset}: {self.what}"


class SegmentSummary(msgspec.Struct, kw_only=True):
    """One segment file."""

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
    """Position after its last message."""
    begun: int = 0
    """Microseconds since 1970 UTC at which it was begun."""
    last: int = 0
    """Log time of its last commit, microseconds since 1970 UTC."""
    commits: int = 0
    """Valid commits, marks and the seal included."""
    messages: int = 0
    publishers: int = 0
    """Publishers with messages in it."""


class RetiredSummary(msgspec.Struct, kw_only=True):
    """Segments that retention removed since the log began."""

    through: int
    """Segments 1 to this one."""
    first_position: int
    """Position of the first message behind them."""
    bytes: int
    publishers: int
    """Publishers whose highest sequence is kept."""
    last: int
    """Log time of the last commit among them, microseconds since 1970 UTC; 0 when they held none."""
    unfinished: int
    """Files of them that are still there: the server removes them."""
    text: str


class VerifyReport(msgspec.Struct, kw_only=True):
    """Result of `survey` and `verify`."""

    journal: str = ""
    """Its id, 32 hexadecimal digits."""
    segments: list[SegmentSummary] = msgspec.field(default_factory=list)
    retired: RetiredSummary | None = None
    """None when retention never removed anything."""
    damage: list[VerifyFinding] = msgspec.field(default_factory=list)
    """Bytes that were once durable, or that should be there, and cannot be read back."""
    notes: list[VerifyFinding] = msgspec.field(default_factory=list)
    """Deviations from a clean stop that are not damage."""

    @property
    def whole(self) -> bool:
        """Nothing is damaged."""
        return not self.damage
