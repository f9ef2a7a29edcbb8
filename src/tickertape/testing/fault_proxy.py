"""TCP proxy that injects faults (cut, reset, stall, swallow, delay, slice) at any byte.

It does not change, reorder or repeat bytes, and holds at most one piece of each direction of a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self, TypeVar, get_args

from tickertape.client.common.address import Address, parse_uri
from tickertape.testing.ports import ReservedPort

Fault = Literal["cut", "reset", "stall", "half_open"]
"""`cut`: both ends see the other close. `reset`: both get a reset. `stall`: nothing passes until `go()`.
`half_open`: bytes of both sides vanish and no side is notified."""

_FAULTS: Final[tuple[str, ...]] = get_args(Fault)
_PIECE_BYTES: Final = 65_536
_SECONDS_MAX: Final = 30.0
_T = TypeVar("_T")


class Way:
    """One direction, of all connections together: how its bytes pass. Set any time, from any thread."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds that each piece waits before it is passed on."""
        self._slice_bytes = _PIECE_BYTES
        self.passed_bytes = 0
        """Passed on since the start."""
        self.swallowed_bytes = 0
        """Taken and not passed on, since the start."""
        self._left: int | None = None
        self._fault: Fault = "cut"
        self._struck = threading.Event()

    @property
    def slice_bytes(self) -> int:
        """Pass bytes on in writes of at most this size. Raises `ValueError` for less than 1."""
        return self._slice_bytes

    @slice_bytes.setter
    def slice_bytes(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"slice_bytes={count!r}: 1 or more, as nothing would pass; stall() is for that")
        self._slice_bytes = count

    def after(self, count: int, fault: Fault) -> threading.Event:
        """Pass `count` more bytes, then inject `fault` into their connection, once.

        Bytes received with them wait (`stall`) or are lost. With 0 the fault is injected when the next byte
        arrives. The returned event is set after that. Raises `ValueError` for an unknown fault and a negative
        count.
        """
        if fault not in _FAULTS:
            raise ValueError(f"fault={fault!r}: there are {', '.join(map(repr, _FAULTS))}")
        if count < 0:
            raise ValueError(f"count={count!r}: 0 or more bytes pass before the fault")
        self._struck = threading.Event()
        self._fault = fault
        self._left = count
        return self._struck

    def _admit(self, size: int) -> tuple[int, Fault | None]:
        """Return how many of these bytes pass, and the fault after them. Bytes are counted before they are
        passed on, so their receiver finds them counted."""
        fault: Fault | None = None
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
            if not self._left:
                self._left, fault = None, self._fault
        self.passed_bytes += size
        return size, fault


