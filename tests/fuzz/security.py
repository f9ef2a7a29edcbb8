"""Fuzz target of token files.

Must never catch more than the error that such a file may cause.
"""

from __future__ import annotations

from typing import Final

from tests.fuzz.target import Target, brief, taken, texts
from tickertape.base.errors import AuthenticationFailed, ConfigurationError
from tickertape.base.interfaces import Now
from tickertape.server.access.tokens import Tokens, tokens_in
from tickertape.wire.commands import Logon

_HASH: Final = "5f" * 32
_LOGON: Final = Logon(name="c", password="tickertape_spark_" + "a" * 52)


def tokens(data: bytes) -> str:
    """Read a file: `ConfigurationError` with a short text and no hash, or tokens without an invented one."""
    try:
        known = tokens_in(data, "tokens.toml")
    except ConfigurationError as error:
        if _HASH in str(error):
            raise AssertionError("the error shows a hash") from error
        raise
    with taken():
        return _used(known)


def _used(known: Tokens) -> str:
    try:
        known.user_of(_LOGON, Now(0.0, 0))
    except AuthenticationFailed as error:
        brief(error)
        return "good"
    raise AssertionError("a logon passed")


TOKENS_TARGET: Final = Target(
    tokens,
    texts(
        f'[spark]\nsha256 = "{_HASH}"\nclients = "^spark-"\nexpires = 2027-01-31T00:00:00Z\n',
        f"[a]\nsha256 = '{_HASH}'\n[b]\nsha256 = '{_HASH}'\n",
    ),
    words=(
        b"sha256", b"=", b"[", b"]", b'"', b"clients", b"expires", b"(", b"(?=", b"\n",
        b"9999-12-31T23:59:59-23:59",
        b"0001-01-01T00:00:00+23:59", b"2027-01-31", b"\xff", b"{1000}", b"spark",
    ),
    allowed=(ConfigurationError,),
)  # fmt: skip
