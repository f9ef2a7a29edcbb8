"""Session expiry: ends sessions whose token has expired or was revoked.

Each check visits all sessions, so checks are rare.
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
    """Looks at the users of an instance every `seconds`, and when it is told to."""

    def __init__(
        self, instance: EngineDriver, admission: CredentialStore, seconds: float = token_look_seconds
    ) -> None:
        self._instance = instance
        self._admission = admission
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on, where tokens are asked for at all."""
        if self._admission.wants_tokens:
            self.look()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self, replaced: Collection[str] = ()) -> None:
        """End the sessions of those who may no longer stay: those of the users `replaced`, too, who came with
        another token than theirs is now."""
        now = clock()
        for conn, session in list(self._instance.broker.sessions.items()):
            if session.user in replaced or not self._admission.still_good(session.user, session.name, now):
                error = AuthenticationFailed(f"the token {session.user!r} has expired, or was taken back")
                self._instance.violated(conn, error)
