"""Fold of a log: sequences, places and reports, also those of removed rows."""

from __future__ import annotations

from tests.helpers.sow_model import Expired
from tests.models.replication.holes import SequenceFilter
from tests.models.replication.log import Places
from tests.models.replication.records import After, Copy, Covered, Holes, Linked, Row, Stored
from tests.models.replication.state import State


class Fold:
    """State of an instance after rows of its log."""

    def __init__(self, log_id: int) -> None:
        self.log_id = log_id
        self.sequences = SequenceFilter()
        self.places = Places()
        """Places of the links to this instance."""
        self.reached = Places()
        """Places of all logs."""
        self.covered: dict[int, Covered] = {}
        """The newest report of each other log."""
        self.reporters: set[int] = set()
        """The logs that reported rows of this log at least once."""
        self.state = State()
        self.after: dict[int, int] = {}
        """The newest `After` row of each publisher."""

    def enter(self, row: Row, position: int) -> None:
        """Enter a row of the log."""
        if isinstance(row, Stored):
            self.sequences.enter(row.publisher, row.sequence)
            self.state.enter(row.content, position)
        elif isinstance(row, Copy):
            self.state.enter(row.content, position)
        elif isinstance(row, Expired):
            self.state.expired.add(row)
        elif isinstance(row, After):
            self.sequences.open(row.publisher, row.after, row.proven, position)
            self.after[row.publisher] = row.after
        elif isinstance(row, Linked):
            self.places.note(row.source, row.place)
            self.reached.note(row.source, row.place)
        elif isinstance(row, Covered):
            self._cover(row)

    def summarise(self, row: Row, position: int) -> None:
        """Enter a row before its removal. Only control rows are read, and the highest sequences."""
        if isinstance(row, Stored):
            self.sequences.raise_highest(row.publisher, row.sequence)
            self.state.enter(row.content, position)
        elif isinstance(row, Holes):
            self.sequences.holes[row.publisher] = list(row.holes)
        else:
            self.enter(row, position)

    def _cover(self, row: Covered) -> None:
        if row.log == self.log_id:
            return
        self.covered[row.log] = row
        if self.log_id in dict(row.places):
            self.reporters.add(row.log)
        for log, place in (*row.places, (row.log, row.place)):
            if log != self.log_id:
                self.reached.note(log, place)
