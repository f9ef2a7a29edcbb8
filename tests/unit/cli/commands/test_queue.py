"""`queue`, `ack` and `subscribe --ack`: calls of the client, their order, and refused options."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.helpers.leases import Settled, out_of
from tests.unit.server.admin.test_metrics import IDLE, WORK, stats_of
from tickertape.base.errors import TickertapeError, TimedOut
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.cli.commands import queue as commands
from tickertape.cli.commands.queue import label_of
from tickertape.cli.support import terminal
from tickertape.cli.support.command_group import cli
from tickertape.client.blocking import client as client_module
from tickertape.server.admin.schema import Stats


class Stream:
    """Stream with fixed batches, which times out after the last one."""

    end_error: TickertapeError | None = None

    def __init__(self, batches: Iterable[MessageBatch], *, ends: bool) -> None:
        self._batches = list(batches)
        self._ends = ends

    def batches(self, timeout: float | None = None) -> Iterator[MessageBatch]:
        yield from self._batches
        if not self._ends:
            raise TimedOut(f"nothing came within {timeout}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class Client:
    """Client that records its calls. `waiting` is in the queue, and `taken` is delivered of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.waiting: list[MessageBatch] = []
        self.taken: list[MessageBatch] | None = None
        self.connected_to: tuple[str, bool] | None = None

    def __call__(self, name: str, server: str, *, publish_store: object = None, timeout: float) -> Self:
        assert name.startswith("tickertape-")
        self.connected_to = (server, publish_store is not None)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def subscribe(self, topic: str, *, browse: bool = False, **asked: object) -> Stream:
        wanted = {name: value for name, value in asked.items() if value is not None}
        self.calls.append(("browse" if browse else "subscribe", topic, wanted))
        return Stream(self.waiting if browse or self.taken is None else self.taken, ends=browse)

    def publish(
        self, topic: str, data: bytes, *, correlation_id: str | None = None, sow_key: str | None = None
    ) -> None:
        self.calls.append(("publish", topic, data, correlation_id, sow_key))

    def publish_flush(self, timeout: float | None = None) -> None:
        self.calls.append(("flush",))

    def ack(self, topic: str, bookmarks: list[str], option: str | None = None) -> None:
        self.calls.append(("ack", topic, bookmarks, option))

    def sow_delete(self, topic: str, *, filter: str, options: str | None = None) -> None:
        self.calls.append(("sow_delete", topic, filter, options))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Yield the client that commands connect with."""
    made = Client()
    monkeypatch.setattr(client_module, "Client", made)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def dead(*labels: str, first: int = 1) -> MessageBatch:
    """Return dead letters with these correlation ids."""
    builder = BatchBuilder()
    for n, label in enumerate(labels, first):
        builder.add("dead", b"%d" % n, correlation_id=label, key=f"k{n}")
    return builder.build(publisher=7, first_sequence=first)


def label(topic: str, **more: str) -> str:
    return json.dumps({"queue": "work", "topic": topic, "bookmark": "1|1|", "reason": "expire", **more})


# -- requeue --------------------------------------------------------------------------------------------


def test_requeue_acknowledges_dead_letters_after_the_republish_is_persisted(
    client: Client,
) -> None:
    client.waiting = [dead(label("orders"), label("fills", correlation_id="mine")), dead(label("a"), first=3)]
    result = run("queue", "requeue", "work-dead")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "3 messages requeued\n", "")
    assert client.connected_to == ("tcp://127.0.0.1:9007", True)
    assert client.calls == [
        ("browse", "work-dead", {}),
        ("subscribe", "work-dead", {"max_backlog": 3}),
        ("publish", "orders", b"1", None, "k1"),
        ("publish", "fills", b"2", "mine", "k2"),
        ("flush",),
        ("ack", "work-dead", ["7|1|", "7|2|"], None),
        ("publish", "a", b"3", None, "k3"),
        ("flush",),
        ("ack", "work-dead", ["7|3|"], None),
        ("flush",),
    ]


def test_requeue_as_json_counts_messages_without_a_label(client: Client) -> None:
    client.waiting = [dead(label("orders"), "plain")]
    result = run("queue", "requeue", "work-dead", "--output", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"queue": "work-dead", "requeued": 1, "unlabelled": 1}


def test_requeue_with_limit_and_topic_moves_that_many_messages(client: Client) -> None:
    client.waiting = [dead("plain", label("orders"), label("fills"))]
    result = run("queue", "requeue", "work-dead", "--to", "again", "--limit", "2")
    assert result.stdout == "2 messages requeued\n"
    assert client.calls[1:] == [
        ("subscribe", "work-dead", {"max_backlog": 2}),
        ("publish", "again", b"1", "plain", "k1"),
        ("publish", "again", b"2", None, "k2"),
        ("flush",),
        ("ack", "work-dead", ["7|1|", "7|2|"], None),
        ("flush",),
    ]


def test_requeue_keeps_and_reports_messages_without_a_dead_letter_label(client: Client) -> None:
    client.waiting = [dead("plain", label("orders"))]
    result = run("queue", "requeue", "work-dead")
    assert (result.exit_code, result.stdout) == (1, "1 message requeued\n")
    assert result.stderr == (
        "tickertape: Cannot requeue 1 message of 'work-dead': the original topic is unknown. "
        "Pass a topic with --to TOPIC.\n"
    )
    assert [call for call in client.calls if call[0] == "ack"] == [("ack", "work-dead", ["7|2|"], None)]


def test_requeue_stops_when_another_consumer_took_the_messages(client: Client) -> None:
    client.waiting = [dead(label("a"), label("b"))]
    client.taken = [dead(label("a"))]
    result = run("queue", "requeue", "work-dead", "--idle", "100ms")
    assert (result.exit_code, result.stdout) == (0, "1 message requeued\n")
    assert client.calls[-1] == ("flush",)


def test_requeue_leaves_dead_letters_that_arrive_meanwhile(client: Client) -> None:
    client.waiting = [dead(label("a"), label("b"), label("c"))]
    client.taken = [dead("plain", label("b")), dead(label("c"), label("d"), first=3)]
    assert run("queue", "requeue", "work-dead").stdout == "2 messages requeued\n"
    assert [call[1] for call in client.calls if call[0] == "publish"] == ["b", "c"]
    assert [call[2] for call in client.calls if call[0] == "ack"] == [["7|2|"], ["7|3|"]]


def test_requeue_from_an_at_most_once_queue_is_refused(client: Client) -> None:
    client.waiting = [out_of("work-dead", dead(label("a")), once=True)]
    result = run("queue", "requeue", "work-dead")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'work-dead': the queue is at-most-once" in result.stderr
    assert client.calls == [("browse", "work-dead", {})]


def test_requeue_of_an_empty_queue_does_not_subscribe(client: Client) -> None:
    result = run("queue", "requeue", "work-dead")
    assert (result.exit_code, result.stdout) == (0, "0 messages requeued\n")
    assert client.calls == [("browse", "work-dead", {})]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "plain",
        "5",
        "[]",
        '{"queue":"q"}',
        '{"topic":5}',
        '{"topic":"a*"}',
        '{"topic":""}',
        '{"x":' + "[" * 3_000,
    ],
)
def test_correlation_id_without_a_dead_letter_label_has_no_label(text: str | None) -> None:
    assert label_of(text) is None


# -- purge ----------------------------------------------------------------------------------------------


def test_purge_without_terminal_requires_confirmation(client: Client) -> None:
    result = run("queue", "purge", "work")
    assert (result.exit_code, client.calls) == (2, [])
    assert "Confirmation needed. Pass --yes when not on a terminal." in result.stderr


@pytest.mark.parametrize(("answer", "code", "calls"), [(True, 0, 2), (False, 1, 0)])
def test_purge_at_a_terminal_follows_the_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, calls: int
) -> None:
    question = "Acknowledge the messages that match /a = 1 of the queue work, so that they leave it?"
    monkeypatch.setattr(commands, "confirmed", {question: answer}.__getitem__)
    assert run("queue", "purge", "work", "--filter", "/a = 1").exit_code == code
    assert len(client.calls) == calls


def test_confirmation_without_a_terminal_is_none() -> None:
    assert terminal.confirmed("Really?") is None


@pytest.mark.parametrize(("more", "filter"), [((), "TRUE"), (("--filter", "/a = 1"), "/a = 1")])
def test_purge_acknowledges_by_filter(client: Client, more: tuple[str, ...], filter: str) -> None:
    result = run("queue", "purge", "work", "--yes", *more)
    assert (result.exit_code, result.stdout) == (0, "done\n")
    assert client.calls == [("sow_delete", "work", filter, None), ("flush",)]


def reporting(monkeypatch: pytest.MonkeyPatch, module: object, *reports: Stats) -> None:
    """Return these reports to `module`, one per call."""
    left = iter(reports)

    def report(url: str) -> tuple[bytes, Stats]:
        assert url == "http://127.0.0.1:9008"
        return b"", next(left)

    monkeypatch.setattr(module, "stats_of", report)


def test_purge_with_an_admin_address_prints_the_message_count(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = msgspec.structs.replace(WORK, acknowledged=1_221)
    reporting(monkeypatch, commands, stats_of(WORK), stats_of(after))
    result = run("queue", "purge", "work", "--yes", "--admin", "http://127.0.0.1:9008")
    assert (result.stdout, len(client.calls)) == ("1,201 messages left the queue\n", 2)


def test_purge_of_a_missing_queue_is_refused_before_the_purge(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting(monkeypatch, commands, stats_of(IDLE))
    result = run("queue", "purge", "work", "--yes", "--admin", "http://127.0.0.1:9008")
    assert (result.exit_code, client.calls) == (2, [])
    assert (
        result.stderr
        == "tickertape: The server has no queue 'work'. Run `tickertape queue ls` to list the queues.\n"
    )


# -- ls, browse -----------------------------------------------------------------------------------------


def test_queue_ls_lists_queues_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    reporting(monkeypatch, commands, stats_of(WORK, IDLE))
    result = run("queue", "ls")
    assert [line.split() for line in result.stdout.splitlines()] == [
        [
            "queue", "topics", "ready", "leased", "inactive", "consumers", "oldest", "entered",
            "acknowledged", "returned", "expired",
        ],
        ["idle", "^orders/", "0", "0", "0", "3", "-", "40", "29", "0", "0"],
        ["work", "^orders/", "5", "2", "10", "3", "12.5", "40", "20", "5", "2"],
    ]  # fmt: skip
    assert result.stderr == "queue idle has stopped: its log is damaged\n"


def test_queue_ls_prints_the_whole_cause_of_a_stopped_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    cause = (
        "Cannot read 'journal/0000000003.segment' at offset 128208: commit 17 does not match its checksum. "
        "Run `tickertape journal verify` for details."
    )
    reporting(monkeypatch, commands, stats_of(msgspec.structs.replace(IDLE, failure=cause)))
    assert run("queue", "ls").stderr == f"queue idle has stopped: {cause}\n"


def test_queue_ls_prints_json_and_a_note_without_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    reporting(monkeypatch, commands, stats_of(WORK, IDLE), stats_of(), stats_of())
    listed = [json.loads(line) for line in run("queue", "ls", "--output", "json").stdout.splitlines()]
    assert [queue["name"] for queue in listed] == ["idle", "work"]
    assert listed[1] == msgspec.to_builtins(stats_of(WORK).queues[0])
    assert run("queue", "ls", "--output", "json").stdout == ""
    assert run("queue", "ls").stdout.startswith("no queues (")


def test_browse_prints_the_waiting_messages_and_ends(client: Client) -> None:
    client.waiting = [dead("a", "b", "c")]
    assert run("queue", "browse", "work", "--filter", "/x = 1").stdout == "1\n2\n3\n"
    assert run("queue", "browse", "work", "--limit", "2").stdout == "1\n2\n"
    assert client.calls == [
        ("browse", "work", {"filter": "/x = 1", "options": "timestamp"}),
        ("browse", "work", {"options": "timestamp"}),
    ]


def test_browse_prints_the_error_that_ended_the_stream(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stream, "end_error", TickertapeError("gone"))
    client.waiting = [dead("a")]
    result = run("queue", "browse", "work")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "1\n", "tickertape: gone\n")


# -- ack ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "call", "summary"),
    [
        (["1|2|"], ("ack", "work", ["1|2|"], None), "1 acknowledgement persisted"),
        (
            ["1|2|, 3|4|", "--option", "cancel"],
            ("ack", "work", ["1|2|", "3|4|"], "cancel"),
            "2 releases persisted",
        ),
        (["1|2|", "--option", "expire"], ("ack", "work", ["1|2|"], "expire"), "1 rejection persisted"),
        (
            ["1|2|", "--option", "lease_extension=60s"],
            ("ack", "work", ["1|2|"], "lease_extension=60s"),
            "1 lease extension persisted",
        ),
        (
            ["--filter", "/a = 1"],
            ("sow_delete", "work", "/a = 1", None),
            "acknowledgement of all matching messages persisted",
        ),
        (
            ["--filter", "/a = 1", "--option", "expire"],
            ("sow_delete", "work", "/a = 1", "expire"),
            "rejection of all matching messages persisted",
        ),
    ],
)
def test_ack_command_waits_until_acknowledgements_are_persisted(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    call: tuple[Any, ...],
    summary: str,
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr("tickertape.cli.commands.ack.remark", remarks.append)
    result = run("ack", "work", *arguments)
    assert (result.exit_code, result.output) == (0, "")
    assert remarks == [summary]
    assert client.calls == [call, ("flush",)]
    assert client.connected_to == ("tcp://127.0.0.1:9007", True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ack", "work"], "Pass BOOKMARKS or --filter, and not both"),
        (["ack", "work", "1|2|", "--filter", "/a"], "Pass BOOKMARKS or --filter, and not both"),
        (["ack", "^work", "1|2|"], "Invalid topic '^work': '^' makes it a pattern"),
        (["ack", "work", "1|2"], "Invalid bookmark '1|2'. Use a bookmark (publisher|sequence|)"),
        (["ack", "work", "1|2|,"], "Invalid bookmark ''. Use a bookmark (publisher|sequence|)"),
        (["ack", "work", "0"], "Invalid bookmark '0'. Use a bookmark (publisher|sequence|)"),
        (["ack", "work", "now"], "Invalid bookmark 'now'. Use a bookmark (publisher|sequence|)"),
        (
            ["ack", "work", "1|2|", "--option", "done"],
            "Invalid option 'done'. Use cancel, expire or lease_extension=60s",
        ),
        (["ack", "work", "1|2|", "--option", "lease_extension=0"], "Use cancel, expire or lease_ext"),
        (["ack", "work", "1|2|", "--option", "lease_extension=soon"], "Invalid interval 'soon'"),
        (["queue", "requeue", "work", "--to", "a*"], "Invalid topic 'a*': '*' makes it a pattern"),
        (["queue", "browse", "work", "--limit", "0"], "0"),
        (["queue", "purge", "work", "--admin", "tcp://127.0.0.1:9007"], "tcp://127.0.0.1:9007"),
        (["subscribe", "work", "--ack", "--bookmark", "epoch"], "exclude --bookmark"),
        (["subscribe", "work", "--max-backlog", "5", "--bookmark", "now"], "exclude --bookmark"),
        (["subscribe", "work", "--max-backlog", "0"], "0"),
    ],
)
def test_queue_commands_with_invalid_options_exit_2(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    # click wraps long lines anywhere
    assert says.replace(" ", "") in "".join(result.stderr.split())


# -- subscribe --ack ------------------------------------------------------------------------------------


def test_subscribe_ack_acknowledges_printed_messages_and_persists(client: Client) -> None:
    settled = Settled()
    client.waiting = [out_of("work", dead(*"ab", first=n), settled=settled) for n in (1, 3, 5)]
    result = run("subscribe", "work", "--ack", "--max-backlog", "9", "--limit", "3")
    assert (result.exit_code, result.stdout) == (0, "1\n2\n3\n")
    assert settled.told == [("work", "ack", 7, 1), ("work", "ack", 7, 2), ("work", "ack", 7, 3)]
    assert client.calls == [
        ("subscribe", "work", {"options": "bookmark,timestamp", "max_backlog": 9}),
        ("flush",),
    ]
    assert client.connected_to == ("tcp://127.0.0.1:9007", True)


def test_subscribe_ack_persists_after_a_timeout(client: Client) -> None:
    settled = Settled()
    client.waiting = [out_of("work", dead("a"), settled=settled)]
    result = run("subscribe", "work", "--ack", "--timeout", "1s")
    assert (result.exit_code, result.stdout) == (3, "1\n")
    assert (len(settled.told), client.calls[1:]) == (1, [("flush",)])


def test_subscribe_without_ack_acknowledges_nothing(client: Client) -> None:
    settled = Settled()
    client.waiting = [out_of("work", dead("a"), settled=settled)]
    assert run("subscribe", "work", "--limit", "1").stdout == "1\n"
    assert (settled.told, client.connected_to) == ([], ("tcp://127.0.0.1:9007", False))
    assert len(client.calls) == 1
