"""Offsets of a streaming query: a log and a position, as kept in the checkpoint.

Positions of another log are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tickertape.base.errors import WrongJournal

Written = dict[str, Any]
"""An offset as stored by Spark: JSON."""


class Offset(NamedTuple):
    """Everything below `position` of the log `journal` was read."""

    journal: str
    position: int

    def written(self) -> Written:
        """Return the offset as stored in the checkpoint."""
        return {"journal": self.journal, "position": self.position}


def read_offset(written: Mapping[str, Any]) -> Offset:
    """Parse the offset of a checkpoint. Raises `WrongJournal` for an offset of another source."""
    journal, position = written.get("journal"), written.get("position")
    if not isinstance(journal, str) or type(position) is not int or position < 0:
        raise WrongJournal(
            f"Cannot continue the query: its checkpoint has the offset {dict(written)} of another source. "
            f"Give the query another checkpointLocation."
        )
    return Offset(journal, position)


def check_journal(offset: Offset, journal: str) -> None:
    """Raise `WrongJournal` unless the log `journal` is the one of the checkpoint."""
    if offset.journal != journal:
        raise WrongJournal(
            f"Cannot continue the query: its checkpoint is at position {offset.position} of the log "
            f"{offset.journal!r}, but the server has the log {journal!r}. Set option "
            "'servers' to a server with the log of the checkpoint, or start with another checkpointLocation "
            "and a start point for this log (option 'startingBookmark' or 'startingTimestamp')."
        )
