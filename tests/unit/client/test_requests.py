"""What an application may ask of a subscription."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tickertape.base.bookmarks import EPOCH, MOST_RECENT
from tickertape.base.errors import BadBookmark, BadOption, BadTopic
from tickertape.client.requests import make_request, refuse_not_built, start_text


@pytest.mark.parametrize(
    "name",
    ["filter", "rate", "rate_max_gap", "conflation", "conflation_key", "select"],
)
def test_what_is_not_built_yet_raises(name: str) -> None:
    with pytest.raises(BadOption, match=f"{name} is not built yet"):
        refuse_not_built({name: "/x > 1"})
    with pytest.raises(BadOption, match=f"option {name} is not built yet"):
        make_request("orders", "s", bookmark="0", options=f"{name}=1")


def test_flags_left_at_their_default_are_not_asked_for() -> None:
    refuse_not_built({"pause": False, "live": False, "rate": None})
    with pytest.raises(BadOption, match="pause"):
        refuse_not_built({"pause": True})


def test_an_option_that_does_not_exist_raises() -> None:
    with pytest.raises(BadOption, match="option colour does not exist"):
        make_request("orders", "s", options="colour=red")


def test_a_plain_subscription_asks_for_nothing() -> None:
    request = make_request("orders", "s")
    assert (request.options, request.bookmark, request.until_caught_up) == ("", None, False)
    assert not request.context.with_bookmark


def test_a_client_asks_for_fail_unless_told_otherwise() -> None:
    assert make_request("orders", "s", bookmark=EPOCH).options == "bookmark,bookmark_not_found=fail"
    request = make_request("orders", "s", bookmark=EPOCH, bookmark_not_found="now")
    assert request.options == "bookmark,bookmark_not_found=now"
    request = make_request("orders", "s", bookmark=EPOCH, options="bookmark_not_found = epoch, timestamp,")
    assert request.options == "bookmark,timestamp,bookmark_not_found=epoch"
    assert request.context.with_timestamp


def test_bookmark_not_found_is_checked() -> None:
    with pytest.raises(BadOption, match="'later'"):
        make_request("orders", "s", bookmark=EPOCH, bookmark_not_found="later")
    with pytest.raises(BadOption, match="needs a bookmark"):
        make_request("orders", "s", options="bookmark_not_found=now")


def test_flags_take_no_value() -> None:
    with pytest.raises(BadOption, match="timestamp takes no value"):
        make_request("orders", "s", options="timestamp=yes")


def test_exact_02_a_naive_datetime_is_utc_and_an_aware_one_is_converted() -> None:
    naive = datetime(2026, 11, 20, 9)  # noqa: DTZ001 - what is tested
    assert start_text(naive) == start_text(naive.replace(tzinfo=UTC))
    east = datetime(2026, 11, 20, 10, tzinfo=timezone(timedelta(hours=1)))
    assert start_text(east) == start_text(naive)
    assert start_text(naive).startswith("20261120T090000")


def test_exact_25_most_recent_never_goes_on_the_wire() -> None:
    assert make_request("orders", "s", bookmark=MOST_RECENT).bookmark == EPOCH


def test_a_malformed_start_is_refused_here() -> None:
    with pytest.raises(BadBookmark):
        make_request("orders", "s", bookmark="2026-11-20")


def test_an_empty_topic_is_refused() -> None:
    with pytest.raises(BadTopic):
        make_request("", "s")


@pytest.mark.parametrize(("depth", "bytes_"), [("1KB", 1024), (32, 32)])
def test_depth_is_a_size(depth: int | str, bytes_: int) -> None:
    assert make_request("orders", "s", depth=depth).depth_bytes == bytes_


@pytest.mark.parametrize("depth", [0, 31, "2GB", "deep"])
def test_a_depth_out_of_bounds_is_refused(depth: int | str) -> None:
    with pytest.raises(BadOption):
        make_request("orders", "s", depth=depth)


@pytest.mark.parametrize("sub_id", ["", "x" * 257])
def test_a_subscription_id_out_of_bounds_is_refused(sub_id: str) -> None:
    with pytest.raises(BadOption, match="sub_id"):
        make_request("orders", sub_id)
