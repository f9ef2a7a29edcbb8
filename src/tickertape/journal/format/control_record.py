"""Control record head: the fields by which readers distinguish control records (topic `$control`).

A record with a `log` was written by another log. It never changes the state of this log: positions,
publishers and transactions in it belong to the other one.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from tickertape.base.errors import JournalCorrupt
from tickertape.base.text_format import shown

LogId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
RECORD_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ControlRecordHead(msgspec.Struct):
    """The fields that every control record may have."""

    type: str
    latest_of: str = ""
    """Key of a record that replaces earlier ones: only the last record with this value is kept."""
    log: LogId = b""
    """Id of the log that wrote the record. Empty: this log."""


def decode_head(body: bytes) -> ControlRecordHead:
    """Decode the head of a control record. Raises `JournalCorrupt`, without the position."""
    try:
        return msgspec.msgpack.decode(body, type=ControlRecordHead)
    except RECORD_ERRORS as error:
        raise JournalCorrupt(f"invalid control record: {shown(str(error))}") from None
