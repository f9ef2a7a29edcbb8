"""Server process: opens the instance, listens, reports ready, waits for a stop and shuts down cleanly.

Invariants:
- No port is open before recovery is complete.
- The exit code is not 0 after a disk failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

import uvloop

from tickertape.base.errors import (
    ConfigurationError,
    JournalError,
    JournalFailed,
    TickertapeError,
    WrongJournal,
)
from tickertape.base.limits import transaction_parts_max
from tickertape.base.version import __version__
from tickertape.filter import prepare
from tickertape.journal.format.log_end import CLEAN_SHUTDOWN_FILE
from tickertape.journal.limits import staging_files_open_max
from tickertape.server.access.credentials import CredentialStore
from tickertape.server.admin.server import AdminServer, admin_server
from tickertape.server.config.config import Config
from tickertape.server.config.transports import Transport
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.events import event, logging_to
from tickertape.server.limits import connections_max, drain_idle_seconds
from tickertape.server.network.connection import ClientConnection, listen
from tickertape.server.network.tls_connection import TlsClientConnection
from tickertape.server.session_expiry import SessionExpiry
from tickertape.server.signals import ReloadSignal, stacks_on_signal
from tickertape.server.startup import OpenedInstance, open_instance, record_end

EXIT_STOPPED: Final = 0
EXIT_ERROR: Final = 1
EXIT_DISK_FAILED: Final = 4
EXIT_JOURNAL_REFUSED: Final = 5

_DISK_FAILED: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
"""Errors that count as a disk failure during a start."""
_FILES_BESIDE: Final = 1_000 + transaction_parts_max + staging_files_open_max
"""Files besides connections: segments, sockets, staged parts, Python modules. With a low limit of open files,
half of the limit is reserved for them."""
_PERSIST_SECONDS_MAX: Final = 15.0
_GOODBYE_SECONDS_MAX: Final = 2.0
_DRAIN_CHECK_SECONDS: Final = 0.02
"""Interval at which a stop checks for subscribers that have all messages."""
_SWITCH_SECONDS: Final = 0.0005

Ready = Callable[[list[str], str | None], None]
"""Callback when the ports are open. Arguments: the listening addresses, and the admin address or None."""


def run_server(config: Config, ready: Ready, rebuild: frozenset[str] = frozenset()) -> int:
    """Run the server until SIGTERM or SIGINT, and return the exit code.

    `rebuild`: SOW topics whose records are restored from the log, without their checkpoints.

    Exit codes: 0 after a clean stop, 1 if the server cannot listen on an address, 4 after a disk failure
    (also during the start), 5 if the data directory prevents the start. A second signal ends the process at
    once. SIGHUP reloads certificates and tokens. SIGUSR1 prints the stacks of all threads. Raises
    `ConfigurationError` for unusable certificates or tokens, and `OSError` for an unusable path of the data
    directory.

    The garbage collector ignores all objects that exist at the call. It may be off, and is on afterwards."""
    gc.freeze()  # no collection needs to visit the imported modules
    gc.enable()
    _check_clock()
    credentials = CredentialStore(config)
    reload_signal = ReloadSignal(credentials)
    reload_signal.hold()
    with stacks_on_signal(), logging_to(None, config.logging.format, config.logging.level):
        began = time.monotonic()
        try:
            opened = open_instance(config, credentials, rebuild, credentials)
        except (JournalError, WrongJournal) as error:
            _log_refused(config, error.code, str(error))
            return EXIT_DISK_FAILED if isinstance(error, JournalFailed) else EXIT_JOURNAL_REFUSED
        except OSError as error:
            if error.errno not in _DISK_FAILED:
                raise  # a wrong path or missing permissions, not a disk failure
            text = f"Cannot open the data directory: {error}. Check the disk, then start again."
            _log_refused(config, JournalFailed.code, text)
            return EXIT_DISK_FAILED
        for line in opened.report:
            event("recovery", logging.WARNING, text=line)
        connections = connections_for(_raise_open_files())
        # A short switch interval reduces the latency of disk threads. The default of 5 ms dominates the tail
        # latency of publishes.
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.collect()
        gc.freeze()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seconds = time.monotonic() - began
            code = runner.run(_serve(opened, config, credentials, reload_signal, ready, connections, seconds))
        reload_signal.hold()
        opened.executor.close()
        try:
            record_end(opened)
        except OSError as error:  # harmless, but the next start cannot detect a lost end of the log
            event("end_not_recorded", logging.WARNING, text=f"{CLEAN_SHUTDOWN_FILE}: {error}")
        opened.disk.close_all()
        return code


def _check_clock() -> None:
    """Raise `ConfigurationError` if the clock is beyond the range of timestamps."""
    try:
        time.time()
    except OverflowError:
        raise ConfigurationError(
            "Cannot start: the system clock is beyond the year 2262. Correct it."
        ) from None


def _log_refused(config: Config, code: str, text: str) -> None:
    """Log the reason why the server does not start."""
    event("start_refused", logging.CRITICAL, code=code, data=config.instance.data, text=text)


def _listen_error(address: str, error: OSError) -> str:
    option = "--admin" if address.startswith("http:") else "--listen"
    if error.errno == errno.EADDRINUSE:
        return (
            f"Cannot listen on {address!r}: address already in use. Stop the other server or pass {option}."
        )
    return f"Cannot listen on {address!r}: {error.strerror or error}. Pass another address with {option}."


def connections_for(open_files: int) -> int:
    """Return the limit of connections for a limit of open files, with files reserved for the log."""
    return min(connections_max, open_files - min(_FILES_BESIDE, open_files // 2))


def _raise_open_files() -> int:
    """Raise the limit of open files (one for each connection and segment). Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _FILES_BESIDE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


