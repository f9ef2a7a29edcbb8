"""Session expiry: closes sessions whose token has expired or was revoked.

Each check visits all sessions, so checks are infrequent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tickertape.base.errors import AuthenticationFailed
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.clock import clock
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.limits import token_look_seconds


class SessionExpiry:
    """Periodic check of the session users of an instance, every `seconds` and after a reload."""

    def __init__(
        self, driver: EngineDriver, credentials: CredentialStore, seconds: float = token_look_seconds
    ) -> None:
        self._driver = driver
        self._credentials = credentials
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start checking, if the server requires tokens."""
        if self._credentials.wants_tokens:
            self.check()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.start)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def check(self, replaced: Collection[str] = ()) -> None:
        """Close sessions and links with an invalid token, and those of the users `replaced`."""
        now = clock()
        for conn, session in list(self._driver.broker.sessions.items()):
            if session.user in replaced or not self._credentials.still_good(session.user, session.name, now):
                self._driver.violated(conn, _over(session.user))
        for conn, link in self._driver.link_connections().items():
            source, user = link.source, link.user
            if source and (user in replaced or not self._credentials.link_still_good(user, source, now)):
                self._driver.violated(conn, _over(user))


def _over(user: str | None) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"Authentication failed: token {user!r} has expired or was revoked. Ask for a new token."
    )
