"""Rows of notices: places and holes."""

from __future__ import annotations

import struct

import pytest

from tickertape.base.bookmarks import Bookmark, is_place, place_at, position_of_place
from tickertape.base.errors import BadCommand
from tickertape.wire.link_rows import (
    OpenHoles,
    decode_notice_places,
    decode_open_holes,
    encode_notice_places,
    encode_open_holes,
)


def test_places_are_bookmarks_above_all_messages() -> None:
    place = place_at(5, 77)
    assert is_place(place)
    assert position_of_place(place) == 77
    assert not is_place(Bookmark(5, 2**64 - 2**48))
    assert decode_notice_places(encode_notice_places([place, place_at(6, 0)])) == [place, place_at(6, 0)]


@pytest.mark.parametrize("data", [b"1234", struct.pack("<QQ", 5, 77)])
def test_places_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(BadCommand, match="Invalid notice from the server"):
        decode_notice_places(data)


def test_encoded_holes_of_publishers_are_decoded_unchanged() -> None:
    found = [
        OpenHoles(1, 11, ((4, 4), (8, 9))),
        OpenHoles(2, 5, ()),
        OpenHoles(3, 2**64 - 1, ((1, 2**64 - 1),)),
    ]
    assert decode_open_holes(encode_open_holes(found)) == found
    assert decode_open_holes(b"") == []


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 3, 4)],  # no row starts the publisher
        [(1, 9, 9), (2, 3, 4)],
        [(1, 9, 9), (1, 5, 7), (1, 6, 8)],
        [(1, 9, 9), (1, 5, 4)],
        [(1, 9, 9), (1, 8, 10)],
    ],
)
def test_holes_out_of_order_are_refused(rows: list[tuple[int, int, int]]) -> None:
    with pytest.raises(BadCommand, match="out of order"):
        decode_open_holes(b"".join([struct.pack("<QQQ", *row) for row in rows]))


def test_incomplete_rows_of_holes_are_refused() -> None:
    with pytest.raises(BadCommand, match="not whole rows"):
        decode_open_holes(b"\0" * 23)
