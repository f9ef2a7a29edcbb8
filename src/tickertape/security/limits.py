"""Limits of the security package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB

# security
encrypted_at_once_bytes_max: Final = 256 * KIB
"""Bytes encrypted at a time. The cipher text is buffered until it is sent."""
secret_file_bytes_max: Final = 1024 * KIB
"""Size of a file with a token or with the hashes of tokens."""
token_name_characters_max: Final = 64
"""Length of the name of a token."""
