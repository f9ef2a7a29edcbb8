"""Transport configuration: the listening addresses, and who may log on to them.

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
BEYOND_LOOPBACK: Final = "can be reached from other machines and is not encrypted; "
_WAYS: Final = (
    "listen on tls:// with a certificate, or on 127.0.0.1, or write insecure = true beside it in a file"
)
_OF_TLS: Final = ("certificate", "key", "client_ca")
_path = partial(path_of, noun="file")


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """An address to listen on (`address.parse_listen` reads it)."""

    listen: str = LISTEN_DEFAULT
    insecure: bool = False
    """Listening beyond loopback without encryption was allowed explicitly."""
    certificate: str | None = None
    """Path of the certificate of a `tls://` address, with those between it and the CA."""
    key: str | None = None
    """Path of its key."""
    client_ca: str | None = None
    """Path of the certificates that clients' certificates must be signed with; None: clients need none."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication of logons."""

    tokens_file: str
    """Path of the file with the hashes of the tokens."""


def read_transports(root: Section) -> list[Transport]:
    """The `[[transport]]` tables; the default one when there is none."""
    sections = root.tables("transport")
    if sections is None:
        return [Transport()]
    if not sections:
        root.problem("transport", "a server listens somewhere; leave it out for the default")
    transports: list[Transport] = []
    taken: set[str] = set()
    for section in sections:
        transport = _transport(section, taken)
        if transport is not None:
            transports.append(transport)
    return transports


def read_authentication(root: Section) -> Authentication | None:
    """The `[authentication]` table; None when there is none: everybody may log on."""
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
    section.finish()
    if not listen:
        return None
    address = parse_listen(listen)
    if address.tls:
        if not (section.has("certificate") and section.has("key")):
            section.problem("listen", f"{listen} needs certificate and key beside it in a file")
        if section.has("insecure"):
            section.problem("insecure", "has no effect on a tls:// address; take it out")
    else:
        for key in _OF_TLS:
            if section.has(key):
                section.problem(key, f"has an effect on a tls:// address only, and this is {listen}")
        if not insecure and not address.loopback:
            section.problem("listen", f"{listen} {BEYOND_LOOPBACK}{_WAYS}")
    if listen in taken and (address.path or address.port):
        section.problem("listen", f"{listen} is given twice")
    taken.add(listen)
    return Transport(listen=listen, insecure=insecure, **paths)


def _beside(section: Section, key: str, path: str) -> str:
    """`path`, relative to the file that says it."""
    return str(Path(section.location(key).file).parent / path)


def _listen(value: Any) -> str:
    parse_listen(text_of(value))
    return cast("str", value)
