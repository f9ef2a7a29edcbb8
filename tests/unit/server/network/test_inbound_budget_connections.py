"""Budget of unfinished large frames on real connections, with small limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.helpers.peer import Peer, frame
from tests.helpers.threaded_instance import Running, running
from tickertape.base.limits import KIB
from tickertape.batch import batch_from_bodies
from tickertape.server.network.inbound_budget import InboundBudget
from tickertape.wire.commands import Ack, Flush, Goodbye, Persisted, Publish

SIZE = 100 * KIB


def large(number: int = 1, size: int = SIZE) -> bytes:
    """Return a publish frame slightly above `size` bytes."""
    return frame(Publish(frame=number), batch_from_bodies("t", [bytes(size)]))


def begin(server: Running, peer: Peer, data: bytes) -> None:
    """Send a frame without its end, and wait until it is counted."""
    expected = server.inbound.bytes + len(data)
    peer.send(data[:-8])
    server.until(lambda inbound: inbound.bytes == expected)


def check_persisted(peer: Peer, number: int) -> None:
    """Wait until the frame of this number is persisted."""
    while True:
        said = peer.until(Persisted)[-1]
        assert isinstance(said, Persisted)
        if said.frame >= number:
            assert said.frame == number
            return


def test_large_frames_wait_for_the_budget_and_small_frames_do_not(tmp_path: Path) -> None:
    data = large()
    bound = InboundBudget(2 * len(data))
    with running(tmp_path / "data", bound) as server, ExitStack() as peers:
        first, second, third, small = (peers.enter_context(Peer(server.uri, name)) for name in "abcd")
        begin(server, first, data)
        begin(server, second, data)
        third.send(data[:-8])
        server.until(lambda inbound: inbound.waiting == 1)
        third.send(data[-8:])
        for number in range(1, 20):
            small.send(frame(Publish(frame=number), batch_from_bodies("s", [b"1"])))
        small.send(frame(Flush(id=1)))
        small.until(Ack)
        assert (bound.bytes, bound.waiting) == (2 * len(data), 1), "the waiting frame is not read"
        second.send(data[-8:])
        check_persisted(second, 1)
        check_persisted(third, 1)
        first.send(data[-8:])
        check_persisted(first, 1)
        assert (bound.bytes, bound.waiting) == (0, 0)


def test_stalled_connection_gets_frame_stalled_and_frees_the_budget(tmp_path: Path) -> None:
    data = large()
    bound = InboundBudget(2 * len(data), stall_seconds=0.05)
    with running(tmp_path / "data", bound) as server, ExitStack() as peers:
        first, second, third = (peers.enter_context(Peer(server.uri, name)) for name in "abc")
        begin(server, first, data)
        begin(server, second, data)
        third.send(data)
        said = first.until(Goodbye)[-1]
        assert isinstance(said, Goodbye)
        assert (said.code, "other frames waited" in said.text) == ("frame_stalled", True)
        check_persisted(third, 1)
        second.send(data[-8:])
        check_persisted(second, 1)
        assert (bound.bytes, bound.waiting) == (0, 0), "though the first has not closed its connection"


def test_lost_connections_free_the_budget(tmp_path: Path) -> None:
    data = large()
    bound = InboundBudget(len(data))
    with running(tmp_path / "data", bound) as server:
        with Peer(server.uri, "a") as first:
            begin(server, first, data)
            with Peer(server.uri, "b") as second:
                second.send(data[:-8])
                server.until(lambda inbound: inbound.waiting == 1)
        server.until(lambda inbound: not inbound.bytes and not inbound.waiting)


@pytest.mark.parametrize("seed", [1, 2])
def test_many_publishers_with_a_small_budget_all_persist(tmp_path: Path, seed: int) -> None:
    bound = InboundBudget(150 * KIB)
    with running(tmp_path / "data", bound) as server, ThreadPoolExecutor() as pool:

        def publish(name: str) -> None:
            rng = Random(f"{seed} {name}")
            with Peer(server.uri, name) as peer:
                for number in range(1, 9):
                    data = large(number, rng.randrange(10 * KIB, 140 * KIB))
                    cuts = sorted(rng.randrange(len(data)) for _ in range(4))
                    for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True):
                        peer.send(data[first:last])
                check_persisted(peer, 8)

        assert len(list(pool.map(publish, [f"p{n}" for n in range(6)]))) == 6
        assert (bound.bytes, bound.waiting) == (0, 0)


def test_displaced_connection_frees_the_budget_before_the_close(tmp_path: Path) -> None:
    data = large()
    bound = InboundBudget(len(data))
    with running(tmp_path / "data", bound) as server, ExitStack() as peers:
        first, second = (peers.enter_context(Peer(server.uri, name)) for name in "ab")
        begin(server, first, data)
        second.send(data)
        server.until(lambda inbound: inbound.waiting == 1)
        peers.enter_context(Peer(server.uri, "a"))
        said = first.until(Goodbye)[-1]
        assert isinstance(said, Goodbye)
        assert said.code == "name_in_use"
        check_persisted(second, 1)
        assert len(server.connections) == 3, "the first is not closed yet"
        assert (bound.bytes, bound.waiting) == (0, 0)
