"""Owns the names and types of our columns.

Must never import anything: this is all that a process needs which only asks for the schema.
"""

from __future__ import annotations

from typing import Final

DEFAULT_SCHEMA: Final = (
    "topic string, bookmark string, publisher string, sequence long, timestamp timestamp, data binary"
)
"""The columns when the user gives no schema."""
FURTHER_SCHEMA: Final = "position long, date date, key string, correlation_id string, expiration_ms long"
"""The columns that there are only in a schema that names them."""
ALL_SCHEMA: Final = f"{DEFAULT_SCHEMA}, {FURTHER_SCHEMA}"
POSITION: Final = "position"
NULLABLE: Final = ("key", "correlation_id", "expiration_ms")
