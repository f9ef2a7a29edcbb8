"""Encode protocol frames, and split a byte stream into checked frames (docs/formats/wire.md).

Of a batch only the size at its start is read. Lengths are compared with their limits before they are used,
and returned memory is never changed by a later read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from crc32c import crc32c

from tickertape.base.errors import BadFrame, FrameTooLarge, PeerError
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import (
    batch_bytes_max,
    frame_bytes_max,
    frame_in_place_bytes_max,
    frame_prefix_bytes,
    header_bytes_max,
    receive_buffer_bytes,
)
from tickertape.batch import MessageBatch
from tickertape.batch.format import TOTAL
from tickertape.wire.commands import Command

_PREFIX: Final = struct.Struct("<IIII")
_PADDING: Final = tuple(bytes(size) for size in range(8))

_encode_header: Final = msgspec.msgpack.Encoder().encode
_decode_header: Final = msgspec.msgpack.Decoder().decode
_JUDGED_BYTES_MAX: Final = 4096
"""Of a header that is not complete: a longer one, sent byte by byte, would be read too often."""
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_pack: Final = _PREFIX.pack
_unpack_from: Final = _PREFIX.unpack_from

assert _PREFIX.size == frame_prefix_bytes


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame whose lengths and checksums are right. It owns its memory; nothing else will change it."""

    header: bytes
    """The command as MessagePack, without padding."""
    batch: Buffer | None
    """The encoded message batch, or None when the frame ends with its header."""


def encode_frame(
    command: Command, batch: MessageBatch | None = None, *, batch_crc: int | None = None
) -> list[Buffer]:
    """Return the frame as buffers to write one after the other; bodies of `batch` are not copied.

    `batch_crc` is CRC32C of the encoded batch where the caller knows it (one batch for many subscribers);
    otherwise it is computed. Raises `FrameTooLarge` when no receiver would take the frame.
    """
    header = _encode_header(command)
    header_bytes = len(header)
    padding = -header_bytes & 7
    if header_bytes > header_bytes_max:
        raise FrameTooLarge(
            f"the header of this {type(command).__name__} has {header_bytes} bytes, "
            f"more than the {header_bytes_max} that a frame may have"
        )
    frame_bytes = frame_prefix_bytes + header_bytes + padding
    if batch is None:
        return [_pack(frame_bytes, header_bytes, crc32c(header), 0) + header + _PADDING[padding]]
    if batch.nbytes > batch_bytes_max:
        raise FrameTooLarge(
            f"the batch of this {type(command).__name__} has {batch.nbytes} bytes, "
            f"more than the {batch_bytes_max} that a frame may have"
        )
    if batch_crc is None:
        batch_crc = batch.crc()
    prefix = _pack(frame_bytes + batch.nbytes, header_bytes, crc32c(header), batch_crc)
    return [prefix + header + _PADDING[padding], *batch.buffers()]


Foresee = Callable[[bytes, int | None, int], PeerError | None]
"""An incomplete frame: its header, the size its batch claims, and the different number of bytes left for it.
With None for the size, which has not arrived: whether the frame may have a batch."""


