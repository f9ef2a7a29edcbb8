"""Delay strategies: how the waits grow, when they end, and the checks for others."""

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


def test_a_fixed_delay_is_the_same_each_time() -> None:
    strategy = tt.FixedDelayStrategy("500ms")
    assert waits(strategy, 3, chance=0.9) == [0.5, 0.5, 0.5]


def test_a_fixed_delay_may_begin_with_another_wait_and_does_so_again_after_a_reset() -> None:
    strategy = tt.FixedDelayStrategy(2, initial=0)
    assert waits(strategy, 3) == [0.0, 2.0, 2.0]
    strategy.reset()
    assert waits(strategy, 2) == [0.0, 2.0]


def test_an_exponential_delay_grows_up_to_its_maximum() -> None:
    strategy = tt.ExponentialDelayStrategy(initial=0.2, factor=1.5, maximum=1, jitter=0)
    assert waits(strategy, 6, chance=0.9) == pytest.approx([0.2, 0.3, 0.45, 0.675, 1.0, 1.0])
    strategy.reset()
    assert waits(strategy, 2) == pytest.approx([0.2, 0.3])


def test_jitter_lengthens_each_wait_by_a_part_of_the_first_one() -> None:
    strategy = tt.ExponentialDelayStrategy(initial=1, factor=2, maximum=4, jitter=0.5)
    found = [strategy.next_delay(URI, 0.0, chance) for chance in (0.0, 0.5, 0.9, 0.9)]
    assert found == pytest.approx([1.0, 2.25, 4.45, 4.45])


def test_by_default_an_exponential_delay_begins_with_200_ms_doubles_and_never_gives_up() -> None:
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
def test_the_limit_cuts_the_last_wait_ends_it_and_begins_afresh_after_a_logon(
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
        (lambda: tt.FixedDelayStrategy(-1), "Invalid interval -1"),
        (lambda: tt.FixedDelayStrategy("soon"), "Invalid interval 'soon'"),
        (lambda: tt.FixedDelayStrategy("2d"), "at most"),
        (lambda: tt.FixedDelayStrategy(1, initial=float("inf")), "Invalid interval inf"),
        (lambda: tt.ExponentialDelayStrategy(factor=0.5), "factor"),
        (lambda: tt.ExponentialDelayStrategy(factor="2"), "factor"),  # type: ignore[arg-type]
        (lambda: tt.ExponentialDelayStrategy(jitter=float("nan")), "jitter"),
        (lambda: delay_strategy(object()), "DelayStrategy"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_delay_is_refused(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(tt.BadOption, match=says):
        make()


def test_a_number_or_text_is_a_fixed_delay_and_none_an_exponential_one() -> None:
    assert waits(delay_strategy(2), 2) == [2, 2]
    assert waits(delay_strategy("2s"), 2) == [2, 2]
    assert waits(delay_strategy(None), 2) == [0.2, 0.4]
    own = tt.FixedDelayStrategy(1)
    assert delay_strategy(own) is own


def test_both_strategies_pass_the_checks() -> None:
    check_delay_strategy(lambda: tt.FixedDelayStrategy(1))
    check_delay_strategy(lambda: tt.FixedDelayStrategy(1, initial=0, give_up_after="3h"), gives_up=True)
    check_delay_strategy(tt.ExponentialDelayStrategy)
    check_delay_strategy(lambda: tt.ExponentialDelayStrategy(give_up_after="1d"), gives_up=True)


class Tiring(tt.FixedDelayStrategy):
    """Forgets to begin afresh."""

    def __init__(self) -> None:
        super().__init__(1, initial=0)

    def reset(self) -> None:
        """Nothing."""


class Negative(tt.FixedDelayStrategy):
    """Waits for what has been."""

    def next_delay(self, uri: str, mono: float, chance: float) -> float | None:
        return -1.0


def test_the_checks_find_what_is_wrong() -> None:
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
