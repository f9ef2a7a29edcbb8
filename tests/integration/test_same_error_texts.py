"""The same mistake has the same text in Python and on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import tickertape as tt
from tests.helpers.queues import SECONDS
from tickertape.base.errors import TickertapeError
from tickertape.cli.support.command_group import cli
from tickertape.journal.disk import SystemDisk
from tickertape.journal.offline.snapshot import take_snapshot
from tickertape.testing import RunningServer

CONFIG = """
[[journal.topic]]
name = "orders"
[[journal.topic]]
name = "checked"
[[topic]]
name = "checked"
validate = true
"""


def subscribe(**options: object) -> Callable[[tt.Client], object]:
    """Return a subscription, with the options as keywords."""
    return lambda client: client.subscribe("orders", **options)  # type: ignore[arg-type]


def replay(topic: str = "orders", start: str = "0", **options: object) -> Callable[[tt.Client], object]:
    return lambda client: client.bookmark_subscribe(topic, start, **options)  # type: ignore[arg-type]


def publish(topic: str, body: bytes) -> Callable[[tt.Client], object]:
    def call(client: tt.Client) -> None:
        client.publish(topic, body)
        client.publish_flush()

    return call


MISTAKES: dict[str, tuple[Callable[[tt.Client], object], list[str], bytes]] = {
    "syntax of a filter": (
        subscribe(filter="/price >"),
        ["subscribe", "orders", "--filter", "/price >"],
        b"",
    ),
    "function of a filter": (
        subscribe(filter="UPPR(/a) = 'X'"),
        ["subscribe", "orders", "--filter", "UPPR(/a) = 'X'"],
        b"",
    ),
    "field without a slash": (
        subscribe(filter="/a = price"),
        ["subscribe", "orders", "--filter", "/a = price"],
        b"",
    ),
    "select list": (subscribe(select="price"), ["subscribe", "orders", "--select", "price"], b""),
    "rate": (
        replay(rate="fast"),
        ["subscribe", "orders", "--bookmark", "epoch", "--rate", "fast"],
        b"",
    ),
    "topic that is not persistent": (
        replay("odrers"),
        ["subscribe", "odrers", "--bookmark", "epoch"],
        b"",
    ),
    "expression that is invalid": (
        lambda client: client.subscribe("a(.*"),
        ["subscribe", "a(.*"],
        b"",
    ),
    "topic that is not Unicode": (
        lambda client: client.subscribe("\udcff.*"),
        ["subscribe", "\udcff.*"],
        b"",
    ),
    "pattern": (publish("a.*", b"1"), ["publish", "a.*"], b"1\n"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_client_and_command_have_the_same_text(server: RunningServer, mistake: str) -> None:
    call, arguments, stdin = MISTAKES[mistake]
    client = tt.Client(f"python-{len(mistake)}", server.uri, timeout=SECONDS)
    with client, pytest.raises(TickertapeError) as raised:
        call(client)
    same(str(raised.value), [*arguments, "--server", server.uri], stdin)


def test_command_error_about_an_option_names_the_option_of_the_command(server: RunningServer) -> None:
    with tt.Client("python-options", server.uri, timeout=SECONDS) as client:
        for call, option, arguments in (
            (subscribe(max_backlog=5), "option max_backlog", ["--max-backlog", "5"]),
            (
                replay(start="1|2|"),
                "option bookmark_not_found",
                ["--bookmark", "1|2|", "--bookmark-not-found", "fail"],
            ),
        ):
            with pytest.raises(TickertapeError, match=option):
                call(client)
            command = ["subscribe", "orders", *arguments, "--server", server.uri]
            text = flat(CliRunner().invoke(cli, command).stderr)
            assert option not in text
            assert f"--{option.split()[1].replace('_', '-')}" in text


def test_publish_command_names_the_server_that_rejected_messages(server: RunningServer) -> None:
    done = CliRunner().invoke(cli, ["publish", "checked", "--server", server.uri], input=b"{\n")
    start = f"tickertape: Cannot publish to {server.uri!r}: the server rejected 1 message. First reason: "
    assert (done.exit_code, done.stderr.startswith(start)) == (1, True), done.stderr
    assert "may not be persisted" not in done.stderr  # none is left


def same(text: str, arguments: list[str], stdin: bytes = b"") -> None:
    done = CliRunner().invoke(cli, arguments, input=stdin)
    assert done.exit_code != 0
    assert flat(text) in flat(done.stderr), done.stderr


def flat(text: str) -> str:
    """Return a text without line breaks and indents, which differ between the two."""
    return re.sub(r"\s+", " ", text)


def test_closed_port_has_the_same_text() -> None:
    with pytest.raises(tt.Disconnected) as raised:
        tt.Client("c", "tcp://127.0.0.1:1").connect()
    same(str(raised.value), ["subscribe", "orders", "--server", "tcp://127.0.0.1:1"])


def test_invalid_address_has_the_same_text() -> None:
    with pytest.raises(tt.BadOption) as raised:
        tt.Client("c", "localhost")
    same(str(raised.value), ["subscribe", "orders", "--server", "localhost"])


def test_directory_without_a_journal_has_the_same_text(tmp_path: Path) -> None:
    with pytest.raises(tt.NotAJournal) as raised:
        take_snapshot(SystemDisk(tmp_path))
    same(str(raised.value), ["journal", "dump", str(tmp_path)])
