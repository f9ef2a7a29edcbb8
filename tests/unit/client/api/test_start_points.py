"""Named start points: their texts, their words and their reprs."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest

import tickertape as tt
from tickertape.base import bookmarks
from tickertape.base.bookmarks import bookmark_text
from tickertape.client.common.subscribe_arguments import make_request, start_text, wire_text

NAMED = [(tt.EPOCH, "EPOCH", "0"), (tt.NOW, "NOW", "0|1|"), (tt.MOST_RECENT, "MOST_RECENT", "recent")]


@pytest.mark.parametrize(("constant", "name", "text"), NAMED)
def test_start_point_constants_show_names_and_equal_the_wire_texts(
    constant: str, name: str, text: str
) -> None:
    assert repr(constant) == f"tickertape.{name}"
    assert constant == text == getattr(bookmarks, name)
    for same in (pickle.loads(pickle.dumps(constant)), copy.deepcopy(constant)):
        assert (same, repr(same)) == (constant, repr(constant))


@pytest.mark.parametrize(("constant", "name", "text"), NAMED)
def test_start_point_constants_become_plain_text_in_requests(constant: str, name: str, text: str) -> None:
    request = make_request("orders", "s", bookmark=constant)
    assert type(request.bookmark) is str, name
    assert msgspec.json.decode(msgspec.json.encode(request.bookmark)) == text


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("epoch", "0"),
        ("EPOCH", "0"),
        ("Now", "0|1|"),
        ("recent", "recent"),
        ("Most_Recent", "recent"),
        ("MOST_RECENT", "recent"),
    ],
)
def test_start_words_are_accepted_in_any_case(word: str, text: str) -> None:
    assert bookmark_text(word) == start_text(word) == text
    assert wire_text(word) == ("0" if text == "recent" else text)


def test_unknown_words_as_start_points_raise() -> None:
    with pytest.raises(tt.BadBookmark):
        start_text("yesterday")
