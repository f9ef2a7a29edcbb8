"""Clients at a port of another protocol: both sides report the mistake at once.

The table has each mistake with the error of the client, the text of its answer, and the text in the log of
the server. A server that does not answer would let the client time out, which no row accepts.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tickertape as tt
from tests.helpers.certificates import Authority, transport
from tests.helpers.queues import SECONDS
from tickertape.server.config.config import load_config
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.testing.ports import ReservedPort

HTTP = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
NO_HTTP = "Cannot serve HTTP: this is an address for Tickertape clients. Use the admin address of the server."


class Ports(NamedTuple):
    """Addresses of one server: host and port, or a path."""

    server: RunningServer
    plain: tuple[str, int]
    tls: tuple[str, int]
    admin: tuple[str, int]
    unix: str
    trust: tt.TLS
    context: ssl.SSLContext


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    unix = tmp_path_factory.mktemp("socket") / "s"
    tls, plain = ReservedPort(), ReservedPort()
    config = transport(authority.issue("127.0.0.1"), port=tls.number)
    for listen in (f"tcp://127.0.0.1:{plain.number}", f"unix://{unix}"):
        config += f'[[transport]]\nlisten = "{listen}"\n'
    with running_server(config=config, listen=None) as server:
        yield Ports(
            server,
            ("127.0.0.1", plain.number),
            ("127.0.0.1", tls.number),
            host_port(server.admin_url),
            str(unix),
            tt.TLS(ca=authority.ca),
            ssl.create_default_context(cafile=authority.ca),
        )
    tls.release()
    plain.release()


def host_port(uri: str) -> tuple[str, int]:
    host, _, port = uri.partition("://")[2].strip("/").rpartition(":")
    return host, int(port)


def client(scheme: str, address: tuple[str, int], tls: tt.TLS | None = None) -> str:
    """Return the error of a client that connects."""
    with pytest.raises(tt.TickertapeError) as refused:
        tt.Client("lost", f"{scheme}://{address[0]}:{address[1]}", tls=tls, timeout=SECONDS).connect()
    assert not isinstance(refused.value, tt.TimedOut)
    return f"{refused.value.code}: {refused.value}"


def raw(connection: socket.socket, data: bytes) -> str:
    """Return the answer to `data`, up to the end of the connection."""
    with connection:
        connection.settimeout(SECONDS)
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode("latin-1")


def hello() -> bytes:
    """Return the first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="a").do_handshake()
    return outgoing.read()


def unix_socket(ports: Ports) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(ports.unix)
    return connection


def https(ports: Ports) -> socket.socket:
    plain = socket.create_connection(ports.tls, SECONDS)
    return ports.context.wrap_socket(plain, server_hostname="127.0.0.1")


MISTAKES: dict[str, tuple[Callable[[Ports], str], str, str]] = {
    "TLS client, plain port": (
        lambda p: client("tls", p.plain, p.trust),
        "the server does not use TLS. Use tcp://, or check the port.",
        "this address does not use TLS. Connect to tcp://.",
    ),
    "plain client, TLS port": (
        lambda p: client("tcp", p.tls),
        "tls_required: Cannot log on without TLS: this address requires TLS. Connect to tls://.",
        "Cannot log on without TLS: this address requires TLS. Connect to tls://.",
    ),
    "message client, admin port": (
        lambda p: client("tcp", p.admin),
        "not_tickertape: Cannot log on: the peer is an HTTP server, not a Tickertape server.",
        "Cannot serve Tickertape clients. Use the listen address of the server.",
    ),
    "TLS client, admin port": (
        lambda p: client("tls", p.admin, p.trust),
        "the server does not use TLS. Use tcp://, or check the port.",
        "Cannot serve TLS. Use http://.",
    ),
    "HTTP client, plain port": (
        lambda p: raw(socket.create_connection(p.plain), HTTP),
        NO_HTTP,
        NO_HTTP,
    ),
    "HTTP client, TLS port": (lambda p: raw(socket.create_connection(p.tls), HTTP), NO_HTTP, NO_HTTP),
    "HTTPS client, TLS port": (lambda p: raw(https(p), HTTP), NO_HTTP, NO_HTTP),
    "HTTP client, Unix socket": (lambda p: raw(unix_socket(p), HTTP), NO_HTTP, NO_HTTP),
    "TLS client, Unix socket": (
        lambda p: raw(unix_socket(p), hello()),
        "this address does not use TLS. Connect to tcp://.",
        "this address does not use TLS. Connect to tcp://.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_port_is_reported_on_both_sides(ports: Ports, mistake: str) -> None:
    provoke, answer, log = MISTAKES[mistake]
    before = ports.server.errors().count(log)
    said = provoke(ports)
    assert answer in said
    if "HTTP" in mistake:
        assert said.startswith("HTTP/1.1 400 Bad Request\r\n")
        head, _, body = said.partition("\r\n\r\n")
        assert f"content-length: {len(body)}" in head
    wait_until(lambda: ports.server.errors().count(log) > before)


def test_admin_refused_event_has_the_address_of_the_client(ports: Ports) -> None:
    with socket.create_connection(ports.admin) as peer:
        host, port = peer.getsockname()
        peer.sendall(hello())
        wait_until(lambda: f" admin_refused address={host}:{port} text=" in ports.server.errors())


def test_tls_settings_with_a_unix_socket_are_refused_by_the_client(ports: Ports) -> None:
    with pytest.raises(tt.BadOption, match="it is not a tls:// address"):
        tt.Client("lost", f"unix://{ports.unix}", tls=ports.trust)


def test_unix_socket_with_a_certificate_is_refused_by_the_server(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    identity = Authority(tmp_path).issue("127.0.0.1")
    config.write_text(transport(identity).replace("tls://127.0.0.1:0", f"unix://{tmp_path}/s"))
    with pytest.raises(tt.ConfigurationError, match="tls://"):
        load_config(config)
