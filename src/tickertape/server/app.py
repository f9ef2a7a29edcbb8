"""Owns the life of a server process: open, listen, say ready, wait for the end, stop cleanly.

Must never open a port before recovery is done, or end with exit code 0 when the disk failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable
from typing import Final

import uvloop

from tickertape.base.errors import JournalError, TickertapeError, WrongJournal
from tickertape.base.limits import connections_max
from tickertape.server.config import Config
from tickertape.server.instance import Instance
from tickertape.server.listener import listen
from tickertape.server.opening import Opened, open_instance

EXIT_STOPPED: Final = 0
EXIT_ERROR: Final = 1
EXIT_DISK_FAILED: Final = 4
EXIT_JOURNAL_REFUSED: Final = 5

_FILES_BESIDE: Final = 1_000
"""Files beside connections: segments, sockets, what Python opens."""
_DRAIN_SECONDS_MAX: Final = 15.0
_GOODBYE_SECONDS_MAX: Final = 2.0
_SWITCH_SECONDS: Final = 0.0005

log = logging.getLogger("tickertape.server")


def run_server(config: Config, ready: Callable[[list[str]], None]) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    `ready` is called with the listening addresses once ports are open: 0 after a clean stop, 1 when an
    address cannot be listened on, 4 when the disk failed, 5 when the start was refused because of the data
    directory."""
    try:
        opened = open_instance(config)
    except (JournalError, WrongJournal) as error:
        log.critical("%s: %s", error.code, error)
        return EXIT_JOURNAL_REFUSED
    for line in opened.report:
        log.warning("recovery: %s", line)
    _raise_open_files()
    # Threads that wait for the disk hand the interpreter over quickly: the default of 5 ms is the tail of a
    # publish.
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_serve(opened, config, ready))
    opened.executor.close()
    opened.disk.close_all()
    return code


def _raise_open_files() -> None:
    """Allow as many open files as the system lets us: each connection and segment is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _FILES_BESIDE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(opened: Opened, config: Config, ready: Callable[[list[str]], None]) -> int:
    loop = asyncio.get_running_loop()
    instance = Instance(opened, loop)
    loop.set_exception_handler(instance.crashed)
    servers: list[asyncio.Server] = []
    uris: list[str] = []
    for transport in config.transports:
        try:
            server, uri = await listen(instance, transport.listen)
        except OSError as error:
            log.critical("cannot listen on %s: %s", transport.listen, error)
            await _end(instance, servers)
            return EXIT_ERROR
        servers.append(server)
        uris.append(uri)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    instance.flush()
    ready(uris)
    stopping = asyncio.create_task(stop.wait())
    watching = asyncio.create_task(_watch(instance))
    await asyncio.wait((stopping, watching), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    watching.cancel()
    ended_by = await _end(instance, servers)
    if ended_by is None:
        return EXIT_STOPPED
    return EXIT_DISK_FAILED if isinstance(ended_by, JournalError) else EXIT_ERROR


async def _watch(instance: Instance) -> None:
    await asyncio.shield(instance.stopped)


async def _end(instance: Instance, servers: list[asyncio.Server]) -> TickertapeError | None:
    """Stop listening, persist what was accepted, say goodbye, release all; returns what ended the run."""
    for server in servers:
        server.close()
    instance.close()
    ended_by = await _stopped(instance)
    instance.dismiss()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(instance.empty.wait(), _GOODBYE_SECONDS_MAX)
    instance.release()
    return ended_by


async def _stopped(instance: Instance) -> TickertapeError | None:
    try:
        return await asyncio.wait_for(asyncio.shield(instance.stopped), _DRAIN_SECONDS_MAX)
    except TimeoutError:
        log.error(
            "what was accepted could not be persisted within %g seconds; its outcome is unknown to the "
            "publishers",
            _DRAIN_SECONDS_MAX,
        )
        return JournalError("not everything could be persisted before the stop")
