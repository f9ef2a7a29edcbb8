"""Start of an instance with SOW topics: checkpoints are read, and a refused start leaves no segment."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tickertape.base.checksum import crc32c
from tickertape.base.errors import JournalVersion
from tickertape.batch import Stamp, batch_from_bodies
from tickertape.engine.runtime.effects import DiskJob
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.sow_checkpoint import MANIFEST_NAME, state_path
from tickertape.server.clock import clock
from tickertape.server.config.config import Config, InstanceConfig
from tickertape.server.startup import OpenedInstance, open_on, salt

ORDERS = SowDefinition("orders", key=("/id",), checkpoint_interval=0.001)
MANIFEST = state_path("orders", MANIFEST_NAME)


def start(data: Path, *sow: SowDefinition, rebuild: str = "") -> OpenedInstance:
    data.mkdir(exist_ok=True)
    config = Config(instance=InstanceConfig(data=str(data)), sow=[*sow])
    names = frozenset([rebuild] if rebuild else [])
    new_id = bytes(range(16))
    return open_on(SystemDisk(data), config, owner="test", new_id=new_id, salt=salt, rebuild=names)


def work(opened: OpenedInstance) -> None:
    """Run the disk jobs and steps that wait."""
    broker = opened.broker
    while True:
        jobs = [effect.job for effect in broker.effects() if isinstance(effect, DiskJob)]
        for job in jobs:
            broker.disk_done(job, None, opened.executor.run(job), clock())
        if not jobs:
            if not broker.has_work:
                return
            broker.work(clock())


def stop(opened: OpenedInstance) -> None:
    opened.broker.close(clock())
    work(opened)
    opened.executor.close()
    opened.disk.close_all()


def written(data: Path) -> None:
    """Write a log with a checkpoint."""
    opened = start(data, ORDERS)
    journal, now = opened.broker.journal, clock()
    batch = batch_from_bodies("orders", [msgspec.json.encode({"id": n % 5, "n": n}) for n in range(9)])
    journal.append(batch, Stamp(7, 1, journal.next_stamp(now)), 9, now)
    while not opened.broker.state_checkpoints.written:
        opened.broker.wake(clock())
        work(opened)
    stop(opened)


def records(opened: OpenedInstance) -> int:
    (topic,) = opened.broker.states.topics
    return topic.fold.records.record_count


def test_start_loads_the_checkpoint(tmp_path: Path) -> None:
    written(tmp_path)
    opened = start(tmp_path, ORDERS)
    assert records(opened) == 5
    assert opened.broker.state_checkpoints.manifests()["orders"].position == 9
    assert not opened.report
    stop(opened)


def test_start_with_a_rebuild_folds_the_log_without_the_checkpoint(tmp_path: Path) -> None:
    written(tmp_path)
    opened = start(tmp_path, ORDERS, rebuild="orders")
    assert records(opened) == 5
    assert opened.report == ["SOW topic 'orders': --rebuild-sow requested a rebuild."]
    assert not opened.broker.state_checkpoints.manifests()
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    stop(opened)


def test_start_without_the_topic_keeps_and_reports_the_checkpoint(tmp_path: Path) -> None:
    written(tmp_path)
    opened = start(tmp_path)
    assert opened.report == ["Kept the checkpoint of 'orders' in sow/: no [[sow]] has this name."]
    stop(opened)
    assert (tmp_path / MANIFEST).exists()


def test_start_with_a_damaged_manifest_folds_the_log(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / MANIFEST).write_bytes(b"?")
    opened = start(tmp_path, ORDERS)
    assert records(opened) == 5
    assert not (tmp_path / MANIFEST).exists()
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    stop(opened)


def test_refused_start_leaves_no_segment(tmp_path: Path) -> None:
    written(tmp_path)
    data = bytearray((tmp_path / MANIFEST).read_bytes())
    data[8] = 1
    data[12:16] = crc32c(data[16:], crc32c(data[:12])).to_bytes(4, "little")
    (tmp_path / MANIFEST).write_bytes(data)
    before = sorted((tmp_path / "journal").iterdir())
    with pytest.raises(JournalVersion, match="newer format"):
        start(tmp_path, ORDERS)
    assert sorted((tmp_path / "journal").iterdir()) == before
