"""Delay strategies (back-off): the wait before a connection attempt.

A strategy reads no clock and draws no random number. Both are arguments.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from tickertape.base.errors import BadOption
from tickertape.base.text_format import wrong_type
from tickertape.base.units import parse_interval
from tickertape.client.limits import reconnect_delay_seconds_max

DELAY_SECONDS_FIRST: Final = 0.2
"""First wait of an `ExponentialDelayStrategy`, in seconds."""
DELAY_FACTOR: Final = 2.0
"""Factor by which the wait grows with each failure."""
DELAY_SECONDS_MAX: Final = 20.0
"""Longest wait without jitter, in seconds."""


@runtime_checkable
class DelayStrategy(Protocol):
    """Determines the wait of an HA client before a connection attempt.

    A strategy serves one client at a time. The client calls `next_delay` before each attempt, except the
    first one of each `connect_and_logon`. Calls are sequential, and the client holds no lock during a call. A
    strategy must not call the client. If `next_delay` raises or returns None, the client stops connecting. An
    exception of `reset` goes to the exception listener and has no other effect.
    """

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
        """Return the seconds to wait before connecting to `uri`, or None to give up.

        `mono` is the current time of a monotonic clock in seconds. `chance` is a random number
        (0 <= chance < 1), a new one for each call.
        """

    def reset(self) -> None:
        """Forget earlier failures.

        The client calls this when `connect_and_logon` starts, and after each successful logon.
        """


class _Limited:
    """Time limit of both strategies. It runs from the first call on."""

    def __init__(self, give_up_after: float | str | None) -> None:
        self._seconds = None if give_up_after is None else _seconds("give_up_after", give_up_after)
        self._since: float | None = None

    def cut(self, delay: float, mono: float) -> float | None:
        """Return `delay` or the shorter remaining time, or None after the limit."""
        if self._seconds is None:
            return delay
        if self._since is None:
            self._since = mono
        left = self._since + self._seconds - mono
        return None if left <= 0 else min(delay, left)

    def reset(self) -> None:
        """Restart the limit at the next call."""
        self._since = None


class FixedDelayStrategy:
    """Delay strategy with a fixed wait between connection attempts, for `reconnect_delay` of an HA client.

    Args:
        delay: Wait in seconds, or text such as `"500ms"`, at most 1 day. Default 0.2 s. The client waits at
            least 50 ms before it retries a server that failed.
        initial: Wait before the first attempt after a lost connection, and before the second attempt of
            `connect_and_logon`. Default `delay`.
        give_up_after: Longest time to keep trying, in seconds or text. It starts with the lost connection or
            the first failed attempt. Default None (never give up).

    Raises:
        BadOption: A value is invalid.

    Example:
        >>> delays = tt.FixedDelayStrategy("500ms", give_up_after="10m")
        >>> client = tt.HAClient("risk", servers=[uri], reconnect_delay=delays)
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
        """Return the seconds to wait, or None when the time of `give_up_after` is over."""
        delay = self._initial if self._first else self._delay
        self._first = False
        return self._limit.cut(delay, mono)

    def reset(self) -> None:
        """Start with `initial` again, and restart the time limit."""
        self._first = True
        self._limit.reset()


class ExponentialDelayStrategy:
    """Delay strategy with a wait that grows with each failure, for `reconnect_delay` of an HA client.

    The waits are `initial`, `initial * factor`, `initial * factor ** 2`, ... up to `maximum`, each plus a
    random jitter of up to `jitter * initial`. The jitter prevents many clients from reconnecting at the same
    time.

    Args:
        initial: First wait in seconds, or text such as `"500ms"`. Default 0.2 s.
        factor: Growth per failure, at least 1. Default 2.
        maximum: Longest wait without jitter, in seconds or text. Default 20 s.
        jitter: Largest jitter as a multiple of `initial`, at least 0. Default 1.
        give_up_after: Longest time to keep trying, in seconds or text. It starts with the lost connection or
            the first failed attempt. Default None (never give up).

    Raises:
        BadOption: A value is invalid.

    Example:
        >>> delays = tt.ExponentialDelayStrategy(maximum="1m")
        >>> client = tt.HAClient("risk", servers=[uri], reconnect_delay=delays)
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
        """Return the seconds to wait, or None when the time of `give_up_after` is over."""
        delay = self._delay
        self._delay = min(delay * self._factor, self._maximum)
        return self._limit.cut(delay + chance * self._jitter * self._initial, mono)

    def reset(self) -> None:
        """Start with `initial` again, and restart the time limit."""
        self._delay = min(self._initial, self._maximum)
        self._limit.reset()


def delay_strategy(delay: float | str | DelayStrategy | None) -> DelayStrategy:
    """Return the strategy for `delay`: itself, a fixed one for a number or text, an exponential one for None.

    Raises `BadOption`.
    """
    if delay is None:
        return ExponentialDelayStrategy()
    if isinstance(delay, bool | int | float | str):
        return FixedDelayStrategy(delay)
    if isinstance(delay, DelayStrategy):
        return delay
    raise BadOption(wrong_type("reconnect_delay", delay, "seconds, text or a DelayStrategy"))


def _seconds(name: str, value: float | str) -> float:
    seconds = parse_interval(value)
    if seconds > reconnect_delay_seconds_max:
        raise BadOption(f"Invalid {name} {value!r}. Use at most {reconnect_delay_seconds_max:,} seconds.")
    return seconds


def _number(name: str, value: float, least: float) -> float:
    number: object = value
    if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < float("inf"):
        raise BadOption(f"Invalid {name} {value!r}. Use a finite number of at least {least:g}.")
    return float(number)
