"""Offsets of a streaming query: a log and a position, as kept in the checkpoint.

Positions of another log are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tickertape.base.errors import WrongJournal

Written = dict[str, Any]
"""An offset as Spark keeps it: JSON."""


class Offset(NamedTuple):
    """Everything below `position` of the log `journal` was read."""

    journal: str
    position: int

    def written(self) -> Written:
        """Return the offset as the checkpoint has it."""
        return {"journal": self.journal, "position": self.position}


def read_offset(written: Mapping[str, Any]) -> Offset:
    """Parse the offset of a checkpoint. Raises `WrongJournal` for an offset of another source."""
    journal, position = written.get("journal"), written.get("position")
    if not isinstance(journal, str) or type(position) is not int or position < 0:
        raise WrongJournal(
            f"the checkpoint holds {dict(written)}, no place in a log: it belongs to another source. "
            f"Give the query a checkpointLocation of its own"
        )
    return Offset(journal, position)


def check_journal(offset: Offset, journal: str) -> None:
    """Raise `WrongJournal` unless the log that answers, `journal`, is that of the checkpoint."""
    if offset.journal != journal:
        raise WrongJournal(
            f"the checkpoint is at position {offset.position} of the log {offset.journal}, and the server "
            f"holds the log {journal}: point option servers at the first one, or begin anew with another "
            f"checkpointLocation and a startingBookmark or startingTimestamp of this log"
        )
