"""Tokens: the tokens file of a server, and whether a logon may pass.

Decisions are made in memory: the file is read at the start and on a reload.

Invariants:
- No part of a token appears in an error or an event.
- A logon passes by its token only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from tickertape.base.bookmarks import to_micros
from tickertape.base.errors import AuthenticationFailed, ConfigurationError
from tickertape.base.interfaces import Now
from tickertape.base.text_format import shown
from tickertape.filter.compiler.regex import BadPattern, Pattern, compile_pattern
from tickertape.security.private_files import read_private
from tickertape.security.tokens import NAME_FORM, fits, is_name, name_in
from tickertape.server.limits import tokens_max
from tickertape.wire.commands import Logon

_KEYS: Final = ("sha256", "expires", "clients")
_KEY_CHARACTERS_MAX: Final = 16
"""A longer key is not shown."""
_HASH_CHARACTERS: Final = 64
_HEX: Final = frozenset("0123456789abcdef")
_NOTHING: Final = bytes(_HASH_CHARACTERS // 2)
"""Compared with the token of an unknown name, so that the check takes as long."""
_WRONG: Final = "the token is not one of this server's"


class KnownToken(NamedTuple):
    """A token as the server knows it."""

    sha256: bytes
    expires: int | None
    """Microseconds since 1970 UTC from which on it is not taken; None: never."""
    clients: Pattern | None
    """Pattern of its client names; None: any name."""


class Tokens:
    """All tokens, by name."""

    def __init__(self, known: Mapping[str, KnownToken]) -> None:
        self._known = dict(known)

    def __bool__(self) -> bool:
        return bool(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def expirations(self) -> dict[str, int]:
        """The tokens that expire, by name: microseconds since 1970 UTC."""
        return {name: known.expires for name, known in self._known.items() if known.expires is not None}

    def user_of(self, logon: Logon, now: Now) -> str:
        """The name of the token that `logon` shows, which is its user. Raises `AuthenticationFailed`."""
        if logon.password is None:
            raise AuthenticationFailed("this server wants a token, and the logon has none")
        name = name_in(logon.password)
        known = None if name is None else self._known.get(name)
        kept = _NOTHING if known is None else known.sha256
        if not fits(logon.password, kept) or known is None or name is None:
            raise AuthenticationFailed(_WRONG)
        # From here on the client has proved the token: the errors may say more.
        if _is_over(known, now):
            raise AuthenticationFailed(f"the token {name!r} has expired")
        _check_name(name, known, logon.name)
        if logon.user is not None and logon.user != name:
            raise AuthenticationFailed(
                f"the user is the name of the token, which is {name!r}, not {shown(logon.user)}; leave it out"
            )
        return name

    def for_any_client(self) -> list[str]:
        """Names of the tokens for every client name, when there are others to protect."""
        if len(self._known) < 2:
            return []
        return [name for name, known in self._known.items() if known.clients is None]

    def check_name(self, user: str | None, name: str) -> None:
        """Raise `AuthenticationFailed` unless the token of the name `user` is for the client name `name`."""
        known = None if user is None else self._known.get(user)
        if user is None or known is None:
            raise AuthenticationFailed("the token was taken back")
        _check_name(user, known, name)

    def still_good(self, user: str | None, name: str, now: Now) -> bool:
        """Whether the client `name` that logged on with the token of the name `user` may stay."""
        known = None if user is None else self._known.get(user)
        return known is not None and not _is_over(known, now) and _is_for(known, name)

    def replaced_by(self, later: Tokens) -> frozenset[str]:
        """Names that have another token in `later`."""
        both = self._known.keys() & later._known.keys()
        return frozenset(name for name in both if self._known[name].sha256 != later._known[name].sha256)


def read_tokens(path: str) -> Tokens:
    """The tokens of a file. Raises `ConfigurationError`."""
    return tokens_in(read_private(path, "tokens_file", ConfigurationError), path)


def tokens_in(data: bytes, path: str) -> Tokens:
    """Parse the contents of the tokens file `path`. Raises `ConfigurationError`."""
    try:
        tables = tomllib.loads(data.decode())
    except (ValueError, OverflowError, RecursionError):
        # Not only its own errors: a number of too many digits is a plain one. The text may show a token.
        raise ConfigurationError(f"tokens_file {path} is not TOML") from None
    if len(tables) > tokens_max:
        raise ConfigurationError(f"tokens_file {path} has {len(tables)} tokens; at most {tokens_max}")
    return Tokens({name: _read(path, name, table) for name, table in tables.items()})


def _is_for(known: KnownToken, name: str) -> bool:
    return known.clients is None or known.clients.search(name)


def _check_name(user: str, known: KnownToken, name: str) -> None:
    if not _is_for(known, name):
        assert known.clients is not None
        raise AuthenticationFailed(
            f"the token {user!r} is for clients with names like {shown(known.clients.text)}, not for "
            f"{shown(name)}"
        )


def _is_over(known: KnownToken, now: Now) -> bool:
    return known.expires is not None and now.wall >= known.expires


def _shown_name(key: str) -> str:
    """Return an unknown key for a message, unless it may be a misplaced token or hash."""
    return shown(key) if len(key) <= _KEY_CHARACTERS_MAX else f"a key of {len(key)} characters"


def _read(path: str, name: str, table: Any) -> KnownToken:
    if not is_name(name):
        raise ConfigurationError(
            f"tokens_file {path}: {_shown_name(name)} is no name of a token: {NAME_FORM}"
        )
    where = f"tokens_file {path}: [{name}]"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} is a table with the key sha256")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise ConfigurationError(f"{where} {_shown_name(unknown[0])} is unknown; it takes {', '.join(_KEYS)}")
    kept = table.get("sha256")
    if not isinstance(kept, str) or len(kept) != _HASH_CHARACTERS or not _HEX.issuperset(kept):
        raise ConfigurationError(
            f"{where} sha256 is {_HASH_CHARACTERS} digits of 0-9, a-f, as `tickertape token new` gives them"
        )
    return KnownToken(bytes.fromhex(kept), _expires(where, table), _clients(where, table))


def _expires(where: str, table: dict[str, Any]) -> int | None:
    moment = table.get("expires")
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigurationError(f"{where} expires is a moment with its zone, such as 2027-01-31T00:00:00Z")
    return to_micros(moment)  # not by way of UTC: there its year may be 10000


def _clients(where: str, table: dict[str, Any]) -> Pattern | None:
    text = table.get("clients")
    if text is None:
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f'{where} clients is a regular expression in quotes, such as "^spark-"')
    try:
        return compile_pattern(text)
    except BadPattern as error:
        raise ConfigurationError(f"{where} clients is no regular expression: {error}") from None
