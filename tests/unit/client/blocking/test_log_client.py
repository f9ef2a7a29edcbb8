"""The client of the Spark source and sink: log positions, and single commands of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.base.errors import BadBookmark, BadOption, BadTopic, UsageError, WrongJournal
from tickertape.client.api.start_points import EPOCH
from tickertape.client.blocking.log_client import LogClient

WRONG = (5, 2.5, True, object())


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


@pytest.fixture
def client(server: SocketServer) -> Iterator[LogClient]:
    with LogClient("pricing-1", server.uri) as connected:
        yield connected


def test_read_positions_returns_the_messages_that_locate_found(client: LogClient) -> None:
    client.publish_batch("orders", [b"%d" % i for i in range(10)])
    client.publish_flush()
    found = client.locate("orders", EPOCH)
    assert (found.journal, found.start, found.end) == ("j1", 0, 10)
    batches = list(client.read_positions("orders", 3, 7, found.journal).batches())
    assert [body for batch in batches for body in batch.bodies_list()] == [b"3", b"4", b"5", b"6"]


def test_read_positions_of_another_log_raises_wrong_journal(client: LogClient) -> None:
    with pytest.raises(WrongJournal):
        client.read_positions("orders", 0, 1, "another")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda client, wrong: client.locate(wrong, EPOCH), BadTopic),
        (lambda client, wrong: client.locate("orders", wrong), BadBookmark),
        (lambda client, wrong: client.read_positions("orders", wrong, -1, "j"), UsageError),
        (lambda client, wrong: client.read_positions("orders", 0, 1, wrong), BadOption),
    ],
)
def test_argument_of_wrong_type_raises_and_the_connection_remains(
    client: LogClient, call: Callable[[LogClient, object], object], error: type[Exception]
) -> None:
    for wrong in WRONG:
        with pytest.raises(error):
            call(client, wrong)
    assert client.connected
