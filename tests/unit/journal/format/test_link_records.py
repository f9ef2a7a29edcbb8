"""Link records: golden files, refused bodies, and the newest places from records in reverse order.

`TICKERTAPE_GOLDEN=write` regenerates the files.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import link_places_max
from tickertape.journal.format.link_records import (
    LinkRecord,
    NewestPlaces,
    decode_link,
    encode_link,
    link_record_bytes_max,
)
from tickertape.journal.format.replication_records import LogPlace

GOLDEN = Path(__file__).parents[3] / "golden"
A, B = bytes(range(16)), b"\xff" * 16
FILES = {
    "place-record": LinkRecord(A, 2**64 - 1, 1000),
    "place-record-all": LinkRecord(
        B, 8, 2**40, [LogPlace(A, 5, 70), LogPlace(A, 2**64 - 1, 1000), LogPlace(B, 8, 2**40)]
    ),
}


@pytest.mark.parametrize("name", list(FILES))
def test_link_record_equals_the_golden_file(name: str) -> None:
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("TICKERTAPE_GOLDEN") == "write":
        path.write_bytes(encode_link(FILES[name]))
    assert encode_link(FILES[name]) == path.read_bytes()
    assert decode_link(path.read_bytes()) == FILES[name]


def test_golden_link_record_matches_the_format_document() -> None:
    fields = [A, 2**64 - 1, 1000, None]
    assert msgspec.msgpack.decode((GOLDEN / "place-record.bin").read_bytes()) == fields
    found = msgspec.msgpack.decode((GOLDEN / "place-record-all.bin").read_bytes())
    assert found == [B, 8, 2**40, [[A, 5, 70], [A, 2**64 - 1, 1000], [B, 8, 2**40]]]


def test_link_record_with_further_fields_is_read() -> None:
    body = msgspec.msgpack.encode([A, 5, 70, None, "later"])
    assert decode_link(body) == LinkRecord(A, 5, 70)
    assert decode_link(msgspec.msgpack.encode([A, 5, 70])) == LinkRecord(A, 5, 70)


REFUSED: dict[str, object] = {
    "map": {"log": A},
    "short id": [A[:15], 5, 70, None],
    "negative position": [A, 5, -1, None],
    "no position": [A, 5],
    "short place": [A, 5, 70, [[A, 5]]],
    "text": "link",
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_invalid_link_record_is_refused(case: str) -> None:
    with pytest.raises(JournalCorrupt, match="invalid link record"):
        decode_link(msgspec.msgpack.encode(REFUSED[case]))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 4_096, 70_000])
def test_largest_link_record_has_the_documented_size(count: int) -> None:
    place = LogPlace(B, 2**64 - 1, 2**64 - 1)
    size = len(encode_link(LinkRecord(*place, places=[place] * count)))
    assert 0 <= link_record_bytes_max(count) - size <= 4


def test_cut_link_record_is_refused() -> None:
    for record in FILES.values():
        body = encode_link(record)
        for end in range(len(body)):
            with pytest.raises(JournalCorrupt, match="invalid link record"):
                decode_link(body[:end])


def naive(places: list[LogPlace], most: int = link_places_max) -> list[LogPlace]:
    """Return the newest places, one place after the other."""
    found: list[LogPlace] = []
    for place in places:
        found = [one for one in found if (one.log, one.start) != (place.log, place.start)]
        found.append(place)
        own = [one for one in found if one.log == place.log]
        if len(own) > most:
            found.remove(own[0])
    return found


PLACES = st.lists(st.builds(LogPlace, st.sampled_from([A, B]), st.integers(1, 80), st.integers(0, 9)))


@given(PLACES, PLACES, st.integers(1, 70))
def test_newest_places_equal_a_fold_in_the_order_of_the_log(
    earlier: list[LogPlace], later: list[LogPlace], count: int
) -> None:
    many = [LogPlace(A, start, 5) for start in range(count)]
    newest = NewestPlaces()
    for place in reversed(later):
        newest.add_earlier(place)
    newest.add_all_earlier([*earlier, *many])
    assert newest.in_order() == naive([*earlier, *many, *later])
