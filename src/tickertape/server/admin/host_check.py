"""Host check: the host names that the admin address answers to.

A page of an attacker can make a browser ask for the attacker's own host name and have it resolve to this
machine (DNS rebinding); the browser then lets the page read the answer. So a name that anybody else can own
is answered only if the configuration lists it; an address in place of a name cannot be rebound.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Final

_LOCAL: Final = "localhost"


def answers_to(header: str, names: Collection[str]) -> bool:
    """Whether a request with this `Host` header is answered: it names an address, the local host, or one of
    `names`, with any port."""
    host = _host(header)
    if host is None:
        return False
    return _is_address(host) or host == _LOCAL or host.endswith(f".{_LOCAL}") or host in map(plain, names)


def plain(name: str) -> str:
    """A host name as it is compared."""
    return name.lower().removesuffix(".")


def _host(header: str) -> str | None:
    """The host of `host`, `host:port`, `[v6]` or `[v6]:port`, without brackets; None for anything else."""
    host, colon, port = header.strip().partition("]") if header.startswith("[") else header.partition(":")
    if header.startswith("["):
        if not colon or (port and not port.startswith(":")):
            return None
        host, port = host[1:], port[1:]
    if port and not (port.isascii() and port.isdigit()):
        return None
    return plain(host)


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False
