"""HTTP client for the admin address of a server, and the option that names it.

The time and size of an answer are limited, because the address may belong to another program.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from tickertape.base.errors import BadOption, UsageError
from tickertape.base.limits import MIB
from tickertape.base.text_format import shown
from tickertape.cli.support.command_group import Failure, TimedOutFailure
from tickertape.cli.support.option_types import parsed
from tickertape.server.config.addresses import ADMIN_DEFAULT, parse_admin

if TYPE_CHECKING:
    from tickertape.server.admin.schema import Stats

ADMIN_VARIABLE: Final = "TICKERTAPE_ADMIN"
"""Environment variable with the admin address, for commands without `--admin`."""

Command = TypeVar("Command", bound=Callable[..., Any])

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_SECONDS_MAX: Final = 10.0
_ANSWER_BYTES_MAX: Final = 64 * MIB


def _admin(value: str) -> str:
    try:
        parse_admin(value)
    except UsageError:
        raise BadOption(
            f"Invalid admin address {shown(value)}. Use http://HOST:PORT, such as {ADMIN_DEFAULT}."
        ) from None
    return value


def _admin_option(text: str, default: str | None) -> Callable[[Command], Command]:
    return click.option(
        "--admin",
        metavar="URL",
        default=default,
        show_default=default is not None,
        envvar=ADMIN_VARIABLE,
        show_envvar=True,
        callback=parsed(_admin),
        help=text,
    )


admin_option = _admin_option("Admin address of the server (see its ready line).", ADMIN_DEFAULT)
names_admin_option = _admin_option(
    "Admin address of the server. Errors then suggest the names of existing topics or queues.", None
)
count_admin_option = _admin_option(
    "Admin address of the server. The command then prints the number of purged messages, and suggests names "
    "of existing queues.",
    None,
)


def stats_of(url: str) -> tuple[bytes, Stats]:
    """Return the statistics of the server at `url`, as received and decoded.

    Raises `Failure` if no server of this version answers, or `TimedOutFailure`.
    """
    from tickertape.server.admin.schema import Stats

    _, body = fetch(url, "/stats", {200})
    try:
        return body, msgspec.json.decode(body, type=Stats)
    except msgspec.MsgspecError as error:
        raise Failure(
            f"Cannot read the statistics of {url!r}: the answer has an unknown format ({error}). "
            "Check --admin and the version of the server."
        ) from None


def fetch(
    url: str,
    path: str,
    statuses: Container[int],
    method: str = "GET",
    headers: Mapping[str, str] = NO_HEADERS,
) -> tuple[int, bytes]:
    """Return status and body of a page of the admin address `url`.

    Raises `Failure` without an answer with one of `statuses`, or `TimedOutFailure`."""
    from http.client import HTTPConnection, HTTPException  # slow, and commands often need no answer

    address = parse_admin(url)
    connection = HTTPConnection(address.host, address.port, timeout=_SECONDS_MAX)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_ANSWER_BYTES_MAX)
    except TimeoutError:
        raise TimedOutFailure(
            f"No answer from {url!r} within {_SECONDS_MAX:g} s. Check the server and --admin."
        ) from None
    except OSError as error:
        raise Failure(
            f"Cannot connect to {url!r}: {(error.strerror or str(error)).lower()}. Is the server running? "
            "Set --admin to the admin address that the server prints at its start."
        ) from None
    except HTTPException as error:
        raise Failure(
            f"Cannot read the answer of {url!r}: not HTTP ({type(error).__name__}). Set --admin to the "
            "admin address that the server prints at its start. It is not the address for --server."
        ) from None
    finally:
        connection.close()
    if answer.status not in statuses:
        text = body[:200].decode("utf-8", "replace").strip().rstrip(".")
        raise Failure(f"Unexpected answer of {url!r}: status {answer.status}: {text}. Check --admin.")
    return answer.status, body
