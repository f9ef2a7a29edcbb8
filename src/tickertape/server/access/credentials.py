"""Credential store: certificates and tokens, read at the start and on SIGHUP.

Invariant: if a file cannot be used, a reload changes nothing.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

from tickertape.base.errors import BadOption, ConfigurationError
from tickertape.base.interfaces import Now
from tickertape.security.contexts import client_context, server_context
from tickertape.security.tls_options import TLS
from tickertape.security.tokens import read_token
from tickertape.server.access.tokens import Tokens, read_tokens
from tickertape.server.config.addresses import parse_server
from tickertape.server.config.config import Config
from tickertape.server.config.transports import Transport
from tickertape.wire.commands import Logon

if TYPE_CHECKING:  # only servers that replicate import it
    from tickertape.server.config.replication import DestinationConfig


class LinkFiles(NamedTuple):
    """Token and TLS context of an outgoing link."""

    token: str | None
    context: ssl.SSLContext | None

    def __repr__(self) -> str:
        return "LinkFiles(...)"  # never show a token


class CredentialStore:
    """Certificates and tokens of a server. Raises `ConfigurationError` for unusable files."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._contexts, self._tokens = _read(config)
        self._links = _read_links(config)

    def reload(self) -> frozenset[str]:
        """Read all files again. Return the users whose token was replaced.

        Raises `ConfigurationError` without changing anything."""
        before = self._tokens
        links = _read_links(self._config)
        self._contexts, self._tokens = _read(self._config)
        self._links = links
        return frozenset() if before is None or self._tokens is None else before.replaced_by(self._tokens)

    def context_of(self, number: int) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection to transport `number`. None without TLS."""
        return self._contexts[number]

    @property
    def has_files(self) -> bool:
        """Whether the server has certificate or token files to reload."""
        return self.wants_tokens or any(self._contexts) or any(map(any, self._links.values()))

    @property
    def wants_tokens(self) -> bool:
        """Whether a logon needs a token."""
        return self._tokens is not None

    @property
    def refuses_all(self) -> bool:
        """Whether a logon needs a token and the tokens file is empty."""
        return self._tokens is not None and not self._tokens

    @property
    def tokens_for_any_client(self) -> list[str]:
        """Names of tokens that may use every client name, including the names of other tokens."""
        return [] if self._tokens is None else self._tokens.for_any_client()

    def user_of(self, logon: Logon, now: Now) -> str | None:
        """Return the user of a logon: the name of its token, or without tokens the claimed user.

        Raises `AuthenticationFailed`."""
        return logon.user if self._tokens is None else self._tokens.user_of(logon, now)

    def check_name(self, user: str | None, name: str) -> None:
        """Raise `AuthenticationFailed` unless `user` may use the client name `name`."""
        if self._tokens is not None:
            self._tokens.check_name(user, name)

    def still_good(self, user: str | None, name: str, now: Now) -> bool:
        """Return whether the credentials of `user` are still valid for the client `name`."""
        return self._tokens is None or self._tokens.still_good(user, name, now)

    def admit_operator(self, token: str | None, now: Now) -> None:
        """Raise `AuthenticationFailed` unless a token allows commands to this server."""
        if self._tokens is not None:
            self._tokens.admit_operator(token, now)

    # -- replication links ----------------------------------------------------------------------------

    def admit_link(self, instance: str, token: str | None, now: Now) -> None:
        """Raise `AuthenticationFailed` unless `instance` may open a replication link with this token."""
        if self._tokens is not None:
            self._tokens.admit_link(instance, token, now)

    def link_still_good(self, user: str | None, instance: str, now: Now) -> bool:
        """Return whether the token `user` is still valid for links of `instance`."""
        return self._tokens is None or self._tokens.link_still_good(user, instance, now)

    def link_token(self, destination: str) -> str | None:
        """Return the token for a destination. None: it needs none."""
        return self._links[destination].token

    def link_context(self, destination: str) -> ssl.SSLContext | None:
        """Return the TLS context for a destination. None: none of its addresses uses TLS."""
        return self._links[destination].context


def _read(config: Config) -> tuple[list[ssl.SSLContext | None], Tokens | None]:
    contexts = [_context(transport) for transport in config.transports]
    authentication = config.authentication
    return contexts, None if authentication is None else read_tokens(authentication.tokens_file)


def _context(transport: Transport) -> ssl.SSLContext | None:
    if transport.certificate is None or transport.key is None:
        return None
    return server_context(transport.certificate, transport.key, transport.client_ca)


def _read_links(config: Config) -> dict[str, LinkFiles]:
    """Read the files of all destinations. Raises `ConfigurationError`."""
    destinations = () if config.replication is None else config.replication.destinations
    return {one.name: LinkFiles(_token_of(one), _context_of(one)) for one in destinations}


def _token_of(destination: DestinationConfig) -> str | None:
    path = destination.token_file
    return None if path is None else read_token(path, ConfigurationError)


def _context_of(destination: DestinationConfig) -> ssl.SSLContext | None:
    if not any(parse_server(text).tls for text in destination.addresses):
        return None
    try:
        return client_context(TLS(ca=destination.ca))
    except BadOption as error:
        raise ConfigurationError(str(error)) from None
