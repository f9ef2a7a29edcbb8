"""SOW definition: the validated configuration of a SOW topic, the last message of each key.

Reference: docs/adr/0044-state-of-the-world.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from tickertape.engine.limits import sow_checkpoint_seconds_default

MissingKey = Literal["refuse", "null"]
Enabled = Literal["enabled"]

MISSING_KEYS: Final[tuple[MissingKey, ...]] = ("refuse", "null")
ENABLED: Final[Enabled] = "enabled"
"""Expiration of a SOW topic whose messages expire only with a lifetime of their own."""

FINGERPRINT_BYTES: Final = 16
_FINGERPRINT_FORM: Final = 1
"""Changes with the meaning of the fingerprint."""


@dataclass(frozen=True, slots=True)
class SowDefinition:
    """Configuration of one SOW topic."""

    name: str
    """Name of the SOW topic, and always one of its topics."""
    key: tuple[str, ...] = ()
    """Paths of the key fields, as `str(Path)` writes them. Empty: each message has an explicit key."""
    key_domain: str = ""
    """Domain of generated keys. Empty becomes the name."""
    pattern: str | None = None
    """Pattern of further topics. None: the SOW topic has one topic, its name."""
    missing_key: MissingKey = "refuse"
    """Treatment of a message without a key field: refused, or null as one of the values."""
    expiration: int | Enabled | None = None
    """Milliseconds that a record lives without a lifetime of its message. None: records do not expire."""
    index: tuple[tuple[str, ...], ...] = ()
    """Paths of the fields of each hash index."""
    checkpoint_interval: float = sow_checkpoint_seconds_default
    """Seconds."""
    message_types: tuple[tuple[str, str], ...] = ()
    """Topics with another message type than the default, and that type, in the order of their names."""
    earlier_patterns: tuple[str, ...] = ()
    """Patterns of earlier SOW topics. A topic that one of them matches belongs to the earlier SOW topic."""

    def __post_init__(self) -> None:
        if not self.key_domain:
            object.__setattr__(self, "key_domain", self.name)

    def fingerprint(self) -> bytes:
        """Return 16 bytes that are equal if the same log gives the same records and keys.

        Expiration does not count, because the log has a record of each expiry. Message types count only with
        key fields, which they read."""
        deciding: list[object] = [
            _FINGERPRINT_FORM,
            self.name,
            self.pattern,
            self.earlier_patterns,
            self.key,
            self.key_domain,
            self.missing_key,
            self.message_types if self.key else (),
        ]
        return _hash(deciding)

    def key_fingerprint(self) -> bytes:
        """Return 16 bytes that are equal if the keys of equal messages have equal bytes."""
        paths = (self.key, self.message_types) if self.key else ()
        return _hash([_FINGERPRINT_FORM, self.pattern is not None, paths])


def _hash(deciding: list[object]) -> bytes:
    return blake2b(msgspec.msgpack.encode(deciding), digest_size=FINGERPRINT_BYTES).digest()