class FaultProxy:
    """Listens at `uri` for clients of the server at `target`, in a thread of its own; a context manager.

    Faults strike the connections that are open; later ones pass, unless `refuse()` was called. All calls may
    come from any thread and have taken effect when they return.
    """

    def __init__(self, target: str) -> None:
        self.to_server = Way()
        """What clients send."""
        self.to_client = Way()
        """Bytes from the server."""
        self.accepted = 0
        """Connections since the start."""
        self._target = parse_uri(target)
        self._port = ReservedPort()
        scheme = "tls" if self._target.tls else "tcp"
        self.uri = f"{scheme}://127.0.0.1:{self._port.number}"
        """Where clients connect."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._pairs: set[_Pair] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS_MAX)
        self._loop.close()
        self._port.release()

    # -- what a test tells it ---------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Connections that are open, spoiled ones included."""
        return self._do(lambda: len(self._pairs))

    def cut(self) -> None:
        """Close every connection at both ends; bytes under way are lost."""
        self._strike("cut")

    def reset(self) -> None:
        """Reset every connection at both ends."""
        self._strike("reset")

    def half_open(self) -> None:
        """From now on what both sides of every connection send vanishes, their closing included."""
        self._strike("half_open")

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Nothing passes in these directions of every connection until `go()`; it waits, nothing is lost."""

        def stall() -> None:
            for pair in self._pairs:
                if to_server:
                    pair.there.stall()
                if to_client:
                    pair.back.stall()

        self._do(stall)

    def go(self) -> None:
        """Resume stalled connections. A connection that has lost bytes is reset at both ends."""

        def go() -> None:
            for pair in tuple(self._pairs):
                pair.go()

        self._do(go)

    def refuse(self) -> None:
        """Stop listening: new connections are refused. Open connections stay."""

        def refuse() -> None:
            if self._accepting is not None and self._listener is not None:
                self._accepting.cancel()
                self._accepting = None
                _close(self._loop, self._listener)

        self._do(refuse)

    def accept(self) -> None:
        """Listen again."""

        def accept() -> None:
            if self._accepting is None:
                self._listener = listener = socket.create_server(
                    ("127.0.0.1", self._port.number), backlog=1024
                )
                listener.setblocking(False)
                self._accepting = self._loop.create_task(self._accept(listener))

        self._do(accept)

    # -- inside: everything below runs on the loop --------------------------------------------------------

    def _do(self, act: Callable[[], _T]) -> _T:
        async def done() -> _T:
            return act()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(_SECONDS_MAX)

    def _strike(self, fault: Fault) -> None:
        def strike() -> None:
            for pair in tuple(self._pairs):
                pair.strike(fault)

        self._do(strike)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            self.accepted += 1
            self._pairs.add(_Pair(self, client, _socket_for(self._target)))

    async def _end(self) -> None:
        for pair in tuple(self._pairs):
            pair.reset()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*rest, return_exceptions=True)


class _Pair:
    """One connection: a socket to the client and one to the server, and a pump for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._loop = proxy._loop
        self._ends = client, server
        for end in self._ends:
            end.setblocking(False)
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.there = _Pump(self, client, server, proxy.to_server)
        self.back = _Pump(self, server, client, proxy.to_client)
        self.over = False
        """Close both ends."""
        self._task = self._loop.create_task(self._run())

    def strike(self, fault: Fault) -> None:
        """The fault befalls this connection now."""
        if self.over:
            return
        if fault == "stall":
            self.there.stall()
            self.back.stall()
        elif fault == "half_open":
            self.there.swallow()
            self.back.swallow()
        elif fault == "cut":
            self.over = True
            self._task.cancel()
            self._task = self._loop.create_task(self._part())
        else:
            self.reset()

    def go(self) -> None:
        """The end of a stall, or of a connection with a hole."""
        if self.there.swallows:
            self.reset()
        else:
            self.there.go()
            self.back.go()

    def reset(self) -> None:
        """Both ends get a reset."""
        self._task.cancel()
        for end in self._ends:
            if end.family != socket.AF_UNIX:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._close()

    async def _run(self) -> None:
        target = self._proxy._target
        failed = False
        try:
            address: str | tuple[str, int] = target.path or (target.host, target.port)
            await self._loop.sock_connect(self._ends[1], address)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self.there.run())
                pumps.create_task(self.back.run())
        except* OSError:
            failed = True
        if self.over:
            return
        if failed:
            self.reset()
        else:
            self._close()

    async def _part(self) -> None:
        """Tell both ends of the end, and drop what they still send until they close: closing with bytes
        unread would be a reset."""
        await asyncio.gather(*map(self._drop, self._ends))
        self._close()

    async def _drop(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_WR)
            while await self._loop.sock_recv(end, _PIECE_BYTES):
                pass

    def _close(self) -> None:
        self.over = True
        for end in self._ends:
            _close(self._loop, end)
        self._proxy._pairs.discard(self)


class _Pump:
    """One direction of one connection."""

    def __init__(self, pair: _Pair, source: socket.socket, sink: socket.socket, way: Way) -> None:
        self._pair = pair
        self._loop = pair._loop
        self._source = source
        self._sink = sink
        self._way = way
        self._open = asyncio.Event()
        self._open.set()
        self.swallows = False

    def stall(self) -> None:
        self._open.clear()

    def go(self) -> None:
        self._open.set()

    def swallow(self) -> None:
        self.swallows = True
        self._open.set()

    async def run(self) -> None:
        try:
            while data := await self._loop.sock_recv(self._source, _PIECE_BYTES):
                await self._pass(memoryview(data))
                if self._pair.over:
                    return
            await self._open.wait()
            if not self.swallows:
                self._sink.shutdown(socket.SHUT_WR)
        except OSError:
            if not self.swallows:
                raise
        if self.swallows:  # nobody is told of the end
            await asyncio.Event().wait()

    async def _pass(self, data: memoryview) -> None:
        way = self._way
        while data and not self._pair.over:
            if way.delay:
                await asyncio.sleep(way.delay)
            await self._open.wait()
            if self.swallows:
                way.swallowed_bytes += len(data)
                return
            size, fault = way._admit(min(len(data), way.slice_bytes))
            if size:
                await self._loop.sock_sendall(self._sink, data[:size])
                data = data[size:]
            if fault is not None:
                self._pair.strike(fault)
                way._struck.set()


def _socket_for(target: Address) -> socket.socket:
    if target.path:
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    return socket.socket(socket.AF_INET6 if ":" in target.host else socket.AF_INET, socket.SOCK_STREAM)


def _close(loop: asyncio.AbstractEventLoop, end: socket.socket) -> None:
    # A task that was cancelled would take the number off the loop later, when it may be another socket's.
    if end.fileno() >= 0:
        loop.remove_reader(end)
        loop.remove_writer(end)
        end.close()
