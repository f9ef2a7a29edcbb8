"""Delay strategies: growth and end of delays, and the checks for user strategies."""

from __future__ import annotations

import pytest

import tickertape as tt
from tickertape.client.ha.delay_strategy import delay_strategy
from tickertape.testing import check_delay_strategy

URI = "tcp://127.0.0.1:1"


def waits(
    strategy: tt.DelayStrategy, count: int, *, mono: float = 100.0, chance: float = 0.0
) -> list[object]:
    return [strategy.next_delay(URI, mono, chance) for _ in range(count)]


def test_fixed_delay_is_the_same_each_time() -> None:
    strategy = tt.FixedDelayStrategy("500ms")
    assert waits(strategy, 3, chance=0.9) == [0.5, 0.5, 0.5]


def test_fixed_delay_with_initial_delay_uses_the_initial_delay_after_reset() -> None:
    strategy = tt.FixedDelayStrategy(2, initial=0)
    assert waits(strategy, 3) == [0.0, 2.0, 2.0]
    strategy.reset()
    assert waits(strategy, 2) == [0.0, 2.0]


def test_exponential_delay_grows_up_to_the_maximum() -> None:
    strategy = tt.ExponentialDelayStrategy(initial=0.2, factor=1.5, maximum=1, jitter=0)
    assert waits(strategy, 6, chance=0.9) == pytest.approx([0.2, 0.3, 0.45, 0.675, 1.0, 1.0])
    strategy.reset()
    assert waits(strategy, 2) == pytest.approx([0.2, 0.3])


def test_jitter_adds_a_fraction_of_the_initial_delay() -> None:
    strategy = tt.ExponentialDelayStrategy(initial=1, factor=2, maximum=4, jitter=0.5)
    found = [strategy.next_delay(URI, 0.0, chance) for chance in (0.0, 0.5, 0.9, 0.9)]
    assert found == pytest.approx([1.0, 2.25, 4.45, 4.45])


def test_exponential_delay_by_default_doubles_from_200_ms_without_end() -> None:
    strategy = tt.ExponentialDelayStrategy()
    found = [strategy.next_delay(URI, 1e6 * number, 0.0) for number in range(9)]
    assert found == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0, 20.0])


@pytest.mark.behaviour(24)
@pytest.mark.parametrize(
    "strategy",
    [
        tt.FixedDelayStrategy(4, give_up_after=10),
        tt.ExponentialDelayStrategy(initial=4, factor=1, jitter=0, give_up_after="10s"),
    ],
    ids=["fixed", "exponential"],
)
def test_give_up_after_shortens_the_last_delay_and_restarts_after_reset(
    strategy: tt.DelayStrategy,
) -> None:
    for begin in (100.0, 5_000.0):
        assert strategy.next_delay(URI, begin, 0.0) == 4
        assert strategy.next_delay(URI, begin + 5, 0.0) == 4
        assert strategy.next_delay(URI, begin + 9, 0.0) == 1
        assert strategy.next_delay(URI, begin + 10, 0.0) is None
        assert strategy.next_delay(URI, begin + 11, 0.0) is None
        strategy.reset()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tt.FixedDelayStrategy(-1), "Invalid interval '-1'"),
        (lambda: tt.FixedDelayStrategy("soon"), "Invalid interval 'soon'"),
        (lambda: tt.FixedDelayStrategy("2d"), "at most"),
        (lambda: tt.FixedDelayStrategy(1, initial=float("inf")), "Invalid interval 'inf'"),
        (lambda: tt.ExponentialDelayStrategy(factor=0.5), "factor"),
        (lambda: tt.ExponentialDelayStrategy(factor="2"), "factor"),  # type: ignore[arg-type]
        (lambda: tt.ExponentialDelayStrategy(jitter=float("nan")), "jitter"),
        (lambda: delay_strategy(object()), "DelayStrategy"),  # type: ignore[arg-type]
    ],
)
def test_delay_strategy_with_invalid_arguments_raises(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(tt.BadOption, match=says):
        make()


def test_delay_from_number_or_text_is_fixed_and_default_is_exponential() -> None:
    assert waits(delay_strategy(2), 2) == [2, 2]
    assert waits(delay_strategy("2s"), 2) == [2, 2]
    assert waits(delay_strategy(None), 2) == [0.2, 0.4]
    own = tt.FixedDelayStrategy(1)
    assert delay_strategy(own) is own


def test_delay_strategies_pass_check_delay_strategy() -> None:
    check_delay_strategy(lambda: tt.FixedDelayStrategy(1))
    check_delay_strategy(lambda: tt.FixedDelayStrategy(1, initial=0, give_up_after="3h"), gives_up=True)
    check_delay_strategy(tt.ExponentialDelayStrategy)
    check_delay_strategy(lambda: tt.ExponentialDelayStrategy(give_up_after="1d"), gives_up=True)


class Tiring(tt.FixedDelayStrategy):
    """Ignores `reset`."""

    def __init__(self) -> None:
        super().__init__(1, initial=0)

    def reset(self) -> None:
        """Do nothing."""


class Negative(tt.FixedDelayStrategy):
    """Returns a negative delay."""

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
        return -1.0


def test_check_delay_strategy_rejects_broken_strategies() -> None:
    with pytest.raises(AssertionError, match="start again after a reset"):
        check_delay_strategy(Tiring)
    with pytest.raises(AssertionError, match="not a number of seconds"):
        check_delay_strategy(Negative)
    with pytest.raises(AssertionError, match="never gives up"):
        check_delay_strategy(tt.FixedDelayStrategy, gives_up=True)
    with pytest.raises(AssertionError, match="it gives up"):
        check_delay_strategy(lambda: tt.FixedDelayStrategy(1, give_up_after=1))
    with pytest.raises(AssertionError, match="lacks methods"):
        check_delay_strategy(object)  # type: ignore[arg-type]
