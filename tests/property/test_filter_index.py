"""Filter index against single filters: equal matches while filters are added and removed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.index_filters import index_filter, odd_body
from tickertape.base.errors import BadFilter
from tickertape.filter import Filter, FilterInputs, compile_filter
from tickertape.filter.index import columns, predicates, search
from tickertape.filter.index import filter_index as index_module
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.limits import index_cells_max
from tickertape.payload import message_type


def _agree(index: FilterIndex[int], have: dict[int, Filter], bodies: list[bytes], topics: list[str]) -> None:
    expected = {}
    unreadable = set()
    for key, one in have.items():
        hits = []
        for at, body in enumerate(bodies):
            before = one.unreadable
            if one.matches(body, FilterInputs(topics=topics[at : at + 1])):
                hits.append(at)
            if one.unreadable > before:
                unreadable.add(at)
        if hits:
            expected[key] = hits
    matches = index.match(bodies, FilterInputs(topics=topics))
    found = {key: indices.tolist() for key, indices in matches}
    assert found == expected, [
        (have[key].text, [bodies[at] for at in {*found.get(key, []), *expected.get(key, [])}])
        for key in have
        if found.get(key) != expected.get(key)
    ]
    assert matches.unreadable == len(unreadable)


def _live(seed: int, kind: str) -> None:
    rng = Random(seed)
    index: FilterIndex[int] = FilterIndex(message_type(kind))
    have: dict[int, Filter] = {}
    for step in range(3):
        for number in range(rng.choice((1, 4, 12))):
            try:
                one = compile_filter(index_filter(rng, flat=kind == "nvfix"), index.type)
            except BadFilter:
                continue  # too many parts that read whole texts
            have[step * 100 + number] = one
            index.add(step * 100 + number, one)
        for key in [key for key in have if rng.random() < 0.3]:
            index.discard(key)
            del have[key]
        bodies = [odd_body(rng, kind) for _ in range(rng.choice((1, 6)))]
        _agree(index, have, bodies, [rng.choice("tu") for _ in bodies])
    assert len(index) == len(have)


@pytest.mark.parametrize("kind", ["json", "messagepack", "nvfix"])
@given(seed=st.integers(0, 2**32))
def test_filter_index_matches_like_single_filters(kind: str, seed: int) -> None:
    _live(seed, kind)


def test_filter_index_with_a_tiny_cache_matches_like_single_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "index_cells_max", 64)
    monkeypatch.setattr(predicates, "index_piece_messages_max", 8)
    assert index_cells_max > 64
    for seed in range(25):
        _live(seed, "json")


@pytest.mark.parametrize("paths", [0, 2, 4])
def test_filter_index_with_fewer_fields_than_the_filters_matches_like_single_filters(
    paths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "index_paths_max", paths)
    monkeypatch.setattr(search, "index_values_max", 6)
    for seed in range(5):
        _live(seed, "json")


@pytest.mark.parametrize("kind", ["json", "messagepack", "nvfix"])
def test_filter_index_with_small_readers_matches_like_single_filters(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "paths_per_reader_max", 2)
    for seed in range(5):
        _live(seed, kind)
