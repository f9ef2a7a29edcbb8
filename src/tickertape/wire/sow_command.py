"""Encode and decode deletes of records, the bodies of messages published to `$sow`, and record marks.

A delete is published like any message. Publish stores keep and resend it, and its sequence number identifies
duplicates. The engine executes it. docs/formats/wire.md has the bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.client_limits import filter_bytes_most
from tickertape.base.errors import BadCommand
from tickertape.base.limits import message_bytes_max, sow_keys_bytes_max, sow_keys_per_command_max
from tickertape.base.text_format import shown
from tickertape.batch.format import Int64s, UInt64s
from tickertape.wire.commands import CanonicalKeys, Keys

SOW_TOPIC: Final = "$sow"
"""Topic for deletes of records. The log also keeps their outcomes there."""

record_mark_bytes: Final = 24
"""Size of the mark of one record: u64 publisher, u64 sequence, i64 timestamp."""

_U8: Final = np.dtype("<u8")
_I8: Final = np.dtype("<i8")


class SowDelete(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Delete of records of `topic`. Exactly one of the other fields selects them.

    `keys` or `canonical` have the keys of the records. `filter` selects all records with a matching body.
    `data` selects the record that a publish of this body would replace.

    An unknown field is an error, because it could restrict the delete.
    """

    topic: str
    keys: Keys = ()
    canonical: CanonicalKeys = ()
    filter: str | None = None
    data: bytes | None = None


class RecordMarks(NamedTuple):
    """Publisher, sequence and timestamp of the message of each record."""

    publishers: UInt64s
    sequences: UInt64s
    timestamps: Int64s


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(SowDelete).decode
_EMPTY_MAP: Final = 0x80
_FIELDS_MAX: Final = len(SowDelete.__struct_fields__)


def encode_delete(delete: SowDelete) -> bytes:
    """Return the body of a delete. Raises `BadCommand` for an invalid or too large one."""
    _check(delete)
    try:
        body = _ENCODE(delete)
    except UnicodeEncodeError as error:
        raise BadCommand(
            f"Cannot delete records: the text {shown(str(error.object))} is not valid Unicode. "
            "Correct the text."
        ) from None
    _check_size(body)
    return body


def decode_delete(body: bytes) -> SowDelete:
    """Return the delete of a body. Raises `BadCommand` for an invalid or too large one."""
    _check_size(body)
    # Repeated or unknown fields could otherwise be decoded for a long time.
    if not body or not _EMPTY_MAP <= body[0] <= _EMPTY_MAP + _FIELDS_MAX:
        raise BadCommand(
            "Cannot delete records: the body of the message in topic '$sow' is not a MessagePack map of at "
            f"most {_FIELDS_MAX} fields. Report the defect of the client."
        )
    try:
        delete = _DECODE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCommand(
            f"Cannot delete records: the client sent an invalid command ({shown(str(error))}). Update the "
            "client or the server, whichever is older."
        ) from None
    _check(delete)
    return delete


def check_keys(keys: tuple[str, ...], canonical: tuple[bytes, ...]) -> None:
    """Raise `BadCommand` for too many or too long keys, and for keys of both forms."""
    if keys and canonical:
        raise BadCommand("Cannot select records by `keys` and `canonical` together. Use one of them.")
    count = len(keys) + len(canonical)
    if count > sow_keys_per_command_max:
        raise BadCommand(
            f"Cannot select records by {count:,} keys: they are too many. "
            f"Use at most {sow_keys_per_command_max:,} keys in one command."
        )
    size = len("".join(keys).encode("utf-8", "surrogatepass")) + sum(map(len, canonical))
    if size > sow_keys_bytes_max:
        raise BadCommand(
            f"Cannot select records by keys of {size:,} bytes in total: they are too long. "
            f"Use at most {sow_keys_bytes_max:,} bytes of keys in one command."
        )


def encode_marks(publishers: npt.ArrayLike, sequences: npt.ArrayLike, timestamps: npt.ArrayLike) -> bytes:
    """Return the marks of records, from one entry of each column for each record."""
    columns = np.asarray(publishers, _U8), np.asarray(sequences, _U8), np.asarray(timestamps, _I8).view(_U8)
    return np.column_stack(columns).tobytes()


def check_marks(marks: bytes, count: int) -> None:
    """Raise `BadCommand` for marks of another number of records than `count`."""
    if len(marks) != count * record_mark_bytes:
        raise BadCommand(
            f"Invalid marks of {len(marks):,} bytes for {count:,} records: "
            f"each record has {record_mark_bytes} bytes. Report the defect of the server."
        )


def decode_marks(marks: bytes, count: int) -> RecordMarks:
    """Return the marks of `count` records. Raises `BadCommand` for marks of another number of records."""
    check_marks(marks, count)
    rows = np.frombuffer(marks, _U8).reshape(count, 3)
    return RecordMarks(rows[:, 0], rows[:, 1], rows[:, 2].view(_I8))


def _check(delete: SowDelete) -> None:
    check_keys(delete.keys, delete.canonical)
    by_key = bool(delete.keys or delete.canonical)
    with_filter, with_data = delete.filter is not None, delete.data is not None
    count = by_key + with_filter + with_data
    if count != 1:
        given = {"keys": by_key, "filter": with_filter, "data": with_data}
        found = [name for name, present in given.items() if present]
        raise BadCommand(
            f"Cannot delete records of {shown(delete.topic)}: the delete has "
            f"{' and '.join(found) or 'no keys, filter or data'}. Use exactly one of keys, filter and data."
        )
    if delete.filter is not None:
        size = len(delete.filter.encode("utf-8", "surrogatepass"))
        if size > filter_bytes_most:
            raise BadCommand(
                f"Cannot delete records of {shown(delete.topic)}: a filter of {size:,} bytes is too long. "
                f"Use at most {filter_bytes_most:,} bytes."
            )


def _check_size(body: bytes) -> None:
    if len(body) > message_bytes_max:
        raise BadCommand(
            f"Cannot delete records: the body of {len(body):,} bytes is too large. "
            f"Use at most {message_bytes_max:,} bytes."
        )
