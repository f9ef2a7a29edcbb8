"""Owns every bound of TLS and of tokens, by name, with its unit last.

Must never be repeated elsewhere as a number.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, frame_bytes_before_logon_max

handshake_bytes_max: Final = frame_bytes_before_logon_max
"""What a server takes of a TLS handshake that is not complete: as much as of a logon."""
encrypted_at_once_bytes_max: Final = 256 * KIB
"""What is encrypted in one go; what goes out waits as cipher text so long."""
secret_file_bytes_max: Final = 1024 * KIB
"""Size of a file with a token or with the hashes of tokens."""
tokens_max: Final = 10_000
"""Tokens of one server."""
token_name_characters_max: Final = 64
"""Length of the name of a token."""
token_look_seconds: Final = 60.0
"""How often it is looked whether a session's token has expired."""
