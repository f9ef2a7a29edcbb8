"""Certificates and keys: which files make a context, and what is said of the others."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

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
    with pytest.raises(BadOption, match=f"'{there}' requires"):
        TLS(**{there: "a.pem"})


def test_what_cannot_be_used_is_named(authority: Authority, identity: Identity, tmp_path: Path) -> None:
    certificate, key = identity
    other = authority.issue("other", label="other")
    garbage = tmp_path / "garbage.pem"
    garbage.touch(mode=0o600)
    garbage.write_text("garbage")
    cases = {
        (certificate, other.key): "they do not match",
        (str(garbage), key): "one of them is not PEM",
        (certificate, str(garbage)): "one of them is not PEM",
        (str(tmp_path / "none.pem"), key): "Cannot read certificate .*: No such file",
        (certificate, str(tmp_path / "none.key")): "Cannot read key .*: No such file",
    }
    for (pem, secret), says in cases.items():
        with pytest.raises(ConfigurationError, match=says):
            server_context(pem, secret, None)
        with pytest.raises(BadOption, match=says):
            client_context(TLS(certificate=pem, key=secret))
    for path, says in ((str(garbage), "it contains no PEM certificate"), ("none.pem", "No such file")):
        with pytest.raises(ConfigurationError, match=f"client_ca '.*{says}"):
            server_context(certificate, key, path)
        with pytest.raises(BadOption, match=f"ca '.*{says}"):
            client_context(TLS(ca=path))


def test_a_key_that_others_can_read_is_refused(identity: Identity) -> None:
    Path(identity.key).chmod(0o604)
    with pytest.raises(ConfigurationError, match=r"key .* is accessible to other users \(mode 0604\)"):
        server_context(*identity, None)


def test_a_locked_key_asks_nobody(identity: Identity) -> None:
    key = serialization.load_pem_private_key(Path(identity.key).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"word"),
    )
    Path(identity.key).write_bytes(locked)
    with pytest.raises(ConfigurationError, match="is encrypted with a password"):
        server_context(*identity, None)


def test_a_key_that_is_too_small_is_told_from_a_file_that_is_not_pem(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certificate, secret = tmp_path / "small.pem", tmp_path / "small.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.touch(mode=0o600)
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(ConfigurationError, match=r"the key is too small\. Use RSA with at least 2048 bits"):
        server_context(str(certificate), str(secret), None)


@pytest.mark.parametrize("path", ["a\0b.pem", "\ud800.pem"])
def test_a_path_that_cannot_be_one_is_refused(identity: Identity, path: str) -> None:
    with pytest.raises(BadOption, match=r"^Invalid ca '.*'\. Use the path"):
        client_context(TLS(ca=path))
    with pytest.raises(BadOption, match=r"^Invalid certificate '.*'\. Use the path"):
        client_context(TLS(certificate=path, key=identity.key))
    with pytest.raises(BadOption, match=r"^Invalid key: it is not a file name"):
        client_context(TLS(certificate=identity.certificate, key=path))
    with pytest.raises(ConfigurationError, match=r"^Invalid client_ca '.*'\. Use the path"):
        server_context(*identity, path)
