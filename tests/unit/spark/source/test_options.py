"""Options of the Spark source: meanings and refused values."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadBookmark, BadOption, BadTopic, TickertapeError
from tickertape.spark.source.options import OF_BATCH, OF_BOTH, OF_STREAM, Query, read_options

NEEDED = {"servers": "tcp://127.0.0.1:9007", "topic": "flights"}


def bookmark(**options: str) -> str:
    return read_options(NEEDED | options).log_range.whole


def test_source_options_default_to_the_whole_log() -> None:
    wanted = read_options(NEEDED)
    assert wanted.servers == ("tcp://127.0.0.1:9007",)
    assert wanted.topic == "flights"
    assert wanted.log_range.whole == "0"
    assert wanted.partitions_min is None


def test_option_names_ignore_case_and_values_ignore_blanks() -> None:
    wanted = read_options(
        {
            "SERVERS": " tcp://a:1 , tcp://b:2,",
            "topic": " flights ",
            "minpartitions": "7",
            "maxRowsPerPartition": "10",
            "timeout": "500ms",
        }
    )
    assert wanted.servers == ("tcp://a:1", "tcp://b:2")
    assert wanted.topic == "flights"
    assert (wanted.partitions_min, wanted.rows_per_partition_max, wanted.timeout_seconds) == (7, 10, 0.5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingBookmark": "epoch"}, "0"),
        ({"startingBookmark": "NOW"}, "0|1|"),
        ({"startingBookmark": "5|7|"}, "5|7|"),
        ({"startingBookmark": "20130101T000000"}, "20130101T000000.000000Z"),
        ({"startingBookmark": "[5|7|:5|9|)"}, "[5|7|:5|9|)"),
        ({"endingBookmark": "now"}, "0"),
        ({"endingBookmark": "5|9|"}, "(0:5|9|]"),
        ({"startingBookmark": "5|7|", "endingBookmark": "5|9|,6|1|"}, "(5|7|:5|9|,6|1|]"),
        (
            {"startingBookmark": "20130101T00", "endingBookmark": "5|9|"},
            None,
        ),
        (
            {"startingTimestamp": "20130101T000000Z", "endingTimestamp": "20130102T000000Z"},
            "[20130101T000000.000000Z:20130102T000000.000000Z)",
        ),
        (
            {"startingTimestamp": "1356998400000", "endingTimestamp": "1356998400001"},
            "[20130101T000000.000000Z:20130101T000000.001000Z)",
        ),
        ({"endingTimestamp": "20130102T000000"}, "(0:20130102T000000.000000Z)"),
        (
            {"startingBookmark": "5|7|", "endingTimestamp": "20130102T000000"},
            "(5|7|:20130102T000000.000000Z)",
        ),
        ({"startingTimestamp": "20130101T000000"}, "20121231T235959.999999Z"),
        ({"startingTimestamp": "00010101T000000"}, "00010101T000000.000000Z"),
    ],
)
def test_start_and_end_options_make_one_range(options: dict[str, str], expected: str | None) -> None:
    if expected is None:
        with pytest.raises(BadBookmark, match="startingBookmark"):
            bookmark(**options)
    else:
        assert bookmark(**options) == expected


@pytest.mark.behaviour(1)
def test_starting_timestamp_is_inclusive_and_bookmark_time_exclusive() -> None:
    assert bookmark(startingBookmark="20130101T000000") == "20130101T000000.000000Z"
    assert bookmark(startingTimestamp="20130101T000000") == "20121231T235959.999999Z"


def test_unknown_option_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(BadOption, match="Unknown option 'startingOffsets'") as caught:
        read_options(NEEDED | {"startingOffsets": "earliest"})
    assert all(name in str(caught.value) for name in (*OF_BOTH, *OF_BATCH, *OF_STREAM))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"servers": " , "}, BadOption, "without option 'servers'"),
        ({"servers": "127.0.0.1:9007"}, BadOption, "Invalid server address"),
        ({"servers": "tcp://a:1,tcp://b"}, BadOption, "Invalid server address"),
        ({"topic": ""}, BadOption, "without option 'topic'"),
        ({"topic": "flights/.*"}, BadTopic, "Use option topicPattern"),
        ({"topicPattern": "a"}, BadOption, "topic and topicPattern exclude each other"),
        ({"filter": " "}, BadOption, "filter is empty"),
        ({"failOnDataLoss": "no"}, BadOption, "failOnDataLoss 'no'. Use true or false"),
        ({"mode": "DROPMALFORMED"}, BadOption, "mode 'DROPMALFORMED'. Use PERMISSIVE or FAILFAST"),
        ({"minPartitions": "0"}, BadOption, "minPartitions"),
        ({"minPartitions": "two"}, BadOption, "minPartitions"),
        ({"maxRowsPerPartition": "-1"}, BadOption, "maxRowsPerPartition"),
        ({"timeout": "0s"}, BadOption, "timeout"),
        ({"timeout": "soon"}, BadOption, "timeout"),
        ({"startingBookmark": "yesterday"}, BadBookmark, "startingBookmark"),
        ({"startingBookmark": "a|b|"}, BadBookmark, "startingBookmark"),
        ({"endingBookmark": "epoch"}, BadBookmark, "endingBookmark"),
        ({"endingBookmark": "a|b|"}, BadBookmark, "endingBookmark"),
        ({"endingBookmark": "[5|7|:5|9|)"}, BadBookmark, "endingBookmark"),
        ({"startingTimestamp": "20130101"}, BadBookmark, "startingTimestamp"),
        ({"startingTimestamp": "2013-01-01"}, BadBookmark, "startingTimestamp"),
        ({"endingTimestamp": "5|7|"}, BadBookmark, "endingTimestamp"),
        ({"endingTimestamp": "999999999999999"}, BadBookmark, "endingTimestamp"),
        ({"startingBookmark": "0", "startingTimestamp": "20130101T000000"}, BadOption, "exclude each other"),
        ({"endingBookmark": "now", "endingTimestamp": "20130101T000000"}, BadOption, "exclude each other"),
        ({"startingBookmark": "[5|7|:5|9|)", "endingBookmark": "now"}, BadOption, "Omit endingBookmark"),
    ],
)
def test_invalid_option_is_refused_in_one_line_with_the_name(
    options: dict[str, str], error: type[TickertapeError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        read_options(NEEDED | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["servers", "topic"])
def test_servers_and_topic_are_required(name: str) -> None:
    with pytest.raises(BadOption, match=f"without option {name!r}"):
        read_options({key: value for key, value in NEEDED.items() if key != name})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"journal": "data"}, "Use the absolute path of the server's data directory"),
        ({"journal": ""}, "Use the absolute path of the server's data directory"),
    ],
)
def test_journal_directory_must_be_an_absolute_path(options: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        read_options(NEEDED | options)


def test_journal_files_are_read_only_with_the_option() -> None:
    assert read_options(NEEDED).directory is None
    assert read_options(NEEDED | {"journal": "/srv/data"}).directory == "/srv/data"


def test_stream_options_are_refused_for_batches_and_vice_versa() -> None:
    with pytest.raises(BadOption, match="maxRowsPerTrigger is for streaming queries only"):
        read_options(NEEDED | {"maxRowsPerTrigger": "5"})
    for name, value in (
        ("endingBookmark", "5|7|"),
        ("endingTimestamp", "20130101T000000"),
        ("endingBookmark", "now"),
    ):
        with pytest.raises(BadOption, match=rf"no end\. Omit {name}"):
            read_options(NEEDED | {name: value}, Query.STREAM)
    with pytest.raises(BadOption, match="to a start point, not to a range"):
        read_options(NEEDED | {"startingBookmark": "[5|7|:5|9|)"}, Query.STREAM)
    both = NEEDED | {"maxRowsPerTrigger": "5", "endingBookmark": "5|7|"}
    assert read_options(both, Query.ANY).rows_per_trigger_max == 5


def test_trigger_limits_and_fail_on_data_loss_are_read() -> None:
    wanted = read_options(NEEDED | {"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "2KB"}, Query.STREAM)
    assert (wanted.rows_per_trigger_max, wanted.bytes_per_trigger_max) == (5, 2048)
    assert (wanted.fail_on_data_loss, wanted.strict, wanted.filter) == (True, False, None)
    other = read_options(NEEDED | {"failOnDataLoss": "FALSE", "mode": "failfast", "filter": "/a = 1"})
    assert (other.fail_on_data_loss, other.strict, other.filter) == (False, True, "/a = 1")


@pytest.mark.parametrize(
    ("given", "topic"), [("^fl", "^fl"), ("a|b", "a|b"), ("fl", "(fl)"), ("a.b", "(a.b)")]
)
def test_topic_pattern_option_is_always_a_pattern(given: str, topic: str) -> None:
    assert read_options({"servers": NEEDED["servers"], "topicPattern": given}).topic == topic


@pytest.mark.parametrize(
    ("options", "whole", "rest"),
    [
        ({"startingBookmark": "5|7|"}, "5|7|", "0"),
        ({"startingBookmark": "5|7|", "endingBookmark": "5|9|"}, "(5|7|:5|9|]", "(0:5|9|]"),
        ({"startingBookmark": "[5|7|:5|9|)"}, "[5|7|:5|9|)", "(0:5|9|)"),
    ],
)
def test_range_has_a_fallback_that_starts_with_the_log(
    options: dict[str, str], whole: str, rest: str
) -> None:
    assert read_options(NEEDED | options).log_range == (whole, rest)
