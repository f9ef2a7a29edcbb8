"""Numbers of positions as sets of bits, against a dictionary."""

from __future__ import annotations

from random import Random
from typing import NoReturn

import numpy as np
import pytest
from pyroaring import BitMap64

from tickertape.engine.queues.state.bit_sliced_index import BitSlices, below, first_of, first_places


def filled(random: Random, bits: int) -> tuple[BitSlices, dict[int, int]]:
    plain = {position: random.randrange(1 << bits) for position in random.sample(range(5_000), 600)}
    slices = BitSlices()
    for position, number in [*plain.items()][:300]:
        slices.put(BitMap64([position]), number)
    others = sorted([*plain.items()][300:])
    slices.put_each(np.array([at for at, _ in others]), np.array([number for _, number in others], np.uint64))
    return slices, plain


@pytest.mark.parametrize("bits", [1, 3, 20, 64])
def test_bit_slices_match_a_dictionary(bits: int) -> None:
    random = Random(bits)
    slices, plain = filled(random, bits)
    positions = BitMap64(plain)
    assert [slices.of(at) for at in plain] == [*plain.values()]
    assert slices.numbers(positions).tolist() == [plain[at] for at in sorted(plain)]
    assert set(slices.positions()) == {at for at, number in plain.items() if number}
    ranked = sorted(plain, key=lambda at: (-plain[at], at))
    assert slices.highest_first(positions).tolist() == ranked
    for count in (0, 1, 17, 599, 600, 700):
        assert set(slices.highest(positions, count)) == set(ranked[:count])
    for least in (0, 1, plain[ranked[100]], (1 << bits) - 1, 1 << bits):
        assert set(slices.at_least(positions, least)) == {at for at in plain if plain[at] >= least}


def test_bit_slices_incremented_one_by_one_match_a_dictionary() -> None:
    random = Random(7)
    slices, plain = BitSlices(), dict.fromkeys(range(200), 0)
    for _ in range(60):
        some = random.sample(range(200), 50)
        slices.add_one(BitMap64(some))
        for at in some:
            plain[at] += 1
    assert [slices.of(at) for at in plain] == [*plain.values()]
    slices.forget(BitMap64(range(100)))
    assert slices.numbers(BitMap64(range(200))).tolist() == [0] * 100 + [plain[at] for at in range(100, 200)]
    slices.keep(BitMap64(range(150)))
    assert set(slices.positions()) == set(range(100, 150))
    slices.forget(BitMap64(range(200)))
    assert not slices
    assert not slices.slices


def test_add_one_does_not_change_the_given_set() -> None:
    slices, positions = BitSlices(), BitMap64([1, 2])
    slices.add_one(positions)
    slices.add_one(BitMap64([1]))
    assert positions == BitMap64([1, 2])


def test_first_positions_and_limits_match_the_sorted_set() -> None:
    positions = BitMap64([3, 5, 1 << 40])
    assert [list(first_of(positions, count)) for count in (0, 1, 3, 9)] == [
        [],
        [3],
        [3, 5, 1 << 40],
        [3, 5, 1 << 40],
    ]
    assert first_places(positions, 2).tolist() == [3, 5]
    assert [list(below(positions, limit)) for limit in (0, 4, 1 << 40, 1 << 50)] == [
        [],
        [3],
        [3, 5],
        [3, 5, 1 << 40],
    ]
    assert list(positions) == [3, 5, 1 << 40]


class Uncopied(BitMap64):
    """A set that refuses copies, which take time for all of it."""

    def copy(self) -> NoReturn:
        raise AssertionError("all of it was copied")


@pytest.mark.parametrize("count", [0, 1, 3, 4_096])
def test_a_few_of_many_positions_are_found_without_a_copy_of_all(count: int) -> None:
    many = Uncopied(range(0, 20_000, 2))
    assert list(first_of(many, count)) == [*range(0, 2 * count, 2)]
    assert list(below(many, 2 * count)) == [*range(0, 2 * count, 2)]


def test_large_parts_of_many_positions_are_found() -> None:
    many = BitMap64(range(0, 20_000, 2))
    for count in (4_097, 9_999, 10_000, 10_001):
        assert list(first_of(many, count)) == [*range(0, 20_000, 2)][:count]
        assert list(below(many, 2 * count)) == [*range(0, 20_000, 2)][:count]
