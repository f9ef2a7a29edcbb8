"""Pins: the rows of this log that retention keeps for other logs.

A configured destination pins the rows that it has not acknowledged, also while it is away. Before the first
connection of a run its last report counts, and without a report the whole log. Other logs that ever reported
rows of this log pin by their last reports, because a server on the way could lose its log.

Invariant: a link that is down pins at least the rows that it pinned before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tickertape.engine.replication.links.source_end import OutgoingState
from tickertape.engine.replication.log_facts import LogFacts
from tickertape.engine.retention import RetentionPin
from tickertape.journal.reading.log_view import LogView


class LinkPins:
    """The pins of all other logs."""

    def __init__(self, view: LogView, facts: LogFacts, outgoing: Collection[OutgoingState]) -> None:
        self._view = view
        self._facts = facts
        self._outgoing = outgoing

    def oldest_needed(self) -> RetentionPin | None:
        """Return the lowest position that another log needs, or None."""
        pins = [
            RetentionPin(self.of(state), f"replication to {state.name}", brief=state.end is not None)
            for state in self._outgoing
        ]
        if pins:  # without a destination no link sends rows of this log
            pins += self._of_reporters()
        return min(pins, default=None)

    def of(self, state: OutgoingState) -> int:
        """Return the lowest position that a destination needs."""
        needed = state.needed()
        if needed is not None:
            return needed
        log = state.log or self._log_named(state.name)
        return self._view.first_position if log is None else self._reported(log)

    def _of_reporters(self) -> Iterator[RetentionPin]:
        direct = {state.log for state in self._outgoing if state.log}
        names = {state.name for state in self._outgoing if state.log}
        # A destination is connected with another log: links refuse the earlier one if it returns.
        replaced = {origin.log for origin in self._facts.origins if origin.instance in names}
        for log in self._facts.reporters - direct - replaced:
            yield RetentionPin(self._reported(log), f"replication to log {log.hex()}")

    def _reported(self, log: bytes) -> int:
        """Return the position that a log reported last, or the first one."""
        place = self._facts.reports.place_in(log)
        position = None if place is None else self._facts.starts.resume(place, self._view.end_position)
        return self._view.first_position if position is None else position

    def _log_named(self, name: str) -> bytes | None:
        """Return the newest known log of an instance, or None."""
        found = [origin.log for origin in self._facts.origins if origin.instance == name]
        return found[-1] if found else None
