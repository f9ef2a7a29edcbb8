"""Arguments and options of subscribe calls."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tickertape.base.bookmarks import EPOCH, MOST_RECENT, Bookmark
from tickertape.base.errors import BadBookmark, BadOption, BadTopic
from tickertape.client.common.subscribe_arguments import extras, make_request, start_text, wire_text
from tickertape.client.subscriptions.bookmark_tracker import MemoryBookmarkTracker
from tickertape.client.subscriptions.resubscribe import ReplayState


@pytest.mark.parametrize("name", ["send_keys", "oof", "top_n", "projection"])
def test_option_not_implemented_yet_raises(name: str) -> None:
    with pytest.raises(BadOption, match=f"Unsupported option '{name}'"):
        make_request("orders", "s", bookmark="0", options=f"{name}=1")


def test_unknown_option_raises() -> None:
    with pytest.raises(BadOption, match="Unknown option 'colour'"):
        make_request("orders", "s", options="colour=red")


def test_plain_subscription_has_no_options() -> None:
    request = make_request("orders", "s")
    assert (request.options, request.bookmark, request.until_caught_up) == ("", None, False)
    assert not request.context.with_bookmark


def test_bookmark_not_found_defaults_to_fail() -> None:
    assert make_request("orders", "s", bookmark=EPOCH).options == "bookmark,bookmark_not_found=fail"
    request = make_request("orders", "s", bookmark=EPOCH, given={"bookmark_not_found": "now"})
    assert request.options == "bookmark,bookmark_not_found=now"
    request = make_request("orders", "s", bookmark=EPOCH, options="bookmark_not_found = epoch, timestamp,")
    assert request.options == "bookmark,timestamp,bookmark_not_found=epoch"
    assert request.context.with_timestamp


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"rate": 1000}, "rate=1000"),
        ({"rate": 0.5}, "rate=0.5"),
        ({"rate": 1 / 3}, "rate=0.333333333"),
        ({"rate": 1e9}, "rate=1000000000"),
        ({"rate": " 2X "}, "rate=2X"),
        ({"rate_max_gap": 2.5}, "rate_max_gap=2.5s"),
        ({"rate_max_gap": "10s"}, "rate_max_gap=10s"),
        ({"conflation": 1}, "conflation=1s"),
        ({"conflation": "none"}, "conflation=none"),
        ({"conflation_key": "/a"}, "conflation_key=/a"),
        ({"conflation_key": "/a,/b"}, "conflation_key=[/a,/b]"),
        ({"conflation_key": "[/a, /b]"}, "conflation_key=[/a, /b]"),
        ({"conflation_key": ["/a", "/b/c"]}, "conflation_key=[/a,/b/c]"),
        ({"select": ("-/", "+/a")}, "select=[-/,+/a]"),
        (
            {"pause": True, "live": True, "fully_durable": True, "replace": True},
            "pause,live,fully_durable,replace",
        ),
        ({"pause": False, "live": False, "rate": None, "select": None}, ""),
    ],
)
def test_keywords_are_written_as_options(given: dict[str, object], written: str) -> None:
    assert make_request("orders", "s", given=given).options == written


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "rate",
            True,
            "Invalid rate of type bool. Use 1000 (messages/s), '500KB' (bytes/s) or '2x'.",
        ),
        ("rate", 0, "Invalid rate 0: it must be above 0"),
        ("rate", -1.5, "above 0"),
        ("rate", float("nan"), "above 0"),
        ("rate", 1e-12, "more than 9 decimals"),
        ("rate", ["2x"], "of type list"),
        (
            "rate",
            "1,live",
            "Invalid rate '1,live': it is more than one value. Pass each other option separately.",
        ),
        ("rate", 10**400, "an integer of 1,329 bits: it must be below 1e308"),
        pytest.param(
            "rate", 10**5_000, "an integer of 16,610 bits: it must be below 1e308", id="5,001 digits"
        ),
        pytest.param("rate", -(10**5_000), "bits: it must be above 0", id="minus 5,001 digits"),
        ("rate_max_gap", 10**400, "below 1e308"),
        ("rate", "", "Invalid rate ''"),
        ("rate_max_gap", float("inf"), "Use seconds or text such as"),
        ("conflation", b"1s", "Invalid conflation of type bytes. Use seconds or text such as '500ms'."),
        ("conflation_key", 1, "Invalid conflation_key '1'. Use a list of str"),
        ("conflation_key", ["/a", 2], "Use a list of str"),
        ("conflation_key", [], "conflation_key"),
        (
            "conflation_key",
            ["/a,/b"],
            "a member is not exactly one field. Use one field such as '/a' for each",
        ),
        ("select", ["+/a,+/b"], "a member is not exactly one field. Use one field such as '+/a' for each"),
        ("select", 1, "Invalid select '1'. Use a list of str, or text such as '[+/a,-/b]'."),
        ("conflation_key", ["/a", ""], "a member is empty"),
        ("conflation_key", "[/a", "bracket"),
        ("select", ["+/a]"], "select"),
        ("pause", 1, "Invalid pause of type int. Use True or False."),
        ("live", "yes", "Invalid live of type str. Use True or False."),
        ("timestamp", None, ""),
        ("bookmark_not_found", 1, "Invalid bookmark_not_found of type int. Use str."),
    ],
)
def test_invalid_option_value_raises_and_names_the_parameter(name: str, value: object, says: str) -> None:
    if value is None:
        assert make_request("orders", "s", given={name: value}).options == ""
        return
    with pytest.raises(BadOption, match=re.escape(says)) as caught:
        make_request("orders", "s", bookmark=EPOCH, given={name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"rate": 10}, "rate=20"),
        ({"timestamp": True}, "timestamp"),
        ({"bookmark_not_found": "now"}, "bookmark_not_found=now"),
        ({"select": ["+/a"]}, "rate=2x,select=[-/,+/a]"),
    ],
)
def test_option_set_twice_raises(given: dict[str, object], options: str) -> None:
    (name,) = given
    with pytest.raises(BadOption, match=f"Cannot set option '{name}' twice"):
        make_request("orders", "s", bookmark=EPOCH, given=given, options=options)


def test_keywords_and_option_string_are_combined() -> None:
    request = make_request(
        "orders", "s", bookmark=EPOCH, given={"rate": "2x", "pause": False}, options="rate_max_gap=5s,pause,"
    )
    assert request.options == "bookmark,bookmark_not_found=fail,rate_max_gap=5s,pause,rate=2x"
    assert not request.replace
    assert make_request("orders", "s", options="replace").replace


def test_filter_is_passed_unchanged_and_rejected_as_option() -> None:
    assert make_request("orders", "s", filter="/a = 'x, y'").filter == "/a = 'x, y'"
    with pytest.raises(BadOption, match=r"option 'filter'\. Pass the filter separately"):
        make_request("orders", "s", options="filter=/a")
    with pytest.raises(BadOption, match="Invalid filter of type int"):
        make_request("orders", "s", filter=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["filter", "options", "sub_id"])
def test_lone_surrogate_in_text_argument_raises(name: str) -> None:
    texts = {"sub_id": "s", name: "/a = '\ud800'"}
    with pytest.raises(BadOption, match=f"Invalid {name} .*: it is not valid Unicode. Use"):
        make_request("orders", **texts)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["a\ud800", "a\ud800.*"])
def test_lone_surrogate_in_a_topic_or_pattern_raises(topic: str) -> None:
    with pytest.raises(BadTopic, match=r"Invalid topic 'a\\ud800.*': it is not valid Unicode\. Use"):
        make_request(topic, "s")


def test_option_without_required_value_raises() -> None:
    with pytest.raises(BadOption, match=r"option 'rate': it requires a value. Use rate="):
        make_request("orders", "s", bookmark=EPOCH, options="rate")


def test_invalid_bookmark_not_found_raises() -> None:
    with pytest.raises(BadOption, match="'later'"):
        make_request("orders", "s", bookmark=EPOCH, given={"bookmark_not_found": "later"})
    with pytest.raises(BadOption, match="requires a bookmark"):
        make_request("orders", "s", options="bookmark_not_found=now")


def test_flag_option_with_value_raises() -> None:
    with pytest.raises(BadOption, match="'timestamp': it takes no value"):
        make_request("orders", "s", options="timestamp=yes")


@pytest.mark.behaviour(2)
def test_naive_datetime_is_utc_and_aware_datetime_is_converted() -> None:
    naive = datetime(2026, 11, 20, 9)  # noqa: DTZ001 - the subject of the test
    assert start_text(naive) == start_text(naive.replace(tzinfo=UTC))
    east = datetime(2026, 11, 20, 10, tzinfo=timezone(timedelta(hours=1)))
    assert start_text(east) == start_text(naive)
    assert start_text(naive).startswith("20261120T090000")


@pytest.mark.behaviour(25)
def test_most_recent_is_resolved_before_the_wire() -> None:
    with pytest.raises(BadBookmark):
        make_request("orders", "s", bookmark=f"{MOST_RECENT},1|2|")
    assert wire_text(MOST_RECENT) == EPOCH, "without a subscription to look up"
    for again in (False, True):
        for points in ([], [Bookmark(1, 2), Bookmark(3, 4)]):
            tracker = MemoryBookmarkTracker()
            tracker.started(points)
            replay = ReplayState(MOST_RECENT, "", tracker, until_caught_up=False)
            text = replay.again(conflated=False, live=False) if again else replay.first(conflated=False)
            assert text == (",".join(map(str, points)) or EPOCH)
    assert ReplayState(MOST_RECENT, "", None, until_caught_up=False).first(conflated=False) == EPOCH, (
        "without a store"
    )


def test_malformed_start_point_raises_in_the_client() -> None:
    with pytest.raises(BadBookmark):
        make_request("orders", "s", bookmark="2026-11-20")


def test_empty_topic_raises() -> None:
    with pytest.raises(BadTopic):
        make_request("", "s")


@pytest.mark.parametrize(("depth", "bytes_"), [("1KB", 1024), (32, 32)])
def test_depth_is_parsed_as_size(depth: int | str, bytes_: int) -> None:
    assert make_request("orders", "s", depth=depth).depth_bytes == bytes_


@pytest.mark.parametrize("depth", [0, 31, "2GB", "deep"])
def test_depth_out_of_bounds_raises(depth: int | str) -> None:
    with pytest.raises(BadOption):
        make_request("orders", "s", depth=depth)


@pytest.mark.parametrize("sub_id", ["", "x" * 257])
def test_subscription_id_out_of_bounds_raises(sub_id: str) -> None:
    with pytest.raises(BadOption, match="sub_id"):
        make_request("orders", sub_id)


@pytest.mark.parametrize(
    ("expiration", "life"),
    [(None, 0), (0, (1 << 63) - 1), ("0s", (1 << 63) - 1), (0.0001, 1), (0.5, 500), ("5m", 300_000)],
)
def test_expiration_of_zero_means_that_the_message_does_not_expire(
    expiration: float | str | None, life: int
) -> None:
    assert extras(expiration, None, None) == (life, "", "")
