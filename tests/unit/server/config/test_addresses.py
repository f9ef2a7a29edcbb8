"""Addresses to listen on, and whether other machines reach them."""

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
def test_listen_address_is_parsed_with_loopback_flag(
    text: str, address: ListenAddress, loopback: bool
) -> None:
    assert parse_listen(text) == address
    assert parse_listen(text).loopback is loopback


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Invalid listen address"),
        ("9007", "Invalid listen address"),
        ("http://127.0.0.1:9007", "Invalid listen address"),
        ("wss://127.0.0.1:9007", "not supported yet"),
        ("tls://127.0.0.1", "host or port is missing"),
        ("tls:///path", "host or port is missing"),
        ("ws://127.0.0.1:9007", "not supported yet"),
        ("tcp://127.0.0.1", "host or port is missing"),
        ("tcp://:9007", "host or port is missing"),
        ("tcp://127.0.0.1:port", "Invalid port"),
        ("tcp://127.0.0.1:65536", "Invalid port"),
        ("tcp://127.0.0.1:-1", "Invalid port"),
        ("tcp://127.0.0.1:", "Invalid port"),
        ("tcp://127.0.0.1:٩", "Invalid port"),
        ("tcp://[::g]:9007", "Invalid IPv6 address"),
        ("tcp://::1:9007", "Invalid host"),
        ("tcp://user@127.0.0.1:9007", "Invalid host"),
        ("tcp://127.0.0.1/x:9007", "Invalid host"),
        ("unix://run/x.sock", "Use an absolute path"),
        ("unix:///", "Use an absolute path"),
        ("unix:///" + "x" * 107, "at most 107 bytes"),
        ("unix:///a\0b", "without control characters"),
    ],
)
def test_invalid_listen_address_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_listen(text)
