"""Hints about names: similar topics and queues, shell wildcards, and when a server is asked."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.cli.support.test_output_options import LEAVES, options
from tests.unit.server.admin.test_metrics import WORK, stats_of
from tickertape.base.errors import NotAQueue, TopicNotRecorded
from tickertape.cli.support import name_hints
from tickertape.cli.support.command_group import Failure, UserMistake, cli
from tickertape.cli.support.name_hints import meant_by_wildcard, missing_topic, suggesting
from tickertape.engine.runtime.statistics import OTHER_TOPICS
from tickertape.filter.compiler.regex import compile_pattern
from tickertape.server.admin.schema import Stats, TopicState

URL = "http://127.0.0.1:9008"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The admin addresses that were asked, of a server with topics and the queue `work`."""
    urls: list[str] = []
    topics = [
        TopicState(
            name=name,
            recorded=True,
            messages=1,
            bytes=1,
            last_bookmark=None,
            last_time=None,
            subscriptions=0,
        )
        for name in ("orders", "fills/eu", OTHER_TOPICS)
    ]
    report = msgspec.structs.replace(stats_of(WORK), topics=topics)

    def answer(url: str) -> tuple[bytes, Stats]:
        urls.append(url)
        return b"", report

    monkeypatch.setattr(name_hints, "stats_of", answer)
    return urls


@pytest.mark.parametrize(
    ("wildcard", "meant"),
    [
        ("orders/*", "^orders/"),
        ("orders*", "^orders"),
        ("orders/*/eu", "^orders/.*/eu$"),
        ("*/eu", "/eu$"),
        ("*eu*", "eu"),
        ("*", "^"),
        ("a.b/*", r"^a\.b/"),
        ("a?c/*", "^a.c/"),
        ("orders.*", None),
        ("^orders/*", None),
        ("orders/(eu|us)*", None),
        ("orders[0-9]*", None),
        ("orders", None),
        ("orders?", None),
    ],
)
def test_wildcard_becomes_the_regular_expression_that_was_meant(wildcard: str, meant: str | None) -> None:
    assert meant_by_wildcard(wildcard) == meant
    if meant is not None:
        compile_pattern(meant)


@pytest.mark.parametrize(
    "arguments",
    [
        ["subscribe", "orders/*", "--server", "unix:///none"],
        ["pipeline", "archive", "--to", "x", "--topics", "orders/*"],
        ["pipeline", "audit", "unix:///none", "--topic", "orders/*"],
    ],
)
def test_commands_with_topic_patterns_warn_of_a_wildcard(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no Java: no Spark is started
    monkeypatch.delenv("JAVA_HOME", raising=False)
    stderr = " ".join(CliRunner().invoke(cli, arguments).stderr.split())
    assert "tickertape: warning: 'orders/*' looks like a shell wildcard" in stderr
    assert "Did you mean '^orders/'?" in stderr
    right = [word.replace("orders/*", "^orders/") for word in arguments]
    assert "warning" not in CliRunner().invoke(cli, right).stderr


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("orders", ""),
        ("work", ""),
        ("^fills/", ""),
        ("ordrs", "The server lists no topic 'ordrs'. Did you mean 'orders'?"),
        ("nothing-like-it", "The server lists no topic 'nothing-like-it'."),
        ("^ordrs", "The server lists no topic that matches '^ordrs'. Did you mean 'orders'?"),
    ],
)
def test_missing_topic_is_one_that_the_server_does_not_list(asked: list[str], topic: str, hint: str) -> None:
    assert missing_topic(topic, URL) == hint
    assert asked == [URL]


def test_missing_topic_without_an_admin_address_names_the_command(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = "Check the topic name: `tickertape topics --admin URL` lists the topics of a server."
    assert missing_topic("orders", None) == check
    assert asked == []

    def nobody(url: str) -> tuple[bytes, Stats]:
        raise Failure(f"Cannot connect to {url}")

    monkeypatch.setattr(name_hints, "stats_of", nobody)
    assert missing_topic("orders", URL) == check


def test_errors_of_missing_names_suggest_similar_ones(asked: list[str]) -> None:
    with pytest.raises(UserMistake, match=r"no queue. Did you mean 'work'\?$"), suggesting("wrk", URL):
        raise NotAQueue("no queue.")
    with pytest.raises(UserMistake, match=r"no log. Did you mean 'orders'\?$"), suggesting("ordrs", URL):
        raise TopicNotRecorded("no log.")
    with pytest.raises(UserMistake, match=r"no log.$"), suggesting("orders", URL):
        raise TopicNotRecorded("no log.")
    assert asked == [URL] * 3
    with pytest.raises(UserMistake, match=r"no queue.$"), suggesting("wrk", None):
        raise NotAQueue("no queue.")
    with suggesting("wrk", URL):
        """The normal path does not ask."""
    assert asked == [URL] * 3


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_misspelt_option_suggests_the_option(path: tuple[str, ...]) -> None:
    for name in options(path):
        if not name.startswith("--"):
            continue
        result = CliRunner().invoke(cli, [*path, f"{name[:-1]}q{name[-1:]}"])
        assert result.exit_code == 2
        stderr = " ".join(result.stderr.split())
        assert "No such option" in stderr
        assert "Did you mean" in stderr
        assert name in stderr.partition("Did you mean")[2]
