"""Owns which connections are not read from, and why: they bring more than the log takes, or than can be
handed on of what is not recorded.

Must never let one that waits for several reasons go on before all of them are over.
"""

from __future__ import annotations

from typing import Literal

from tickertape.engine.effects import Effect, PauseReading, ResumeReading

Reason = Literal["journal", "unrecorded"]


class Pauses:
    """Connections that are not read from. Appends to the effects it is given."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._waiting: dict[Reason, set[int]] = {"journal": set(), "unrecorded": set()}

    def pause(self, conn: int, reason: Reason) -> None:
        """Read nothing more from a connection until the reason is over."""
        if not self._is_paused(conn):
            self._effects.append(PauseReading(conn))
        self._waiting[reason].add(conn)

    def forget(self, conn: int) -> None:
        """The connection is gone."""
        for waiting in self._waiting.values():
            waiting.discard(conn)

    def review(self, *, journal: bool, unrecorded: bool) -> None:
        """Whether each reason still holds; who has none left is read from again."""
        if not journal:
            self._lift("journal")
        if not unrecorded:
            self._lift("unrecorded")

    def _lift(self, reason: Reason) -> None:
        waiting = self._waiting[reason]
        if waiting:
            self._waiting[reason] = set()
            self._effects.extend(ResumeReading(conn) for conn in sorted(waiting) if not self._is_paused(conn))

    def _is_paused(self, conn: int) -> bool:
        return any(conn in waiting for waiting in self._waiting.values())
