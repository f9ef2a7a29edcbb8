"""Fuzz targets of staging files, and of transaction commands at an engine that executes them.

Must never catch more than the allowed errors.
"""

from __future__ import annotations

import contextlib
from random import Random
from typing import Final

from tests.fuzz.mutations import mended_frames
from tests.fuzz.target import Target
from tests.helpers.staged_files import JOURNAL_ID, LABEL, batches, golden_bytes
from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import BadBatch
from tickertape.batch import MessageBatch
from tickertape.journal.format.staging_file import (
    STAGING_DIRECTORY,
    StagedFileDamaged,
    StagedFiles,
    StageOpen,
    find_staged,
    path_of,
)
from tickertape.testing.disk import StrictDisk
from tickertape.wire.commands import PREFACE, Abort, Command, Commit, Logon, Prepare, Stage, Transaction
from tickertape.wire.connection import Connection, Violation
from tickertape.wire.frames import encode_frame


def staging(data: bytes) -> str:
    """Start on a file: it is removed or kept, and a kept one opens as whole batches or is reported as
    damaged.
    """
    disk = StrictDisk(Random(1))
    disk.make_directory(STAGING_DIRECTORY)
    handle = disk.open(path_of(1), create=True)
    disk.write(handle, 0, [data])
    disk.close(handle)
    found, report = find_staged(disk, JOURNAL_ID)
    assert all(line.isprintable() for line in report)
    assert bool(found) == bool(disk.names(STAGING_DIRECTORY))
    if not found:
        return "told" if report else "removed"
    assert found[0].label.journal == JOURNAL_ID
    for block in StagedFiles(disk).run(StageOpen(1)):
        with contextlib.suppress(BadBatch):
            MessageBatch.parse(block)
    return "taken"


def transactions(data: bytes) -> str:
    """Feed transaction commands: no exception, other clients are served, and staged bytes are counted
    correctly.
    """
    world = EngineWorld(1, recorded=frozenset({"orders", "fills"}))
    connection = Connection("server")
    connection.logged_on()
    world.broker.connected(77)
    for number, event in enumerate(connection.feed(data)):
        if isinstance(event, Violation):
            world.broker.goodbye(77, event.error)
        else:
            world.broker.received(77, event.command, event.batch, world.now())
        world.collect()
        if number % 3:
            world.settle()
    world.settle()
    staged = world.broker.transactions.staging
    assert (staged.unwritten_bytes, world.broker.transactions.waiting) == (0, 0)
    assert staged.count == len(world.disk.names(STAGING_DIRECTORY)) if staged.count else staged.bytes == 0
    assert world.fatal is None
    witness = world.connect("witness")
    witness.publish("orders", [b"seen"])
    world.settle()
    assert witness.acked_frame == 1
    return "committed" if world.broker.transactions.committed else "nothing"


def _sessions() -> list[bytes]:
    keys = [
        Transaction(publisher="fuzzer", name="n"),
        Transaction(publisher=LABEL.publisher, space=LABEL.space, name=LABEL.name),
    ]
    commands: list[tuple[Command, MessageBatch | None]] = []
    for key in keys:
        for part in ("0", "1"):
            commands += [(Stage(id=1, transaction=key, part=part), batch) for batch in batches()]
            commands.append((Prepare(id=2, transaction=key, part=part), None))
        commands += [
            (Commit(id=3, transaction=key, parts=("1", "0")), None),
            (Commit(id=4, transaction=key), None),
            (Abort(id=5, transaction=key), None),
        ]
    frames = [b"".join(encode_frame(command, batch)) for command, batch in commands]
    logon = PREFACE + b"".join(encode_frame(Logon(name="fuzzer")))
    return [logon + b"".join(frames), logon + b"".join(frames[: len(frames) // 2])]


STAGING_TARGETS: Final[dict[str, Target]] = {
    "staging": Target(staging, lambda: [golden_bytes()], cost=4, allowed=(StagedFileDamaged,)),
    "transactions": Target(transactions, _sessions, mended_frames, cost=20),
}
