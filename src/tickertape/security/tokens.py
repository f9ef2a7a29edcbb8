"""Create and verify access tokens.

A token is the text of 256 random bits. Servers keep its hash. Errors never contain a token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b32encode
from pathlib import Path
from typing import Final, NamedTuple

from tickertape.base.errors import BadName, UsageError
from tickertape.security.limits import token_name_characters_max
from tickertape.security.private_files import read_private

TOKEN_VARIABLE: Final = "TICKERTAPE_TOKEN"
"""Environment variable with the token for the command line."""
NAME_FORM: Final = f"1 to {token_name_characters_max} of a-z, 0-9, - and ., starting with a letter or digit"
_BEGIN: Final = "tickertape"
_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9.-]{{0,{token_name_characters_max - 1}}}")
_FORM: Final = re.compile(rf"{_BEGIN}_({_NAME.pattern})_[a-z2-7]{{52}}")
_SECRET_BYTES: Final = 32


class Token(NamedTuple):
    """A new token: its text, which is shown once, and the hash to store."""

    text: str
    sha256: str

    def __repr__(self) -> str:
        return "Token(...)"


def new_token(name: str) -> Token:
    """Create a token with this name. Raises `BadName`."""
    if not is_name(name):
        raise BadName(f"Invalid token name. Use {NAME_FORM}.")
    secret = b32encode(secrets.token_bytes(_SECRET_BYTES)).decode().rstrip("=").lower()
    text = f"{_BEGIN}_{name}_{secret}"
    return Token(text, hash_of(text).hex())


def is_name(name: str) -> bool:
    """Return whether `name` is a valid token name."""
    return _NAME.fullmatch(name) is not None


def name_in(text: str) -> str | None:
    """Return the name in the text of a token, or None for text that is not a token."""
    form = _FORM.fullmatch(text)
    return None if form is None else form[1]


def hash_of(text: str) -> bytes:
    """Return the hash that a server stores. One round of SHA-256 is enough for 256 random bits."""
    return hashlib.sha256(text.encode(errors="replace")).digest()


def fits(text: str, kept: bytes) -> bool:
    """Return whether `kept` is the hash of this token. The comparison takes constant time."""
    return hmac.compare_digest(hash_of(text), kept)


def read_token(path: str | Path, refuse: type[UsageError]) -> str:
    """Return the token in a file that contains only the token. Raises `refuse`."""
    path = str(path)
    text = read_private(path, "token file", refuse).strip().decode("ascii", "replace")
    if name_in(text) is None:
        raise refuse(
            f"Cannot read token file {path!r}: it does not contain a token. "
            "Create one with `tickertape token new NAME`."
        )
    return text
