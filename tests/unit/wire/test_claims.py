"""Claims on the wire: older peers ignore the fields, and hostile values are refused."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.wire import joined, only_error, read_in
from tests.helpers.wire_golden import golden_path
from tickertape.base.errors import BadCommand
from tickertape.wire.commands import PREFACE, Command, LoggedOn, Logon, LogonReplication
from tickertape.wire.connection import Connection, Received
from tickertape.wire.frames import encode_frame


class LogonBefore(Command, tag="logon", frozen=True, kw_only=True):
    """A logon as servers of older versions decode it."""

    name: str
    heartbeat_ms: int = 0


class LoggedOnBefore(Command, tag="logged_on", frozen=True, kw_only=True):
    """An answer to a logon as clients of older versions decode it."""

    instance: str
    last_persisted: int
    recorded: tuple[str, ...] | None = None


class AnyLogon(Command, tag="logon", frozen=True, kw_only=True):
    """A logon with any values in the fields of a claim."""

    name: str = "x"
    persisted: int | str | float = 0
    session: int | str | float = 0


class AnyReplication(msgspec.Struct, frozen=True):
    start: int | str = 1
    group: str | int = ""
    behind: bool | int = False


class AnyLoggedOn(Command, tag="logged_on", frozen=True, kw_only=True):
    """An answer to a logon with any values in the fields of replication."""

    version: int = 0
    software: str = ""
    instance: str = "i"
    journal: str = "j"
    epoch: int = 1
    publisher: int = 7
    last_persisted: int = 0
    replication: AnyReplication | int | None = None


def header_of(name: str) -> bytes:
    """Return the command of a golden frame."""
    frame = golden_path(name).read_bytes()
    return frame[16 : 16 + int.from_bytes(frame[4:8], "little")]


def test_older_servers_ignore_the_claim_of_a_logon() -> None:
    found = msgspec.msgpack.decode(header_of("logon-claim"), type=LogonBefore)
    assert found == LogonBefore(name="pricing-1")


def test_older_clients_ignore_the_replication_of_a_server() -> None:
    found = msgspec.msgpack.decode(header_of("logged-on-replication"), type=LoggedOnBefore)
    assert found == LoggedOnBefore(instance="ny-1", last_persisted=38)


def test_logons_of_older_peers_have_no_claim_and_no_replication() -> None:
    logon = msgspec.msgpack.decode(header_of("logon"), type=Logon)
    assert (logon.persisted, logon.session) == (0, 0)
    assert msgspec.msgpack.decode(header_of("logged-on"), type=LoggedOn).replication is None


@pytest.mark.parametrize(
    "logon",
    [
        AnyLogon(persisted=-1),
        AnyLogon(session=-1),
        AnyLogon(persisted="9"),
        AnyLogon(session=1.5),
    ],
)
def test_invalid_claim_is_a_bad_command(logon: AnyLogon) -> None:
    error = only_error(read_in(Connection("server"), PREFACE + joined(encode_frame(logon))))
    assert isinstance(error, BadCommand)


@pytest.mark.parametrize(
    "replication",
    [
        AnyReplication(start=-1),
        AnyReplication(start="1"),
        AnyReplication(group=1),
        AnyReplication(behind=2),
        1,
    ],
)
def test_invalid_replication_of_a_server_is_a_bad_command(replication: AnyReplication | int) -> None:
    answer = AnyLoggedOn(replication=replication)
    error = only_error(read_in(Connection("client"), joined(encode_frame(answer))))
    assert isinstance(error, BadCommand)


def test_largest_numbers_of_a_claim_and_a_start_arrive_unchanged() -> None:
    most = 2**64 - 1
    logon = Logon(name="x", persisted=most, session=most)
    server = Connection("server")
    assert read_in(server, PREFACE + joined(encode_frame(logon))) == [Received(logon)]
    answer = LoggedOn(
        version=0,
        software="",
        instance="i",
        journal="j",
        epoch=1,
        publisher=7,
        last_persisted=0,
        replication=LogonReplication(start=most),
    )
    assert read_in(Connection("client"), joined(encode_frame(answer))) == [Received(answer)]
