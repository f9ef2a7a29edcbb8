"""Encode protocol frames and split a byte stream into validated frames (docs/formats/wire.md).

Of a batch only the size at its start is decoded. Lengths are checked against their limits before use. A later
read never changes memory that was returned.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from tickertape.base.checksum import crc32c
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
"""Longest prefix of an incomplete header that is decoded. Larger ones would cost too much per byte."""
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_pack: Final = _PREFIX.pack
_unpack_from: Final = _PREFIX.unpack_from

assert _PREFIX.size == frame_prefix_bytes


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame with valid lengths and checksums. It owns its memory, which nothing else modifies."""

    header: bytes
    """The command as MessagePack, without padding."""
    batch: Buffer | None
    """The encoded message batch, or None if the frame has none."""


def encode_frame(
    command: Command, batch: MessageBatch | None = None, *, batch_crc: int | None = None
) -> list[Buffer]:
    """Return the frame as consecutive buffers. The bodies of `batch` are not copied.

    `batch_crc` is the CRC32C of the encoded batch if the caller has it (one batch for many subscribers).
    Otherwise it is computed. Raises `FrameTooLarge` for a frame above the limits of every receiver.
    """
    header = _encode_header(command)
    header_bytes = len(header)
    padding = -header_bytes & 7
    if header_bytes > header_bytes_max:
        raise FrameTooLarge(
            f"Cannot encode {type(command).__name__}: its header has {header_bytes:,} bytes. "
            f"Use at most {header_bytes_max:,} bytes, for example with fewer or shorter ids."
        )
    frame_bytes = frame_prefix_bytes + header_bytes + padding
    if batch is None:
        return [_pack(frame_bytes, header_bytes, crc32c(header), 0) + header + _PADDING[padding]]
    if batch.nbytes > batch_bytes_max:
        raise FrameTooLarge(
            f"Cannot encode {type(command).__name__}: its batch has {batch.nbytes} bytes. "
            f"Use at most {batch_bytes_max} bytes."
        )
    if batch_crc is None:
        batch_crc = batch.crc()
    prefix = _pack(frame_bytes + batch.nbytes, header_bytes, crc32c(header), batch_crc)
    return [prefix + header + _PADDING[padding], *batch.buffers()]


Foresee = Callable[[bytes, int | None, int], PeerError | None]
"""Validates an incomplete frame by its header, the size its batch claims, and the bytes left for the batch.

The two sizes differ. Before the claimed size arrives it is None, and only the presence of a batch is checked.
"""


