"""A program with front and address as arguments: forks with open clients and streams.

It prints `ok` at the end. Any error is an exception and an exit code.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable

import pytest

import tickertape as tt
from tests.conformance.fronts import Front


def in_child(work: Callable[[], None], *, quietly: bool = False) -> None:
    """Run `work` in a forked child, which exits normally or, if `quietly`, at once."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            gc.collect()
        except BaseException:  # noqa: BLE001 -- the exit code tells the parent
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        if quietly:
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"


def refused(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(tt.Forked, match="after the fork"):
            call()


def check_blocking(uri: str) -> None:
    """Fork while threads of the parent hold locks."""
    store = tt.MemoryPublishStore()
    with tt.Client("parent", uri, publish_store=store) as client:
        client.publish_batch("orders", [b"%d" % i for i in range(1_000)])
        client.publish_flush()
        begun = client.bookmark_subscribe("orders", tt.EPOCH, depth=4_000)
        live = client.subscribe("orders")
        assert begun.get(10).data == b"0"
        for number in range(1_000, 1_010):  # one after the other, and perhaps still in flight
            client.publish("orders", b"%d" % number)
        waiting = threading.Thread(target=lambda: live.get(30))
        waiting.start()

        def child() -> None:
            assert not client.connected
            refused(
                lambda: client.publish("orders", b"new"),  # short enough for the run of the parent
                lambda: client.publish("orders", b"child", correlation_id="c"),
                lambda: client.publish_batch("orders", [b"child"]),
                lambda: client.publish_flush(timeout=1),
                lambda: client.subscribe("orders"),
                lambda: client.unsubscribe(live.sub_id),
                lambda: client.execute(tt.Command("flush")),
                client.unpersisted_count,
                client.connect,
                lambda: begun.get(0),
                lambda: next(begun),
                lambda: next(begun.batches()),
                lambda: live.wait_caught_up(0),
            )
            with live:
                live.close()
            with client:
                client.close()
            with tt.Client("child", uri) as own:
                own.publish("children", b"own")
                own.publish_flush()

        in_child(child)
        in_child(child, quietly=True)
        in_child(lambda: None)
        waiting.join(30)
        client.publish("orders", b"1010")
        client.publish_flush()
        assert client.unpersisted_count() == 0
        found = [begun.get(10).data for _ in range(1_010)]
        assert found == [b"%d" % i for i in range(1, 1_011)]
        assert len(list(client.replay("children"))) == 2
        live.close()


async def refuse_all(target: tt.AsyncClient, stream: tt.AsyncMessageStream, uri: str) -> None:
    """Check that inherited objects raise, and that a client of the child works."""
    calls = (
        lambda: target.publish("orders", b"child"),
        lambda: target.publish_batch("orders", [b"child"]),
        lambda: target.publish_flush(timeout=1),
        lambda: target.subscribe("orders"),
        lambda: target.execute(tt.Command("flush")),
        target.connect,
        lambda: stream.get(0),
        lambda: anext(stream),
        lambda: stream.wait_caught_up(0),
    )
    for call in calls:
        with pytest.raises(tt.Forked, match="after the fork"):
            await call()
    refused(target.unpersisted_count)
    await stream.close()
    async with stream:
        pass
    await target.close()
    async with tt.AsyncClient("child", uri) as own:
        await own.publish("children", b"own")
        await own.publish_flush()


def check_async(uri: str, kind: str) -> None:
    """Fork on another thread than the event loop, and on the loop."""
    front = Front(kind)
    client = front.connect("parent", uri, publish_store=tt.MemoryPublishStore())
    client.publish_batch("orders", [b"%d" % i for i in range(1_000)])
    client.publish_flush()
    begun = client.bookmark_subscribe("orders", tt.EPOCH, depth=4_000)
    assert begun.get(10).data == b"0"
    target: tt.AsyncClient = client.target  # type: ignore[attr-defined]
    stream: tt.AsyncMessageStream = begun.target  # type: ignore[attr-defined]

    def child() -> None:
        import asyncio

        assert not target.connected
        if kind == "uvloop":
            import uvloop

            uvloop.run(refuse_all(target, stream, uri))
        else:
            asyncio.run(refuse_all(target, stream, uri))

    in_child(child, quietly=True)
    in_child(lambda: None)

    async def fork_inside() -> None:
        for number in range(1_000, 1_010):  # one after the other, and perhaps still in flight
            await target.publish("orders", b"%d" % number)
        in_child(lambda: refused(lambda: target.publish("orders", b"new").send(None)), quietly=True)

    front.run(fork_inside())
    client.publish("orders", b"1010")
    client.publish_flush()
    assert client.unpersisted_count() == 0
    found = [begun.get(10).data for _ in range(1_010)]
    assert found == [b"%d" % i for i in range(1, 1_011)]
    assert len(list(client.replay("children"))) == 1
    front.close()


if __name__ == "__main__":
    if sys.argv[1] == "blocking":
        check_blocking(sys.argv[2])
    else:
        check_async(sys.argv[2], sys.argv[1])
    print("ok")
