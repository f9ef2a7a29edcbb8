"""Downgrade policy: decides when acknowledgements stop and resume waiting for a destination.

Invariants:
- Without a policy no level changes by itself.
- A policy never ends the downgrade of an operator.
- A downgrade ends only when the destination has all rows from before it.
"""

from __future__ import annotations

from typing import NamedTuple

from tickertape.journal.format.replication_records import DowngradedRecord, LevelRecord


class DowngradePolicy(NamedTuple):
    """The limits of a destination, in seconds."""

    after: float
    """Age of the oldest message without an acknowledgement, from which the link is downgraded."""
    grace: float
    """Time after the start of the server before the first downgrade."""
    upgrade_below: float
    """Age of the oldest message below which a downgrade ends."""

    def decide(self, last: LevelRecord | None, covered: int, age: float | None, uptime: float) -> bool | None:
        """Return whether to downgrade (True) or to upgrade (False) a link now. None: its level stays.

        `last`: its last downgrade or upgrade. `covered`: position below which the destination has all rows.
        `age`: age of the oldest row that it lacks. `uptime`: time since the start of the server."""
        if isinstance(last, DowngradedRecord):
            recovered = age is None or age < self.upgrade_below
            return False if last.reason == "policy" and recovered and has_passed(last, covered) else None
        return True if uptime >= self.grace and age is not None and age >= self.after else None


def has_passed(last: DowngradedRecord, covered: int) -> bool:
    """Return whether a destination has all rows from before its downgrade."""
    return covered >= last.position
