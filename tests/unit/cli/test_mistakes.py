"""Texts of mistakes of the user: quotes around the value, option names, and a cure."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.cli.test_exit_codes import NO_OWNER, NONE
from tickertape.base.errors import BadFilter, NotAQueue, PublishRejected, TopicNotRecorded
from tickertape.cli.support.command_group import Failure, UserMistake, cli
from tickertape.cli.support.name_hints import consuming

MISTAKES = [
    (["consume", "orders"], "No such command 'consume'. Did you mean 'subscribe'?"),
    (["pub", "orders"], "No such command 'pub'. Did you mean 'publish'?"),
    (["queue", "peek"], "No such command 'peek'. Did you mean 'browse'?"),
    (["version"], "No such command 'version'. Did you mean '--version'?"),
    (["subscribe", "t", "--bookmrk", "epoch"], "Did you mean '--bookmark'?"),
    (["subscribe", "t", "--json"], "No such option '--json'. Did you mean '--output json'?"),
    (["subscribe", "t", "--from-beginning"], "Did you mean '--bookmark epoch'?"),
    (
        ["subscribe", "--topic", "t"],
        "No such option '--topic'. Pass TOPIC as an argument, without an option.",
    ),
    (["queue", "browse", "--name", "x"], "Pass NAME as an argument, without an option."),
    (["filter", "test", "/a", "--file", "x"], "Pass FILE as an argument, without an option."),
    (["journal", "dump", ".", "--since", "x"], "Did you mean '--from'?"),
    (["pipeline", "audit", "http://h:1"], "Invalid value for 'LOG': Invalid log 'http://h:1'. Use tcp://"),
    (["pipeline", "audit", "none"], "Invalid value for 'LOG': Directory 'none' does not exist."),
    (["pipeline", "audit", NONE, "--against", "none"], "'--against': Directory 'none' does not exist."),
    (["token", "list"], "No such command 'list'. Use new."),
    (["filter", "/a = 1"], "No such command '/a = 1'. Use explain or test."),
    (["subscribe", "t", "--bookmark", "earliest"], "Did you mean 'epoch'?"),
    (["subscribe", "t", "--bookmark", "latest"], "Did you mean 'now'?"),
    (["publish", "t", "{}"], "File '{}' does not exist. To publish a text, pass --message."),
    (["serve", "--config", "c.toml"], "Pass CONFIG.toml as an argument, without an option."),
    (["serve", "--port", "1"], "Did you mean '--listen'?"),
    (["topics", "--server", NONE], "No such option '--server'. Did you mean '--admin'?"),
    (["publish", "t", "-m", "x"], "Did you mean '--message'?"),
    (["subscribe", "t", "more"], "Too many arguments: 'more'. Remove them, or put quotes around"),
    (["subscribe", "t", "--limit", "x"], "Invalid number 'x'. Use an integer of at least 1."),
    (["subscribe", "t", "--limit", "0"], "Invalid number '0'. Use an integer of at least 1."),
    (["subscribe", "t", "--output", "jsn"], "Unknown value 'jsn'. Did you mean 'json'? Use text or json."),
    (["check"], "Missing argument 'CONFIG.toml'."),
    (["completion"], "Missing argument 'SHELL'. Use bash, zsh or fish."),
    (["completion", "bsh"], "Invalid value for 'SHELL': Unknown value 'bsh'. Did you mean 'bash'?"),
    (["publish", "t", "--rate", "10/s"], "Invalid rate '10/s'. Use a number above 0, such as 100."),
    (["publish", "t", "none"], "Invalid value for 'FILE': File 'none' does not exist."),
    (["publish", "t", "."], "Invalid value for 'FILE': File '.' is a directory."),
    (["publish", "t", "--timeout", "0"], "Invalid timeout '0'. Use a time above 0, such as 500ms."),
    (["ack", "q", "1|2"], "Invalid value for 'BOOKMARKS': Invalid bookmark '1|2'."),
    (["ack", "q", "1|2|", "--option", "expires"], "Invalid option 'expires'. Did you mean 'expire'?"),
    (["ack", "q", "1|2|", "--option", "lease_extension"], "Use cancel, expire or lease_extension=60s."),
    (["subscribe", "t", "--bookmark", "2026-11-20T10:00:00+01:00"], "Did you mean '20261120T090000'?"),
    (["subscribe", "t", "--bookmark", "2026-11-20"], "Did you mean '20261120T000000'?"),
    (["subscribe", "t", "--bookmark", "epoc"], "Did you mean 'epoch'?"),
    (["subscribe", "t", "--conflation", "x"], "Invalid value for '--conflation': Invalid interval 'x'."),
    (["subscribe", "t", "--conflation-key", "/a"], "--conflation-key requires --conflation."),
    (["subscribe", "t", "--bookmark", "epoch", "--rate-max-gap", "5s"], "requires a multiple as --rate."),
    (["publish", "t", "--ca", "x", "--server", "tcp://h:1"], "--ca requires a tls:// address, but --server"),
    (["publish", "t", "--key", "x"], "--key requires --certificate. Pass both or neither."),
    (["health", "--admin", "http://h:1/ready"], "Invalid admin address 'http://h:1/ready'. Use http://HOST"),
    (["health", "--admin", "https://h:1"], "Invalid admin address 'https://h:1'. Use http://HOST:PORT"),
    (["serve", "--listen", "h:1"], "Invalid value for '--listen': Invalid listen address 'h:1'."),
    (["token", "new", "a", "--clients", "("], "Cannot create a token: [a] clients '(': invalid"),
    (
        ["token", "new", "a", "--add", "f", "--clients", "("],
        "Cannot create a token: [a] clients '(': invalid",
    ),
    (["token", "new", "a", "--expires", "2020-01-01T00:00:00Z"], "it is in the past. Use a later time."),
    (["token", "new", "a", "--expires", "soon"], "Invalid value for '--expires': Invalid time 'soon'."),
    (["token", "new", "a", "--add", "none/tokens"], "Cannot use 'none/tokens': no such file or directory."),
    (["pipeline", "run", "none"], "Cannot run a pipeline: 'none' does not exist. Create it with"),
    (["doctor", "--data", "file"], "Cannot use data directory '"),
    (["publish", "t", "--name", "", "--message", "x", "--server", NONE], "Invalid client name ''"),
]


@pytest.mark.parametrize(("arguments", "text"), MISTAKES, ids=lambda value: " ".join(value)[:40])
def test_mistake_reports_value_and_cure(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, arguments)
    assert text in " ".join(result.stderr.split())
    assert result.exit_code == 2


@pytest.mark.parametrize("option", ["--group", "--name"])
def test_option_without_a_near_name_gets_no_suggestion(option: str) -> None:
    result = CliRunner().invoke(cli, ["subscribe", "t", option, "g"])
    assert result.stderr.endswith(f"Error: No such option {option!r}.\n")


def test_admin_address_without_server_is_quoted() -> None:
    result = CliRunner().invoke(cli, ["health", "--admin", NO_OWNER])
    assert f"Cannot connect to {NO_OWNER!r}: " in result.stderr


def consumer() -> AbstractContextManager[None]:
    return consuming("wrk", None)


def rejected(cause: Exception) -> PublishRejected:
    error = PublishRejected("The server rejected 1 message. First reason: ...")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [NotAQueue("x"), rejected(NotAQueue("x"))], ids=["direct", "rejected"])
def test_command_for_queues_reports_a_missing_queue(error: Exception) -> None:
    with pytest.raises(UserMistake) as caught, consumer():
        raise error
    assert caught.value.message == (
        "The server has no queue 'wrk'. Run `tickertape queue ls` to list the queues."
    )


def test_command_for_queues_keeps_the_suggestion_of_the_server() -> None:
    with pytest.raises(UserMistake) as caught, consumer():
        raise NotAQueue("Cannot acknowledge: 'wrk' is not a queue. Did you mean 'work'? Name a queue.")
    assert caught.value.message == "The server has no queue 'wrk'. Did you mean 'work'?"


@pytest.mark.parametrize(
    ("cause", "kind"), [(BadFilter("Invalid filter."), UserMistake), (TopicNotRecorded("x"), UserMistake)]
)
def test_rejected_acknowledgement_reports_the_reason(cause: Exception, kind: type[Failure]) -> None:
    with pytest.raises(kind) as caught, consumer():
        raise rejected(cause)
    assert caught.value.message == str(cause)
