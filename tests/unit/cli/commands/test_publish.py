"""`publish`: which bytes of a file become which messages, and how fast."""

from __future__ import annotations

from io import BytesIO

import pytest
from click.testing import CliRunner

from tickertape.base.limits import message_bytes_max
from tickertape.cli.commands.publish import _BadLineError, _messages, _paced
from tickertape.cli.support.command_group import cli


def test_a_line_is_a_message_without_its_line_end() -> None:
    data = b"one\ntwo\r\n\n  three \n\r\n\xff\x00\nlast"
    assert list(_messages(BytesIO(data), json=False)) == [b"one", b"two", b"  three ", b"\xff\x00", b"last"]


def test_json_lines_are_checked_and_published_as_they_are() -> None:
    messages = _messages(BytesIO(b'{"a": 1.0}\n\n[ ]\n{"a":}\n'), json=True)
    assert next(messages) == b'{"a": 1.0}'
    assert next(messages) == b"[ ]"
    with pytest.raises(_BadLineError, match=r"line 4 is not JSON: JSON is malformed"):
        next(messages)


def test_a_line_as_long_as_a_message_may_be_and_one_longer() -> None:
    longest = b"x" * message_bytes_max
    messages = _messages(BytesIO(longest + b"\r\n" + longest + b"y\n"), json=False)
    assert next(messages) == longest
    with pytest.raises(_BadLineError, match=f"line 2 is too long \\(limit {message_bytes_max} bytes\\)"):
        next(messages)


class Clock:
    """Time that passes when somebody sleeps, and when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_rate_is_kept_and_lateness_is_not_made_up() -> None:
    clock = Clock()
    times = []
    for message in _paced(iter([b"x"] * 8), 10, clock, clock.sleep):
        assert message == b"x"
        times.append(round(clock.now - 100, 6))
        if len(times) == 4:
            clock.now += 5  # the network was slow
    # one follows the pause at once; then it is the rate again
    assert times == [0, 0.1, 0.2, 0.3, 5.3, 5.3, 5.4, 5.5]


def test_without_a_rate_nobody_waits() -> None:
    clock = Clock()
    assert list(_paced(iter([b"1", b"2"]), None, clock, clock.sleep)) == [b"1", b"2"]
    assert clock.now == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["or*"], "Invalid value for TOPIC: Invalid topic 'or*': '*' makes it a pattern"),
        (["orders", "/no/such/file"], "'/no/such/file': No such file or directory"),
        (["orders", "--rate", "0"], "0"),
        (["orders", "--timeout", "soon"], "Invalid interval 'soon'"),
        (["orders", "--message", "x", "-"], "--message excludes FILE"),
        (["orders", "--message", "{", "--require-json"], "The message '{' is not JSON"),
        (["orders", "--message", "x" * (message_bytes_max + 1)], "The message is too long"),
        (["orders", "--name"], "--name"),
    ],
)
def test_bad_usage(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["publish", *arguments])
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_server_that_is_not_there_is_one_line() -> None:
    result = CliRunner().invoke(cli, ["publish", "orders", "--server", "unix:///no/such/socket"], input="x\n")
    assert result.exit_code == 1
    assert (
        result.stderr == "tickertape: Cannot connect to unix:///no/such/socket: no such file or directory. "
        "Is the server running? (tickertape serve)\n"
    )


@pytest.mark.parametrize("line", [b'{"a":"\xff"}', b"[" * 3_000])
def test_json_line_that_is_not_utf8_or_too_deep_is_refused_with_its_number(line: bytes) -> None:
    messages = _messages(BytesIO(b'{"a": 1}\n' + line + b"\n"), json=True)
    assert next(messages) == b'{"a": 1}'
    with pytest.raises(_BadLineError, match=r"line 2 is not JSON: "):
        next(messages)
