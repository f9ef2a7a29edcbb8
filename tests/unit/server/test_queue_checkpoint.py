"""Queue checkpoints and a log that lost its end in a power failure."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies
from tickertape.engine.queues.state.records import Outcome, OutcomeKind, QueueRecord, encode_record
from tickertape.engine.runtime.effects import DiskJob
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.format.queue_checkpoint import QUEUES_FILE
from tickertape.server.clock import clock
from tickertape.server.config.config import Config, InstanceConfig
from tickertape.server.startup import OpenedInstance, open_instance
from tickertape.wire.settlement import QUEUE_TOPIC

QUEUE = QueueDefinition(name="work", underlying="jobs")


def start(data: Path, *, queue: bool) -> OpenedInstance:
    """Start an instance on a data directory."""
    return open_instance(Config(instance=InstanceConfig(data=str(data)), queues=[QUEUE] if queue else []))


def stop(opened: OpenedInstance) -> None:
    """Persist all accepted messages, and close the files."""
    broker = opened.broker
    broker.close(clock())
    for _ in range(100):
        for effect in broker.effects():
            if isinstance(effect, DiskJob):
                broker.disk_done(effect.job, None, opened.executor.run(effect.job), clock())
    assert broker.journal.commits.closed
    opened.executor.close()
    opened.disk.close_all()


def run(data: Path, batch: MessageBatch, *, queue: bool) -> None:
    """Append messages in one run of the server."""
    opened = start(data, queue=queue)
    journal, now = opened.broker.journal, clock()
    first = journal.highest.get(7, 0) + 1
    journal.append(batch, Stamp(7, first, journal.next_stamp(now)), first + batch.count - 1, now)
    stop(opened)


def jobs(count: int) -> MessageBatch:
    """Return messages for the queue."""
    return batch_from_bodies("jobs", [b"x"] * count)


def acknowledgements(first: int, count: int) -> MessageBatch:
    """Return the record of a consumer that has processed the messages from position `first` on."""
    outcome = Outcome(OutcomeKind.DONE, struct.pack("<2q", first, count))
    builder = BatchBuilder()
    builder.add(QUEUE_TOPIC, encode_record(QueueRecord("work", [outcome])), kind=1)
    return builder.build()


@pytest.mark.parametrize("starts_without_queues", [1, 2])
def test_checkpoint_of_a_lost_log_end_is_not_used_after_starts_without_queues(
    tmp_path: Path, starts_without_queues: int
) -> None:
    """With `sync = "interval"` a checkpoint may cover messages that a power failure removes."""
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    run(whole, jobs(5), queue=True)
    shutil.copytree(whole, lost)
    run(whole, acknowledgements(1, 5), queue=True)
    opened = start(whole, queue=True)
    assert [found.depth for found in opened.broker.queues.snapshots(clock())] == [0]
    stop(opened)
    shutil.copy(whole / QUEUES_FILE, lost / QUEUES_FILE)
    for _ in range(starts_without_queues):
        run(lost, jobs(20), queue=False)
    opened = start(lost, queue=True)
    (found,) = opened.broker.queues.snapshots(clock())
    assert found.depth == 5 + 20 * starts_without_queues
    assert (lost / QUEUES_FILE).exists()
    stop(opened)


def test_start_without_queues_removes_the_checkpoint(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run(data, jobs(5), queue=True)
    assert (data / QUEUES_FILE).exists()
    run(data, jobs(5), queue=False)
    assert not (data / QUEUES_FILE).exists()
    opened = start(data, queue=True)
    assert opened.report == []
    (found,) = opened.broker.queues.snapshots(clock())
    assert found.depth == 10
    stop(opened)
