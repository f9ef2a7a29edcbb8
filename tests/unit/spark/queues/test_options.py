"""Options of a queue as a streaming source."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadOption
from tickertape.spark.queues.options import names_queue, queue_options
from tickertape.spark.source.options import Query

GIVEN = {"servers": "tcp://127.0.0.1:9007", "queue": "work"}


def test_queue_options_have_defaults() -> None:
    wanted = queue_options(GIVEN)
    assert (wanted.queue, wanted.rows_max, wanted.bytes_max) == ("work", 1_000, None)
    assert (wanted.lease_seconds_max, wanted.partitions_min, wanted.strict) == (3_600.0, 1, False)


def test_queue_options_are_read_in_any_letter_case() -> None:
    more = {
        "maxrowspertrigger": "20",
        "maxBytesPerTrigger": "1MB",
        "maxLeaseTime": "2h",
        "minPartitions": "4",
        "mode": "FAILFAST",
        "timeout": "5s",
        "filter": "/n > 1",
    }
    wanted = queue_options(GIVEN | more)
    assert (wanted.rows_max, wanted.bytes_max, wanted.lease_seconds_max) == (20, 1024 * 1024, 7_200.0)
    assert (wanted.partitions_min, wanted.strict, wanted.timeout_seconds) == (4, True, 5.0)
    assert wanted.filter == "/n > 1"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"topic": "jobs"}, "Cannot use option topic with option queue"),
        ({"startingBookmark": "epoch"}, "Cannot use option startingBookmark"),
        ({"journal": "/srv"}, "Cannot use option journal"),
        ({"queu": "x"}, "Unknown option 'queu'"),
        ({"queue": "^work"}, "is a pattern. Name one queue"),
        ({"maxRowsPerTrigger": "0"}, "a number from 1 to 500000"),
        ({"maxRowsPerTrigger": "500001"}, "a number from 1 to 500000"),
        ({"maxLeaseTime": "0s"}, "maxLeaseTime"),
        ({"maxLeaseTime": "367d"}, "maxLeaseTime"),
        ({"maxLeaseTime": "soon"}, "maxLeaseTime"),
    ],
)
def test_unsupported_queue_options_are_refused(more: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text):
        queue_options(GIVEN | more)


def test_batch_query_of_a_queue_is_refused() -> None:
    with pytest.raises(BadOption, match="Cannot read a queue as a batch"):
        queue_options(GIVEN, Query.BATCH)
    assert queue_options(GIVEN, Query.ANY).queue == "work"


def test_only_the_option_queue_selects_a_queue() -> None:
    assert names_queue({"QUEUE": "work"})
    assert not names_queue({"topic": "queue"})
