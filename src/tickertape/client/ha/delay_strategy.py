"""Delay strategies: how long to wait before a connection attempt.

A strategy reads no clock and draws no number: the time and the chance are arguments.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from tickertape.base.errors import BadOption
from tickertape.base.units import parse_interval
from tickertape.client.limits import reconnect_delay_seconds_max

DELAY_SECONDS_FIRST: Final = 0.2
"""First wait of an `ExponentialDelayStrategy`."""
DELAY_FACTOR: Final = 2.0
"""By what its wait grows with each failure."""
DELAY_SECONDS_MAX: Final = 20.0
"""Longest wait, without jitter."""


@runtime_checkable
class DelayStrategy(Protocol):
    """Says how long an HA client waits before an attempt. A strategy serves one client at a time.

    It is asked before each attempt but the first of `connect_and_logon`, behind which there is no failure;
    one call at a time, never under a lock of the client. It must not call the client. What it raises ends the
    connecting, as giving up does.
    """

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
        """Seconds to wait before connecting to `uri`, None to give up.

        `mono`: this moment, in seconds of a clock that never goes back. `chance`: a number of 0 <= chance < 1
        drawn for this call.
        """

    def reset(self) -> None:
        """The client is logged on: begin afresh."""


class _Limited:
    """The time limit that both strategies have. It runs from the first time they are asked."""

    def __init__(self, give_up_after: float | str | None) -> None:
        self._seconds = None if give_up_after is None else _seconds("give_up_after", give_up_after)
        self._since: float | None = None

    def cut(self, delay: float, mono: float) -> float | None:
        """`delay`, or what is left until the limit; None when nothing is."""
        if self._seconds is None:
            return delay
        if self._since is None:
            self._since = mono
        left = self._since + self._seconds - mono
        return None if left <= 0 else min(delay, left)

    def reset(self) -> None:
        """It runs from the next time on."""
        self._since = None


class FixedDelayStrategy:
    """The same wait before each attempt.

    `delay`: seconds or text. `initial`: the wait before the first attempt after a connection was lost or
    `connect_and_logon` failed; None (default) = `delay`. `give_up_after`: no attempt begins when it has been
    tried for so long, in seconds or text; None (default) = never give up. Raises `BadOption`.
    """

    def __init__(
        self,
        delay: float | str = DELAY_SECONDS_FIRST,
        *,
        initial: float | str | None = None,
        give_up_after: float | str | None = None,
    ) -> None:
        self._delay = _seconds("delay", delay)
        self._initial = self._delay if initial is None else _seconds("initial", initial)
        self._limit = _Limited(give_up_after)
        self._first = True

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:  # noqa: ARG002
        """The wait, or what is left of the time; None when none is."""
        delay = self._initial if self._first else self._delay
        self._first = False
        return self._limit.cut(delay, mono)

    def reset(self) -> None:
        """Begin with `initial` again, and with all of the time."""
        self._first = True
        self._limit.reset()


class ExponentialDelayStrategy:
    """A wait that grows with each failure, with some chance in it: clients do not come back all at once.

    The waits are `initial`, `initial * factor`, `initial * factor ** 2`, ... up to `maximum`, each longer by
    up to `jitter * initial`. `initial`, `maximum`: seconds or text. `factor`: at least 1. `give_up_after`: no
    attempt begins when it has been tried for so long, in seconds or text; None (default) = never give up.
    Raises `BadOption`.
    """

    def __init__(
        self,
        initial: float | str = DELAY_SECONDS_FIRST,
        factor: float = DELAY_FACTOR,
        maximum: float | str = DELAY_SECONDS_MAX,
        jitter: float = 1.0,
        give_up_after: float | str | None = None,
    ) -> None:
        self._initial = _seconds("initial", initial)
        self._factor = _number("factor", factor, 1.0)
        self._maximum = _seconds("maximum", maximum)
        self._jitter = _number("jitter", jitter, 0.0)
        self._limit = _Limited(give_up_after)
        self._delay = min(self._initial, self._maximum)

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:  # noqa: ARG002
        """The wait, or what is left of the time; None when none is."""
        delay = self._delay
        self._delay = min(delay * self._factor, self._maximum)
        return self._limit.cut(delay + chance * self._jitter * self._initial, mono)

    def reset(self) -> None:
        """Begin with `initial` again, and with all of the time."""
        self._delay = min(self._initial, self._maximum)
        self._limit.reset()


def delay_strategy(delay: float | str | DelayStrategy | None) -> DelayStrategy:
    """The strategy that `delay` means: itself, a number or text as a fixed one, None as an exponential one.

    Raises `BadOption`.
    """
    if delay is None:
        return ExponentialDelayStrategy()
    if isinstance(delay, bool | int | float | str):
        return FixedDelayStrategy(delay)
    if isinstance(delay, DelayStrategy):
        return delay
    raise BadOption(f"reconnect_delay is seconds, text or a DelayStrategy, not {type(delay).__name__}")


def _seconds(name: str, value: float | str) -> float:
    seconds = parse_interval(value)
    if seconds > reconnect_delay_seconds_max:
        raise BadOption(f"{name}={value!r}: at most {reconnect_delay_seconds_max:,} seconds")
    return seconds


def _number(name: str, value: float, least: float) -> float:
    number: object = value
    if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < float("inf"):
        raise BadOption(f"{name}={value!r}: a number of at least {least:g}")
    return float(number)
