"""Addresses to listen on, and who can reach them."""

from __future__ import annotations

import pytest

from tickertape.base.errors import ConfigurationError
from tickertape.server.config.addresses import ListenAddress, parse_listen


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("tcp://127.0.0.1:9007", ListenAddress("127.0.0.1", 9007, ""), True),
        ("tcp://127.8.9.10:0", ListenAddress("127.8.9.10", 0, ""), True),
        ("tcp://localhost:65535", ListenAddress("localhost", 65535, ""), True),
        ("tcp://[::1]:9007", ListenAddress("::1", 9007, ""), True),
        ("tcp://[0:0:0:0:0:0:0:1]:9007", ListenAddress("0:0:0:0:0:0:0:1", 9007, ""), True),
        ("unix:///run/tickertape.sock", ListenAddress("", 0, "/run/tickertape.sock"), True),
        ("tcp://0.0.0.0:9007", ListenAddress("0.0.0.0", 9007, ""), False),
        ("tls://0.0.0.0:9007", ListenAddress("0.0.0.0", 9007, "", tls=True), False),
        ("tcps://[::1]:9007", ListenAddress("::1", 9007, "", tls=True), True),
        ("tcp://[::]:9007", ListenAddress("::", 9007, ""), False),
        ("tcp://10.1.2.3:9007", ListenAddress("10.1.2.3", 9007, ""), False),
        # a name that only looks like loopback may resolve to anything
        ("tcp://127.evil.example:9007", ListenAddress("127.evil.example", 9007, ""), False),
    ],
)
def test_what_an_address_means(text: str, address: ListenAddress, loopback: bool) -> None:
    assert parse_listen(text) == address
    assert parse_listen(text).loopback is loopback


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no address to listen on"),
        ("9007", "is no address to listen on"),
        ("http://127.0.0.1:9007", "is no address to listen on"),
        ("wss://127.0.0.1:9007", "not built yet"),
        ("tls://127.0.0.1", "needs a host and a port"),
        ("tls:///path", "needs a host and a port"),
        ("ws://127.0.0.1:9007", "not built yet"),
        ("tcp://127.0.0.1", "needs a host and a port"),
        ("tcp://:9007", "needs a host and a port"),
        ("tcp://127.0.0.1:port", "is no port"),
        ("tcp://127.0.0.1:65536", "is no port"),
        ("tcp://127.0.0.1:-1", "is no port"),
        ("tcp://127.0.0.1:", "is no port"),
        ("tcp://127.0.0.1:٩", "is no port"),
        ("tcp://[::g]:9007", "is no IPv6 address"),
        ("tcp://::1:9007", "is no host"),
        ("tcp://user@127.0.0.1:9007", "is no host"),
        ("tcp://127.0.0.1/x:9007", "is no host"),
        ("unix://run/x.sock", "needs the absolute path"),
        ("unix:///", "needs the absolute path"),
        ("unix:///" + "x" * 107, "at most 107 bytes"),
        ("unix:///a\0b", "without control characters"),
    ],
)
def test_what_is_no_address(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_listen(text)
