"""Certificates and keys for a test, as files that only their owner can read.

Must never be used beyond a test: a CA without any other trust signs them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme


class Identity(NamedTuple):
    """Paths of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """A CA with its files in `directory`. `ca` is the path of its own certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = name
        self._authority = trustme.CA()
        self.ca = str(directory / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str, label: str = "server", days: int = 7) -> Identity:
        """Issue a certificate for names and addresses, valid for `days` days. Below 0 it has expired."""
        issued = self._authority.issue_cert(*names, not_after=datetime.now(UTC) + timedelta(days=days))
        certificate = self._directory / f"{self._name}-{label}.pem"
        key = self._directory / f"{self._name}-{label}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return Identity(str(certificate), str(key))


def transport(identity: Identity, *, port: int = 0, client_ca: str | None = None) -> str:
    """Return a `[[transport]]` table with TLS on 127.0.0.1."""
    lines = [
        "[[transport]]",
        f'listen = "tls://127.0.0.1:{port}"',
        f'certificate = "{identity.certificate}"',
        f'key = "{identity.key}"',
    ]
    if client_ca is not None:
        lines.append(f'client_ca = "{client_ca}"')
    return "\n".join([*lines, ""])
