"""Owns how a blocking client takes steps of the settling machine, and the thread that sends in time what is
gathered: the receive thread may be busy with a handler for longer than a lease lasts.

Must never decide what is sent or when: that is the machine's (`settler.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from tickertape.base.queue_limits import acknowledger_idle_seconds
from tickertape.client.api.queue_calls import QueueCalls
from tickertape.client.blocking.driver_steps import PublishSteps
from tickertape.client.blocking.timer_thread import TimerThread
from tickertape.client.common.effects import Effect
from tickertape.client.common.waiting import now


class QueueSteps(PublishSteps, QueueCalls[None]):
    """The half of `Client` that settles messages of queues. Any thread may call it."""

    _acknowledger: TimerThread | None = None
    _looks_at = inf
    """When that thread looks again, monotonic seconds."""
    _idle = False

    def _settle_now(self, step: Callable[[], None]) -> None:
        self._step(_without_sequence, step)
        deadline = self._core.settler.next_deadline()
        if deadline is not None and deadline < self._looks_at:
            self._keep_acknowledging(deadline)

    def _choose(self, step: Callable[[], None]) -> None:
        self._settle_now(step)
        self._settle_now(self._core.settler.flush)

    def _settle_call(self, step: Callable[[], None]) -> None:
        self._settle_now(step)

    def _keep_acknowledging(self, deadline: float) -> None:
        """See to it that somebody looks at `deadline`."""
        with self._lock:
            self._looks_at = min(deadline, self._looks_at)
            acknowledger = self._acknowledger
            if acknowledger is None:
                name = f"tickertape acknowledgements {self._core.name}"
                self._acknowledger = TimerThread(self._look_at_settlements, name)
                self._acknowledger.start()
            else:
                acknowledger.changed()

    def _look_at_settlements(self) -> float | None:
        """On the thread for it: send what is due; when to look again."""
        later: Sequence[Effect] = ()
        with self._lock:
            link, moment = self._link, now()
            deadline = self._core.settler.next_deadline()
            if deadline is not None and deadline <= moment.mono:
                self._core.wake(moment)
                later = self._sends()
                deadline = self._core.settler.next_deadline()
            over = link is None or (deadline is None and self._idle)
            self._idle = deadline is None
            at = moment.mono + acknowledger_idle_seconds if deadline is None else deadline
            self._looks_at = inf if over else at
            if over:
                self._acknowledger = None
        self._carry_out(link, later)
        return None if over else at


def _without_sequence(step: Callable[[], None]) -> None:
    step()
