"""Server addresses: valid forms, and no password in errors and reprs."""

from __future__ import annotations

import asyncio
import socket
import traceback

import pytest

import tickertape as tt
from tickertape.base.errors import BadOption
from tickertape.client.common.address import parse_uri

SECRET = "s3cret"


@pytest.mark.parametrize(
    "uri",
    [
        f"tcp://ann:{SECRET}/x@host:9000",
        f"tcp://ann:x/{SECRET}@host:9000",
        f"tcp://ann:{SECRET}#x@host:9000",
        f"tcp://ann:{SECRET}?x@host:9000",
        f"tcp://ann:x@{SECRET}@host:nine",
        f"tcp://ann:{SECRET}\N{ACCOUNT OF}@host:9000",  # NFKC makes it a/c
        f"tcp://ann:{SECRET}@[::1:9000",
        f"tcp://ann:{SECRET}@host:70000",
        f"tcp://ann:{SECRET}@host:9000/path",
        f"tcp://ann:{SECRET}@host:9000/?x",
        f"ann:{SECRET}@host:9000",
    ],
)
def test_invalid_address_raises_bad_option_without_password(uri: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_uri(uri)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert "ann:...@" in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "uri",
    [
        "tcp://[::1:9000",
        "tcp://h\N{ACCOUNT OF}:9000",
        "tcp://a\0:9",
    ],
)
def test_malformed_address_raises_bad_option_in_every_client(uri: str) -> None:
    with pytest.raises(BadOption, match="Invalid server address"):
        tt.Client("c", uri)
    with pytest.raises(BadOption, match="Invalid server address"):
        tt.AsyncClient("c", uri)
    with pytest.raises(BadOption, match="Invalid server address"):
        tt.DefaultServerChooser(uri)


@pytest.mark.parametrize("uri", ["tcp://a..example:9000", f"tcp://{'a' * 64}:9000"])
def test_unresolvable_host_raises_disconnected(uri: str) -> None:
    with pytest.raises(tt.Disconnected, match="Check the host name"):
        tt.Client("c", uri)

    async def connect() -> None:
        await tt.AsyncClient("c", uri).connect()

    with pytest.raises(tt.Disconnected, match="Check the host name"):
        asyncio.run(connect())


@pytest.mark.parametrize("uri", ["unix:///tmp/a#1/s", "unix:///tmp/a?b", "unix:///tmp/a?", "tcp://a:1/#x"])
def test_address_with_query_or_fragment_raises(uri: str) -> None:
    with pytest.raises(BadOption, match="query or a fragment"):
        parse_uri(uri)


def test_escaped_characters_of_unix_path_are_decoded() -> None:
    assert parse_uri("unix:///tmp/a%231%3F/s").path == "/tmp/a#1?/s"
    assert parse_uri("unix:///tmp/a:b@c").uri == "unix:///tmp/a:b@c"


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("tcp://[fe80::1%25Eth0]:9000", "fe80::1%Eth0"),
        ("tcp://[fe80::1%eth0]:9000", "fe80::1%eth0"),
    ],
)
def test_zone_of_ipv6_address_is_unescaped(uri: str, host: str) -> None:
    assert parse_uri(uri).host == host


def test_reprs_show_no_password() -> None:
    uri = f"tcp://ann:{SECRET}@host:9000"
    assert SECRET not in repr(parse_uri(uri))
    assert "ann" in repr(parse_uri(uri))
    info = tt.ConnectionInfo("pricing", uri)
    assert SECRET not in repr(info)
    assert info.uri == uri
    more = tt.ConnectionInfo("pricing", uri, "ny-1", "ny", behind=True)
    assert SECRET not in repr(more)
    assert repr(more).endswith(", instance='ny-1', group='ny', behind=True)")


def shown_with_locals(error: BaseException) -> str:
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def refusing_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert isinstance(port, int)
    return port


def test_traceback_with_locals_of_refused_connection_shows_no_password() -> None:
    def connect(port: int) -> None:
        tt.Client("c", f"tcp://ann:{SECRET}@127.0.0.1:{port}")

    with pytest.raises(tt.Disconnected) as caught:
        connect(refusing_port())
    assert SECRET not in shown_with_locals(caught.value)

    async def connect_async(port: int) -> None:
        await tt.AsyncClient("c", f"tcp://ann:{SECRET}@127.0.0.1:{port}").connect()

    with pytest.raises(tt.Disconnected) as caught:
        asyncio.run(connect_async(refusing_port()))
    assert SECRET not in shown_with_locals(caught.value)
