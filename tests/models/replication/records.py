"""Rows of the log of one instance in the model of replication."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.helpers.sow_model import Expired
from tests.models.replication.holes import Hole
from tests.models.replication.state import Content

Bookmark = tuple[int, int]
"""Publisher and sequence."""


TOPICS: Final = frozenset({0, 1})
"""Topics of the model: even and odd sequences."""


def topic_of(sequence: int) -> int:
    """Return the topic of a message."""
    return sequence % 2


class Place(NamedTuple):
    """A position of a log, with the start of the instance in which the row before it was written."""

    start: int
    position: int


class Started(NamedTuple):
    """The first row of each start of an instance."""

    start: int


class Stored(NamedTuple):
    """A message of a publisher, and the logs that it passed, the origin first and this log last."""

    publisher: int
    sequence: int
    path: tuple[int, ...]
    content: Content

    @property
    def bookmark(self) -> Bookmark:
        return self.publisher, self.sequence


class Copy(NamedTuple):
    """A copy of a stored message that counts instead of it."""

    content: Content


class After(NamedTuple):
    """The messages of a publisher up to `after` exist in other logs, or may exist there if not proven."""

    publisher: int
    after: int
    proven: bool = True


class Holes(NamedTuple):
    """The open holes of a publisher at the end of a commit that changes them."""

    publisher: int
    holes: tuple[Hole, ...]


class Linked(NamedTuple):
    """All rows of the log `source` before `place` are in this log, or are not for this log."""

    source: int
    place: Place


class Covered(NamedTuple):
    """The log `log` has all rows of other logs before `places`. `place` is the position of this row there.

    Links pass these rows on. A log that has such a row has all rows of `log` before it.
    """

    number: int
    """Rises with each report."""
    log: int
    place: Place
    places: tuple[tuple[int, Place], ...]
    members: frozenset[int]
    """The logs of the group when the report was made."""
    stamp: int
    """The highest order stamp of the log. Messages that it accepts later have a higher one."""


Row = Started | Stored | Copy | Expired | After | Holes | Linked | Covered
