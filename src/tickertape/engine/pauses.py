"""Owns which connections are not read from because of what they publish, and why: it is more than the log
takes, or than can be handed on of what is not recorded.

Must never ask the driver twice for the same, or forget somebody when a reason is over.
"""

from __future__ import annotations

from typing import Literal

from tickertape.engine.effects import Effect, PauseReading, ResumeReading

Reason = Literal["journal", "unrecorded"]


class Pauses:
    """Connections that are not read from, by reason. Appends to the effects it is given."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._waiting: dict[Reason, set[int]] = {"journal": set(), "unrecorded": set()}

    def pause(self, conn: int, reason: Reason) -> None:
        """Read nothing more from a connection until the reason is over."""
        waiting = self._waiting[reason]
        if conn not in waiting:
            waiting.add(conn)
            self._effects.append(PauseReading(conn, reason))

    def forget(self, conn: int) -> None:
        """The connection is gone."""
        for waiting in self._waiting.values():
            waiting.discard(conn)

    def review(self, *, journal: bool, unrecorded: bool) -> None:
        """Whether each reason still holds."""
        if not journal:
            self._lift("journal")
        if not unrecorded:
            self._lift("unrecorded")

    def _lift(self, reason: Reason) -> None:
        waiting = self._waiting[reason]
        if waiting:
            self._effects.extend(ResumeReading(conn, reason) for conn in sorted(waiting))
            waiting.clear()