class FrameReader:
    """Splits a stream of bytes into frames. It does not raise for invalid input: see `error`.

    Use: read into `buffer()`, call `received(n)`, take the frames before the next `buffer()`.
    Bytes are parsed where they were read, and each batch is copied once into memory of its own. A frame above
    `frame_in_place_bytes_max` that is not yet complete gets that memory with the next `buffer()` and is read
    straight into it. Memory held between two reads is at most one frame.

    A frame's own length is under no checksum. So that a wrong one is not waited for, a frame that is not
    complete is compared with what its batch says as soon as that has come; one that differs is judged by its
    header, and by `foresee`. Nor is the header's length under a checksum: one that ends before it is an error
    as soon as its end has come, one that does not match its checksum as soon as all of it has.

    `scratch` is what reads go to. Several readers may share one, as long as nobody else uses it between
    `buffer()` and the `received()` that belongs to it: what is left over is kept apart.
    """

    __slots__ = (
        "_filled",
        "_foresee",
        "_foreseen",
        "_judged",
        "_kept",
        "_large_bytes",
        "_own",
        "_scratch",
        "error",
        "frame_bytes_max",
    )

    def __init__(
        self,
        frame_bytes_max: int = frame_bytes_max,
        scratch: memoryview | None = None,
        foresee: Foresee | None = None,
    ) -> None:
        if scratch is None:
            scratch = np.empty(receive_buffer_bytes, np.uint8).data
        elif len(scratch) <= frame_in_place_bytes_max:
            raise ValueError(
                f"scratch of {len(scratch)} bytes; more than {frame_in_place_bytes_max} are needed"
            )
        self.frame_bytes_max = frame_bytes_max
        """Largest frame taken from now on; a frame that has begun was judged when it began."""
        self.error: PeerError | None = None
        """Why the stream cannot be read further; from then on all bytes are ignored."""
        self._scratch = scratch
        self._foresee = foresee
        self._foreseen = False  # whether the frame that is not complete was judged, and bears it
        self._judged = 0  # how much of its header was looked at
        self._kept = b""  # the beginning of a frame, to go before what the next read brings
        self._large_bytes = 0  # size of the one large frame now coming, or 0
        self._own: memoryview | None = None  # its memory, once it is read on
        self._filled = 0  # how much of _own has come

    def buffer(self) -> memoryview:
        """Return where to read to; never empty."""
        if self._own is not None:
            return self._own[self._filled :]
        if self._large_bytes:
            return self._begin_own()
        if self._kept:
            self._scratch[: len(self._kept)] = self._kept
            return self._scratch[len(self._kept) :]
        return self._scratch

    def received(self, size: int) -> list[Frame]:
        """Return the frames that became complete with the `size` bytes just read into `buffer()`."""
        if self.error is not None:
            return []
        frames: list[Frame] = []
        own = self._own
        if own is None:
            size += len(self._kept)
            self._kept = b""
            self._cut(self._scratch, size, frames)
        else:
            self._filled += size
            if self._filled == len(own):
                self._own = None
                self._large_bytes = 0
                self._foreseen = False
                self._judged = 0
                self._take_own(own, frames)
            elif not self._foreseen:
                self._judge_own(own)
        return frames

    def feed(self, data: Buffer) -> list[Frame]:
        """As `received`, for bytes that were read elsewhere; they are copied."""
        frames: list[Frame] = []
        rest = memoryview(data)
        while rest and self.error is None:
            room = self.buffer()
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            frames += self.received(size)
            rest = rest[size:]
        return frames

    @property
    def held_bytes(self) -> int:
        """Memory held for a frame that is not complete, beside the scratch."""
        return len(self._kept) + (0 if self._own is None else len(self._own))

    @property
    def large_frame(self) -> tuple[int, int] | None:
        """Size of the large frame that is not complete and how much of it has come; None without one.

        Its memory is taken by the next `buffer()`: until then only what has come of it is held."""
        if not self._large_bytes:
            return None
        return self._large_bytes, len(self._kept) if self._own is None else self._filled

    def abandon(self) -> None:
        """Nothing more will be read: give back the memory of a frame that is not complete."""
        self._kept = b""
        self._own = None
        self._large_bytes = 0

    def _cut(self, data: memoryview, size: int, frames: list[Frame]) -> None:
        """Append the frames in `data[:size]`; keep what is left."""
        foreseen, self._foreseen = self._foreseen, False
        at = 0
        while size - at >= frame_prefix_bytes:
            frame_bytes, header_bytes, header_crc, batch_crc = _unpack_from(data, at)
            header_at = at + frame_prefix_bytes
            batch_at = header_at + ((header_bytes + 7) & ~7)
            end = at + frame_bytes
            if (
                frame_bytes & 7
                or frame_bytes > self.frame_bytes_max
                or not 0 < header_bytes <= header_bytes_max
                or not 0 <= end - batch_at <= batch_bytes_max
            ):
                self.error = _length_error(frame_bytes, header_bytes, self.frame_bytes_max)
                return
            if end > size:
                if at or not foreseen:
                    foreseen = self._judge_begun(data, at, size)
                    if self.error is not None:
                        return
                self._foreseen = foreseen
                if frame_bytes > frame_in_place_bytes_max:
                    self._large_bytes = frame_bytes
                break
            header = data[header_at:batch_at].tobytes()
            batch = data[batch_at:end].tobytes() if end > batch_at else None
            if not self._take(header, header_bytes, header_crc, batch, batch_crc, frames):
                return
            at = end
            self._judged = 0
        self._kept = data[at:size].tobytes()

    def _judge_begun(self, data: memoryview, at: int, size: int) -> bool:
        """Judge the frame at `data[at:size]`, which is not complete; whether all that can be was judged."""
        foresee = self._foresee
        if foresee is None:
            return True
        frame_bytes, header_bytes, header_crc, _ = _unpack_from(data, at)
        header_at = at + frame_prefix_bytes
        batch_at = header_at + ((header_bytes + 7) & ~7)
        if size < header_at + header_bytes:
            come = min(size - header_at, _JUDGED_BYTES_MAX) & ~7  # frames end at such places
            if come != self._judged:
                self._judged = come
                self.error = _header_that_ends(data[header_at : header_at + come], header_bytes, header_crc)
            return False
        header = data[header_at : header_at + header_bytes].tobytes()
        if crc32c(header) != header_crc:
            self.error = BadFrame("the header of a frame does not match its checksum")
            return True
        total: int | None = None
        batch_bytes = at + frame_bytes - batch_at
        if size >= batch_at + TOTAL.size:
            (total,) = TOTAL.unpack_from(data, batch_at)
            if total == batch_bytes:
                return True
        if batch_bytes:
            self.error = foresee(header, total, batch_bytes)
        return total is not None

    def _wrong_length(self, header: bytes, header_crc: int, batch: Buffer | None) -> PeerError | None:
        """Return the error of a complete frame whose batch has another length than it claims. It is the same
        error as for an incomplete frame, however the bytes were split."""
        if self._foresee is None or batch is None or len(batch) < TOTAL.size:
            return None
        (total,) = TOTAL.unpack_from(batch)
        if total == len(batch) or crc32c(header) != header_crc:
            return None
        return self._foresee(header, total, len(batch))

    def _judge_own(self, own: memoryview) -> None:
        self._foreseen = self._judge_begun(own, 0, self._filled)
        if self.error is not None:
            self.abandon()

    def _begin_own(self) -> memoryview:
        # memory from numpy is not cleared first; a system with huge pages gives 2 MB with the first byte
        self._own = own = np.empty(self._large_bytes, np.uint8).data
        self._filled = len(self._kept)
        own[: self._filled] = self._kept
        self._kept = b""
        return own[self._filled :]

    def _take_own(self, own: memoryview, frames: list[Frame]) -> None:
        _, header_bytes, header_crc, batch_crc = _unpack_from(own)
        batch_at = frame_prefix_bytes + ((header_bytes + 7) & ~7)
        header = own[frame_prefix_bytes:batch_at].tobytes()
        batch = own[batch_at:].toreadonly() if len(own) > batch_at else None
        self._take(header, header_bytes, header_crc, batch, batch_crc, frames)

    def _take(
        self,
        header: bytes,
        header_bytes: int,
        header_crc: int,
        batch: Buffer | None,
        batch_crc: int,
        frames: list[Frame],
    ) -> bool:
        """Append the frame if padding and checksums are right; whether they were."""
        self.error = self._wrong_length(header[:header_bytes], header_crc, batch)
        if self.error is not None:
            return False
        padded, header = header, header[:header_bytes]
        if crc32c(header) != header_crc:
            self.error = BadFrame("the header of a frame does not match its checksum")
            return False
        if len(padded) != header_bytes and padded[header_bytes:] != _PADDING[len(padded) - header_bytes]:
            self.error = BadFrame("the padding after a frame's header is not zero")
            return False
        if (crc32c(batch) if batch is not None else 0) != batch_crc:
            self.error = BadFrame("the batch of a frame does not match its checksum")
            return False
        frames.append(Frame(header, batch))
        return True