class FrameReader:
    """Splits a byte stream into frames. Invalid input sets `error` instead of raising.

    Use: read into `buffer()`, call `received(n)`, take the frames before the next `buffer()`.
    Bytes are parsed in place, and each batch is copied once into its own memory. An incomplete frame above
    `frame_in_place_bytes_max` gets that memory with the next `buffer()` and is read directly into it.
    Each such read is at most `receive_buffer_bytes`, and its checksum is computed at once. Between two reads
    the reader holds at most one frame.

    No checksum covers the length of a frame or of its header. To avoid waiting for a wrong length, the reader
    checks an incomplete frame early:

    * It compares the frame length with the size in the batch once that arrives. If they differ, the header
      and `foresee` determine the error.
    * A header that ends before its claimed length is an error as soon as its end arrives.
    * A header that does not match its checksum is an error as soon as all of it arrives.

    `scratch` is the read buffer. Several readers may share it if nothing else uses it between `buffer()` and
    its `received()`, because unparsed bytes are stored separately.
    """

    __slots__ = (
        "_filled",
        "_foresee",
        "_foreseen",
        "_judged",
        "_kept",
        "_large_bytes",
        "_own",
        "_own_crc",
        "_own_hashed",
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
                f"Invalid scratch size {len(scratch)}. Use more than {frame_in_place_bytes_max} bytes."
            )
        self.frame_bytes_max = frame_bytes_max
        """Largest accepted frame. A change does not affect a frame that has already started."""
        self.error: PeerError | None = None
        """Error that ended the stream. The reader ignores all later bytes."""
        self._scratch = scratch
        self._foresee = foresee
        self._foreseen = False  # whether the incomplete frame passed all checks
        self._judged = 0  # checked bytes of its header
        self._kept = b""  # start of a frame, to be completed by the next read
        self._large_bytes = 0  # size of the incomplete large frame, or 0
        self._own: memoryview | None = None  # memory of the large frame, once allocated
        self._filled = 0  # received bytes in _own
        self._own_hashed = 0  # end of the bytes in _own that _own_crc includes
        self._own_crc = 0  # checksum of the received part of its batch

    def expect(self, foresee: Foresee) -> None:
        """Validate incomplete frames with `foresee` from now on."""
        self._foresee = foresee

    def buffer(self) -> memoryview:
        """Return the buffer for the next read, never empty."""
        if self._own is not None:
            return self._own[self._filled : self._filled + receive_buffer_bytes]
        if self._large_bytes:
            return self._begin_own()
        if self._kept:
            self._scratch[: len(self._kept)] = self._kept
            return self._scratch[len(self._kept) :]
        return self._scratch

    def received(self, size: int) -> list[Frame]:
        """Return the frames completed by the `size` bytes that were read into `buffer()`."""
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
            if self._filled > self._own_hashed:
                self._own_crc = crc32c(own[self._own_hashed : self._filled], self._own_crc)
                self._own_hashed = self._filled
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
        """Copy bytes that were read elsewhere, and return the completed frames."""
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
        """Bytes held for an incomplete frame, without the scratch buffer."""
        return len(self._kept) + (0 if self._own is None else len(self._own))

    @property
    def large_frame(self) -> tuple[int, int] | None:
        """Size of the incomplete large frame and its received bytes, or None.

        The next `buffer()` allocates its memory. Until then only the received bytes are held.
        """
        if not self._large_bytes:
            return None
        return self._large_bytes, len(self._kept) if self._own is None else self._filled

    def abandon(self) -> None:
        """Stop reading, and free the memory of an incomplete frame."""
        self._kept = b""
        self._own = None
        self._large_bytes = 0

    def _cut(self, data: memoryview, size: int, frames: list[Frame]) -> None:
        """Append the frames in `data[:size]` and keep the rest."""
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
        """Check the incomplete frame at `data[at:size]`. Return whether no check is left."""
        foresee = self._foresee
        if foresee is None:
            return True
        frame_bytes, header_bytes, header_crc, _ = _unpack_from(data, at)
        header_at = at + frame_prefix_bytes
        batch_at = header_at + ((header_bytes + 7) & ~7)
        if size < header_at + header_bytes:
            come = min(size - header_at, _JUDGED_BYTES_MAX) & ~7  # frames end at multiples of 8
            if come != self._judged:
                self._judged = come
                self.error = _header_that_ends(data[header_at : header_at + come], header_bytes, header_crc)
            return False
        header = data[header_at : header_at + header_bytes].tobytes()
        if crc32c(header) != header_crc:
            self.error = _checksum_error(header, header_bytes, header_crc)
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

    def _wrong_length(self, header: bytes, header_crc: int, batch: Buffer) -> PeerError | None:
        """Return the error of a complete frame whose batch claims another length.

        It equals the error for the incomplete frame, so it does not depend on how the bytes were split.
        """
        if self._foresee is None or crc32c(header) != header_crc:
            return None
        return self._foresee(header, TOTAL.unpack_from(batch)[0], len(batch))

    def _judge_own(self, own: memoryview) -> None:
        self._foreseen = self._judge_begun(own, 0, self._filled)
        if self.error is not None:
            self.abandon()

    def _begin_own(self) -> memoryview:
        # numpy does not clear memory, and the first byte touches 2 MB on systems with huge pages
        self._own = own = np.empty(self._large_bytes, np.uint8).data
        self._filled = len(self._kept)
        own[: self._filled] = self._kept
        self._kept = b""
        self._own_hashed = _batch_at(own)
        self._own_crc = 0
        return own[self._filled : self._filled + receive_buffer_bytes]

    def _take_own(self, own: memoryview, frames: list[Frame]) -> None:
        _, header_bytes, header_crc, batch_crc = _unpack_from(own)
        batch_at = _batch_at(own)
        header = own[frame_prefix_bytes:batch_at].tobytes()
        batch = own[batch_at:].toreadonly() if len(own) > batch_at else None
        self._take(header, header_bytes, header_crc, batch, batch_crc, frames, self._own_crc)

    def _take(
        self,
        header: bytes,
        header_bytes: int,
        header_crc: int,
        batch: Buffer | None,
        batch_crc: int,
        frames: list[Frame],
        found_crc: int | None = None,
    ) -> bool:
        """Append the frame if padding and checksums are valid. Return whether they are.

        `found_crc`: checksum of the batch, if it is known."""
        if batch is not None and len(batch) >= TOTAL.size and TOTAL.unpack_from(batch)[0] != len(batch):
            self.error = self._wrong_length(header[:header_bytes], header_crc, batch)
            if self.error is not None:
                return False
        padded, header = header, header[:header_bytes]
        if crc32c(header) != header_crc:
            self.error = _checksum_error(header, header_bytes, header_crc)
            return False
        if len(padded) != header_bytes and padded[header_bytes:] != _PADDING[len(padded) - header_bytes]:
            self.error = BadFrame(
                "Invalid frame: the padding after the header is not zero. Check the network."
            )
            return False
        if found_crc is None:
            found_crc = crc32c(batch) if batch is not None else 0
        if found_crc != batch_crc:
            self.error = BadFrame("Invalid frame: the batch does not match its checksum. Check the network.")
            return False
        frames.append(Frame(header, batch))
        return True


