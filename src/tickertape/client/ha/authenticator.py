"""Authenticator protocol: gives the password of each logon; and the default one.

A password is kept no longer than an attempt, and never shown.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

PasswordGiven = str | None | Awaitable[str | None]
"""A password, None for none; the asyncio client also takes something to await for it."""


@runtime_checkable
class Authenticator(Protocol):
    """Gives the password for a logon. It is asked anew for each attempt, so that a token may be a fresh one.

    `user` and `password` are what the client was given or what is in the URI, None where there is none. The
    calls come one at a time, never under a lock of the client, on the thread (or loop) that connects; what
    they raise makes the attempt fail. They must not call the client.
    """

    def authenticate(self, user: str | None, password: str | None) -> PasswordGiven:
        """The password to log on with."""

    def retry(self, user: str | None, password: str | None) -> PasswordGiven:
        """Return a password for the first attempt after the server refused the last one."""

    def completed(self, user: str | None, password: str | None, reason: str) -> None:
        """The server accepted `password`. `reason` is what it called itself: its instance."""


class DefaultAuthenticator:
    """Logs on with the password that is there: the client's, or that of the URI."""

    def authenticate(self, user: str | None, password: str | None) -> str | None:  # noqa: ARG002
        """`password` as it is."""
        return password

    def retry(self, user: str | None, password: str | None) -> str | None:  # noqa: ARG002
        """`password` as it is: there is no other one."""
        return password

    def completed(self, user: str | None, password: str | None, reason: str) -> None:
        """Nothing has to be remembered."""
