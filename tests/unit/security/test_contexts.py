"""TLS contexts from certificate and key files, and refused files."""

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
from tickertape.security.contexts import client_context, server_context
from tickertape.security.tls_options import TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def identity(authority: Authority) -> Identity:
    return authority.issue("localhost")


def test_client_context_checks_certificate_and_host_name(authority: Authority, identity: Identity) -> None:
    for tls in (TLS(), TLS(ca=authority.ca), TLS(ca=authority.ca, certificate=identity[0], key=identity[1])):
        context = client_context(tls)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_server_context_requires_client_certificates_only_with_client_ca(
    authority: Authority, identity: Identity
) -> None:
    assert server_context(*identity, None).verify_mode is ssl.CERT_NONE
    context = server_context(*identity, authority.ca)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("option", ["certificate", "key"])
def test_certificate_and_key_require_each_other(option: str) -> None:
    with pytest.raises(BadOption, match=f"'{option}' requires"):
        TLS(**{option: "a.pem"})


def test_unusable_certificate_key_or_ca_is_named_in_the_error(
    authority: Authority, identity: Identity, tmp_path: Path
) -> None:
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
        with pytest.raises(BadOption, match=f"CA file '.*{says}"):
            client_context(TLS(ca=path))


def test_key_readable_by_other_users_is_refused(identity: Identity) -> None:
    Path(identity.key).chmod(0o604)
    with pytest.raises(ConfigurationError, match=r"key .* is accessible to other users \(mode 0604\)"):
        server_context(*identity, None)


def test_encrypted_key_is_refused_without_a_prompt(identity: Identity) -> None:
    key = serialization.load_pem_private_key(Path(identity.key).read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"word"),
    )
    Path(identity.key).write_bytes(locked)
    with pytest.raises(ConfigurationError, match="is encrypted with a password"):
        server_context(*identity, None)


def test_key_below_the_minimum_size_is_refused_with_the_size(tmp_path: Path) -> None:
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
def test_invalid_file_name_of_certificate_or_key_is_refused(identity: Identity, path: str) -> None:
    with pytest.raises(BadOption, match=r"^Invalid CA file '.*'\. Use the path"):
        client_context(TLS(ca=path))
    with pytest.raises(BadOption, match=r"^Invalid certificate '.*'\. Use the path"):
        client_context(TLS(certificate=path, key=identity.key))
    with pytest.raises(BadOption, match=r"^Invalid key '.*'\. Use the path"):
        client_context(TLS(certificate=identity.certificate, key=path))
    with pytest.raises(ConfigurationError, match=r"^Invalid client_ca '.*'\. Use the path"):
        server_context(*identity, path)
