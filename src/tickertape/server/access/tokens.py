"""Tokens: the tokens file of a server, and authentication of logons.

Authentication uses memory only: the file is read at the start and on a reload.

Invariants:
- No part of a token appears in an error or an event.
- Only a valid token authenticates a logon.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from tickertape.base.bookmarks import to_micros
from tickertape.base.errors import AuthenticationFailed, ConfigurationError
from tickertape.base.interfaces import Now
from tickertape.base.text_format import did_you_mean, listed, shown
from tickertape.filter.compiler.regex import BadPattern, Pattern, compile_pattern
from tickertape.security.private_files import read_private
from tickertape.security.tokens import NAME_FORM, fits, is_name, name_in
from tickertape.server.limits import tokens_max
from tickertape.wire.commands import Logon

_KEYS: Final = ("sha256", "expires", "clients", "links")
_KEY_CHARACTERS_MAX: Final = 16
"""Longer keys are not shown in messages."""
_HASH_CHARACTERS: Final = 64
_HEX: Final = frozenset("0123456789abcdef")
_NOTHING: Final = bytes(_HASH_CHARACTERS // 2)
"""Hash compared with a token of an unknown name, so that the check takes the same time."""
_WRONG: Final = "Authentication failed: unknown token. Check the token."


class KnownToken(NamedTuple):
    """A token in the server's memory: its hash and restrictions."""

    sha256: bytes
    expires: int | None
    """Expiration in microseconds since 1970 UTC. None: never."""
    clients: Pattern | None
    """Pattern of its client names. None: any name."""
    links: Pattern | None = None
    """Pattern of the instances that open replication links with it. None: it is a token of clients, which
    opens no link. Otherwise no client uses it."""


class Tokens:
    """All tokens, by name."""

    def __init__(self, known: Mapping[str, KnownToken]) -> None:
        self._known = dict(known)

    def __bool__(self) -> bool:
        return bool(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def expirations(self) -> dict[str, int]:
        """Return the expiration of each token that expires, by name, in microseconds since 1970 UTC."""
        return {name: known.expires for name, known in self._known.items() if known.expires is not None}

    def user_of(self, logon: Logon, now: Now) -> str:
        """Return the name of the token in `logon`, which is its user. Raises `AuthenticationFailed`."""
        if logon.password is None:
            raise AuthenticationFailed("Authentication failed: this server requires a token (--token-file).")
        name, known = self._proved(logon.password, now)
        _check_name(name, known, logon.name)
        if logon.user is not None and logon.user != name:
            raise AuthenticationFailed(
                f"Authentication failed: the user must be the name of the token, {name!r}, not "
                f"{shown(logon.user)}. Remove the user."
            )
        return name

    def admit_link(self, instance: str, token: str | None, now: Now) -> None:
        """Raise `AuthenticationFailed` unless `instance` may open a replication link with this token."""
        if token is None:
            raise AuthenticationFailed(
                "Authentication failed: this server requires a token for links. Set token_file of the "
                "destination."
            )
        name, known = self._proved(token, now)
        if known.links is None:
            raise AuthenticationFailed(
                f"Authentication failed: the token {name!r} is for clients, not for replication links. Use a "
                "token of `tickertape token new --links`."
            )
        if not known.links.search(instance):
            raise AuthenticationFailed(
                f"Authentication failed: the token {name!r} is for links of instances with names like "
                f"{shown(known.links.text)}, not of {shown(instance)}. Use another token."
            )

    def admit_operator(self, token: str | None, now: Now) -> None:
        """Raise `AuthenticationFailed` unless a token allows commands to the server: it is one of clients."""
        if token is None:
            raise AuthenticationFailed(
                "Authentication failed: this server requires a token for commands (--token-file)."
            )
        name, known = self._proved(token, now)
        if known.links is not None:
            raise AuthenticationFailed(
                f"Authentication failed: the token {name!r} is for replication links, not for commands. Use "
                "a token of clients."
            )

    def link_still_good(self, user: str | None, instance: str, now: Now) -> bool:
        """Return whether the token `user` is still valid for links of `instance`."""
        known = None if user is None else self._known.get(user)
        if known is None or known.links is None or _is_over(known, now):
            return False
        return known.links.search(instance)

    def _proved(self, token: str, now: Now) -> tuple[str, KnownToken]:
        """Return the name of a valid token with its restrictions. Raises `AuthenticationFailed`."""
        name = name_in(token)
        known = None if name is None else self._known.get(name)
        kept = _NOTHING if known is None else known.sha256
        if not fits(token, kept) or known is None or name is None:
            raise AuthenticationFailed(_WRONG)
        # The peer has proved the token, so this error and later ones may contain details.
        if _is_over(known, now):
            raise AuthenticationFailed(
                f"Authentication failed: token {name!r} has expired. Ask for a new token."
            )
        return name, known

    def for_any_client(self) -> list[str]:
        """Return the names of tokens without a client name restriction. Empty for a single token."""
        if len(self._known) < 2:
            return []
        return [name for name, known in self._known.items() if known.clients is None and known.links is None]

    def check_name(self, user: str | None, name: str) -> None:
        """Raise `AuthenticationFailed` unless the token `user` may use the client name `name`."""
        known = None if user is None else self._known.get(user)
        if user is None or known is None:
            raise AuthenticationFailed("Authentication failed: the token was revoked. Ask for a new token.")
        _check_name(user, known, name)

    def still_good(self, user: str | None, name: str, now: Now) -> bool:
        """Return whether the token `user` is still valid for the client `name`."""
        known = None if user is None else self._known.get(user)
        return known is not None and not _is_over(known, now) and _is_for(known, name)

    def replaced_by(self, later: Tokens) -> frozenset[str]:
        """Return the names that have another token in `later`."""
        both = self._known.keys() & later._known.keys()
        return frozenset(name for name in both if self._known[name].sha256 != later._known[name].sha256)


def read_tokens(path: str) -> Tokens:
    """Read the tokens of a file. Raises `ConfigurationError`."""
    return tokens_in(read_private(path, "tokens_file", ConfigurationError), path)


def tokens_in(data: bytes, path: str) -> Tokens:
    """Parse the contents of the tokens file `path`. Raises `ConfigurationError`."""
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, OverflowError, RecursionError):
        # ValueError includes numbers with too many digits. The original text may contain a token.
        raise ConfigurationError(f"Invalid tokens_file {path!r}: not TOML. Correct or recreate it.") from None
    if len(tables) > tokens_max:
        raise ConfigurationError(
            f"Invalid tokens_file {path!r}: {len(tables)} tokens (limit {tokens_max}). Remove some."
        )
    return Tokens({name: _read(path, name, table) for name, table in tables.items()})


