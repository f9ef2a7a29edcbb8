"""A client's connection to something that is not a Tickertape server."""

from __future__ import annotations

import pytest

from tests.helpers.wire import LOGGED_ON, joined
from tickertape.base.errors import NotTickertape, PeerError
from tickertape.wire.connection import Connection, Received, Violation

FOREIGN = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "SMTP": b"220 mail.example ESMTP\r\n",
    "Redis": b"-ERR unknown command\r\n",
    "blank lines": b"\r\n\r\n\r\n",
}


def error_of(data: bytes, cut: int) -> PeerError | None:
    connection = Connection("client")
    events = [event for at in range(0, len(data), cut) for event in connection.feed(data[at : at + cut])]
    if not events:
        return None
    assert len(events) == 1
    assert isinstance(events[0], Violation)
    return events[0].error


@pytest.mark.parametrize("cut", [1, 3, 1_000])
@pytest.mark.parametrize("name", FOREIGN)
def test_server_that_speaks_text_is_not_tickertape(name: str, cut: int) -> None:
    error = error_of(FOREIGN[name], cut)
    assert isinstance(error, NotTickertape)
    assert str(FOREIGN[name][:4])[2:-1] in str(error)
    cure = "not its admin address" if name == "HTTP" else "Check host and port"
    assert cure in str(error)


def test_four_bytes_of_text_are_enough_to_reject_a_foreign_server() -> None:
    assert error_of(b"220", 1) is None
    assert isinstance(error_of(b"220 ", 1), NotTickertape)


@pytest.mark.parametrize("data", [b"\x15\x03\x01\x00\x02\x02\x46", b"\x16\x03\x03\x00\x31\x02\x00\x00"])
def test_server_that_answers_with_tls_is_rejected_with_a_tls_hint(data: bytes) -> None:
    error = error_of(data, 1)
    assert isinstance(error, NotTickertape)
    assert "tls://" in str(error)


@pytest.mark.parametrize("cut", [1, 2, 5, 1_000])
def test_server_frame_is_read_in_pieces_of_every_size(cut: int) -> None:
    frame = joined(Connection("server").send(LOGGED_ON))
    connection = Connection("client")
    events = [event for at in range(0, len(frame), cut) for event in connection.feed(frame[at : at + cut])]
    assert events == [Received(LOGGED_ON)]
