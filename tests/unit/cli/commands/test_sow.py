"""`sow-delete` and `delta-publish`: calls of the client, confirmation, and output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest
from click.testing import CliRunner, Result

from tickertape.base.errors import BadOption, BadTopic, PublishRejected, TickertapeError
from tickertape.cli.commands import sow as commands
from tickertape.cli.support.command_group import cli
from tickertape.client.blocking import client as client_module


class Closes:
    """Context manager without an effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class Records(Closes):
    """Result of a query that sends no record."""

    matches = 1_234

    def __iter__(self) -> Iterator[object]:
        return iter(())


class Answer(NamedTuple):
    """Answer of a delete."""

    matches: int | None = 1_234
    records: int | None = 1_233


class Client(Closes):
    """Client that records its calls."""

    connected = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.refused: Exception | None = None
        self.answer = Answer()

    def __call__(self, name: str, server: str, *, publish_store: object = None, timeout: float) -> Self:
        assert name.startswith(("tickertape-sow-delete-", "tickertape-delta-publish-", "loader"))
        assert publish_store is not None
        return self

    def sow(self, topic: str, **asked: object) -> Records:
        self.calls.append(("sow", topic, asked))
        if self.refused is not None:
            raise self.refused
        return Records()

    def sow_delete(self, topic: str, **asked: object) -> Answer:
        self.calls.append(("sow_delete", topic, asked))
        return self.answer

    def delta_publish(self, topic: str, data: bytes) -> int:
        self.calls.append(("delta_publish", topic, data))
        return len(self.calls)

    def publish_flush(self, timeout: float | None = None) -> None:
        self.calls.append(("flush", timeout))
        if self.error is not None:
            raise self.error

    def set_exception_listener(self, listener: object) -> None:
        """Ignored."""

    def unpersisted_count(self) -> int:
        return 0


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Yield the client that commands connect with."""
    made = Client()
    monkeypatch.setattr(client_module, "Client", made)
    return made


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["--sow-key", "a", "--sow-key", "b"], {"keys": ["a", "b"]}),
        (["--filter", "/qty = 0"], {"filter": "/qty = 0"}),
        (["--data", "-"], {"data": b'{"id": 7}'}),
    ],
)
def test_confirmed_delete_sends_one_request(
    client: Client, arguments: list[str], asked: dict[str, Any]
) -> None:
    result = run("sow-delete", "positions", "--yes", *arguments, stdin=b'{"id": 7}\r\n')
    assert (result.exit_code, result.stdout, result.stderr) == (0, "1,233 records deleted\n", "")
    counted = {} if "data" in asked else asked
    assert client.calls == [
        ("sow", "positions", {"keys": ["A" * 22], "top_n": 0}),
        ("sow", "positions", {**counted, "top_n": 0}),
        ("sow_delete", "positions", asked),
    ]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("text", "deleted, and the number of records is unknown\n"),
        ("json", '{"topic":"positions","matches":null,"deleted":null}\n'),
    ],
)
def test_delete_with_unknown_counts_prints_no_number(client: Client, output: str, expected: str) -> None:
    client.answer = Answer(None, None)
    result = run("sow-delete", "positions", "--yes", "--sow-key", "a", "--output", output)
    assert (result.exit_code, result.stdout) == (0, expected)


def test_delete_by_binary_data_keeps_the_last_byte(client: Client) -> None:
    data = b"\x81\xa2id\x0a"  # {"id": 10} as MessagePack
    assert run("sow-delete", "positions", "--yes", "--data", "-", stdin=data).exit_code == 0
    assert client.calls[-1] == ("sow_delete", "positions", {"data": data})


@pytest.mark.parametrize(
    "error",
    [
        BadTopic("Cannot query records of 'work': it is not a SOW topic of this server."),
        BadOption("Cannot query queue 'work' by keys: the messages of a queue are not records."),
    ],
)
def test_delete_on_a_queue_is_refused_before_an_acknowledgement(
    client: Client, error: TickertapeError
) -> None:
    client.refused = error
    result = run("sow-delete", "work", "--filter", "TRUE", "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "it is not a SOW topic" in result.stderr
    assert [call[0] for call in client.calls] == ["sow"]


def test_delete_as_json_has_the_counts(client: Client) -> None:
    result = run("sow-delete", "positions", "--sow-key", "a", "--yes", "--output", "json")
    assert json.loads(result.stdout) == {"topic": "positions", "matches": 1_234, "deleted": 1_233}


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["--filter", "/qty = 0"], "Delete 1,234 records in 'positions'?"),
        (["--sow-key", "a"], "Delete 1,234 records in 'positions'?"),
        (["--data", "-"], "Delete the record that the data would replace in 'positions'?"),
    ],
)
def test_delete_asks_with_the_number_of_matches(
    client: Client, monkeypatch: pytest.MonkeyPatch, arguments: list[str], question: str
) -> None:
    asked: list[str] = []

    def refuse(text: str) -> bool:
        asked.append(text)
        return False

    monkeypatch.setattr(commands, "confirmed", refuse)
    result = run("sow-delete", "positions", *arguments, stdin=b"{}")
    assert (result.exit_code, result.stderr) == (1, "tickertape: Nothing was deleted.\n")
    assert asked == [question]
    assert all(call[:1] == ("sow",) and call[2]["top_n"] == 0 for call in client.calls)


def test_delete_without_a_terminal_requires_yes(client: Client) -> None:
    result = run("sow-delete", "positions", "--sow-key", "a")
    assert result.exit_code == 2
    assert "Confirmation needed. Pass --yes when not on a terminal." in result.stderr
    assert [call[0] for call in client.calls] == ["sow", "sow"]


def test_delta_publish_sends_each_line(client: Client) -> None:
    result = run("delta-publish", "positions", "--timeout", "7s", stdin=b'{"id": 1}\n\n{"id": 2}\r\n')
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert client.calls == [
        ("delta_publish", "positions", b'{"id": 1}'),
        ("delta_publish", "positions", b'{"id": 2}'),
        ("flush", 7.0),
    ]


def test_delta_publish_stops_at_a_line_that_is_not_json(client: Client) -> None:
    result = run("delta-publish", "positions", stdin=b'{"id": 1}\n{"id"\n')
    assert result.exit_code == 1
    assert "line 2 is not JSON: " in result.stderr
    assert "Messages published before this line: 1." in result.stderr
    assert [call[0] for call in client.calls] == ["delta_publish", "flush"]


def test_rejected_delta_is_exit_code_1(client: Client) -> None:
    client.error = PublishRejected("The server rejected 1 message. First reason: no key.")
    result = run("delta-publish", "positions", stdin=b"{}\n")
    assert result.exit_code == 1
    assert "no key" in result.stderr
