"""Encode and decode queue settlements, the bodies of messages published to `$queue`.

A settlement (queue acknowledgement) is published like any message. Publish stores keep and resend it, and its
sequence number identifies duplicates. The engine executes it. docs/formats/wire.md has the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.errors import BadCommand
from tickertape.base.limits import (
    lease_seconds_max,
    settlement_bytes_max,
    settlement_messages_max,
    settlement_runs_max,
)
from tickertape.base.text_format import shown

QUEUE_TOPIC: Final = "$queue"
"""Topic for settlements. The log also keeps their outcomes there."""

Action = Literal["ack", "cancel", "expire", "extend"]
Runs = npt.NDArray[np.uint64]
"""One row per run: publisher, first sequence number and count."""

_RUN: Final = 3
_U8: Final = np.dtype("<u8")


class Settlement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Acknowledgement of messages of `queue`: those in `runs`, or all that match `filter`.

    `ack` removes them as processed, `cancel` returns them to the queue, and `expire` rejects them. `extend`
    sets the end of their lease to `extend_ms` from now.
    """

    queue: str
    action: Action
    runs: bytes = b""
    filter: str | None = None
    extend_ms: int = 0


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE: Final = msgspec.msgpack.Decoder(Settlement).decode


def encode_settlement(settlement: Settlement) -> bytes:
    """Return the body of a settlement."""
    return _ENCODE(settlement)


def decode_settlement(body: bytes) -> tuple[Settlement, Runs]:
    """Return a settlement and its runs. Raises `BadCommand` for invalid or too large input."""
    if len(body) > settlement_bytes_max:
        raise BadCommand(
            f"Invalid settlement of {len(body):,} bytes. Use at most {settlement_bytes_max:,} bytes."
        )
    try:
        settlement = _DECODE(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCommand(f"Invalid settlement: {shown(str(error))}") from None
    runs = runs_in(settlement.runs)
    if (settlement.filter is None) == (not len(runs)):
        raise BadCommand("Invalid settlement. Use either bookmarks or a filter.")
    if settlement.action == "extend":
        if not 0 < settlement.extend_ms <= lease_seconds_max * 1000:
            raise BadCommand(
                f"Invalid lease extension of {settlement.extend_ms} ms. "
                f"Use 1 to {int(lease_seconds_max * 1000)} ms."
            )
    elif settlement.extend_ms:
        raise BadCommand(f"Invalid settlement: {settlement.action!r} takes no lease extension. Remove it.")
    return settlement, runs


def runs_of(publishers: Sequence[int] | npt.NDArray[np.uint64], sequences: npt.ArrayLike) -> bytes:
    """Return the runs of bookmarks in the given order. Consecutive sequence numbers form one run."""
    theirs, numbers = np.asarray(publishers, _U8), np.asarray(sequences, _U8)
    if not len(theirs):
        return b""
    new = np.ones(len(theirs), bool)
    new[1:] = (theirs[1:] != theirs[:-1]) | (numbers[1:] != numbers[:-1] + np.uint64(1))
    starts = np.flatnonzero(new)
    runs = np.empty((len(starts), _RUN), _U8)
    runs[:, 0], runs[:, 1] = theirs[starts], numbers[starts]
    runs[:, 2] = np.diff(starts, append=len(theirs))
    return runs.tobytes()


def runs_in(data: bytes) -> Runs:
    """Return the runs of a settlement. Raises `BadCommand` for invalid or too many runs."""
    if len(data) % (_RUN * _U8.itemsize):
        raise BadCommand(f"Invalid bookmark runs of {len(data)} bytes. Use 24 bytes per run.")
    runs = np.frombuffer(data, _U8).reshape(-1, _RUN)
    if len(runs) > settlement_runs_max:
        raise BadCommand(f"Invalid settlement of {len(runs):,} runs. Use at most {settlement_runs_max:,}.")
    if len(runs) == 1:  # fast path for the most common case
        _, first, count = runs[0].tolist()
        if 0 < count <= settlement_messages_max and 0 < first <= 2**64 - 1 - count:
            return runs
    counts = runs[:, 2]
    if (counts == 0).any() or (counts > settlement_messages_max).any():
        raise BadCommand(f"Invalid bookmark run. Use 1 to {settlement_messages_max:,} bookmarks per run.")
    if int(counts.sum()) > settlement_messages_max:
        raise BadCommand(
            f"Invalid settlement of {int(counts.sum()):,} bookmarks. Use at most {settlement_messages_max:,}."
        )
    if (runs[:, 1] == 0).any() or (runs[:, 1] > np.uint64(2**64 - 1) - counts).any():
        raise BadCommand("Invalid bookmark run. Use sequence numbers from 1 to 2**64 - 1.")
    return runs