async def _serve(
    opened: OpenedInstance,
    config: Config,
    credentials: CredentialStore,
    reload_signal: ReloadSignal,
    ready: Ready,
    connections: int,
    recovery_seconds: float,
) -> int:
    loop = asyncio.get_running_loop()
    driver = EngineDriver(opened, loop, connections=connections)
    loop.set_exception_handler(driver.crashed)
    servers: list[asyncio.Server] = []
    uris: list[str] = []
    address = ""
    try:
        for number, transport in enumerate(config.transports):
            address = transport.listen
            server, uri = await listen(address, partial(_connection, driver, credentials, number, transport))
            servers.append(server)
            uris.append(uri)
        address = config.admin.listen or ""
        admin = admin_server(config, driver, loop, credentials)
    except OSError as error:
        event("listen_failed", logging.CRITICAL, address=address, text=_listen_error(address, error))
        await _end(driver, servers, config)
        return EXIT_ERROR
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_requested, stop, driver, signal.Signals(number).name)
    expiry = SessionExpiry(driver, credentials)
    reload_signal.reload_on(loop, expiry)
    expiry.start()
    driver.flush()
    _log_start(config, connections)
    _log_ready(opened, config, uris, admin, recovery_seconds)
    ready(uris, admin.url if admin is not None else None)
    driver.connect_links()
    # On another thread: preparing the filter compiler takes a quarter of a second.
    prepared = loop.run_in_executor(None, prepare)
    if admin is not None:
        admin.start()
    try:
        stopping = asyncio.create_task(stop.wait())
        watching = asyncio.create_task(_wait_stopped(driver))
        await asyncio.wait((stopping, watching), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        watching.cancel()
        await prepared
        event("drain", connections=len(driver.connections))
        ended_by = await _end(driver, servers, config)
    finally:
        expiry.stop()
        if admin is not None:
            await asyncio.to_thread(admin.stop)
    code = EXIT_STOPPED if ended_by is None else EXIT_ERROR
    if isinstance(ended_by, JournalError):
        code = EXIT_DISK_FAILED
    event("stop", exit_code=code)
    return code


def _connection(
    driver: EngineDriver, credentials: CredentialStore, number: int, transport: Transport
) -> ClientConnection:
    """Create the object for a connection accepted by transport `number`."""
    context = credentials.context_of(number)
    wire = None
    if transport.replication:
        from tickertape.wire.accepted_connection import AcceptedConnection

        wire = AcceptedConnection(clients=transport.clients, scratch=driver.scratch)
    if context is None:
        return ClientConnection(driver, wire)
    return TlsClientConnection(driver, context, wire)


def _log_start(config: Config, connections: int) -> None:
    fewer = connections if connections < connections_max else None
    name = config.instance.name
    event("start", version=__version__, instance=name, pid=os.getpid(), connections_max=fewer)


def _log_ready(
    opened: OpenedInstance,
    config: Config,
    uris: list[str],
    admin: AdminServer | None,
    recovery_seconds: float,
) -> None:
    journal = opened.broker.journal
    event(
        "recovered",
        data=config.instance.data,
        journal=journal.identity,
        epoch=journal.commits.epoch,
        segments=len(journal.view.segments),
        first_position=journal.view.first_position,
        end_position=journal.commits.persisted_end,
        seconds=round(recovery_seconds, 3),
    )
    event("ready", listen=" ".join(uris), admin=admin.url if admin is not None else "off")


def _stop_requested(stop: asyncio.Event, driver: EngineDriver, name: str) -> None:
    if stop.is_set():
        _stop_now(driver, name)
    event("signal", name=name)
    stop.set()


def _stop_now(driver: EngineDriver, name: str) -> NoReturn:
    """End the process at once, like a crash. Acknowledged messages are safe."""
    code = EXIT_STOPPED if driver.broker.journal.commits.closed else EXIT_ERROR
    event("stopped_at_once", logging.WARNING, signal=name, sealed=driver.broker.journal.commits.closed)
    logging.shutdown()
    os._exit(code)


async def _wait_stopped(driver: EngineDriver) -> None:
    await asyncio.shield(driver.stopped)


async def _end(driver: EngineDriver, servers: list[asyncio.Server], config: Config) -> TickertapeError | None:
    """Stop listening, persist accepted messages, deliver them, write checkpoints, and close everything.

    Return the error that ended the run, if any."""
    for server in servers:
        server.close()
    driver.close()
    ended_by = await _stopped(driver)
    if ended_by is None:
        until = time.monotonic() + config.instance.drain_seconds
        await _delivered(driver, until)
        await _checkpoints_written(driver, until)
    driver.disconnect_all()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(driver.empty.wait(), _GOODBYE_SECONDS_MAX)
    driver.release()
    return ended_by


async def _stopped(driver: EngineDriver) -> TickertapeError | None:
    try:
        return await asyncio.wait_for(asyncio.shield(driver.stopped), _PERSIST_SECONDS_MAX)
    except TimeoutError:
        text = "Accepted messages were not persisted in time. Their publishers do not know the outcome."
        event("drain_failed", logging.ERROR, text=text, seconds=_PERSIST_SECONDS_MAX)
        return JournalError(
            "Cannot stop cleanly: accepted messages were not persisted in time. Check the disk."
        )


async def _delivered(driver: EngineDriver, until: float) -> None:
    """Wait until all subscribers have the persisted messages, and disconnect each one that has them.

    Give up at the monotonic time `until`, or without progress for `drain_idle_seconds`."""
    statistics = driver.broker.statistics
    moved, before = time.monotonic(), (-1, 0)
    while True:
        driver.disconnect_all(served_only=True)
        now = time.monotonic()
        state = (
            statistics.sent_messages,
            sum(connection.outbox_bytes for connection in driver.connections.values()),
        )
        if state != before:
            moved, before = now, state
        waiting = sum(not connection.ended[0] for connection in driver.connections.values())
        if not waiting:
            return
        if now >= min(until, moved + drain_idle_seconds):
            text = "These subscribers can read the remaining messages from the log after the next start."
            event("subscribers_left_behind", connections=waiting, text=text)
            return
        await asyncio.sleep(_DRAIN_CHECK_SECONDS)


async def _checkpoints_written(driver: EngineDriver, until: float) -> None:
    """Wait for the last checkpoints of SOW topics. Give up at the monotonic time `until`."""
    while driver.broker.state_checkpoints.stop_pending:
        if time.monotonic() >= until:
            text = "The last checkpoints of SOW topics were not written in time. The next start reads more."
            event("sow_checkpoint_left", logging.WARNING, text=text)
            return
        await asyncio.sleep(_DRAIN_CHECK_SECONDS)