def _batch_at(frame: memoryview) -> int:
    """Return the offset of the batch in a frame with a complete prefix."""
    header_bytes: int = _unpack_from(frame)[1]
    return frame_prefix_bytes + ((header_bytes + 7) & ~7)


def _header_that_ends(part: memoryview, header_bytes: int, header_crc: int) -> BadFrame | None:
    """Return the error for an incomplete header with a complete header and matching checksum inside.

    The sender has nothing more to send for this frame.
    """
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
    return BadFrame(
        f"Invalid frame: its header has {end} bytes, but claims {header_bytes} bytes. Check the network."
    )


def _checksum_error(header: bytes, header_bytes: int, header_crc: int) -> BadFrame:
    """Return the error for a complete header with another checksum, alike for every split of the bytes."""
    part = memoryview(header)[:_JUDGED_BYTES_MAX]
    ends = _header_that_ends(part, header_bytes, header_crc)
    return ends or BadFrame("Invalid frame: the header does not match its checksum. Check the network.")


def _length_error(frame_bytes: int, header_bytes: int, frame_bytes_limit: int) -> PeerError:
    if frame_bytes > frame_bytes_limit:
        return FrameTooLarge(
            f"Invalid frame: {frame_bytes} bytes is too large. Send at most {frame_bytes_limit}."
        )
    if header_bytes > header_bytes_max:
        return FrameTooLarge(
            f"Frame header of {header_bytes} bytes is too large. Send at most {header_bytes_max} bytes."
        )
    batch_bytes = frame_bytes - frame_prefix_bytes - ((header_bytes + 7) & ~7)
    if batch_bytes > batch_bytes_max and not frame_bytes & 7:
        return FrameTooLarge(
            f"Batch of {batch_bytes} bytes is too large. Send at most {batch_bytes_max} bytes."
        )
    return BadFrame(
        f"Invalid frame of {frame_bytes} bytes with a header of {header_bytes}. Its size must be a multiple "
        f"of 8, with a prefix of {frame_prefix_bytes} bytes, a header of at least 1 byte, and padding."
    )
