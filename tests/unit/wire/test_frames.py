from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from tests.helpers.wire import batch_of, joined
from tickertape.base.errors import BadFrame, FrameTooLarge
from tickertape.base.limits import (
    batch_bytes_max,
    frame_bytes_max,
    frame_in_place_bytes_max,
    header_bytes_max,
    message_bytes_max,
    receive_buffer_bytes,
)
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.wire.commands import Credit, Deliver, Flush, Goodbye, Heartbeat, Persisted, Publish
from tickertape.wire.frames import Frame, FrameReader, encode_frame


def by_hand(header: bytes, batch: bytes = b"", *, padding: bytes | None = None) -> bytes:
    """A frame built from the documentation (docs/formats/wire.md), not by the code under test."""
    pad = bytes(-len(header) % 8) if padding is None else padding
    size = 16 + len(header) + len(pad) + len(batch)
    return struct.pack("<IIII", size, len(header), crc32c(header), crc32c(batch)) + header + pad + batch


def test_encoded_frame_matches_the_documented_layout() -> None:
    header = msgspec.msgpack.encode({"c": "cr", "sub_id": "s", "bytes": 4096})
    assert joined(encode_frame(Credit(sub_id="s", bytes=4096))) == by_hand(header)
    batch = batch_of(3)
    header = msgspec.msgpack.encode({"c": "p", "frame": 5})
    assert joined(encode_frame(Publish(frame=5), batch)) == by_hand(header, batch.encode())


@pytest.mark.parametrize("length", range(1, 18))
def test_headers_of_every_length_are_padded_to_eight(length: int) -> None:
    data = joined(encode_frame(Goodbye(code="", text="x" * length)))
    assert len(data) % 8 == 0
    (frame,) = FrameReader().feed(data)
    assert msgspec.msgpack.decode(frame.header)["text"] == "x" * length
    assert frame.batch is None


def test_bodies_are_not_copied_when_a_frame_is_made() -> None:
    body = bytearray(b"x" * 1000)
    batch = MessageBatch.parse(bytearray(batch_from_bodies("t", [bytes(body)]).encode()))
    _, *buffers = encode_frame(Deliver(sub_id="s"), batch)
    address = np.frombuffer(batch.bodies, np.uint8).ctypes.data
    ranges = [(np.frombuffer(b, np.uint8).ctypes.data, len(b)) for b in buffers]
    assert any(start <= address < start + size for start, size in ranges)


def test_encode_frame_uses_a_given_batch_checksum_unchecked() -> None:
    batch = batch_of()
    assert encode_frame(Publish(frame=1), batch, batch_crc=batch.crc()) == encode_frame(
        Publish(frame=1), batch
    )
    wrong = joined(encode_frame(Publish(frame=1), batch, batch_crc=batch.crc() ^ 1))
    reader = FrameReader()
    assert reader.feed(wrong) == []
    assert isinstance(reader.error, BadFrame)


def test_encode_frame_rejects_an_oversized_header() -> None:
    with pytest.raises(FrameTooLarge, match="Cannot encode Goodbye: its header"):
        encode_frame(Goodbye(code="", text="x" * header_bytes_max))


def test_encode_frame_rejects_an_oversized_batch() -> None:
    bodies = [bytes(15 << 20), bytes(2 << 20)]
    with pytest.raises(FrameTooLarge, match="Cannot encode Publish: its batch"):
        encode_frame(Publish(frame=1), batch_from_bodies("t", bodies))


def fed(reader: FrameReader, data: bytes, step: int) -> list[Frame]:
    frames: list[Frame] = []
    for at in range(0, len(data), step):
        frames += reader.feed(data[at : at + step])
    return frames


STREAM = b"".join(
    joined(encode_frame(command, batch))
    for command, batch in [
        (Heartbeat(), None),
        (Publish(frame=1), batch_of()),
        (Flush(id=1), None),
        (Publish(frame=2), batch_of(40, 1000)),
        (Persisted(frame=2), None),
        (Publish(frame=3), batch_of(300, 1000)),
        (Heartbeat(), None),
    ]
)


