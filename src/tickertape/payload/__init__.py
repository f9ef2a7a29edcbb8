"""Owns what a body is, by message type: its fields, its check, and the selection of its fields.

Must never know a topic, a filter's language or a peer: it is given bodies and paths. The names below are the
package's face.
"""

from __future__ import annotations

from tickertape.payload.paths import Path, parse_path
from tickertape.payload.registry import MESSAGE_TYPE_ALIASES, MESSAGE_TYPES, message_type
from tickertape.payload.select import Select, parse_select
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
