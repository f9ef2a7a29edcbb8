"""Requests to a server's admin address. Must never hide an answer."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tickertape.server.admin.schema import Stats
from tickertape.testing import RunningServer

SECONDS = 20.0


def ask(
    server: RunningServer, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer."""
    place = urlsplit(server.admin_url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def status_of(server: RunningServer, path: str) -> tuple[int, Any]:
    """Return status and decoded body of a JSON page."""
    status, _, body = ask(server, path)
    return status, msgspec.json.decode(body)


def stats_of(server: RunningServer) -> Stats:
    """Return the answer of `/stats`."""
    status, headers, body = ask(server, "/stats")
    assert (status, headers["content-type"]) == (200, "application/json")
    return msgspec.json.decode(body, type=Stats)