@pytest.mark.parametrize("step", [1, 7, 15, 16, 17, 24, 1000, 4096, 32 * 1024, 100_001, len(STREAM)])
def test_frame_reader_gives_the_same_frames_for_every_read_size(step: int) -> None:
    whole = FrameReader()
    expected = [(f.header, f.batch and bytes(f.batch)) for f in whole.feed(STREAM)]
    assert len(expected) == 7
    assert whole.error is None
    assert whole.held_bytes == 0
    reader = FrameReader()
    assert [(f.header, f.batch and bytes(f.batch)) for f in fed(reader, STREAM, step)] == expected
    assert reader.error is None
    assert reader.held_bytes == 0


def test_frames_do_not_change_when_the_read_buffer_is_overwritten() -> None:
    reader = FrameReader()
    frames = reader.feed(STREAM)
    before = [(f.header, f.batch and bytes(f.batch)) for f in frames]
    room = reader.buffer()
    room[:] = b"\xff" * len(room)
    assert [(f.header, f.batch and bytes(f.batch)) for f in frames] == before
    assert all(memoryview(f.batch).readonly for f in frames if f.batch is not None)


def test_batches_lie_on_eight_byte_boundaries() -> None:
    for step in (1000, len(STREAM)):
        for frame in fed(FrameReader(), STREAM, step):
            if frame.batch is not None:
                assert np.frombuffer(frame.batch, np.uint8).ctypes.data % 8 == 0


def test_large_frame_is_received_directly_into_frame_memory() -> None:
    batch = batch_of(200, 1000)
    data = joined(encode_frame(Publish(frame=1), batch))
    reader = FrameReader()
    assert reader.feed(data[:100]) == []
    room = reader.buffer()
    assert len(room) == len(data) - 100
    room[:] = data[100:]
    (frame,) = reader.received(len(room))
    assert frame.batch is not None
    at_end = np.frombuffer(room, np.uint8).ctypes.data + len(room)
    assert np.frombuffer(frame.batch, np.uint8).ctypes.data + len(frame.batch) == at_end


def test_frame_readers_with_a_shared_scratch_buffer_read_independent_streams() -> None:
    scratch = memoryview(bytearray(receive_buffer_bytes))
    readers = [FrameReader(scratch=scratch) for _ in range(5)]
    got: list[list[Frame]] = [[] for _ in readers]
    small = STREAM[: len(STREAM) // 20]
    for at in range(0, len(small), 13):
        for reader, frames in zip(readers, got, strict=True):
            frames += reader.feed(small[at : at + 13])
    expected = FrameReader().feed(small)
    assert len(expected) == 3
    for frames in got:
        assert frames == expected


def test_frame_reader_rejects_a_scratch_buffer_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="scratch"):
        FrameReader(scratch=memoryview(bytearray(frame_in_place_bytes_max)))


HB = by_hand(msgspec.msgpack.encode({"c": "hb"}))
P = joined(encode_frame(Publish(frame=1), batch_of()))


