"""Certificates and keys: which files make a context, and what is said of the others."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.helpers.certificates import Authority, Identity
from tickertape.base.errors import BadOption, ConfigurationError
from tickertape.security.contexts import TLS, client_context, server_context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def identity(authority: Authority) -> Identity:
    return authority.issue("localhost")


def test_a_client_always_checks_certificate_and_name(authority: Authority, identity: Identity) -> None:
    for tls in (TLS(), TLS(ca=authority.ca), TLS(ca=authority.ca, certificate=identity[0], key=identity[1])):
        context = client_context(tls)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_server_asks_for_certificates_only_with_an_authority(
    authority: Authority, identity: Identity
) -> None:
    assert server_context(*identity, None).verify_mode is ssl.CERT_NONE
    context = server_context(*identity, authority.ca)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("there", ["certificate", "key"])
def test_a_certificate_goes_with_its_key(there: str) -> None:
    with pytest.raises(BadOption, match=f"{there} is given without"):
        TLS(**{there: "a.pem"})


def test_what_cannot_be_used_is_named(authority: Authority, identity: Identity, tmp_path: Path) -> None:
    certificate, key = identity
    other = authority.issue("other", label="other")
    garbage = tmp_path / "garbage.pem"
    garbage.touch(mode=0o600)
    garbage.write_text("garbage")
    cases = {
        (certificate, other.key): "do not belong together",
        (str(garbage), key): "is not in PEM",
        (certificate, str(garbage)): "is not in PEM",
        (str(tmp_path / "none.pem"), key): "cannot be read: No such file",
        (certificate, str(tmp_path / "none.key")): "cannot be read: No such file",
    }
    for (pem, secret), says in cases.items():
        with pytest.raises(ConfigurationError, match=says):
            server_context(pem, secret, None)
        with pytest.raises(BadOption, match=says):
            client_context(TLS(certificate=pem, key=secret))
    for path, says in ((str(garbage), "has no certificate in PEM"), ("none.pem", "cannot be read")):
        with pytest.raises(ConfigurationError, match=f"client_ca .*{says}"):
            server_context(certificate, key, path)
        with pytest.raises(BadOption, match=f"ca .*{says}"):
            client_context(TLS(ca=path))


def test_a_key_that_others_can_read_is_refused(identity: Identity) -> None:
    Path(identity.key).chmod(0o604)
    with pytest.raises(ConfigurationError, match=r"key .* may be used by everybody \(mode 0604\)"):
        server_context(*identity, None)


def test_a_locked_key_asks_nobody(identity: Identity) -> None:
    key = serialization.load_pem_private_key(Path(identity.key).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"word"),
    )
    Path(identity.key).write_bytes(locked)
    with pytest.raises(ConfigurationError, match="is locked with a password"):
        server_context(*identity, None)
