"""Owns the options of the Spark source: their names, what they may be, and the range of the log they ask for.

Must never ignore an option: what does not exist, or is not built yet, is refused with its name. Names are
those of Spark's Kafka source where that has the same thing; letter case does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tickertape.base.bookmarks import (
    EPOCH,
    NOW,
    AtBookmarks,
    AtTime,
    EndPoint,
    FromNow,
    Range,
    StartPoint,
    parse_bookmark,
)
from tickertape.base.errors import BadBookmark, BadOption, BadTopic
from tickertape.base.names import check_topic, is_pattern
from tickertape.base.timestamps import (
    TIMESTAMP_FORM,
    parse_timestamp,
    timestamp_micros_min,
    to_datetime,
    to_micros,
)
from tickertape.base.units import parse_interval
from tickertape.spark.servers import ACCESS, server_text

BUILT: Final = (
    "servers",
    "topic",
    "startingBookmark",
    "endingBookmark",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRowsPerPartition",
    "journal",
    "timeout",
    *ACCESS,
)
"""The options there are."""

NOT_BUILT: Final = (
    "filter",
    "topicPattern",
    "failOnDataLoss",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "publisher",
    "transactionId",
)
"""The options to come; asking for one is an error that says so."""

PARTITIONS_MIN_DEFAULT: Final = 2
"""Partitions when nothing is said: enough for two cores to read at once."""
ROWS_PER_PARTITION_DEFAULT: Final = 2_000_000
"""Positions in a partition when nothing is said: tasks of seconds, so that a long log spreads out."""
TIMEOUT_SECONDS_DEFAULT: Final = 30.0

_MILLISECONDS: Final = re.compile(r"[0-9]{12,15}")
"""From 1973 on: fewer digits are more likely a date such as 20130101 than a moment in the early seventies."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asked to read."""

    servers: tuple[str, ...]
    """As `server_text` gives them, tried in this order."""
    topic: str
    bookmark: str
    """The start point or range, as the server resolves it."""
    partitions_min: int
    rows_per_partition_max: int
    directory: str | None
    """Where tasks find the data directory of the log; None: they ask the server."""
    timeout_seconds: float
    """For connecting and for each answer of the server."""


def read_options(given: Mapping[str, str]) -> Wanted:
    """What `given` (the options of `spark.read`) asks for.

    `servers` and `topic` must be there. Raises `BadOption`, `BadTopic` or `BadBookmark`, naming the option.
    """
    options = _named(given)
    return Wanted(
        servers=_servers(options),
        topic=_topic(options.get("topic")),
        bookmark=_bookmark(options),
        partitions_min=_number(options, "minPartitions", PARTITIONS_MIN_DEFAULT, 2**31 - 1),
        rows_per_partition_max=_number(options, "maxRowsPerPartition", ROWS_PER_PARTITION_DEFAULT, 2**63 - 1),
        directory=_directory(options.get("journal")),
        timeout_seconds=_timeout(options.get("timeout")),
    )


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """The options under their names as written in `BUILT`."""
    built = {name.lower(): name for name in BUILT}
    coming = {name.lower(): name for name in NOT_BUILT}
    found = {}
    for name, value in given.items():
        if name.lower() in coming:
            raise BadOption(f"option {coming[name.lower()]} is not built yet; leave it out")
        if name.lower() not in built:
            raise BadOption(f"there is no option {name!r}; there are {', '.join(BUILT)}")
        found[built[name.lower()]] = value.strip()
    return found


def _servers(options: Mapping[str, str]) -> tuple[str, ...]:
    servers = tuple(uri for uri in map(str.strip, options.get("servers", "").split(",")) if uri)
    if not servers:
        raise BadOption(
            "option servers is missing: give one or more, such as tcp://127.0.0.1:9007, comma-separated"
        )
    return tuple(server_text(uri, options) for uri in servers)


def _topic(value: str | None) -> str:
    if not value:
        raise BadOption("option topic is missing: the name of a recorded topic")
    if is_pattern(value):
        raise BadTopic(
            f"option topic: {value!r} is a pattern, and patterns are not built yet; give one topic's name"
        )
    check_topic(value)
    return value


