"""Archive reads: executes archive requests of the engine on threads, and probes the archive.

A slow object store delays only its readers, not the event loop or the end of the process. A failed read
returns an error as its answer.

Invariants:
- A connection uses at most `archive_threads_per_connection_max` threads. Connections take turns.
- Waiting requests of closed connections are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from tickertape.base.bookmarks import format_timestamp
from tickertape.base.errors import ArchiveFailed, TickertapeError
from tickertape.engine.broker import Broker
from tickertape.engine.log_reads.log_reads import ReadTask
from tickertape.engine.runtime.effects import ArchiveRead
from tickertape.engine.runtime.outbox import NO_CONNECTION
from tickertape.journal.format.retired_state import StoredMessage
from tickertape.journal.reading.archive_reader import (
    ArchiveAnswer,
    ArchivedLast,
    ArchivedParts,
    ArchivedPlace,
    ArchivedWhole,
    ArchiveRequest,
    CheckArchived,
    FindArchived,
    LastArchived,
    ProbeArchive,
    ReadArchive,
    difference,
)
from tickertape.journal.reading.archive_tier import ArchiveCoverage, ArchiveTier
from tickertape.journal.reading.log_view import LogPart, LogView
from tickertape.server.clock import clock
from tickertape.server.config.archive import ArchiveConfig
from tickertape.server.events import event
from tickertape.server.limits import (
    archive_scans_max,
    archive_threads_max,
    archive_threads_per_connection_max,
)

if TYPE_CHECKING:
    from tickertape.archive.reader import ArchiveExtent, ArchiveReader
    from tickertape.archive.schema import Coverage


class ArchiveReadQueue:
    """Waiting requests, by connection. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[int, deque[ArchiveRead]] = {}
        """Requests by connection, in the order of the connections' turns."""
        self._busy: Counter[int] = Counter()
        """Number of running requests of each connection."""
        self._stopped = False

    def put(self, effect: ArchiveRead) -> None:
        """Queue a request."""
        with self._changed:
            self._lines.setdefault(effect.conn, deque()).append(effect)
            self._changed.notify()

    def take(self) -> ArchiveRead | None:
        """Wait for the next request, which counts as running until `done`. Return None after `stop`."""
        with self._changed:
            while not self._stopped:
                for conn, line in self._lines.items():
                    if self._busy[conn] < archive_threads_per_connection_max:
                        return self._begin(conn, line)
                self._changed.wait()
            return None

    def _begin(self, conn: int, line: deque[ArchiveRead]) -> ArchiveRead:
        effect = line.popleft()
        self._busy[conn] += 1
        del self._lines[conn]
        if line:
            self._lines[conn] = line  # at the end, after the other connections
        return effect

    def done(self, effect: ArchiveRead) -> None:
        """Mark a request as done."""
        with self._changed:
            self._busy[effect.conn] -= 1
            if not self._busy[effect.conn]:
                del self._busy[effect.conn]
            self._changed.notify()

    def drop(self, conn: int) -> list[ArchiveRead]:
        """Remove and return the waiting requests of a closed connection."""
        with self._changed:
            return list(self._lines.pop(conn, ()))

    def stop(self) -> None:
        """End the queue: waiting and later requests are never returned."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


Deliver = Callable[[ArchiveCoverage | ArchiveFailed], None]
"""Callback with the outcome of a probe, on the event loop."""

_FIRST_PROBE_SECONDS: Final = 0.2
"""Delay of the first probe, so that the libraries are imported after the server is ready."""
_END_SECONDS_MAX: Final = 1.0
"""Time that a stop waits for running reads."""


class ArchiveReadHandler(Protocol):
    """Receiver of archive answers, on the event loop."""

    broker: Broker

    def flush(self, began: float | None = None) -> None:
        """Perform the effects of the engine, and end a step of the event loop that began at `began`."""


class _ArchiveRead:
    """A scan that continues after its last answer, and reads one answer ahead."""

    def __init__(self, topic: str | None, begin: int, end: int, messages: Iterator[ArchiveExtent]) -> None:
        self.topic = topic
        self.at = begin
        """First position of the next answer."""
        self.end = end
        """End position of the scan. The log may start at a later position by now."""
        self.used = True
        """Whether it was used since the last probe."""
        self._messages = messages
        self._ready: ArchivedParts | None = None
        self._lock = threading.Lock()

    def next(self, topic: str | None, begin: int, size: int) -> ArchivedParts | None:
        """Return the next answer, of about `size` bytes.

        Return None if the next answer does not start at `begin`, or if reading ahead failed. Raises
        `ArchiveFailed`."""
        self.used = True
        with self._lock:
            if (self.topic, self.at) != (topic, begin):
                return None
            answer, self._ready = self._ready or self._read(size), None
            self.at = answer.end
            return answer

    def read_ahead(self, size: int) -> None:
        """Read the next answer in advance."""
        with self._lock:
            if self._ready is None and 0 <= self.at < self.end:
                try:
                    self._ready = self._read(size)
                except Exception:  # noqa: BLE001 - the next request starts a new scan and gets the error
                    self.at = -1

    def _read(self, size: int) -> ArchivedParts:
        parts: list[LogPart] = []
        found, last = 0, self.at
        for batch, positions, end in self._messages:
            last = end
            if batch is not None:
                parts.append(LogPart(int(positions[0]), batch, positions, end))
                found += batch.nbytes
            if found >= size:
                break
        return ArchivedParts(parts, last)


class ArchiveComparison(ReadTask[str]):
    """Comparison of the end of the archive with the log. The outcome is the difference, or empty."""

    def __init__(
        self,
        view: LogView,
        covered: ArchiveCoverage,
        deliver: Deliver,
    ) -> None:
        super().__init__(difference(view, covered), NO_CONNECTION)
        self.covered = covered
        self.deliver = deliver


class ArchiveReads:
    """Access to the archive of a journal. `tier`: the engine's view of the archive."""

    def __init__(self, config: ArchiveConfig, journal: str, tier: ArchiveTier) -> None:
        self._config = config
        self._journal = journal
        self._tier = tier
        self._archive: ArchiveReader | None = None
        self._opening = threading.Lock()
        self._readers: OrderedDict[int, _ArchiveRead] = OrderedDict()
        self._readers_lock = threading.Lock()
        self._queue = ArchiveReadQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        """Number of unanswered requests."""
        self._stopped = threading.Event()
        self._last_event = ""
        """The last logged event about the archive."""
        self._unfit = ""
        """Cause why the archive does not belong to this log. Permanent, because the log will grow past the
        end of the archive with other messages at the same positions."""
        self._last: tuple[tuple[str, Coverage], tuple[int, StoredMessage] | None] | None = None
        """Table and coverage of the last probe, and the last message covered."""

    def start(self, loop: asyncio.AbstractEventLoop, handler: ArchiveReadHandler) -> None:
        """Start probing the archive. Called once, on the event loop, before the first request."""
        self._loop = loop
        self._handler = handler
        self._run_thread(self._probe_regularly, "archive-look")

    def submit(self, effect: ArchiveRead) -> None:
        """Execute a request on a thread."""
        self._waiting += 1
        busy = len(self._threads) - 1  # without the probe thread
        if busy < min(self._waiting, archive_threads_max):
            self._run_thread(self._answer_all, f"archive-read-{busy}")
        self._queue.put(effect)

    def drop(self, conn: int) -> None:
        """Drop the waiting requests of a closed connection."""
        for effect in self._queue.drop(conn):
            self._waiting -= 1
            self._deliver(effect.token, ArchiveFailed("Cannot read the archive: the connection is closed."))

    def stop(self) -> None:
        """End the threads. Do not wait longer than 1 s for reads that hang."""
        self._stopped.set()
        self._queue.stop()
        for thread in self._threads:
            thread.join(_END_SECONDS_MAX / len(self._threads))

    # -- on the event loop ----------------------------------------------------------------------------

    def _answered(self, token: int, answer: ArchiveAnswer | TickertapeError) -> None:
        began = time.monotonic()
        self._waiting -= 1
        if isinstance(answer, ArchiveCoverage):
            self._check(answer, partial(self._deliver, token))
        else:
            self._deliver(token, answer)
        self._handler.flush(began)

    def _deliver(self, token: int, answer: ArchiveAnswer | TickertapeError) -> None:
        self._handler.broker.read_done(token, answer, clock())

    def _probed(self, covered: ArchiveCoverage) -> None:
        began = time.monotonic()
        self._check(covered, lambda _: None)
        self._handler.flush(began)

    def _check(self, covered: ArchiveCoverage, deliver: Deliver) -> None:
        """Verify that the archive belongs to the log, then use its coverage."""
        broker = self._handler.broker
        if covered.begin is None or self._unfit or self._knows(covered):
            self._judged(covered, deliver, "")
        elif covered.end > broker.journal.commits.persisted_end:
            log_end = broker.journal.commits.persisted_end
            ends = f"it ends at position {covered.end}, but the log ends at {log_end}"
            self._judged(covered, deliver, f"{ends}, so the log has lost archived messages")
        else:
            broker.run(ArchiveComparison(broker.journal.view, covered, deliver))

    def compared(self, comparison: ArchiveComparison) -> None:
        """Handle the result of a comparison by the engine."""
        covered, found = comparison.covered, comparison.outcome
        if isinstance(found, str) and found:
            assert covered.last is not None
            position, (bookmark, stamp) = covered.last
            message = f"{bookmark} of {format_timestamp(stamp)}"
            found = (
                f"it has message {message} at position {position}, but the log {found}, so the log has lost "
                "archived messages and reused their positions"
            )
        self._loop.call_soon(self._judged, covered, comparison.deliver, found)

    def _judged(
        self,
        covered: ArchiveCoverage,
        deliver: Deliver,
        found: str | TickertapeError,
    ) -> None:
        """Use or reject the coverage. `found`: the difference (empty: none), or an error of the
        comparison."""
        if isinstance(found, TickertapeError):
            text = f"Cannot compare archive {self._config.location!r} with the log: {found}"
            self._record("archive_failed", logging.WARNING, code=ArchiveFailed.code, text=text)
            deliver(ArchiveFailed(text))
        else:
            if found and not self._unfit:
                self._refuse(found)
            if not self._unfit:
                self._cover(covered)
                if covered.begin is not None:
                    self._record("archive_found", logging.INFO, location=self._config.location)
            deliver(ArchiveFailed(self._unfit) if self._unfit else covered)
        self._handler.flush()

    def _refuse(self, cause: str) -> None:
        """Stop using the archive: the server neither reads it nor removes archived segments."""
        self._unfit = (
            f"Cannot use archive {self._config.location!r}: {cause}. Was the log restored from a copy? The "
            "server uses the archive neither for reads nor for retention. Start a new archive elsewhere."
        )
        self._tier.cover(ArchiveCoverage(None))
        self._handler.broker.archive_changed(clock())  # retention reports the segments that it holds
        self._record("archive_failed", logging.WARNING, code=ArchiveFailed.code, text=self._unfit)

    def _knows(self, covered: ArchiveCoverage) -> bool:
        known = self._tier.covered
        return self._tier.known and (*known[:2], known.last) == (*covered[:2], covered.last)

    def _cover(self, covered: ArchiveCoverage) -> None:
        if not self._knows(covered):
            self._tier.cover(covered)
            self._handler.broker.archive_changed(clock())

    # -- on threads -----------------------------------------------------------------------------------

    def _run_thread(self, work: object, name: str) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _to_loop(self, call: object, *arguments: object) -> None:
        assert callable(call)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call, *arguments)

    def _probe_regularly(self) -> None:
        wait = _FIRST_PROBE_SECONDS
        while not self._stopped.wait(wait):
            wait = self._config.refresh
            self._drop_unused()
            try:
                covered = self._probe()
            except TickertapeError as error:
                self._record("archive_failed", logging.WARNING, code=error.code, text=str(error))
            except Exception as defect:  # noqa: BLE001 - logged, and the archive is probed again
                self._record("archive_failed", logging.WARNING, code="archive_failed", text=repr(defect))
            else:
                self._to_loop(self._probed, covered)

    def _answer_all(self) -> None:
        while (effect := self._queue.take()) is not None:
            answer: ArchiveAnswer | TickertapeError
            try:
                answer = self._answer(effect.request)
            except TickertapeError as error:
                answer = error
            except Exception as defect:  # noqa: BLE001 - without an answer the reader would wait for ever
                answer = ArchiveFailed(
                    f"Cannot read the archive: internal error {defect!r}. Report the defect."
                )
            self._to_loop(self._answered, effect.token, answer)
            self._read_ahead(effect.request)
            self._queue.done(effect)

    def _answer(self, request: ArchiveRequest) -> ArchiveAnswer:
        if isinstance(request, ProbeArchive):
            return self._probe()
        if self._unfit:
            raise ArchiveFailed(self._unfit)
        if isinstance(request, ReadArchive):
            return self._read(request)
        archive = self._opened()
        if isinstance(request, CheckArchived):
            archive.check(request.begin, request.end)
            return ArchivedWhole()
        if isinstance(request, FindArchived):
            return ArchivedPlace(archive.find_bookmark(request.bookmark, request.end))
        if isinstance(request, LastArchived):
            last = archive.last_before(request.position)
            return ArchivedLast(None if last is None else last.bookmark)
        return ArchivedPlace(archive.find_time(request.micros, request.begin, request.end))

    def _probe(self) -> ArchiveCoverage:
        from tickertape.archive.schema import holds_topic

        coverage = self._opened().refresh()
        if self._unfit:
            raise ArchiveFailed(self._unfit)
        if coverage is None:
            self._record("archive_missing", logging.WARNING, location=self._config.location)
            return ArchiveCoverage(None)
        holds = partial(holds_topic, coverage.topics)
        return ArchiveCoverage(coverage.begin, coverage.end, holds, coverage.topics, self._last_of(coverage))

    def _last_of(self, coverage: Coverage) -> tuple[int, StoredMessage] | None:
        """Return the position and identity of the last archived message. None if the archive is empty."""
        archive, known = self._opened(), self._last
        found = archive.table_id, coverage
        if known is None or known[0] != found:
            last = archive.last_before(coverage.end)
            stored = None if last is None else (last.position, StoredMessage(last.bookmark, last.timestamp))
            known = self._last = found, stored
        return known[1]

    def _record(self, name: str, level: int, **fields: str) -> None:
        """Log an event unless it equals the last one."""
        logged = f"{name} {fields}"
        if logged != self._last_event:
            self._last_event = logged
            event(name, level, **fields)

    def _opened(self) -> ArchiveReader:
        with self._opening:
            if self._archive is None:
                from tickertape.archive.reader import ArchiveReader

                config = self._config
                self._archive = ArchiveReader(config.location, self._journal, config.storage_options)
            return self._archive

    # -- messages -------------------------------------------------------------------------------------

    def _read(self, request: ReadArchive) -> ArchivedParts:
        with self._readers_lock:
            reader = self._readers.pop(request.scan, None)
        topic, begin, end, size = request.topic, request.begin, request.end, request.size
        answer = None if reader is None else reader.next(topic, begin, size)
        if reader is None or answer is None:
            messages = self._opened().messages(begin, end, topic, bytes_max=size)
            reader = _ArchiveRead(topic, begin, end, messages)
            answer = reader.next(topic, begin, size)
            assert answer is not None
        with self._readers_lock:
            if reader.at < reader.end:
                self._readers[request.scan] = reader
            while len(self._readers) > archive_scans_max:
                self._readers.popitem(last=False)
        return answer

    def _drop_unused(self) -> None:
        """Close scans that were not used since the last probe."""
        with self._readers_lock:
            for scan, reader in list(self._readers.items()):
                if not reader.used:
                    del self._readers[scan]
                reader.used = False

    def _read_ahead(self, request: ArchiveRequest) -> None:
        if isinstance(request, ReadArchive):
            with self._readers_lock:
                reader = self._readers.get(request.scan)
            if reader is not None:
                reader.read_ahead(request.size)
