"""Persisted holes: open holes of the persisted log, by publisher, for notices to subscriptions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tickertape.base.limits import notice_holes_max
from tickertape.engine.limits import notice_publishers_max
from tickertape.engine.runtime.holes import KnownSequences
from tickertape.journal.format.replication_records import HoleRange
from tickertape.wire.link_rows import OpenHoles, encode_open_holes


class _HolesChange:
    """The holes of a publisher after their last change."""

    __slots__ = ("holes", "number")

    def __init__(self, number: int, holes: OpenHoles) -> None:
        self.number = number
        self.holes = holes


class PersistedHoles:
    """Open holes, and the publishers whose holes changed last."""

    def __init__(self, known: KnownSequences, highest: Mapping[int, int]) -> None:
        """`known`: the holes at the start. `highest`: the highest persisted sequence of each publisher."""
        self._highest = highest
        self._changes: dict[int, _HolesChange] = {}
        """By publisher, the oldest change first. Closed holes are kept for a while, to report their end."""
        self.change = 0
        """Number of the last change."""
        for publisher, last, ranges in known.all_holes():
            self.note(publisher, last, ranges)

    def note(self, publisher: int, highest: int, ranges: list[HoleRange]) -> None:
        """Note the open holes of a publisher after a change."""
        self.change += 1
        self._changes.pop(publisher, None)
        holes = OpenHoles(publisher, highest, tuple((one.first, one.last) for one in ranges))
        self._changes[publisher] = _HolesChange(self.change, holes)
        if len(self._changes) > notice_publishers_max:
            del self._changes[next(iter(self._changes))]

    def since(self, change: int, publishers: Collection[int]) -> bytes:
        """Return the rows of publishers whose holes changed after a change, and of `publishers`.

        Only the newest changes of too many are reported."""
        found: dict[int, OpenHoles] = {}
        rows = 0
        for publisher, made in reversed(self._changes.items()):
            if made.number <= change or rows + len(made.holes.ranges) >= notice_holes_max:
                break
            rows += 1 + len(made.holes.ranges)
            found[publisher] = self._at_end(made.holes)
        for publisher in publishers:
            if publisher not in found and rows < notice_holes_max:
                made_last = self._changes.get(publisher)
                holes = self._at_end(OpenHoles(publisher, 0, ()) if made_last is None else made_last.holes)
                if holes.highest and rows + len(holes.ranges) < notice_holes_max:
                    rows += 1 + len(holes.ranges)
                    found[publisher] = holes
        return encode_open_holes(found.values())

    def _at_end(self, holes: OpenHoles) -> OpenHoles:
        """Return the holes of a publisher at the end of the log: no later message changed them."""
        return holes._replace(highest=max(holes.highest, self._highest.get(holes.publisher, 0)))
