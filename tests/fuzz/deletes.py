"""Fuzz target of deletes of records, which clients publish to `$sow`.

Must never catch more than the allowed errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tests.fuzz.target import Target, taken
from tests.helpers.wire_golden import deletes
from tickertape.base.errors import BadCommand
from tickertape.base.limits import sow_keys_bytes_max, sow_keys_per_command_max
from tickertape.wire.sow_command import decode_delete, encode_delete


def delete_command(data: bytes) -> str:
    """Decode a delete: `BadCommand`, or a delete with one selection inside the limits that round-trips."""
    delete = decode_delete(data)
    with taken():
        given = [delete.keys, delete.canonical, delete.filter is not None, delete.data is not None]
        assert sum(map(bool, given)) == 1
        assert len(delete.keys) + len(delete.canonical) <= sow_keys_per_command_max
        assert len("".join(delete.keys).encode()) + len(b"".join(delete.canonical)) <= sow_keys_bytes_max
        assert decode_delete(encode_delete(delete)) == delete
    return "filter" if delete.filter is not None else "data" if delete.data is not None else "keys"


def _deletes() -> Sequence[bytes]:
    every_field = {"topic": "t", "keys": ["k"], "canonical": [], "filter": None, "data": None}
    return [*map(encode_delete, deletes()), msgspec.msgpack.encode(every_field)]


DELETE_TARGETS: Final[dict[str, Target]] = {
    "delete_command": Target(
        delete_command,
        _deletes,
        words=(
            b"\xa4keys\x91\xa1k", b"\xa9canonical\x91\xc4\x01k", b"\xa6filter\xa1a", b"\xa4data\xc4\x01a",
            b"\xa4data\xc0", b"\xa5topic\xa1t", b"\x82", b"\x85", b"\xdd\x00\x01\x86\xa1", b"\x90",
        ),
        allowed=(BadCommand,),
    ),
}  # fmt: skip
