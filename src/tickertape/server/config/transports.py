"""Transport configuration: listening addresses, their certificates, and authentication.

Certificates, keys and token files are read when the server starts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from tickertape.server.config.addresses import parse_listen
from tickertape.server.config.document import Section, flag_of, path_of, text_of

LISTEN_DEFAULT: Final = "tcp://127.0.0.1:9007"
TRANSPORT_LATER: Final = ("name", "slow_client")
BEYOND_LOOPBACK: Final = "is reachable from other machines and not encrypted."
_CURE: Final = (
    "Listen on tls:// with a certificate or on 127.0.0.1, or set insecure = true in its [[transport]] of a "
    "configuration file."
)
_OF_TLS: Final = ("certificate", "key", "client_ca")
_path = partial(path_of, noun="file")


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """A listening address (see `addresses.parse_listen`) and its certificates."""

    listen: str = LISTEN_DEFAULT
    insecure: bool = False
    """Whether an unencrypted address beyond loopback is allowed."""
    certificate: str | None = None
    """Path of the certificate chain of a `tls://` address, without the root CA."""
    key: str | None = None
    """Path of the private key of `certificate`."""
    client_ca: str | None = None
    """Path of the CA certificates for client certificates. None: clients need no certificate."""
    replication: bool = False
    """Whether replication links may connect."""
    clients: bool = True
    """Whether clients may connect."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication of logons."""

    tokens_file: str
    """Path of the file with the hashes of the tokens."""


def read_transports(root: Section) -> list[Transport]:
    """Read the `[[transport]]` tables. Without one, return the default transport."""
    sections = root.tables("transport")
    if sections is None:
        return [Transport()]
    if not sections:
        root.problem("transport", "must have at least one table. Remove the key for the default address.")
    transports: list[Transport] = []
    taken: set[str] = set()
    for section in sections:
        transport = _transport(section, taken)
        if transport is not None:
            transports.append(transport)
    return transports


def read_authentication(root: Section) -> Authentication | None:
    """Read the `[authentication]` table. None if it is absent: every client may log on."""
    section = root.table("authentication")
    if not root.has("authentication"):
        return None
    path = section.required("tokens_file", _path, "")
    section.finish()
    return Authentication(tokens_file=_beside(section, "tokens_file", path))


def _transport(section: Section, taken: set[str]) -> Transport | None:
    section.not_built(*TRANSPORT_LATER)
    listen = section.required("listen", _listen, "")
    insecure = section.value("insecure", flag_of, section.has("insecure"))
    paths = {
        key: _beside(section, key, path)
        for key in _OF_TLS
        if (path := section.value(key, _path, None)) is not None
    }
    replication = section.value("replication", flag_of, False)
    clients = section.value("clients", flag_of, True)
    section.finish()
    if not clients and not replication:
        section.problem("clients", "must not be false without replication = true: nothing could connect")
    if not listen:
        return None
    address = parse_listen(listen)
    if address.tls:
        if not (section.has("certificate") and section.has("key")):
            section.problem("listen", f"{listen} needs certificate and key in the same table of a file.")
        if section.has("insecure"):
            section.problem("insecure", "has no effect on a tls:// address. Remove it.")
    else:
        for key in _OF_TLS:
            if section.has(key):
                section.problem(key, f"has an effect on tls:// addresses only, not on {listen}. Remove it.")
        if not insecure and not address.loopback:
            section.problem("listen", f"{listen} {BEYOND_LOOPBACK} {_CURE}")
    if listen in taken and (address.path or address.port):
        section.problem("listen", f"duplicate address {listen}. Remove one of them.")
    taken.add(listen)
    return Transport(listen=listen, insecure=insecure, replication=replication, clients=clients, **paths)


def _beside(section: Section, key: str, path: str) -> str:
    """Return `path`, resolved against the file that contains it."""
    return str(Path(section.location(key).file).parent / path)


def _listen(value: Any) -> str:
    parse_listen(text_of(value))
    return cast("str", value)
