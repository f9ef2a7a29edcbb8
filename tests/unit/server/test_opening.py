"""What a start finds in its log, and serves in spite of."""

from __future__ import annotations

from pathlib import Path

from tickertape.batch import BatchBuilder, Stamp
from tickertape.engine.registry import CONTROL_PUBLISHER, CONTROL_TOPIC
from tickertape.server.config import Config, Instance
from tickertape.server.opening import Opened, clock, open_instance


def persisted(opened: Opened) -> None:
    """Everything accepted reaches the disk, and the files are closed."""
    journal = opened.broker.journal
    journal.close(clock())
    while not journal.closed:
        for job in journal.jobs():
            journal.done(job, None, opened.executor.run(job), clock())
        journal.wake(clock())
    opened.executor.close()
    opened.disk.close_all()


def test_a_malformed_record_does_not_keep_an_instance_from_starting(tmp_path: Path) -> None:
    config = Config(instance=Instance(data=str(tmp_path / "data")))
    opened = open_instance(config)
    assert opened.report == []
    builder = BatchBuilder()
    builder.add(CONTROL_TOPIC, b"\xc1", kind=1)
    journal, now = opened.broker.journal, clock()
    journal.append(builder.build(), Stamp(CONTROL_PUBLISHER, 1, journal.log_time(now)), 1, now)
    persisted(opened)
    again = open_instance(config)
    (line,) = again.report
    assert ", position 0: a control record that cannot be read" in line
    assert line.endswith("everything else is served")
    assert not again.broker.draining
    persisted(again)
