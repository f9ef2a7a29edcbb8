"""Queue commands with a real server: consume, browse, acknowledge, purge and requeue."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.queues import SECONDS, queue
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer

CONFIG = (
    queue("read") + queue("work", underlying="orders", dead_letter="dead") + queue("dead") + queue("purged")
)

pytestmark = pytest.mark.slow


def run(server: RunningServer, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*arguments, "--server", server.uri])
    assert (result.exit_code, result.stderr if code == 0 else "") == (code, "")
    return result.stdout


def publish(server: RunningServer, topic: str, *bodies: str) -> list[str]:
    """Publish messages, and return their bookmarks."""
    with tt.Client(f"loader-{topic}", server.uri, publish_store=tt.MemoryPublishStore()) as client:
        for body in bodies:
            client.publish(topic, body, correlation_id="mine")
        client.publish_flush(timeout=SECONDS)
        return [message.bookmark or "" for message in client.replay(topic)]


def test_subscribe_ack_acknowledges_only_printed_messages(server: RunningServer) -> None:
    publish(server, "read", "1", "2", "3", "4")
    assert run(server, "subscribe", "read", "--limit", "1", "--timeout", "20s") == "1\n"
    assert run(server, "queue", "browse", "read") == "1\n2\n3\n4\n"
    printed = run(
        server, "subscribe", "read", "--ack", "--limit", "3", "--max-backlog", "10", "--timeout", "20s",
        "--output", "json",
    )  # fmt: skip
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [(row["topic"], row["underlying_topic"], row["data"]) for row in rows] == [
        ("read", "read", 1),
        ("read", "read", 2),
        ("read", "read", 3),
    ]
    assert run(server, "queue", "browse", "read", "--limit", "5") == "4\n"
    assert run(server, "subscribe", "read", "--ack", "--timeout", "2s", code=3) == "4\n"
    assert run(server, "queue", "browse", "read") == ""


def test_requeue_returns_dead_letters_to_the_work_queue(server: RunningServer) -> None:
    first, second = publish(server, "orders", '{"a":1}', '{"a":2}')
    run(server, "ack", "work", f"{first},{second}", "--option", "expire")
    assert run(server, "queue", "browse", "work") == ""
    rows = [
        json.loads(line) for line in run(server, "queue", "browse", "dead", "--output", "json").splitlines()
    ]
    labels = [json.loads(row["correlation_id"]) for row in rows]
    assert [(label["queue"], label["topic"], label["bookmark"]) for label in labels] == [
        ("work", "orders", first),
        ("work", "orders", second),
    ]
    assert run(server, "queue", "requeue", "dead", "--limit", "1") == "1 message requeued\n"
    assert run(server, "queue", "browse", "dead") == '{"a":2}\n'
    (back,) = [
        json.loads(line) for line in run(server, "queue", "browse", "work", "--output", "json").splitlines()
    ]
    assert (back["data"], back["correlation_id"]) == ({"a": 1}, "mine")
    run(server, "ack", "work", "--filter", "/a = 1")
    assert run(server, "queue", "browse", "work") == ""


def test_purge_removes_matching_messages_and_prints_the_count(server: RunningServer) -> None:
    publish(server, "purged", *(json.dumps({"n": n}) for n in range(20)))
    purge = ("queue", "purge", "purged", "--yes", "--admin", server.admin_url)
    assert run(server, *purge, "--filter", "/n < 5") == "5 messages left the queue\n"
    listed = CliRunner().invoke(cli, ["queue", "ls", "--admin", server.admin_url, "--output", "json"]).stdout
    (purged,) = [row for row in map(json.loads, listed.splitlines()) if row["name"] == "purged"]
    assert (purged["depth"], purged["ready"], purged["entered"], purged["acknowledged"]) == (15, 15, 20, 5)
    purged = json.loads(run(server, *purge, "--output", "json"))
    assert purged == {"queue": "purged", "purged": 15}
    assert run(server, *purge) == "0 messages left the queue\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("subscribe", "wrok", "--ack"),
        ("subscribe", "wrok", "--max-backlog", "5"),
        ("ack", "wrok", "1|2|"),
        ("queue", "browse", "wrok"),
        ("queue", "requeue", "wrok"),
        ("queue", "purge", "wrok", "--yes"),
    ],
)
def test_topic_that_is_not_a_queue_is_refused_at_once_with_a_near_name(
    server: RunningServer, arguments: tuple[str, ...]
) -> None:
    """Without a timeout, a command that waited for messages would not end."""
    asked = [*arguments, "--server", server.uri]
    result = CliRunner().invoke(cli, [*asked, "--admin", server.admin_url])
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert "'wrok'" in result.stderr
    assert result.stderr.count("Did you mean 'work'?") == 1
    plain = CliRunner().invoke(cli, asked)
    assert plain.exit_code == 2
    assert plain.stderr.count("Did you mean") <= 1


def test_ack_of_a_topic_that_is_not_a_queue_names_the_topic(server: RunningServer) -> None:
    result = CliRunner().invoke(cli, ["subscribe", "orders", "--ack", "--server", server.uri])
    assert (result.exit_code, result.stderr) == (
        2,
        "tickertape: Cannot use --ack: 'orders' is not a queue. Remove the option, or name a queue.\n",
    )
    rejected = CliRunner().invoke(cli, ["ack", "no-queue", "1|2|", "--server", server.uri])
    assert rejected.exit_code == 2
    assert "no-queue" in rejected.stderr
    assert len(rejected.stderr.splitlines()) == 1
