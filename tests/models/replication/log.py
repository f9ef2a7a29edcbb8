"""Log of one instance: rows and starts, and places in the logs of other instances."""

from __future__ import annotations

from collections import defaultdict

from tests.models.replication.records import Linked, Place, Row, Started


class Log:
    """Rows by position."""

    def __init__(self, log_id: int) -> None:
        self.log_id = log_id
        self.first = 0
        """The position of the first row. Retention removed all rows before it."""
        self.rows: list[Row] = []
        self.starts: list[Place] = []
        """Each start and the position of its first row."""
        self.commits = [0]
        """Ends of commits: each is on disk whole, or not at all."""
        self.synced = 0
        """The end of the log on disk."""

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @property
    def content_end(self) -> int:
        """The end of the log without places at its end, which links do not send."""
        end = self.end
        while end > self.first and isinstance(self.rows[end - 1 - self.first], Linked):
            end -= 1
        return end

    def between(self, position: int, end: int) -> list[Row]:
        """Return the rows from a position to an end."""
        return self.rows[position - self.first : max(0, end - self.first)]

    def append(self, row: Row) -> int:
        """Append a row and return its position."""
        if isinstance(row, Started):
            self.starts.append(Place(row.start, self.end))
        self.rows.append(row)
        return self.end - 1

    def commit(self) -> None:
        """End a commit."""
        if self.commits[-1] < self.end:
            self.commits.append(self.end)

    def sync(self) -> None:
        """Write all commits to disk."""
        self.synced = self.commits[-1]

    def cut(self, end: int) -> None:
        """Remove the commits that end behind `end`. All others are on disk."""
        self.commits = [self.first, *(commit for commit in self.commits[1:] if commit <= end)]
        self.synced = self.commits[-1]
        del self.rows[self.synced - self.first :]
        self.starts = [start for start in self.starts if start.position < self.synced]

    def remove(self, first: int) -> list[Row]:
        """Remove and return the rows before `first`, the end of a commit."""
        removed = self.between(self.first, first)
        self.rows = self.between(first, self.end)
        self.first = first
        self.commits = [commit for commit in self.commits if commit >= first]
        return removed

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


class Places:
    """Highest position of each log and start below which all rows of it are known."""

    def __init__(self) -> None:
        self._positions: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._newest: dict[int, Place] = {}

    def note(self, log: int, place: Place) -> None:
        """Note that all rows of a log before a place are known."""
        of_log = self._positions[log]
        of_log[place.start] = max(place.position, of_log.get(place.start, 0))
        self._newest[log] = place

    def newest(self, log: int) -> Place | None:
        """Return the place of a log that was noted last."""
        return self._newest.get(log)

    def passed(self, log: int, place: Place) -> bool:
        """Return whether the row at a place is known."""
        return self._positions[log].get(place.start, 0) > place.position

    def each(self) -> tuple[tuple[int, Place], ...]:
        """Return the places that were noted last."""
        return tuple(self._newest.items())

    def resume(self, log: Log, start_ids: bool = True) -> int | None:
        """Return the highest position of `log` below which all rows are known. None for unknown logs."""
        if not start_ids:
            newest = self._newest.get(log.log_id)
            return newest.position if newest else None
        places = (Place(*known) for known in self._positions[log.log_id].items())
        positions = [position for place in places if (position := log.resume(place)) is not None]
        return max(positions, default=None)
