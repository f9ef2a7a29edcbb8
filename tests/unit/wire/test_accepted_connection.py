"""Addresses that accept replication links: the first command decides about the peer."""

from __future__ import annotations

import pytest

from tests.helpers.link_frames import OPEN, OPENED
from tests.helpers.wire import LOGON, batch_of, read_in
from tickertape.base.errors import AlreadyLoggedOn, BadCommand, BadLink, FrameTooLarge, LogonRequired
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.wire.accepted_connection import NO_CLIENTS_TEXT, AcceptedConnection
from tickertape.wire.commands import PREFACE, Command, Heartbeat, Subscribe
from tickertape.wire.connection import NO_LINKS_TEXT, Connection, Event, Received, Violation
from tickertape.wire.frames import encode_frame
from tickertape.wire.link import LinkAck, LinkHoles, LinkNames, LinkRuns
from tickertape.wire.link_connection import LinkConnection

SUBSCRIBE = Subscribe(id=1, sub_id="s", topic="orders", credit=1 << 20)


def frames(*commands: Command, batch: MessageBatch | None = None) -> bytes:
    """Return the bytes of a peer: the preface and its commands, the last one with `batch`."""
    sent: list[Buffer] = [PREFACE]
    for number, command in enumerate(commands, 1):
        sent += encode_frame(command, batch if number == len(commands) else None)
    return b"".join(sent)


def violation(events: list[Event]) -> Exception:
    """Return the error of the last event."""
    assert isinstance(events[-1], Violation)
    return events[-1].error


def test_client_of_an_address_with_links_logs_on() -> None:
    connection = AcceptedConnection()
    assert read_in(connection, frames(LOGON)) == [Received(LOGON)]
    assert connection.link is None
    connection.logged_on()
    events = read_in(connection, b"".join(encode_frame(SUBSCRIBE)))
    assert [type(event) for event in events] == [Received]


def test_source_at_an_address_with_links_opens_a_link() -> None:
    connection = AcceptedConnection()
    assert read_in(connection, frames(OPEN, Heartbeat())) == [Received(OPEN), Received(Heartbeat())]
    assert isinstance(connection.link, LinkConnection)
    connection.link.send(OPENED)
    assert read_in(connection, frames(LinkHoles(position=0))[8:]) == [Received(LinkHoles(position=0))]
    assert connection.link.order.end == 0


def test_source_at_an_address_without_clients_opens_a_link() -> None:
    connection = AcceptedConnection(clients=False)
    assert read_in(connection, frames(OPEN)) == [Received(OPEN)]


def test_client_of_an_address_without_clients_is_refused() -> None:
    error = violation(read_in(AcceptedConnection(clients=False), frames(LOGON)))
    assert (type(error), str(error)) == (BadCommand, NO_CLIENTS_TEXT)


def test_source_at_an_address_without_links_is_refused() -> None:
    error = violation(read_in(Connection("server"), frames(OPEN)))
    assert (type(error), str(error)) == (BadCommand, NO_LINKS_TEXT)


def test_source_that_logs_on_is_refused() -> None:
    error = violation(read_in(AcceptedConnection(), frames(OPEN, LOGON)))
    assert isinstance(error, BadCommand)
    assert "Unknown command 'logon'" in str(error)


def test_client_that_opens_a_link_is_refused() -> None:
    error = violation(read_in(AcceptedConnection(), frames(LOGON, OPEN)))
    assert isinstance(error, BadCommand)
    assert "Unknown command 'link'" in str(error)


@pytest.mark.parametrize(
    ("opening", "error"), [(LOGON, AlreadyLoggedOn), (OPEN, BadLink)], ids=["logon", "link"]
)
def test_second_opening_is_refused(opening: Command, error: type[Exception]) -> None:
    assert isinstance(violation(read_in(AcceptedConnection(), frames(opening, opening))), error)


def test_other_first_command_is_refused() -> None:
    for command in (Heartbeat(), SUBSCRIBE):
        assert isinstance(violation(read_in(AcceptedConnection(), frames(command))), LogonRequired)


def test_link_command_out_of_order_is_refused() -> None:
    connection = AcceptedConnection()
    error = violation(read_in(connection, frames(OPEN, LinkNames(end=1))))
    assert isinstance(error, BadLink)
    assert read_in(connection, frames(LinkAck(durable=0))) == [], "nothing follows a violation"


def test_batch_before_the_first_command_is_refused() -> None:
    error = violation(read_in(AcceptedConnection(), frames(LinkRuns(end=1), batch=batch_of(4, 500_000))))
    assert isinstance(error, FrameTooLarge)
