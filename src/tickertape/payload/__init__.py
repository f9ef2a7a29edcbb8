"""Message types: read, check and project message bodies.

The package knows bodies and paths. It does not know topics, the filter language or connections.
"""

from __future__ import annotations

from tickertape.payload.paths import Path, Select, parse_path, parse_select
from tickertape.payload.registry import MESSAGE_TYPE_ALIASES, MESSAGE_TYPES, message_type
from tickertape.payload.types import FieldReader, MessageType, Unreadable

__all__ = [
    "MESSAGE_TYPES",
    "MESSAGE_TYPE_ALIASES",
    "FieldReader",
    "MessageType",
    "Path",
    "Select",
    "Unreadable",
    "message_type",
    "parse_path",
    "parse_select",
]
