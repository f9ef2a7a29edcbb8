"""Connection options of commands: server address, token file and certificates.

Secrets are passed in files or in the environment, because all users of a machine can read command lines.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from tickertape.base.errors import BadOption
from tickertape.base.text_format import shown
from tickertape.cli.support.option_types import parsed
from tickertape.security.tls_options import TLS
from tickertape.security.tokens import TOKEN_VARIABLE, read_token

if TYPE_CHECKING:
    from tickertape.client.blocking.client import Client

SERVER_DEFAULT: Final = "tcp://127.0.0.1:9007"
SERVER_VARIABLE: Final = "TICKERTAPE_SERVER"
"""Environment variable with the server address, for commands without `--server`."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Server(NamedTuple):
    """Address and credentials of a server, from the options of a command."""

    uri: str
    token: str | None
    tls: TLS | None
    files: Mapping[str, str] = {}
    """Files of the options, by the names of Spark's options."""

    def for_spark(self) -> str:
        """Return the server address for Spark tasks, which read the credential files themselves.

        Raises `BadOption` if the token is not in a file.
        """
        from tickertape.spark.common.servers import server_text

        if self.token is not None and "tokenFile" not in self.files:
            raise BadOption(
                f"Cannot use {TOKEN_VARIABLE}: Spark tasks do not see the variable. Pass --token-file."
            )
        return server_text(self.uri, self.files)

    def __repr__(self) -> str:
        return f"Server({self.uri!r})"

    def client(self, name: str, **options: Any) -> Client:
        """Return a client that is logged on to the server."""
        import logging

        from tickertape.client.blocking.client import Client
        from tickertape.client.common.handlers import LOG

        LOG.addHandler(logging.NullHandler())  # the command reports errors itself
        ways: dict[str, Any] = {"token": self.token, "tls": self.tls}
        options |= {key: way for key, way in ways.items() if way is not None}
        return Client(name, self.uri, **options)


def _file(name: str, metavar: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=click.Path(dir_okay=False), metavar=metavar, help=text)


def _address(uri: str) -> str:
    from tickertape.client.common.address import parse_uri

    parse_uri(uri)
    return uri


def server_option(text: str) -> Callable[[_Command], _Command]:
    """Return the option `--server` with the help `text`."""
    return click.option(
        "--server",
        metavar="URI",
        default=SERVER_DEFAULT,
        show_default=True,
        envvar=SERVER_VARIABLE,
        show_envvar=True,
        callback=parsed(_address),
        help=text,
    )


_OPTIONS: Final = (
    server_option("Address of the server: tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH."),
    _file(
        "--token-file",
        "FILE",
        f"File with the access token (mode 0600). Default: the environment variable {TOKEN_VARIABLE}.",
    ),
    _file(
        "--ca", "FILE", "CA certificates for a tls:// server (PEM). Default: the system's CA certificates."
    ),
    _file("--certificate", "FILE", "Client certificate for a tls:// server, if the server requires one."),
    _file("--key", "FILE", "Private key file of --certificate (mode 0600)."),
)

_TOKEN_FILE: Final = _file(
    "--token-file", "FILE", "File with the access token (mode 0600), at the same path for all Spark tasks."
)


def server_options(command: _Command) -> _Command:
    """Add the connection options to a command, which gets a `Server` as its argument `server`."""

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
    """Add the credential options to a command, for several servers read by Spark.

    The command gets the files as its argument `access`, by the names of Spark's options."""

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
"""File options, and the names of the corresponding Spark options."""


def _files(given: dict[str, Any]) -> dict[str, str | None]:
    """Remove the file options from `given` and return them."""
    return {name: given.pop(name) for name in _FILES}


def _absolute(files: Mapping[str, str | None]) -> dict[str, str]:
    """Return absolute paths by the names of Spark's options."""
    return {_FILES[name]: os.path.abspath(path) for name, path in files.items() if path is not None}


def _check_files(uri: str, files: Mapping[str, str]) -> None:
    """Raise `BadOption`, with the names of options, for TLS files without `tls://` or without their pair."""
    for name, pair in (("key", "certificate"), ("certificate", "key")):
        if name in files and pair not in files:
            raise BadOption(f"--{name} requires --{pair}. Pass both or neither.")
    if files and not uri.startswith("tls://"):
        raise BadOption(
            f"--{next(iter(files))} requires a tls:// address, but --server is {shown(uri)}. Use tls:// or "
            f"remove --{next(iter(files))}."
        )


def _server(uri: str, files: Mapping[str, str | None]) -> Server:
    from tickertape.client.common.address import parse_uri
    from tickertape.client.common.credentials import credentials_of

    token = os.environ.get(TOKEN_VARIABLE) or None
    of_tls = {name: path for name, path in files.items() if path is not None}
    token_file = of_tls.pop("token_file", None)
    if token_file is not None:
        token = read_token(token_file, BadOption)
    _check_files(uri, of_tls)
    tls = TLS(**of_tls) if of_tls else None
    credentials_of(tls, token).check(parse_uri(uri))
    return Server(uri, token, tls, _absolute(files))
