"""Options of the Spark source.

Unknown options, and options that do not apply to the query, are rejected with their name. Names match Spark's
Kafka source where it has the same option. They are not case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, TypeVar

import msgspec

from tickertape.base.errors import BadOption, BadTopic
from tickertape.base.names import check_topic, is_pattern
from tickertape.base.text_format import not_one_of
from tickertape.base.units import parse_interval, parse_size
from tickertape.spark.common.servers import ACCESS, server_text
from tickertape.spark.source.ranges import ENDS, STARTS, RangeText, range_text, start_text

T = TypeVar("T")

OF_BOTH: Final = (
    "servers",
    "topic",
    "topicPattern",
    "filter",
    *STARTS,
    "minPartitions",
    "maxRowsPerPartition",
    "failOnDataLoss",
    "mode",
    "journal",
    "timeout",
    *ACCESS,
)
"""Options of batch and streaming queries."""
OF_BATCH: Final = ENDS
OF_STREAM: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger")

ROWS_PER_PARTITION_DEFAULT: Final = 2_000_000
"""Default positions per partition: a task takes seconds, and a long log is distributed."""
TIMEOUT_SECONDS_DEFAULT: Final = 30.0


class Query(Enum):
    """Kind of the query that the options are for."""

    ANY = "a query whose kind is not known yet"
    BATCH = "a batch query"
    STREAM = "a streaming query"


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a source."""

    servers: tuple[str, ...]
    """Texts from `server_text`, tried in this order."""
    topic: str
    """A topic or a pattern, in the form that the server accepts."""
    filter: str | None
    """Filter for bodies, or None."""
    log_range: RangeText
    partitions_min: int | None
    """None: depends on the size of the range."""
    rows_per_partition_max: int
    rows_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    fail_on_data_loss: bool
    """Whether it is an error if retention removed part of the range."""
    strict: bool
    """Whether a body that does not fit the schema is an error. Otherwise such a field is null."""
    directory: str | None
    """Data directory of the log as seen by tasks. None: they read from the server."""
    timeout_seconds: float
    """Timeout for connecting and for each answer of the server."""


def read_options(given: Mapping[str, str], query: Query = Query.BATCH) -> SourceOptions:
    """Parse `given`, the options of `spark.read` or `spark.readStream`.

    `servers` and `topic` (or `topicPattern`) are required. Raises `BadOption`, `BadTopic` or `BadBookmark`
    that name the option.
    """
    options = _named(given, query)
    bytes_max = options.get("maxBytesPerTrigger")
    return SourceOptions(
        servers=read_servers(options),
        topic=_topic(options),
        filter=read_filter(options.get("filter")),
        log_range=start_text(options) if query is Query.STREAM else range_text(options),
        partitions_min=read_number(options, "minPartitions", 2**31 - 1),
        rows_per_partition_max=read_number(options, "maxRowsPerPartition", 2**63 - 1)
        or ROWS_PER_PARTITION_DEFAULT,
        rows_per_trigger_max=read_number(options, "maxRowsPerTrigger", 2**63 - 1),
        bytes_per_trigger_max=None if bytes_max is None else read_bytes("maxBytesPerTrigger", bytes_max),
        fail_on_data_loss=_flag("failOnDataLoss", options.get("failOnDataLoss", "true")),
        strict=read_mode(options.get("mode", "PERMISSIVE")),
        directory=_directory(options.get("journal")),
        timeout_seconds=read_timeout(options.get("timeout")),
    )


def _named(given: Mapping[str, str], query: Query) -> dict[str, str]:
    names = (*OF_BOTH, *OF_BATCH, *OF_STREAM)
    of_stream = OF_STREAM if query is Query.BATCH else ()
    refused = {name: f"Option {name} is for streaming queries only. Omit it." for name in of_stream}
    return read_names(given, names, refused)


def read_names(
    given: Mapping[str, str], names: Collection[str], refused: Mapping[str, str]
) -> dict[str, str]:
    """Return the options under their names in `names`.

    Raises `BadOption` for others. `refused` has the reasons for options that do not apply."""
    known = {name.lower(): name for name in (*names, *refused)}
    found = {}
    for name, value in given.items():
        written = known.get(name.lower())
        if written is None or written in refused:
            why = not_one_of("Unknown option", name, names) if written is None else refused[written]
            raise BadOption(why)
        found[written] = value.strip()
    return found


def read_servers(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the servers in the options, each with its files. Raises `BadOption`."""
    servers = tuple(uri for uri in map(str.strip, options.get("servers", "").split(",")) if uri)
    if not servers:
        raise BadOption(
            "Cannot connect without option 'servers'. Set one or more servers, comma-separated, such as "
            "tcp://127.0.0.1:9007."
        )
    return tuple(server_text(uri, options) for uri in servers)


def _topic(options: Mapping[str, str]) -> str:
    topic, pattern = options.get("topic"), options.get("topicPattern")
    if topic and pattern:
        raise BadOption("Options topic and topicPattern exclude each other. Remove one of them.")
    if pattern:
        # Parentheses make it a pattern even without other pattern characters.
        return pattern if is_pattern(pattern) else f"({pattern})"
    if not topic:
        raise BadOption(
            "Cannot read without option 'topic'. Set it to the name of a persistent topic, or set "
            "topicPattern."
        )
    if is_pattern(topic):
        raise BadTopic(f"Invalid option topic {topic!r}: it is a pattern. Use option topicPattern.")
    check_topic(topic)
    return topic


def read_filter(value: str | None) -> str | None:
    """Return the filter of an option. Raises `BadOption`."""
    if value == "":
        raise BadOption("Option filter is empty. Omit it to read all messages.")
    return value


def read_number(options: Mapping[str, str], name: str, maximum: int) -> int | None:
    """Return the number of an option, 1 to `maximum`, or None if it is not set. Raises `BadOption`."""
    value = options.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", value) or not 1 <= int(value) <= maximum:
        raise BadOption(f"Invalid option {name} {value!r}. Use a number from 1 to {maximum}.")
    return int(value)


def read_value(name: str, parse: Callable[[str], T], value: str) -> T:
    """Return the result of `parse`. Raises `BadOption` with the name of the option."""
    try:
        return parse(value)
    except BadOption as error:
        raise BadOption(f"Invalid option {name}: {error}") from None


def read_bytes(name: str, value: str) -> int:
    """Return the size of an option in bytes. Raises `BadOption`."""
    size = read_value(name, parse_size, value)
    if not size:
        raise BadOption(f"Invalid option {name} {value!r}. Use one byte or more.")
    return size


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadOption(not_one_of(f"Invalid option {name}", value, ("true", "false")))
    return value.lower() == "true"


def read_mode(value: str) -> bool:
    """Return whether bodies that do not fit the schema are errors. Raises `BadOption`."""
    if value.upper() not in ("PERMISSIVE", "FAILFAST"):
        raise BadOption(not_one_of("Invalid option mode", value, ("PERMISSIVE", "FAILFAST")))
    return value.upper() == "FAILFAST"


def _directory(value: str | None) -> str | None:
    if value is not None and not value.startswith("/"):
        raise BadOption(
            f"Invalid option journal {value!r}. Use the absolute path of the server's data directory on the "
            "executors."
        )
    return value


def read_timeout(value: str | None) -> float:
    """Return the timeout of an option in seconds. Raises `BadOption`."""
    if value is None:
        return TIMEOUT_SECONDS_DEFAULT
    seconds = read_value("timeout", parse_interval, value)
    if seconds <= 0:
        raise BadOption(f"Invalid option timeout {value!r}. Use more than 0 seconds.")
    return seconds
