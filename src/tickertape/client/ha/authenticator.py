"""Authenticator protocol (provides the password of each logon), and the default authenticator.

A password is kept only during an attempt, and never shown.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

PasswordGiven = str | None | Awaitable[str | None]
"""Password, or None for no password. The asyncio client also accepts an awaitable."""


@runtime_checkable
class Authenticator(Protocol):
    """Provides the password for each logon attempt of an HA client, for example a renewed token.

    `authenticate` and `retry` get the user and password of the client or of the URI, or None. Calls are
    sequential, on the thread (or event loop) that connects, and the client holds no lock during a call. The
    methods must not call the client. If `authenticate` or `retry` raises, the attempt fails. An exception of
    `completed` goes to the exception listener and has no other effect.
    """

    def authenticate(self, user: str | None, password: str | None) -> PasswordGiven:
        """Return the password for the logon, or None to log on without one."""

    def retry(self, user: str | None, password: str | None) -> PasswordGiven:
        """Return the password for the next attempt after a refused logon.

        After a refused logon, the client calls `retry` instead of `authenticate`.
        """

    def completed(self, user: str | None, password: str | None, reason: str) -> None:
        """Record that the server accepted `password`.

        The argument `reason` is the instance name of the server.
        """


class DefaultAuthenticator:
    """Authenticator that logs on with the `password` of the client, or else with the password in the
    URI."""

    def authenticate(self, user: str | None, password: str | None) -> str | None:  # noqa: ARG002
        """Return `password`."""
        return password

    def retry(self, user: str | None, password: str | None) -> str | None:  # noqa: ARG002
        """Return `password` unchanged, because no other is known."""
        return password

    def completed(self, user: str | None, password: str | None, reason: str) -> None:
        """Do nothing."""
