"""Golden files of queue records and checkpoints.

`TICKERTAPE_GOLDEN=write` regenerates the files.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from crc32c import crc32c
from pyroaring import BitMap64

from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.state.admission import Admitted
from tickertape.engine.queues.state.checkpoint import (
    decode_covered,
    encode_snapshots,
    fingerprint,
    needed_from,
    restore,
    snapshot_of,
)
from tickertape.engine.queues.state.messages import Attempts, PendingDeadLetter
from tickertape.engine.queues.state.records import (
    Outcome,
    OutcomeKind,
    QueueBegun,
    QueueRecord,
    Reason,
    begun_in,
    bitmap_of,
    decode_record,
    encode_record,
    ranges_of,
)
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.format.queue_checkpoint import QUEUES_FILE, read_queues, write_queues
from tickertape.testing.disk import StrictDisk
from tickertape.wire.settlement import runs_of

GOLDEN = Path(__file__).parents[4] / "golden"
JOURNAL = bytes(range(16))
RUNS = ((12472216704108904515, 42, 3), (7, 1, 1))
BEGUN = QueueBegun(queue="work", recovery_point="epoch", position=3)
TIME = 1_790_000_000_000_000


def record() -> QueueRecord:
    runs = runs_of([RUNS[0][0]] * 3 + [7], [42, 43, 44, 1])
    return QueueRecord(
        "work",
        [
            Outcome(OutcomeKind.DONE, ranges_of(BitMap64([4, 5, 6, 2**33]))),
            Outcome(OutcomeKind.RETURNED, ranges_of(BitMap64([7])), Reason.CANCELLED),
            Outcome(OutcomeKind.EXPIRED, ranges_of(BitMap64([9, 10])), Reason.MAX_DELIVERIES, True, True),
        ],
        runs,
    )


def filled(definition: QueueDefinition) -> FeedQueue:
    """A queue with something in every part of its state."""
    queue = FeedQueue(definition)
    positions = np.arange(10, 20)
    priorities = [n % 2 for n in range(10)]
    lives = np.array([0, 5_000] + [0] * 8)
    barriers = BitMap64([17])
    times = np.full(10, TIME)
    queue.enter(Admitted(positions, bitmap_of(positions), times, lives, priorities, barriers, 1))
    queue.considered = 25
    queue.apply(Outcome(OutcomeKind.DONE, ranges_of(BitMap64([10]))))
    queue.apply(Outcome(OutcomeKind.RETURNED, ranges_of(BitMap64([12])), Reason.LEASE_EXPIRED))
    queue.apply(Outcome(OutcomeKind.EXPIRED, ranges_of(BitMap64([13])), Reason.EXPIRE, True, True))
    queue.state.lease(BitMap64([14]))
    return queue


DEFINITIONS = [
    QueueDefinition(
        "work",
        underlying="orders",
        priority="/urgency",
        barrier_expression="/last",
        expiration=60.0,
        target_queue_depth=6,
        dead_letter="dead",
        file_backed_metadata=True,
    ),
    QueueDefinition("plain"),
]


def checkpoint() -> bytes:
    queues = [filled(DEFINITIONS[0]), FeedQueue(DEFINITIONS[1])]
    queues[1].considered = 25
    body = encode_snapshots(
        snapshot_of(queue, fingerprint(queue.definition, [("orders", "fix")]), 30) for queue in queues
    )
    disk = StrictDisk(Random(1))
    write_queues(disk, JOURNAL, body)
    return disk.contents()[QUEUES_FILE]


FILES = {
    "queue-record": lambda: encode_record(record()),
    "queue-begun": lambda: encode_record(BEGUN),
    "queue-checkpoint": checkpoint,
}


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_written_queue_files_equal_the_golden_files(name: str) -> None:
    written = FILES[name]()
    if os.environ.get("TICKERTAPE_GOLDEN") == "write":
        (GOLDEN / f"{name}.bin").write_bytes(written)
    assert written == golden(name), (
        "the format changed: describe the change in an ADR, then regenerate the file"
    )


def test_golden_queue_records_decode_to_the_same_values() -> None:
    assert decode_record(golden("queue-record")) == record()
    assert begun_in([golden("queue-record"), golden("queue-begun")]) == [BEGUN]


def test_golden_queue_record_matches_the_documented_layout() -> None:
    name, outcomes, runs = msgspec.msgpack.decode(golden("queue-record"))
    assert name == "work"
    assert tuple(struct.iter_unpack("<QQQ", runs)) == RUNS
    found = [(outcome, list(struct.iter_unpack("<qq", ranges)), *rest) for outcome, ranges, *rest in outcomes]
    assert found == [
        (1, [(4, 3), (2**33, 1)], 0, False, False),
        (2, [(7, 1)], 1, False, False),
        (3, [(9, 2)], 5, True, True),
    ]
    assert msgspec.msgpack.decode(golden("queue-begun")) == {
        "type": "queue",
        "queue": "work",
        "recovery_point": "epoch",
        "position": 3,
    }


def body_of(data: bytes) -> bytes:
    disk = StrictDisk(Random(1))
    handle = disk.open(QUEUES_FILE, create=True)
    disk.write(handle, 0, [data])
    disk.close(handle)
    body = read_queues(disk, JOURNAL)
    assert body is not None
    return body


@pytest.mark.parametrize("name", ["queue-checkpoint", "queue-checkpoint-0"])
def test_golden_checkpoints_of_all_versions_are_read(name: str) -> None:
    work, plain = decode_covered(body_of(golden(name)))
    assert (plain.queue, plain.messages, plain.records, plain.state) == ("plain", 25, 25, None)
    assert (work.queue, work.messages, work.records) == ("work", 25, 30)
    assert needed_from(work) == 11
    queue = FeedQueue(DEFINITIONS[0])
    restore(queue, work)
    assert queue.state.ready == BitMap64([11, 12, 14, 15, 16, 17])
    assert queue.state.inactive == BitMap64([18, 19])
    assert list(queue.state.doomed) == [13]
    assert queue.state.doom_of(13) == PendingDeadLetter(Reason.EXPIRE, Attempts(1, 0))
    assert queue.state.deliveries.positions() == BitMap64([12, 13])
    assert queue.state.tries_of(12) == Attempts(1, 0)
    assert queue.order.barriers == BitMap64([17])
    assert queue.order.next(9).tolist() == [11, 15, 12, 14, 16]
    assert queue.expiry.next_due() == TIME + 5_000_000
    assert list(queue.expiry.due(TIME + 5_000_000)) == [11]


def test_checkpoint_of_newer_version_raises_with_both_versions() -> None:
    body = bytearray(body_of(golden("queue-checkpoint")))
    body[1] += 1
    with pytest.raises(ValueError, match="has version 2, not 1"):
        decode_covered(bytes(body))


@pytest.mark.parametrize("name", ["queue-checkpoint", "queue-checkpoint-0"])
def test_damaged_checkpoints_raise_the_documented_error_only(name: str) -> None:
    """Flip each byte below the checksum, and truncate the body after it."""
    body = body_of(golden(name))
    for at in range(len(body)):
        for flip in (0x01, 0x80):
            read_damaged(body[:at] + bytes([body[at] ^ flip]) + body[at + 1 :])
        read_damaged(body[:at])


def read_damaged(body: bytes) -> None:
    try:
        covered = decode_covered(body)
    except ValueError:
        return
    for one in covered:
        try:
            needed_from(one)
            # Like a start, ignore checkpoints beyond the log.
            if one.state is not None and max(one.messages, one.records) < 1 << 20:
                restore(FeedQueue(DEFINITIONS[0]), one)
        except ValueError:
            continue


def sets(data: bytes) -> list[int]:
    """Decode the positions of a set as documented."""
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    found: list[int] = []
    end = 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        found += range(end + gap, end + gap + length)
        end += gap + length
    return found


def numbers(slices: list[bytes]) -> dict[int, int]:
    found: dict[int, int] = {}
    for bit, held in enumerate(slices):
        for position in sets(held):
            found[position] = found.get(position, 0) + (1 << bit)
    return found


def test_golden_queue_checkpoint_matches_the_documented_layout() -> None:
    data = golden("queue-checkpoint")
    magic, journal, size, checksum = struct.unpack_from("<8s16sQI", data)
    body = data[36:]
    assert (magic, journal, size) == (b"TKTQUE\0\0", JOURNAL, len(body))
    assert checksum == crc32c(data[:32] + body)
    version, ((name, mark, messages, records, state), plain) = msgspec.msgpack.decode(body, strict=False)
    assert version == 1
    assert plain[0::2] == ["plain", 25, None]
    assert (name, messages, records) == ("work", 25, 30)
    assert msgspec.msgpack.decode(mark) == [
        *("orders", None, "at-least-once", "/urgency", "/last", 60.0, "minimum", 6, "epoch"),
        [["orders", "fix"]],
    ]
    ready, inactive, doomed, reasons, deliveries, cancels, counts, returned, expired, order, expiry = state
    assert (sets(ready), sets(inactive)) == ([11, 12, 14, 15, 16, 17], [18, 19])
    assert sets(doomed) == [13]
    assert (numbers(reasons), numbers(deliveries), numbers(cancels)) == ({13: 7}, {12: 1, 13: 1}, {})
    assert (counts, returned, expired) == ([10, 1, 0, 0], {2: 1}, {7: 1})
    barriers, levels = order
    assert sets(barriers) == [17]
    assert [(priority, sets(level)) for priority, level in levels] == [
        (0, [12, 14, 16, 18]),
        (1, [11, 15, 17, 19]),
    ]
    stored: list[Any] = msgspec.msgpack.decode(expiry)
    assert stored[:4] == [60.0, "minimum", 0, [[10, 20, TIME]]]
    assert {at: sets(held) for at, held in stored[4].items()} == {TIME + 5_000_000: [11]}
    assert sets(stored[5]) == []


def test_queue_start_of_another_log_is_skipped() -> None:
    own = msgspec.msgpack.decode(golden("queue-begun"))
    foreign = msgspec.msgpack.encode(own | {"log": bytes(16), "position": 9})
    assert begun_in([golden("queue-begun"), foreign]) == [BEGUN]
