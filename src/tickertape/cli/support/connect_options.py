"""Connection options of commands: server address, token file and certificates.

Secrets are given in files or in the environment, because all users of a machine can read command lines.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from tickertape.base.errors import BadOption
from tickertape.security.contexts import TLS
from tickertape.security.tokens import TOKEN_VARIABLE, read_token

if TYPE_CHECKING:
    from tickertape.client.blocking.client import Client

SERVER_DEFAULT: Final = "tcp://127.0.0.1:9007"
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Server(NamedTuple):
    """A server as the options of a command describe it."""

    uri: str
    token: str | None
    tls: TLS | None
    files: Mapping[str, str] = {}
    """The files that the options name, by the names of Spark's options."""

    def for_spark(self) -> str:
        """Return the server as Spark tasks use it: they read the files themselves.

        Raises `BadOption` when it is not files that say all.
        """
        from tickertape.spark.common.servers import server_text

        if self.token is not None and "tokenFile" not in self.files:
            raise BadOption(
                f"Spark's tasks do not see the environment variable {TOKEN_VARIABLE}: give --token-file"
            )
        return server_text(self.uri, self.files)

    def __repr__(self) -> str:
        return f"Server({self.uri!r})"

    def client(self, name: str, **options: Any) -> Client:
        """Return a client of it that is logged on."""
        import logging

        from tickertape.client.blocking.client import Client
        from tickertape.client.common.client_log import LOG

        LOG.addHandler(logging.NullHandler())  # the command reports errors itself
        ways: dict[str, Any] = {"token": self.token, "tls": self.tls}
        options |= {key: way for key, way in ways.items() if way is not None}
        return Client(name, self.uri, **options)


def _file(name: str, metavar: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=click.Path(dir_okay=False), metavar=metavar, help=text)


_OPTIONS: Final = (
    click.option(
        "--server",
        metavar="URI",
        default=SERVER_DEFAULT,
        show_default=True,
        help="Where the server is: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH.",
    ),
    _file(
        "--token-file",
        "FILE",
        f"File with the token to log on with. Default: the environment variable {TOKEN_VARIABLE}.",
    ),
    _file("--ca", "FILE", "Of a tls:// server: the certificates to trust. Default: those of the system."),
    _file("--certificate", "FILE", "Of a tls:// server: the certificate to show, when it wants one."),
    _file("--key", "FILE", "The key of that certificate, readable for its owner only."),
)

_TOKEN_FILE: Final = _file(
    "--token-file", "FILE", "File with the token to log on with, as Spark's tasks see it too."
)


def server_options(command: _Command) -> _Command:
    """Give a command the options, and the `Server` they mean as its argument `server`."""

    @functools.wraps(command)
    def reached(*arguments: Any, server: str, **others: Any) -> Any:
        files = _files(others)
        try:
            given = _server(server, files)
        except BadOption as error:
            raise click.UsageError(str(error)) from None
        return command(*arguments, server=given, **others)

    for option in reversed(_OPTIONS):
        option(reached)
    return reached  # type: ignore[return-value]


def access_options(command: _Command) -> _Command:
    """Give a command the options without the address, and as its argument `access` the files that they name,
    by the names of Spark's options: for commands that reach several servers through Spark."""

    @functools.wraps(command)
    def reached(*arguments: Any, **others: Any) -> Any:
        files = _files(others)
        return command(*arguments, access=_absolute(files), **others)

    for option in reversed((_TOKEN_FILE, *_OPTIONS[2:])):
        option(reached)
    return reached  # type: ignore[return-value]


_FILES: Final = {
    "token_file": "tokenFile",
    "ca": "caFile",
    "certificate": "certificateFile",
    "key": "keyFile",
}
"""Options that name files, and the names of Spark's options."""


def _files(given: dict[str, Any]) -> dict[str, str | None]:
    """Take the options that name files out of `given`."""
    return {name: given.pop(name) for name in _FILES}


def _absolute(files: Mapping[str, str | None]) -> dict[str, str]:
    """By the names of Spark's options."""
    return {_FILES[name]: os.path.abspath(path) for name, path in files.items() if path is not None}


def _server(uri: str, files: Mapping[str, str | None]) -> Server:
    from tickertape.client.common.address import parse_uri
    from tickertape.client.common.credentials import credentials_of

    token = os.environ.get(TOKEN_VARIABLE) or None
    of_tls = {name: path for name, path in files.items() if path is not None}
    token_file = of_tls.pop("token_file", None)
    if token_file is not None:
        token = read_token(token_file, BadOption)
    tls = TLS(**of_tls) if of_tls else None
    try:
        address = parse_uri(uri)
    except BadOption as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    credentials_of(tls, token).check(address)
    return Server(uri, token, tls, _absolute(files))
