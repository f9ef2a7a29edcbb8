"""Log of one instance: rows and starts."""

from __future__ import annotations

from tests.models.replication.records import Place, Row, Started


class Log:
    """Rows by position."""

    def __init__(self, log_id: int) -> None:
        self.log_id = log_id
        self.rows: list[Row] = []
        self.starts: list[Place] = []
        """Each start and the position of its first row."""

    @property
    def end(self) -> int:
        return len(self.rows)

    def append(self, row: Row) -> int:
        """Append a row and return its position."""
        if isinstance(row, Started):
            self.starts.append(Place(row.start, self.end))
        self.rows.append(row)
        return self.end - 1

    def cut(self, end: int) -> None:
        """Remove the rows from `end` on."""
        del self.rows[end:]
        self.starts = [start for start in self.starts if start.position < end]

    def place(self, position: int) -> Place:
        """Return the place of a position: the start in which the row before it was written."""
        before = [start.start for start in self.starts if start.position < position]
        return Place(before[-1] if before else 0, position)

    def resume(self, place: Place) -> int | None:
        """Return the position of a place: at most the end of its start. None for unknown starts."""
        ends = [start.position for start in self.starts[1:]] + [self.end]
        for start, end in zip(self.starts, ends, strict=True):
            if start.start == place.start:
                return min(place.position, end)
        return None