def _is_for(known: KnownToken, name: str) -> bool:
    return known.links is None and (known.clients is None or known.clients.search(name))


def _check_name(user: str, known: KnownToken, name: str) -> None:
    if known.links is not None:
        raise AuthenticationFailed(
            f"Authentication failed: the token {user!r} is for replication links, not for clients. Use a "
            "token of clients."
        )
    if not _is_for(known, name):
        assert known.clients is not None
        raise AuthenticationFailed(
            f"Authentication failed: the token {user!r} is for clients with names like "
            f"{shown(known.clients.text)}, not for {shown(name)}. Use such a name, or another token."
        )


def _is_over(known: KnownToken, now: Now) -> bool:
    return known.expires is not None and now.wall >= known.expires


def _shown_name(key: str) -> str:
    """Return an unknown key for a message. A long key may be a misplaced token or hash and is not shown."""
    return shown(key) if len(key) <= _KEY_CHARACTERS_MAX else f"a key of {len(key)} characters"


def _read(path: str, name: str, table: Any) -> KnownToken:
    if not is_name(name):
        raise ConfigurationError(
            f"Invalid tokens_file {path!r}: invalid token name {_shown_name(name)}. Use {NAME_FORM}."
        )
    where = f"Invalid tokens_file {path!r}: [{name}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} must be a table with the key sha256.")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise ConfigurationError(
            f"{where} has the unknown key {_shown_name(unknown[0])}.{did_you_mean(unknown[0], _KEYS)} "
            f"Use {listed(_KEYS)}."
        )
    kept = table.get("sha256")
    if not isinstance(kept, str) or len(kept) != _HASH_CHARACTERS or not _HEX.issuperset(kept):
        raise ConfigurationError(
            f"{where} sha256 must be {_HASH_CHARACTERS} hexadecimal digits (0-9, a-f). Create the entry with "
            "`tickertape token new`."
        )
    clients = _pattern(where, table, "clients", "^spark-")
    links = _pattern(where, table, "links", "^ny-")
    if clients is not None and links is not None:
        raise ConfigurationError(
            f"{where} has clients and links. Remove one: a token is for clients or for replication links."
        )
    return KnownToken(bytes.fromhex(kept), _expires(where, table), clients, links)


def _expires(where: str, table: dict[str, Any]) -> int | None:
    moment = table.get("expires")
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigurationError(
            f"{where} expires must be a time with a time zone, such as 2027-01-31T00:00:00Z."
        )
    return to_micros(moment)  # without conversion to UTC, which may give the year 10000


def _pattern(where: str, table: dict[str, Any], key: str, example: str) -> Pattern | None:
    text = table.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigurationError(
            f'{where} {key} must be a regular expression in quotes, such as "{example}".'
        )
    try:
        return compile_pattern(text)
    except BadPattern as error:
        raise ConfigurationError(
            f"{where} {key} {shown(text)}: {error.reason}. Use a regular expression such as '{example}'."
        ) from None