def put(data: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (put(HB, 0, "<I", 0), BadFrame, "frame of 0 bytes"),
        (put(HB, 0, "<I", 8), BadFrame, "frame of 8 bytes"),
        (put(HB, 0, "<I", 16), BadFrame, "frame of 16 bytes"),
        (put(HB, 0, "<I", 25), BadFrame, "must be a multiple of 8"),
        (put(HB, 0, "<I", 1 << 31), FrameTooLarge, "at most"),
        (put(HB, 0, "<I", 2**32 - 8), FrameTooLarge, "at most"),
        (put(HB, 4, "<I", 0), BadFrame, "at least 1"),
        (put(HB, 4, "<I", 9), BadFrame, "a header of at least 1"),
        (put(HB, 4, "<I", 2**32 - 1), FrameTooLarge, "header of 4294967295"),
        (put(HB, 4, "<I", header_bytes_max + 1), FrameTooLarge, "Frame header of"),
        (put(HB, 8, "<I", 1), BadFrame, "the header does not match"),
        (put(HB, 12, "<I", 1), BadFrame, "the batch does not match"),
        (put(HB, 20, "B", 0), BadFrame, "the header does not match"),
        (put(HB, 23, "B", 1), BadFrame, "padding after the header is not zero"),
        (put(P, len(P) - 9, "B", 255), BadFrame, "the batch does not match"),
        (put(P, 12, "<I", 0), BadFrame, "the batch does not match"),
        (put(HB, 0, "<I", batch_bytes_max + 64), FrameTooLarge, "Batch of"),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_invalid_frame_is_rejected_and_later_frames_are_ignored(
    data: bytes, error: type[Exception], match: str, step: int
) -> None:
    reader = FrameReader()
    frames = fed(reader, HB + data + HB, step)
    assert [frame.header for frame in frames] == [HB[16:22]]
    assert type(reader.error) is error
    assert match in str(reader.error)
    assert reader.feed(HB) == []
    reader.buffer()[: len(HB)] = HB
    assert reader.received(len(HB)) == []


def test_frames_built_by_hand_are_valid() -> None:
    assert len(HB) == 24
    assert len(FrameReader().feed(HB + P)) == 2


@pytest.mark.parametrize("limit", [64, 16 * 1024, frame_bytes_max])
def test_frame_limit_is_exact_and_checked_before_allocation(limit: int) -> None:
    prefix: Callable[[int], bytes] = lambda size: struct.pack("<IIII", size, 8, 0, 0)  # noqa: E731
    at_limit = limit - limit % 8
    at_limit = min(at_limit, batch_bytes_max + 24 & ~7)
    reader = FrameReader(at_limit)
    assert reader.feed(prefix(at_limit)) == []
    assert reader.error is None
    assert reader.held_bytes <= max(at_limit, 16)
    reader = FrameReader(at_limit)
    assert reader.feed(prefix(at_limit + 8)) == []
    assert isinstance(reader.error, FrameTooLarge)
    assert reader.held_bytes == 0


def test_frame_reader_accepts_the_largest_message() -> None:
    batch = batch_from_bodies("t" * 1024, [bytes(16 << 20)])
    reader = FrameReader()
    frames = reader.feed(joined(encode_frame(Publish(frame=1), batch)))
    assert reader.error is None
    assert len(frames) == 1


def test_frame_of_16_mb_is_received_and_hashed_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = joined(encode_frame(Publish(frame=1), batch_from_bodies("t", [bytes(message_bytes_max)])))
    hashed = [0]

    def counted(part: memoryview | bytes, value: int = 0) -> int:
        hashed[-1] += len(part)
        return crc32c(part, value)

    monkeypatch.setattr("tickertape.wire.frames.crc32c", counted)
    reader = FrameReader()
    at = 0
    found: list[Frame] = []
    while not found:
        room = reader.buffer()
        assert len(room) <= receive_buffer_bytes
        room[:] = data[at : at + len(room)]
        at += len(room)
        hashed.append(0)
        found = reader.received(len(room))
    assert at == len(data)
    (frame,) = found
    assert frame.batch == data[-len(frame.batch or b"") :]
    assert max(hashed) <= 2 * receive_buffer_bytes, "the second read includes the bytes of the first one"
    assert len(hashed) > message_bytes_max / receive_buffer_bytes


@pytest.mark.parametrize("at", [-1, -(1 << 20), -(15 << 20)])
def test_large_frame_with_a_changed_byte_is_refused(at: int) -> None:
    data = bytearray(
        joined(encode_frame(Publish(frame=1), batch_from_bodies("t", [bytes(message_bytes_max)])))
    )
    data[at] ^= 1
    reader = FrameReader()
    assert reader.feed(data) == []
    assert isinstance(reader.error, BadFrame)
    assert "does not match its checksum" in str(reader.error)
