"""Relay on a real socket between clients and a server that records the commands of both sides.

A test lets it hold back the server's data, or cut all connections. Must never change or reorder a byte, or
lose one but by a cut.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Self

from tickertape.wire.commands import Command, Deliver, Logon
from tickertape.wire.connection import Connection, Received

_SECONDS: Final = 20.0


class Relay:
    """Listens at `uri` for connections to the server at `target`."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[Command] = []
        """Commands of clients, in order."""
        self.delivered = 0
        """Messages from the server, including held ones."""
        self.deliveries = 0
        """Frames of these messages."""
        self._open = threading.Event()
        self._always = threading.Event()
        for event in (self._open, self._always):
            event.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(_SECONDS)

    def hold(self) -> None:
        """Hold back the server's data from now on."""
        self._open.clear()

    def release(self) -> None:
        """Send the held data, and later data directly."""
        self._open.set()

    def cut(self) -> None:
        """End all connections. New ones are accepted."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # the server is not running
                    client.close()
                    continue
                self._sockets += [client, server]
                self._pump(client, server, self._asks(Connection("server")), self._always)
                self._pump(server, client, self._server_commands(Connection("client")), self._open)

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        look: Callable[[bytes], None],
        opened: threading.Event,
    ) -> None:
        waiting: SimpleQueue[bytes] = SimpleQueue()
        for target, arguments in (
            (self._read, (source, look, waiting)),
            (self._write, (sink, waiting, opened)),
        ):
            thread = threading.Thread(target=target, args=arguments, daemon=True)
            self._threads.append(thread)
            thread.start()

    @staticmethod
    def _read(source: socket.socket, look: Callable[[bytes], None], waiting: SimpleQueue[bytes]) -> None:
        data = b"any"
        while data:
            data = b""
            with contextlib.suppress(OSError):
                data = source.recv(1 << 16)
            look(data)
            waiting.put(data)

    @staticmethod
    def _write(sink: socket.socket, waiting: SimpleQueue[bytes], opened: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := waiting.get():
                opened.wait(_SECONDS)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _asks(self, wire: Connection) -> Callable[[bytes], None]:
        def look(data: bytes) -> None:
            for event in wire.feed(data):
                assert isinstance(event, Received), event
                self.asked.append(event.command)
                if isinstance(event.command, Logon):
                    wire.logged_on()

        return look

    def _server_commands(self, wire: Connection) -> Callable[[bytes], None]:
        wire.logged_on()

        def look(data: bytes) -> None:
            for event in wire.feed(data):
                assert isinstance(event, Received), event
                if isinstance(event.command, Deliver) and event.batch is not None:
                    self.delivered += event.batch.count
                    self.deliveries += 1

        return look
