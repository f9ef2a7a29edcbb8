"""Order of archive requests of several connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tickertape.engine.runtime.effects import ArchiveRead
from tickertape.journal.reading.archive_reader import ProbeArchive
from tickertape.server.config.config import Config, InstanceConfig
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.network.connection import ClientConnection, listen
from tickertape.server.startup import open_instance
from tickertape.server.storage.archive_reads import ArchiveReadQueue


def turns_of(*conns: int) -> ArchiveReadQueue:
    """Return a queue with a request of each connection, numbered by token."""
    turns = ArchiveReadQueue()
    for token, conn in enumerate(conns):
        turns.put(ArchiveRead(token, ProbeArchive(), conn))
    return turns


def test_connections_take_requests_in_turns() -> None:
    turns = turns_of(1, 1, 1, 1, 2, 3, 2)
    taken = []
    for _ in range(7):
        effect = turns.take()
        assert effect is not None
        taken.append(effect.token)
        turns.done(effect)
    assert taken == [0, 4, 5, 1, 6, 2, 3]


def test_connection_has_a_bounded_number_of_concurrent_requests() -> None:
    turns = turns_of(1, 1, 1, 1, 2)
    first = turns.take()
    assert first is not None
    others = [turns.take() for _ in range(2)]
    assert [effect.conn for effect in others if effect is not None] == [2, 1]
    turns.stop()
    assert turns.take() is None

    turns = turns_of(1, 1, 1)
    under_way = [turns.take() for _ in range(2)]
    turns.put(ArchiveRead(9, ProbeArchive(), 2))
    later = turns.take()
    assert later is not None
    assert later.token == 9
    assert under_way[0] is not None
    turns.done(under_way[0])
    last = turns.take()
    assert last is not None
    assert last.token == 2


def test_drop_returns_requests_of_a_connection_that_have_not_started() -> None:
    turns = turns_of(1, 1, 2, 1)
    assert turns.take() is not None
    assert [effect.token for effect in turns.drop(1)] == [1, 3]
    assert turns.drop(1) == []
    left = turns.take()
    assert left is not None
    assert left.token == 2


def test_lost_connection_drops_pending_archive_requests(tmp_path: Path) -> None:
    async def run() -> None:
        opened = open_instance(Config(instance=InstanceConfig(data=str(tmp_path))))
        dropped: list[int] = []
        lost = asyncio.Event()

        class Reads:
            def start(self, loop: object, driver: object) -> None:
                pass

            def stop(self) -> None:
                pass

            def drop(self, conn: int) -> None:
                dropped.append(conn)
                lost.set()

        with_archive = opened._replace(archive=Reads())  # type: ignore[arg-type]
        instance = EngineDriver(with_archive, asyncio.get_running_loop())
        server, uri = await listen("tcp://127.0.0.1:0", lambda: ClientConnection(instance))
        instance.flush()
        port = int(uri.rpartition(":")[2])
        for _ in range(2):
            lost.clear()
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.wait_for(lost.wait(), 30)
        assert dropped == [1, 2]
        server.close()
        instance.close()
        assert await instance.stopped is None
        instance.disconnect_all()
        instance.release()

    asyncio.run(run())
