"""Credential store: tokens and certificates of outgoing links, at the start and after a reload."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.helpers.certificates import Authority
from tickertape.base.errors import ConfigurationError
from tickertape.base.interfaces import Now
from tickertape.security.tokens import new_token
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.config.config import Config
from tickertape.server.config.replication import DestinationConfig, ReplicationConfig


def config(token: Path | None = None, ca: str | None = None, address: str = "tls://b:1") -> Config:
    destination = DestinationConfig(
        name="b", addresses=(address,), rules=(), token_file=None if token is None else str(token), ca=ca
    )
    return Config(replication=ReplicationConfig(destinations=(destination,)))


def private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_destination_has_the_token_of_the_file_until_a_reload(tmp_path: Path) -> None:
    first, second = new_token("a").text, new_token("a").text
    file = private(tmp_path / "b.token", first)
    store = CredentialStore(config(file))
    assert store.link_token("b") == first
    assert store.has_files
    file.write_text(second)
    assert store.link_token("b") == first
    store.reload()
    assert store.link_token("b") == second
    file.write_text("nothing")
    with pytest.raises(ConfigurationError, match="does not contain a token") as caught:
        store.reload()
    assert "nothing" not in str(caught.value).replace(str(file), "")
    assert store.link_token("b") == second


def test_destination_without_a_token_file_needs_none() -> None:
    store = CredentialStore(config(address="tcp://127.0.0.1:1"))
    assert store.link_token("b") is None
    assert store.link_context("b") is None
    assert not store.has_files


def test_context_of_a_destination_verifies_the_certificate_and_the_name(tmp_path: Path) -> None:
    context = CredentialStore(config(ca=Authority(tmp_path).ca)).link_context("b")
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    private(tmp_path / "no.pem", "no certificate")
    with pytest.raises(ConfigurationError, match="contains no PEM certificate"):
        CredentialStore(config(ca=str(tmp_path / "no.pem")))


def test_server_without_authentication_admits_every_link() -> None:
    store = CredentialStore(config())
    store.admit_link("any", None, Now(0.0, 0))
    assert store.link_still_good(None, "any", Now(0.0, 0))
