"""Record search: finds the accepted records of a delete, in bounded steps over a state that changes.

A scan tests the folded records. Keys that were accepted meanwhile are then tested in rounds, and the last
round runs in the step of the append. After too many rounds, publishes of clients to the topic wait.

Invariants:
- The result is exact at the accepted state of its last round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from tickertape.base.errors import NotReady
from tickertape.base.text_format import shown
from tickertape.batch.format import Bools
from tickertape.engine.limits import sow_delete_round_rows, sow_delete_rounds_max
from tickertape.engine.sow.accepted import Overlay
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.topic import StateTopic
from tickertape.filter.limits import filter_piece_bytes_max

Test = Callable[[list[bytes], list[bytes]], Bools]
"""Returns which records match, from their keys and bodies."""


class RecordSearch:
    """Search for the records of a SOW topic that pass a test."""

    def __init__(self, topic: StateTopic, test: Test) -> None:
        self._topic = topic
        self._test = test
        self._matching: dict[bytes, None] = {}
        self._changed: set[bytes] = set()
        self._overlay: Overlay | None = None
        """Set when the scan is done."""
        self._held: Overlay | None = None

    def scan(self, overlay: Overlay) -> Iterator[None]:
        """Test all records, one piece for each yield. `finish` or `close` must follow."""
        self._changed = overlay.watch()
        try:
            yield from self._scan(overlay)
            self._overlay = overlay
        finally:
            if self._overlay is None:
                overlay.end_watch(self._changed)
                self._release()

    def _scan(self, overlay: Overlay) -> Iterator[None]:
        records = self._topic.fold.records
        slot, end = 0, records.slot_end
        while slot < end:
            slot = self._scan_piece(slot, min(slot + sow_delete_round_rows, end))
            yield None
        for done in count():
            if len(self._changed) <= sow_delete_round_rows:
                break
            if done == sow_delete_rounds_max:
                overlay.hold()
                self._held = overlay
            changed = [*self._changed]
            self._changed.clear()
            for low in range(0, len(changed), sow_delete_round_rows):
                self._test_again(overlay, changed[low : low + sow_delete_round_rows])
                yield None

    def _scan_piece(self, low: int, high: int) -> int:
        """Test some records. Return the next slot."""
        fold = self._topic.fold
        slots = fold.records.live_slots(low, high)
        if not len(slots):
            return high
        views = fold.records.rows(slots).views
        fits = int(np.searchsorted(np.cumsum(lengths_in(views)), filter_piece_bytes_max, side="right"))
        fits = max(fits, 1)
        if fits < len(slots):
            high = int(slots[fits])
            slots, views = slots[:fits], views[:fits]
        keys = fold.keys.keys_of(slots)
        passed = self._test(keys, fold.records.blocks.take(views))
        self._matching.update((keys[at], None) for at in passed.nonzero()[0].tolist())
        return high

    def _test_again(self, overlay: Overlay, keys: Sequence[bytes]) -> None:
        """Test keys whose records have changed."""
        rows = overlay.latest(keys)
        self.test_rows(
            keys,
            [overlay.body(row) if row.live else None for row in rows],
        )

    def test_rows(self, keys: Sequence[bytes], bodies: Sequence[bytes | None]) -> None:
        """Replace the results of keys. None: the key has no record."""
        for key in keys:
            self._matching.pop(key, None)
        live = [(key, body) for key, body in zip(keys, bodies, strict=True) if body is not None]
        if live:
            names = [key for key, _ in live]
            passed = self._test(names, [body for _, body in live])
            self._matching.update((names[at], None) for at in passed.nonzero()[0].tolist())

    def finish(self, keys: Sequence[bytes], bodies: Sequence[bytes | None]) -> None:
        """Execute the last round, and test rows that are not accepted yet. Raises `NotReady` before the end
        of the scan."""
        overlay = self._overlay
        if overlay is None:
            raise NotReady(
                f"Cannot delete records of {shown(self._topic.name)}: the connection was closed during the "
                "search. Repeat the delete."
            )
        self._test_again(overlay, [*self._changed])
        self.test_rows(keys, bodies)
        self.close()

    def close(self) -> None:
        """End the search."""
        self._release()
        if self._overlay is not None:
            self._overlay.end_watch(self._changed)
            self._overlay = None

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    @property
    def matching(self) -> list[bytes]:
        """Keys of the matching records."""
        return [*self._matching]
