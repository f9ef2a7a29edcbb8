"""`publish`: division of files into messages, and the rate."""

from __future__ import annotations

from io import BytesIO

import pytest
from click.testing import CliRunner

from tickertape.base.limits import message_bytes_max
from tickertape.cli.commands.publish import _BadLineError, _messages, _paced
from tickertape.cli.support.command_group import cli


def test_publish_sends_each_line_without_line_end() -> None:
    data = b"one\ntwo\r\n\n  three \n\r\n\xff\x00\nlast"
    assert list(_messages(BytesIO(data), json=False)) == [b"one", b"two", b"  three ", b"\xff\x00", b"last"]


def test_publish_json_checks_lines_and_sends_the_original_text() -> None:
    messages = _messages(BytesIO(b'{"a": 1.0}\n\n[ ]\n{"a":}\n'), json=True)
    assert next(messages) == b'{"a": 1.0}'
    assert next(messages) == b"[ ]"
    with pytest.raises(_BadLineError, match=r"line 4 is not JSON: JSON is malformed"):
        next(messages)


def test_publish_refuses_a_line_above_the_message_limit() -> None:
    longest = b"x" * message_bytes_max
    messages = _messages(BytesIO(longest + b"\r\n" + longest + b"y\n"), json=False)
    assert next(messages) == longest
    with pytest.raises(_BadLineError, match=f"line 2 is too long \\(limit {message_bytes_max} bytes\\)"):
        next(messages)


class Clock:
    """Clock that advances with each sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_publish_rate_is_kept_without_catching_up_after_a_delay() -> None:
    clock = Clock()
    times = []
    for message in _paced(iter([b"x"] * 8), 10, clock, clock.sleep):
        assert message == b"x"
        times.append(round(clock.now - 100, 6))
        if len(times) == 4:
            clock.now += 5  # the network was slow
    # the first message after the pause follows at once, the next ones at the rate
    assert times == [0, 0.1, 0.2, 0.3, 5.3, 5.3, 5.4, 5.5]


def test_publish_without_a_rate_does_not_wait() -> None:
    clock = Clock()
    assert list(_paced(iter([b"1", b"2"]), None, clock, clock.sleep)) == [b"1", b"2"]
    assert clock.now == 100


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["or*"], "Invalid value for 'TOPIC': Invalid topic 'or*': '*' makes it a pattern"),
        (["orders", "/no/such/file"], "Invalid value for 'FILE': File '/no/such/file' does not exist."),
        (["orders", "--rate", "0"], "0"),
        (["orders", "--timeout", "soon"], "Invalid interval 'soon'"),
        (["orders", "--message", "x", "-"], "--message excludes FILE"),
        (["orders", "--message", "{", "--require-json"], "The message '{' is not JSON"),
        (
            ["orders", "--message", "x" * (message_bytes_max + 1)],
            f"The message has {message_bytes_max + 1} bytes. Use at most",
        ),
        (["orders", "--name"], "--name"),
    ],
)
def test_publish_with_invalid_options_exits_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["publish", *arguments])
    assert result.exit_code == 2
    assert says in result.stderr


def test_publish_to_an_absent_server_prints_one_line() -> None:
    result = CliRunner().invoke(cli, ["publish", "orders", "--server", "unix:///no/such/socket"], input="x\n")
    assert result.exit_code == 1
    assert (
        result.stderr == "tickertape: Cannot connect to 'unix:///no/such/socket': no such file or directory. "
        "Is the server running? (tickertape serve)\n"
    )


@pytest.mark.parametrize("line", [b'{"a":"\xff"}', b"[" * 3_000])
def test_json_line_that_is_not_utf8_or_too_deep_is_refused_with_the_number(line: bytes) -> None:
    messages = _messages(BytesIO(b'{"a": 1}\n' + line + b"\n"), json=True)
    assert next(messages) == b'{"a": 1}'
    with pytest.raises(_BadLineError, match=r"line 2 is not JSON: "):
        next(messages)
