"""Link commands: the pages of the admin address that change replication links.

They answer POST requests with a JSON content type: a browser does not send one to another site without its
permission. Where the server requires tokens, a valid token of clients is required here, too.

Invariants:
- No other page, and no other method, changes anything.
- A command runs on the event loop of the server, and the answer is sent within a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Literal, cast, get_args
from urllib.parse import unquote

import msgspec

from tickertape.base.errors import AuthenticationFailed, TickertapeError, UsageError
from tickertape.base.text_format import not_one_of
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.admin.http import Answer
from tickertape.server.clock import clock
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.limits import admin_answer_seconds_max, link_command_check_seconds

LinkAction = Literal["downgrade", "upgrade", "pause", "resume"]
_ACTIONS: Final = get_args(LinkAction)
_SEGMENTS: Final = 3
"""Parts of a path: `replication`, the destination, and the action."""
_BEARER: Final = "bearer"
_JSON: Final = "application/json"
_UNKNOWN: Final = f"Unknown path. Use POST /replication/DESTINATION/ACTION with {', '.join(_ACTIONS)}."


class LinkChange(msgspec.Struct, kw_only=True):
    """The answer to a command: the state of the link after it."""

    destination: str
    action: str
    level: str
    """`sync`, `async` or `downgraded`."""
    paused: bool


class LinkRefusal(msgspec.Struct, kw_only=True):
    """The answer to a refused command."""

    code: str
    text: str


class _NotPersistedError(Exception):
    """The record of a command was not persisted in time."""


class LinkCommands:
    """Commands to the links of one server."""

    def __init__(
        self, driver: EngineDriver, server: asyncio.AbstractEventLoop, credentials: CredentialStore
    ) -> None:
        self._driver = driver
        self._server = server
        self._credentials = credentials

    async def answer(self, target: str, content_type: str, authorization: str) -> Answer:
        """Answer a POST request. The last two arguments are headers."""
        if content_type.partition(";")[0].strip().lower() != _JSON:
            return Answer(415, f"Cannot use the content type. Send content-type: {_JSON}.\n".encode())
        parts = target.strip("/").split("/")
        if len(parts) != _SEGMENTS or parts[0] != "replication":
            return Answer(404, f"{_UNKNOWN}\n".encode())
        destination, action = unquote(parts[1]), parts[2]
        if action not in _ACTIONS:
            return _refused(404, "bad_option", not_one_of("Unknown action", action, _ACTIONS))
        try:
            change = await self._on_loop(destination, cast("LinkAction", action), _token_in(authorization))
        except AuthenticationFailed as error:
            return _refused(401, error.code, str(error))
        except TickertapeError as error:
            return _refused(400 if isinstance(error, UsageError) else 503, error.code, str(error))
        except _NotPersistedError:
            late = f"its record is not persisted after {admin_answer_seconds_max:g} s"
            cure = "Check the disk. The command takes effect when the record is persisted."
            return _refused(503, "stuck", f"Cannot confirm the {action}: {late}. {cure}")
        except TimeoutError:
            text = f"No answer of the event loop within {admin_answer_seconds_max:g} s. Check the disk."
            return _refused(503, "stuck", text)
        return Answer(200, msgspec.json.encode(change) + b"\n", _JSON)

    async def _on_loop(self, destination: str, action: LinkAction, token: str | None) -> LinkChange:
        """Run a command on the event loop of the server. Raises its errors, or `TimeoutError`."""
        answer: Future[LinkChange] = Future()
        late = time.monotonic() + admin_answer_seconds_max

        def begin() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    self._credentials.admit_operator(token, clock())
                    self._driver.command_link(destination, action)
                except TickertapeError as error:
                    answer.set_exception(error)
                else:
                    end = self._driver.broker.journal.commits.accepted_end
                    self._answer_when(answer, destination, action, end, late)

        try:
            self._server.call_soon_threadsafe(begin)
        except RuntimeError:
            raise TimeoutError from None  # the event loop has ended
        return await asyncio.wait_for(
            asyncio.wrap_future(answer), admin_answer_seconds_max + 2 * link_command_check_seconds
        )

    def _answer_when(
        self, answer: Future[LinkChange], destination: str, action: LinkAction, end: int, late: float
    ) -> None:
        """Answer when the command is in force: the records of levels before `end` are persisted. `late`:
        monotonic time (seconds) at which the answer is an error."""
        changes_level = action in ("downgrade", "upgrade")
        if not changes_level or self._driver.broker.journal.commits.persisted_end >= end:
            answer.set_result(self._state(destination, action))
        elif time.monotonic() >= late:
            answer.set_exception(_NotPersistedError())
        else:
            check: Callable[[], None] = lambda: self._answer_when(  # noqa: E731
                answer, destination, action, end, late
            )
            self._server.call_later(link_command_check_seconds, check)

    def _state(self, destination: str, action: LinkAction) -> LinkChange:
        links = self._driver.broker.links
        assert links is not None
        row = next(row for row in links.rows() if row.direction == "out" and row.name == destination)
        return LinkChange(destination=destination, action=action, level=row.level, paused=row.stopped)


def _token_in(authorization: str) -> str | None:
    """Return the token of an `Authorization` header, or None."""
    scheme, _, token = authorization.strip().partition(" ")
    return token.strip() if scheme.lower() == _BEARER and token.strip() else None


def _refused(status: int, code: str, text: str) -> Answer:
    return Answer(status, msgspec.json.encode(LinkRefusal(code=code, text=text)) + b"\n", _JSON)
