"""What of credentials and TLS goes with which address."""

from __future__ import annotations

import pytest

import tickertape as tt
from tickertape.client.common.address import parse_uri
from tickertape.client.common.credentials import Credentials, credentials_of, password_of

HERE = ["tcp://127.0.0.1:9007", "tcp://localhost:9007", "tcp://[::1]:9007", "unix:///run/x.sock"]
ELSEWHERE = ["tcp://10.1.2.3:9007", "tcp://server.example:9007", "tcp://127.evil.example:9007"]


@pytest.mark.parametrize("uri", ["tls://server.example:9007", "tcps://10.1.2.3:9007"])
def test_with_tls_everything_goes_everywhere(uri: str) -> None:
    address = parse_uri(uri)
    assert address.tls
    Credentials(tt.TLS(ca="ca.pem"), has_token=True).check(address)
    Credentials(None, has_token=True).check(address)


@pytest.mark.parametrize("uri", HERE)
def test_a_token_goes_in_clear_on_this_machine(uri: str) -> None:
    address = parse_uri(uri)
    assert not address.tls
    Credentials(has_token=True).check(address)


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_and_not_to_another_one(uri: str) -> None:
    for make in (tt.Client, tt.AsyncClient):
        with pytest.raises(tt.BadOption, match="it would be unencrypted") as caught:
            make("desk", uri, token="secret")
        assert "secret" not in str(caught.value)
    Credentials().check(parse_uri(uri))


@pytest.mark.parametrize("uri", [*HERE, *ELSEWHERE])
def test_certificates_are_for_addresses_with_tls(uri: str) -> None:
    with pytest.raises(tt.BadOption, match="it is not a tls:// address"):
        tt.Client("desk", uri, tls=tt.TLS())


def test_an_ha_client_finds_out_with_the_address() -> None:
    client = tt.HAClient("desk", servers=ELSEWHERE[0], token="secret", reconnect_delay="10ms")
    with pytest.raises(tt.TimedOut, match="it would be unencrypted"):
        client.connect_and_logon(0.3)
    client.close()


def test_the_name_is_that_of_the_address_unless_another_is_said() -> None:
    address = parse_uri("tls://server.example:9007")
    assert Credentials().name_of(address) == "server.example"
    assert Credentials(tt.TLS()).name_of(address) == "server.example"
    assert Credentials(tt.TLS(server_name="other.example")).name_of(address) == "other.example"


def test_a_token_is_the_password() -> None:
    assert password_of(None, "token") == "token"
    assert password_of("word", None) == "word"
    with pytest.raises(tt.BadOption, match="Cannot use token= and password= together"):
        password_of("word", "token")
    with pytest.raises(tt.BadOption, match="Invalid token of type bytes"):
        password_of(None, b"token")  # type: ignore[arg-type]
    with pytest.raises(tt.BadOption, match=r"Invalid tls of type str\. Use tickertape\.TLS"):
        credentials_of("ca.pem", None)  # type: ignore[arg-type]


@pytest.mark.parametrize("uri", ["tls://host:9007?ca=x", "tls://host:9007#x"])
def test_an_address_has_no_options(uri: str) -> None:
    with pytest.raises(tt.BadOption, match="has a query"):
        parse_uri(uri)
