"""Admin server: the socket of the admin address and the thread that serves it.

That thread makes HTTP, JSON and metrics from a snapshot. The server's event loop only takes the bounded
snapshot. The libraries are imported when the server is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tickertape.server.access.credentials import CredentialStore
from tickertape.server.config.addresses import ADMIN_DEFAULT, parse_admin
from tickertape.server.config.config import ADMIN_OFF, Config
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.events import event
from tickertape.server.limits import admin_connections_max, snapshot_interval_seconds

if TYPE_CHECKING:
    from tickertape.server.admin.routes import Routes

_SAMPLE_SECONDS: Final = 1.0
_STOP_SECONDS_MAX: Final = 2.0
_STATUS_INTERVAL_SECONDS: Final = 0.005


def admin_server(
    config: Config, driver: EngineDriver, loop: asyncio.AbstractEventLoop, credentials: CredentialStore
) -> AdminServer | None:
    """Return the admin server with its port open, not yet started. None if it is off.

    Raises `OSError` if a configured address cannot be used. If the default address cannot be used, the server
    starts without an admin address, so that several servers can run on one machine."""
    wanted = config.admin.listen
    if wanted == ADMIN_OFF:
        return None
    try:
        listening = _open(wanted or ADMIN_DEFAULT)
    except OSError as error:
        if wanted is not None:
            raise
        reason = error.strerror or error
        cure = "Pass another address with --admin, or --admin off."
        text = f"Cannot listen on {ADMIN_DEFAULT}: {reason}. {cure}"
        event("admin_off", logging.WARNING, address=ADMIN_DEFAULT, text=text)
        return None
    hosts = (parse_admin(wanted or ADMIN_DEFAULT).host, *config.admin.hosts)
    return AdminServer(listening, config, driver, loop, credentials, hosts=hosts)


def _open(uri: str) -> socket.socket:
    address = parse_admin(uri)
    family, kind, proto, _, place = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(admin_connections_max)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class AdminServer:
    """Server of one instance's admin address, on a thread of its own."""

    def __init__(
        self,
        listening: socket.socket,
        config: Config,
        driver: EngineDriver,
        server: asyncio.AbstractEventLoop,
        credentials: CredentialStore,
        *,
        hosts: Sequence[str] = (),
    ) -> None:
        host, port = listening.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        """The bound address."""
        self._listening = listening
        self._config = config
        self._driver = driver
        self._server = server
        self._credentials = credentials
        self._hosts = hosts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)

    def start(self) -> None:
        """Start answering. Earlier connections wait until then."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and wait for the thread, at most 4 s."""
        if not self._thread.is_alive():
            self._listening.close()
            return
        self._started.wait(_STOP_SECONDS_MAX)
        if self._loop is not None and self._done is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(_STOP_SECONDS_MAX)

    # -- on the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 -- logged, the server continues without an admin address
            event("admin_failed", logging.ERROR, text=f"{type(error).__name__}: {error}")
            self._listening.close()
        finally:
            self._started.set()

    async def _serve(self) -> None:
        # Late imports: these libraries take longer to import than the server takes to start.
        from tickertape.server.admin.http import HttpConnection
        from tickertape.server.admin.routes import Routes
        from tickertape.server.admin.snapshot import InstanceSnapshot

        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        self._started.set()
        replication = self._config.replication
        needs_links = replication is not None and replication.ready == "synchronous"
        snapshot = InstanceSnapshot(self._driver, self._config.instance.name, needs_links=needs_links)
        routes = Routes(snapshot, self._server, _STATUS_INTERVAL_SECONDS, snapshot_interval_seconds)
        changing = None
        if replication is not None:
            from tickertape.server.admin.link_commands import LinkCommands

            changing = LinkCommands(self._driver, self._server, self._credentials).answer
        connections: set[HttpConnection] = set()
        serving = await self._loop.create_server(
            lambda: HttpConnection(routes.answer, connections, hosts=self._hosts, changing=changing),
            sock=self._listening,
            backlog=admin_connections_max,
        )
        sampling = asyncio.create_task(_sample(routes))
        await self._done.wait()
        sampling.cancel()
        serving.close()
        for connection in list(connections):
            connection.abort()


async def _sample(routes: Routes) -> None:
    while True:
        routes.sampler.sample(time.monotonic())
        await asyncio.sleep(_SAMPLE_SECONDS)
