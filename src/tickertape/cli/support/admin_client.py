"""HTTP client for the admin address of a server, and the option that names it.

Time and size of an answer are limited, because the address may belong to another program.
"""

from __future__ import annotations

from collections.abc import Container
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tickertape.base.limits import MIB
from tickertape.cli.support.command_group import Failure, TimedOutFailure
from tickertape.cli.support.option_types import parsed
from tickertape.server.config.addresses import ADMIN_DEFAULT, parse_admin

if TYPE_CHECKING:
    from tickertape.server.admin.schema import Stats

_SECONDS_MAX: Final = 10.0
_ANSWER_BYTES_MAX: Final = 64 * MIB


def _admin(value: str) -> str:
    parse_admin(value)
    return value


checked_admin = parsed(_admin)
"""Callback of an option: an admin address, looked at before anything is done."""

admin_option = click.option(
    "--admin",
    metavar="URL",
    default=ADMIN_DEFAULT,
    show_default=True,
    callback=checked_admin,
    help="Admin address of the server, as its ready line tells it.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")


def stats_of(url: str) -> tuple[bytes, Stats]:
    """Return the statistics of the server at `url`: as received, and decoded.

    Raises `Failure` when no server of this version answers there, `TimedOutFailure` when not in time.
    """
    from tickertape.server.admin.schema import Stats

    _, body = fetch(url, "/stats", {200})
    try:
        return body, msgspec.json.decode(body, type=Stats)
    except msgspec.MsgspecError as error:
        raise Failure(f"what answers at {url} is no tickertape server of this version: {error}") from None


def fetch(url: str, path: str, statuses: Container[int]) -> tuple[int, bytes]:
    """Return status and body of a page of the admin address `url`.

    Raises `Failure` when nothing answers there with one of `statuses`, `TimedOutFailure` when not in time."""
    address = parse_admin(url)
    connection = HTTPConnection(address.host, address.port, timeout=_SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(_ANSWER_BYTES_MAX)
    except TimeoutError:
        raise TimedOutFailure(f"{url} did not answer within {_SECONDS_MAX:g} s") from None
    except OSError as error:
        raise Failure(
            f"nobody answers at {url} ({error.strerror or error}); --admin names the admin address, "
            f"which a server tells when it is ready"
        ) from None
    except HTTPException as error:
        raise Failure(f"what answers at {url} does not speak HTTP: {type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status not in statuses:
        raise Failure(f"{url} answered {answer.status}: {body[:200].decode('utf-8', 'replace')}")
    return answer.status, body
