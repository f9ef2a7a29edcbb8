"""Credentials and TLS options allowed per address."""

from __future__ import annotations

import pytest

import tickertape as tt
from tickertape.client.common.address import parse_uri
from tickertape.client.common.credentials import Credentials, credentials_of, password_of

HERE = ["tcp://127.0.0.1:9007", "tcp://localhost:9007", "tcp://[::1]:9007", "unix:///run/x.sock"]
ELSEWHERE = ["tcp://10.1.2.3:9007", "tcp://server.example:9007", "tcp://127.evil.example:9007"]


@pytest.mark.parametrize("uri", ["tls://server.example:9007", "tcps://10.1.2.3:9007"])
def test_tls_address_allows_credentials_on_every_host(uri: str) -> None:
    address = parse_uri(uri)
    assert address.tls
    Credentials(tt.TLS(ca="ca.pem"), has_token=True).check(address)
    Credentials(None, has_token=True).check(address)


@pytest.mark.parametrize("uri", HERE)
def test_token_without_tls_is_allowed_on_local_addresses(uri: str) -> None:
    address = parse_uri(uri)
    assert not address.tls
    Credentials(has_token=True).check(address)


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_token_without_tls_is_rejected_on_remote_addresses(uri: str) -> None:
    for make in (tt.Client, tt.AsyncClient):
        with pytest.raises(tt.BadOption, match="it would be unencrypted") as caught:
            make("desk", uri, token="secret")
        assert "secret" not in str(caught.value)
    Credentials().check(parse_uri(uri))


@pytest.mark.parametrize("uri", [*HERE, *ELSEWHERE])
def test_tls_options_on_plain_address_raise(uri: str) -> None:
    with pytest.raises(tt.BadOption, match="it is not a tls:// address"):
        tt.Client("desk", uri, tls=tt.TLS())


def test_ha_client_checks_credentials_of_each_address() -> None:
    client = tt.HAClient("desk", servers=ELSEWHERE[0], token="secret", reconnect_delay="10ms")
    with pytest.raises(tt.TimedOut, match="it would be unencrypted"):
        client.connect_and_logon(0.3)
    client.close()


def test_tls_server_name_defaults_to_the_host_of_the_address() -> None:
    address = parse_uri("tls://server.example:9007")
    assert Credentials().name_of(address) == "server.example"
    assert Credentials(tt.TLS()).name_of(address) == "server.example"
    assert Credentials(tt.TLS(server_name="other.example")).name_of(address) == "other.example"


def test_token_is_sent_as_password_and_excludes_password() -> None:
    assert password_of(None, "token") == "token"
    assert password_of("word", None) == "word"
    with pytest.raises(tt.BadOption, match="Cannot use token= and password= together"):
        password_of("word", "token")
    with pytest.raises(tt.BadOption, match="Invalid token of type bytes"):
        password_of(None, b"token")  # type: ignore[arg-type]
    with pytest.raises(tt.BadOption, match=r"Invalid tls of type str\. Use tickertape\.TLS"):
        credentials_of("ca.pem", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("uri", ["tls://host:9007?ca=x", "tls://host:9007#x"])
def test_tls_address_with_query_or_fragment_raises(uri: str) -> None:
    with pytest.raises(tt.BadOption, match="has a query"):
        parse_uri(uri)
