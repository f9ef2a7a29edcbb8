"""Start of an instance on a log with malformed records or a missing end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from tickertape.base.errors import JournalCorrupt, JournalLocked
from tickertape.base.interfaces import Now
from tickertape.batch import BatchBuilder, Stamp
from tickertape.engine.runtime.effects import DiskJob
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC
from tickertape.journal.commit.jobs import PrepareSegment
from tickertape.journal.format.log_end import CLEAN_SHUTDOWN_FILE, LAST_SEGMENT_FILE
from tickertape.server.clock import clock
from tickertape.server.config.config import Config, InstanceConfig, TopicConfig
from tickertape.server.startup import OpenedInstance, open_instance, open_on, record_end
from tickertape.testing.disk import StrictDisk


def persisted(opened: OpenedInstance) -> None:
    """Persist all accepted messages, and close the files."""
    journal = opened.broker.journal
    journal.commits.close(clock())
    while not journal.commits.closed:
        for job in journal.commits.jobs():
            journal.commits.done(job, None, opened.executor.run(job), clock())
        journal.commits.wake(clock())
    opened.executor.close()
    opened.disk.close_all()


def test_malformed_control_record_is_reported_and_the_instance_starts(tmp_path: Path) -> None:
    config = Config(instance=InstanceConfig(data=str(tmp_path / "data")))
    opened = open_instance(config)
    assert opened.report == []
    builder = BatchBuilder()
    builder.add(CONTROL_TOPIC, b"\xc1", kind=1)
    journal, now = opened.broker.journal, clock()
    journal.append(builder.build(), Stamp(CONTROL_PUBLISHER, 1, journal.next_stamp(now)), 1, now)
    persisted(opened)
    again = open_instance(config)
    (line,) = again.report
    assert "Cannot read position 0 of 'journal/0000000001.segment': invalid control record" in line
    assert line.endswith("All other messages are available.")
    assert not again.broker.draining
    persisted(again)


def test_log_truncated_after_a_clean_stop_is_refused_until_accepted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = Config(instance=InstanceConfig(data=str(data)))
    for _ in range(2):
        opened = open_instance(config)
        assert opened.report == []
        persisted(opened)
        record_end(opened)
    os.truncate(sorted((data / "journal").glob("*.segment"))[1], 0)
    refused = tmp_path / "refused"  # in this process its lock stays held
    shutil.copytree(data, refused)
    with pytest.raises(
        JournalCorrupt, match=f"segment': a clean stop sealed it.*remove {CLEAN_SHUTDOWN_FILE}"
    ):
        open_instance(Config(instance=InstanceConfig(data=str(refused))))
    for name in (CLEAN_SHUTDOWN_FILE, LAST_SEGMENT_FILE):
        (data / name).unlink()
    opened = open_instance(config)
    assert opened.report == []
    persisted(opened)
    (data / LAST_SEGMENT_FILE).unlink()
    for segment in (data / "journal").iterdir():
        segment.unlink()
    opened = open_instance(config)
    (line,) = opened.report
    assert "has no used segment" in line
    persisted(opened)


def test_engine_has_the_message_types_of_topics(tmp_path: Path) -> None:
    topics = [TopicConfig(name="a", message_type="fix"), TopicConfig(name="b", validate=True)]
    opened = open_instance(Config(instance=InstanceConfig(data=str(tmp_path / "data")), topics=topics))
    assert opened.broker.catalog.message_types == {"a": "fix", "b": "json"}
    persisted(opened)


def test_directory_in_use_names_the_process_once_with_a_cure(tmp_path: Path) -> None:
    config = Config(instance=InstanceConfig(data=str(tmp_path / "data")))
    opened = open_instance(config)
    with pytest.raises(JournalLocked) as refused:
        open_instance(config)
    assert str(refused.value) == (
        f"Cannot open data directory '{tmp_path / 'data'}': it is in use by instance 'tickertape' "
        f"(pid {os.getpid()}). Stop that process first."
    )
    persisted(opened)


def test_full_disk_at_the_start_is_retried_at_the_deadline_of_the_engine(tmp_path: Path) -> None:
    disk = StrictDisk(Random(1), space_bytes=8_192)
    config = Config(instance=InstanceConfig(data=str(tmp_path)))
    opened = open_on(disk, config, owner="test", new_id=bytes(range(16)), salt=lambda: 1)
    broker, commits = opened.broker, opened.broker.journal.commits
    assert commits.full
    deadline = broker.next_deadline()
    assert deadline is not None
    assert deadline == commits.preallocation.retry_at
    broker.effects()
    broker.wake(Now(deadline, clock().wall))
    jobs = [effect.job for effect in broker.effects() if isinstance(effect, DiskJob)]
    assert [type(job) for job in jobs] == [PrepareSegment]