def _number(options: Mapping[str, str], name: str, default: int, maximum: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", value) or not 1 <= int(value) <= maximum:
        raise BadOption(f"option {name} is a number from 1 to {maximum}, not {value!r}")
    return int(value)


def _directory(value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise BadOption(
            f"option journal is the absolute path of the server's data directory, as executors see it, "
            f"not {value!r}"
        )
    return value


def _timeout(value: str | None) -> float:
    if value is None:
        return TIMEOUT_SECONDS_DEFAULT
    try:
        seconds = parse_interval(value)
    except BadOption as error:
        raise BadOption(f"option timeout: {error}") from None
    if seconds <= 0:
        raise BadOption(f"option timeout is more than 0 seconds, not {value!r}")
    return seconds


# -- the range ----------------------------------------------------------------------------------------


def _bookmark(options: Mapping[str, str]) -> str:
    """The start point or range that the four options together ask for, as one text.

    A bookmark or plain timestamp begins after itself and ends with itself, so that the end of one job is the
    start of the next; startingTimestamp and endingTimestamp are [start, end), as with Kafka.
    """
    _exclude(options, "startingBookmark", "startingTimestamp")
    _exclude(options, "endingBookmark", "endingTimestamp")
    begin, inclusive = _begin(options)
    if isinstance(begin, Range):
        for name in ("endingBookmark", "endingTimestamp"):
            if name in options:
                raise BadOption(f"startingBookmark is a range with an end of its own; leave out {name}")
        return str(begin)
    end, end_inclusive = _end(options)
    if end is not None:
        return str(Range(begin=begin, begin_inclusive=inclusive, end=end, end_inclusive=end_inclusive))
    if isinstance(begin, AtTime) and inclusive:
        # A plain timestamp starts strictly after itself.
        return str(AtTime(max(begin.micros - 1, timestamp_micros_min)))
    return str(begin)


def _begin(options: Mapping[str, str]) -> tuple[StartPoint | Range, bool]:
    if "startingTimestamp" in options:
        return AtTime(_moment(options, "startingTimestamp")), True
    point = _point("startingBookmark", options.get("startingBookmark", "epoch"))
    if isinstance(point, AtBookmarks) and not point.bookmarks:
        raise BadBookmark(
            f"option startingBookmark: {options['startingBookmark']!r} is no message's bookmark"
        )
    return point, False


def _end(options: Mapping[str, str]) -> tuple[EndPoint | None, bool]:
    if "endingTimestamp" in options:
        return AtTime(_moment(options, "endingTimestamp")), False
    text = options.get("endingBookmark", "now")
    point = _point("endingBookmark", text)
    if isinstance(point, FromNow):
        return None, True
    if isinstance(point, AtTime) or (isinstance(point, AtBookmarks) and point.bookmarks):
        return point, True
    raise BadBookmark(f"option endingBookmark: {text!r} is no end: give a bookmark, a timestamp, or now")


def _point(name: str, text: str) -> StartPoint | Range:
    named = {"epoch": EPOCH, "now": NOW}
    try:
        return parse_bookmark(named.get(text.lower(), text))
    except BadBookmark as error:
        raise BadBookmark(f"option {name}: {error}; or epoch, or now") from None


def _moment(options: Mapping[str, str], name: str) -> int:
    """Microseconds since 1970 UTC of a timestamp option."""
    text = options[name]
    try:
        if _MILLISECONDS.fullmatch(text):
            return to_micros(to_datetime(int(text) * 1000))
        return parse_timestamp(text)
    except BadBookmark:
        raise BadBookmark(
            f"option {name}: {text!r} is neither {TIMESTAMP_FORM}, "
            f"nor milliseconds since 1970 UTC (12 digits or more)"
        ) from None


def _exclude(options: Mapping[str, str], *names: str) -> None:
    both = _present(options, names)
    if len(both) > 1:
        raise BadOption(f"options {' and '.join(both)} exclude each other; give one")


def _present(options: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in options]