def _header_that_ends(part: memoryview, header_bytes: int, header_crc: int) -> BadFrame | None:
    """Return the error for an incomplete header that already contains a whole one with a matching checksum:
    its sender has nothing more to send for this frame."""
    end = len(part)
    try:
        _decode_header(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            return None
        end = int(trailing[1])
    if crc32c(part[:end]) != header_crc:
        return None
    return BadFrame(f"a frame says its header has {header_bytes} bytes, and it has {end}")


def _length_error(frame_bytes: int, header_bytes: int, frame_bytes_limit: int) -> PeerError:
    if frame_bytes > frame_bytes_limit:
        return FrameTooLarge(f"a frame of {frame_bytes} bytes; now at most {frame_bytes_limit} are taken")
    if header_bytes > header_bytes_max:
        return FrameTooLarge(f"a frame header of {header_bytes} bytes; at most {header_bytes_max} are taken")
    batch_bytes = frame_bytes - frame_prefix_bytes - ((header_bytes + 7) & ~7)
    if batch_bytes > batch_bytes_max and not frame_bytes & 7:
        return FrameTooLarge(f"a batch of {batch_bytes} bytes; at most {batch_bytes_max} are taken")
    return BadFrame(
        f"a frame of {frame_bytes} bytes with a header of {header_bytes}: its size is a multiple of 8 "
        f"with room for a prefix of {frame_prefix_bytes}, a header of at least 1, and padding"
    )
