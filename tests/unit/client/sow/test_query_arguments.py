"""Arguments of queries: every one is validated, and an invalid one is never sent."""

from __future__ import annotations

from typing import Any

import pytest

from tickertape.base.errors import BadCommand, BadOption, BadTopic, NotBuilt, TickertapeError, UsageError
from tickertape.client.sow.query_arguments import make_query


def make(**given: Any) -> Any:
    return make_query("orders", "q", **{"follow": False} | given)


def test_options_and_keywords_give_the_same_query() -> None:
    by_text = make(options="top_n=3,skip_n=1,timestamp,select=[-/,+/x]")
    by_name = make(top_n=3, skip_n=1, timestamp=True, options="select=[-/,+/x]")
    assert by_text.query == by_name.query
    assert set(by_text.options.split(",", 1)) == set(by_name.options.split(",", 1))
    assert (by_text.query.top_n, by_text.query.skip_n) == (3, 1)
    assert by_text.context.with_timestamp


def test_only_a_query_that_does_not_follow_is_limited() -> None:
    assert make().limited
    assert not make(follow=True).limited
    assert (make().call, make(follow=True).call) == ("sow q", "sow_and_subscribe q")


def test_top_n_of_zero_is_sent() -> None:
    assert make(top_n=0).query.top_n == 0


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"bookmark": "0"}, NotBuilt, "keeps no history of records. Query without bookmark="),
        ({"order_by": 3}, BadOption, "order_by"),
        ({"order_by": "/\ud800"}, BadOption, "not valid Unicode"),
        ({"top_n": -1}, BadOption, "Invalid top_n -1. Use a number of records, 0 or more."),
        ({"top_n": True}, BadOption, "Invalid top_n True."),
        ({"top_n": 1.5}, BadOption, "Invalid top_n 1.5."),
        ({"skip_n": 3}, BadOption, "skip_n requires top_n. Pass top_n= or remove skip_n."),
        ({"options": "skip_n=3"}, BadOption, "skip_n requires top_n."),
        ({"options": "top_n"}, BadOption, "it requires a value. Use top_n=VALUE."),
        ({"options": "top_n=x"}, BadOption, "Invalid top_n 'x'."),
        ({"options": "top_n=3", "top_n": 3}, BadOption, "Cannot set option 'top_n' twice"),
        ({"options": "timestamp", "timestamp": True}, BadOption, "Cannot set option 'timestamp' twice"),
        ({"batch_size": -1}, BadOption, "Invalid batch_size -1."),
        ({"options": "rate=2x"}, BadOption, "Option 'rate' does not apply to a query. Use "),
        ({"options": "replace"}, BadOption, "Option 'replace' does not apply to a query."),
        ({"options": "oof"}, BadOption, "Unsupported option 'oof'"),
        ({"options": "tpo_n=3"}, BadOption, "Unknown option 'tpo_n'"),
        ({"options": 3}, BadOption, "options"),
        ({"keys": []}, UsageError, "Cannot query with an empty list of keys."),
        ({"keys": "abc"}, UsageError, "keys"),
        ({"keys": [1]}, UsageError, "keys"),
        ({"keys": ["\ud800"]}, UsageError, "not valid Unicode"),
        ({"keys": ["k" * 22] * 10_000}, BadCommand, "Cannot query by 10,000 keys: they need 240,000 bytes."),
        ({"keys": ["k"] * 100_001}, BadCommand, "they are too many"),
        ({"depth": 1}, BadOption, "Invalid depth"),
    ],
)
def test_invalid_argument_raises(given: dict[str, Any], kind: type[TickertapeError], text: str) -> None:
    with pytest.raises(kind) as caught:
        make(**given)
    assert type(caught.value) is kind
    assert text in str(caught.value)


def test_empty_topic_is_refused() -> None:
    with pytest.raises(BadTopic, match="empty topic"):
        make_query("", "q", follow=False)


def test_replace_applies_to_a_query_that_follows() -> None:
    request = make(follow=True, options="replace")
    assert request.replace
    assert request.options == "replace"
