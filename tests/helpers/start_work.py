"""Counts of the server's work at a start behind a log: calls, reads and bytes of each step.

Must never look at a clock. `python -m tests.helpers.start_work COUNT...` prints the table of
docs/performance.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from tickertape.base.interfaces import Now
from tickertape.base.names import publisher_id
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, PublisherDirectory
from tickertape.engine.transactions.records import CommittedTransactions, record_batch
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.disk import SystemDisk
from tickertape.server import startup
from tickertape.server.clock import clock
from tickertape.server.config.config import Config, InstanceConfig, JournalConfig
from tickertape.server.startup import OpenedInstance, open_instance
from tickertape.wire.commands import Transaction

STEPS: Final = ("recover_journal", "load_publishers", "first_message", "Broker", "open_staged")
"""The steps of a start, by their names in startup.py."""
BODY: Final = bytes(200)
_PACKAGE: Final = f"{Path(startup.__file__).parents[1]}/"


class Work:
    """The work of one step of a start."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls of Python functions of the package."""
        self.reads = 0
        self.bytes = 0

    def row(self) -> tuple[int, int, int]:
        return self.calls, self.reads, self.bytes


class Log:
    """A data directory that is written through the journal itself, and whose server is killed."""

    def __init__(self, data: Path) -> None:
        self.config = Config(instance=InstanceConfig(data=str(data)), journal=JournalConfig(sync="never"))
        self._opened = open_instance(self.config)
        self._journal = self._opened.broker.journal
        self._registry = PublisherDirectory()
        self._committed = CommittedTransactions([])
        self._sequence = 0
        self._control = 0

    def _work(self, now: Now) -> None:
        journal = self._journal
        while jobs := journal.commits.jobs():
            for job in jobs:
                journal.commits.done(job, None, self._opened.executor.run(job), now)
        journal.take_persisted()

    def _append(self, batch: MessageBatch, publisher: int, sequence: int) -> None:
        now = clock()
        stamp = Stamp(publisher, sequence, self._journal.next_stamp(now))
        self._journal.append(batch, stamp, sequence, now)
        self._work(now)

    def _next_control(self) -> int:
        self._control += 1
        return self._control

    def _transact(self, number: int, batches: Iterable[MessageBatch]) -> None:
        transaction = Transaction(publisher="sink", name=str(number))
        now = clock()
        record = self._committed.record(transaction, 1)
        self._committed.take(record)
        chain: list[tuple[MessageBatch, Stamp]] = []
        for batch in batches:
            self._sequence += 1
            chain.append((batch, Stamp(9, self._sequence, self._journal.next_stamp(now))))
        last = Stamp(CONTROL_PUBLISHER, self._next_control(), self._journal.next_stamp(now))
        chain.append((record_batch(record), last))
        room = sum([commit_bytes_of(batch) for batch, _ in chain])
        while not self._journal.commits.has_room(room):
            self._journal.commits.reserve_segment(room, now)
            self._work(now)
        self._journal.append_chain(chain, now)
        self._work(now)

    def publishes(self, count: int) -> None:
        """Plain publishes of one message."""
        batch = batch_from_bodies("t", [BODY])
        for _ in range(count):
            self._sequence += 1
            self._append(batch, 9, self._sequence)

    def transactions(self, count: int) -> None:
        """Write transactions of one message: each a chain of two commits."""
        for number in range(count):
            self._transact(number, [batch_from_bodies("t", [BODY])])

    def by_turns(self, count: int) -> None:
        """Write a publish, a transaction, and so on."""
        batch = batch_from_bodies("t", [BODY])
        for number in range(count // 2):
            self._sequence += 1
            self._append(batch, 9, self._sequence)
            self._transact(number, [batch])

    def control_records(self, count: int) -> None:
        """Empty transactions: a control record each."""
        for number in range(count):
            self._transact(number, [])

    def publishers(self, count: int) -> None:
        """Write publishers of one message each, with the record that binds their name."""
        batch = batch_from_bodies("t", [BODY])
        for number in range(count):
            name = f"desk-{number}"
            record = self._registry.bind(publisher_id(name), name, derived=False)
            self._append(record, CONTROL_PUBLISHER, self._next_control())
            self._append(batch, publisher_id(name), 1)

    def kill(self) -> Config:
        """Kill the server: without a clean stop the last segment has no seal."""
        _close(self._opened)
        return self.config


def _close(opened: OpenedInstance) -> None:
    opened.executor.close()
    opened.disk.close_all()


KINDS: Final[dict[str, Callable[[Log, int], None]]] = {
    "publishes": Log.publishes,
    "transactions": Log.transactions,
    "publishes and transactions by turns": Log.by_turns,
    "control records": Log.control_records,
    "publishers of one message": Log.publishers,
}


def start_work(config: Config) -> dict[str, Work]:
    """Return the work of each step of a start."""
    done: dict[str, Work] = defaultdict(Work)
    step = [""]

    def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: object, **more: object) -> object:
            step[0] = name
            return function(*args, **more)

        return run

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            done[step[0]].calls += 1

    read = SystemDisk.read

    def counted(disk: SystemDisk, handle: int, offset: int, size: int) -> bytes:
        data = read(disk, handle, offset, size)
        done[step[0]].reads += 1
        done[step[0]].bytes += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(startup, name, named(name, getattr(startup, name)))
        patch.setattr(SystemDisk, "read", counted)
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            opened = open_instance(config)
        finally:
            sys.setprofile(before)
    _close(opened)
    done.pop("", None)
    return done


def work_behind(kind: str, count: int, directory: Path) -> dict[str, Work]:
    """Return the work of a start after a kill behind `count` items of a kind."""
    log = Log(directory)
    KINDS[kind](log, count)
    return start_work(log.kill())


def main(counts: list[int]) -> None:
    """Print the table."""
    print("| behind | number | step | calls | reads | bytes |\n|---|---|---|---|---|---|")
    for kind in KINDS:
        for count in counts:
            with tempfile.TemporaryDirectory(prefix="tickertape-start-") as scratch:
                for step, work in work_behind(kind, count, Path(scratch) / "data").items():
                    columns = " | ".join(f"{number:,}" for number in work.row())
                    print(f"| {kind} | {count:,} | {step} | {columns} |", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [1_000, 10_000, 100_000])
