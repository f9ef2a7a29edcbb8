"""Origin numbers of a log, against a naive list of origins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import LimitReached
from tickertape.base.limits import link_origins_max
from tickertape.engine.replication.origins import Origin, Origins
from tickertape.journal.format.replication_records import OriginRecord, decode_record, encode_record, origin

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
NY = Origin(A, "ny-1", "ny", (A, B))


def test_new_origin_gets_number_1_and_a_record() -> None:
    origins = Origins()
    assert origins.number_of(NY) is None
    assert origins.add(NY) == (1, origin(1, A, "ny-1", "ny", [A, B]))
    assert origins[1] == NY
    assert origins.number_of(NY) == 1


@pytest.mark.parametrize("number", [0, 2])
def test_unknown_number_raises_key_error(number: int) -> None:
    origins = Origins([origin(1, A, "ny-1", "ny", [A])])
    with pytest.raises(KeyError):
        origins[number]


def test_new_number_is_above_all_recorded_numbers() -> None:
    origins = Origins([origin(7, A, "ny-1", "ny", [A]), origin(3, B, "ldn-1", "ldn", [B])])
    assert origins.add(NY)[0] == 8
    assert len(origins) == 3


def test_origin_above_the_limit_is_refused_without_effect() -> None:
    origins = Origins([origin(link_origins_max, A, "ny-1", "ny", [A])])
    with pytest.raises(LimitReached, match=r"Cannot replicate messages of 'ny-1'.*65,535"):
        origins.add(NY)
    assert len(origins) == 1
    assert origins.number_of(NY) is None


ORIGINS = st.builds(
    Origin,
    st.sampled_from([A, B]),
    st.sampled_from(["ny-1", "ldn-1"]),
    st.sampled_from(["ny", "ldn"]),
    st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=3).map(tuple),
)


@given(st.lists(ORIGINS, max_size=30), st.integers(0, 30))
def test_numbers_survive_a_restart_at_any_point(seen: list[Origin], restart: int) -> None:
    origins, listed, records = Origins(), list[Origin](), list[OriginRecord]()
    for step, one in enumerate(seen):
        if step == restart:
            origins = Origins(records)
        number = origins.number_of(one)
        if number is None:
            number, record = origins.add(one)
            decoded = decode_record(encode_record(record))
            assert isinstance(decoded, OriginRecord)
            records.append(decoded)
            listed.append(one)
        assert number == listed.index(one) + 1
    assert [origins[number + 1] for number in range(len(origins))] == listed
