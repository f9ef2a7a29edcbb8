"""TCP proxy that injects faults (cut, reset, stall, swallow, delay, slice) at any byte.

It does not change, reorder or repeat bytes. It buffers at most one piece per direction of a connection.
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

from tickertape.base.text_format import not_one_of
from tickertape.client.common.address import Address, parse_uri
from tickertape.testing.ports import ReservedPort

Fault = Literal["cut", "reset", "stall", "half_open"]
"""Kind of fault.

`cut`: both ends see a close. `reset`: both ends get a reset. `stall`: nothing passes until `go()`.
`half_open`: bytes of both sides are lost, and no side is notified.
"""

_FAULTS: Final[tuple[str, ...]] = get_args(Fault)
_PIECE_BYTES: Final = 65_536
_SECONDS_MAX: Final = 30.0
_T = TypeVar("_T")


class Way:
    """Settings and counters of one direction of all connections. Any thread may change them at any time."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Delay of each piece in seconds."""
        self._slice_bytes = _PIECE_BYTES
        self.passed_bytes = 0
        """Bytes passed on since the start."""
        self.swallowed_bytes = 0
        """Bytes received and dropped since the start."""
        self._left: int | None = None
        self._fault: Fault = "cut"
        self._struck = threading.Event()

    @property
    def slice_bytes(self) -> int:
        """Maximum size of a write in bytes. Setting it raises `ValueError` for less than 1."""
        return self._slice_bytes

    @slice_bytes.setter
    def slice_bytes(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"Invalid slice_bytes {count!r}. Use 1 or more, or stall() to stop all bytes.")
        self._slice_bytes = count

    def after(self, count: int, fault: Fault) -> threading.Event:
        """Pass `count` more bytes, then inject `fault` into their connection, once.

        `fault` is `cut`, `reset`, `stall` or `half_open`. Bytes that the proxy received together with the
        last of these bytes wait (`stall`) or are lost. With `count=0` the fault is injected when the next
        byte arrives. The returned event is set after the fault. Raises `ValueError` for an unknown fault and
        a negative count.
        """
        if fault not in _FAULTS:
            raise ValueError(not_one_of("Unknown fault", fault, _FAULTS))
        if count < 0:
            raise ValueError(f"Invalid count {count!r}. Use 0 or more bytes.")
        self._struck = threading.Event()
        self._fault = fault
        self._left = count
        return self._struck

    def _admit(self, size: int) -> tuple[int, Fault | None]:
        """Return how many of `size` bytes pass, and the fault after them.

        Bytes are counted before they are passed on, so their receiver always finds them counted.
        """
        fault: Fault | None = None
        if self._left is not None:
            size = min(size, self._left)
            self._left -= size
            if not self._left:
                self._left, fault = None, self._fault
        self.passed_bytes += size
        return size, fault


class FaultProxy:
    """TCP proxy that injects faults between clients and a server. A context manager with its own thread.

    Clients connect to `uri`. Faults affect open connections. New connections work, unless `refuse()` was
    called. Any thread may call any method. A call has taken effect when it returns.

    Args:
        target: Address of the server: `tcp://`, `tls://` or `unix://`.

    Example:
        >>> with running_server() as server, FaultProxy(server.uri) as proxy:
        ...     client = tt.Client("desk", proxy.uri)
        ...     proxy.cut()
        ...     wait_until(lambda: not client.connected)
    """

    def __init__(self, target: str) -> None:
        self.to_server = Way()
        """Direction from clients to the server."""
        self.to_client = Way()
        """Direction from the server to clients."""
        self.accepted = 0
        """Number of connections since the start."""
        self._target = parse_uri(target)
        self._port = ReservedPort()
        scheme = "tls" if self._target.tls else "tcp"
        self.uri = f"{scheme}://127.0.0.1:{self._port.number}"
        """Address for clients."""
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

    # -- calls of a test --------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """Number of open connections, including those with faults."""
        return self._do(lambda: len(self._pairs))

    def cut(self) -> None:
        """Close every connection at both ends. Bytes in transit are lost."""
        self._strike("cut")

    def reset(self) -> None:
        """Reset every connection at both ends (TCP RST). Bytes in transit are lost."""
        self._strike("reset")

    def half_open(self) -> None:
        """From now on, drop all bytes on every connection in both directions, and do not forward the end of
        a connection."""
        self._strike("half_open")

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Stop forwarding bytes to the server, to the client, or both (default), until `go()`.

        It applies to every open connection. Bytes wait in the proxy and the sockets, and none are lost.
        """

        def stall() -> None:
            for pair in self._pairs:
                if to_server:
                    pair.there.stall()
                if to_client:
                    pair.back.stall()

        self._do(stall)

    def go(self) -> None:
        """Resume stalled connections, and reset half-open connections at both ends."""

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
        """Accept new connections again, after `refuse()`."""

        def accept() -> None:
            if self._accepting is None:
                self._listener = listener = socket.create_server(
                    ("127.0.0.1", self._port.number), backlog=1024
                )
                listener.setblocking(False)
                self._accepting = self._loop.create_task(self._accept(listener))

        self._do(accept)

    # -- inside: all code below runs on the loop -----------------------------------------------------------

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
        """Whether both ends are closed or closing."""
        self._task = self._loop.create_task(self._run())

    def strike(self, fault: Fault) -> None:
        """Inject the fault into this connection."""
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
        """End a stall, or reset a connection that has lost bytes."""
        if self.there.swallows:
            self.reset()
        else:
            self.there.go()
            self.back.go()

    def reset(self) -> None:
        """Reset both ends."""
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
        """Shut down both ends, and drop incoming bytes until they close.

        A close with unread bytes would be a reset.
        """
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
        if self.swallows:  # the other side is not notified of the end
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
    # A cancelled task would remove the descriptor from the loop later, when another socket may have it.
    if end.fileno() >= 0:
        loop.remove_reader(end)
        loop.remove_writer(end)
        end.close()
