"""Routes of the admin address: `/health`, `/ready`, `/stats`, `/metrics` and `/holes`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

import msgspec

from tickertape.engine.runtime.statistics import Statistics
from tickertape.server.admin.http import Answer
from tickertape.server.admin.loop_query import LoopQuery, ServerStuckError
from tickertape.server.admin.schema import Rates, Stats
from tickertape.server.admin.snapshot import InstanceSnapshot, with_topics
from tickertape.server.events import event

WINDOW_SECONDS: Final = 10
"""Window of the rates, with one sample a second."""
_SHORTEST_SECONDS: Final = 0.5


_COUNTED: Final = ("persisted_messages", "persisted_bytes", "sent_messages", "sent_bytes", "commits")
"""Counters of the engine with a rate. The names are the same in `Statistics` and `Rates`."""
_counts: Final = attrgetter(*_COUNTED)


class Sampler:
    """Samples of the engine's counters, taken once a second. May run on another thread than the engine."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=WINDOW_SECONDS + 1)

    def sample(self, now: float) -> None:
        """Take a sample at `now` (monotonic seconds)."""
        self._samples.append((now, _counts(self._statistics)))

    def rates(self, now: float) -> Rates | None:
        """Return the rates since the oldest sample. None if that is less than 0.5 s ago."""
        if not self._samples or now - self._samples[0][0] < _SHORTEST_SECONDS:
            return None
        since, first = self._samples[0]
        seconds = now - since
        rates = {
            name: round((after - before) / seconds, 3)
            for name, before, after in zip(_COUNTED, first, _counts(self._statistics), strict=True)
        }
        return Rates(window_seconds=round(seconds, 3), **rates)


PATHS: Final = ("/health", "/ready", "/stats", "/metrics", "/holes")
_JSON: Final = "application/json"


class Routes:
    """The pages of one instance. `*_interval`: shortest time between two snapshots of it, in seconds."""

    def __init__(
        self,
        snapshot: InstanceSnapshot,
        server: asyncio.AbstractEventLoop,
        status_interval: float,
        stats_interval: float,
    ) -> None:
        self.sampler = Sampler(snapshot.statistics)
        """Counter samples for the rates."""
        self._status = LoopQuery(server, snapshot.status, status_interval, snapshot.steps)
        self._stats = LoopQuery(server, snapshot.stats, stats_interval, snapshot.steps)
        self._holes = LoopQuery(server, snapshot.holes, stats_interval, snapshot.steps)

    async def answer(self, target: str, accept: str) -> Answer:
        """Answer a GET request."""
        path, _, query = target.partition("?")
        if path not in PATHS:
            return Answer(404, f"Unknown path. Use one of {', '.join(PATHS)}.\n".encode())
        if query:
            return Answer(400, f"Cannot use the query: {path!r} takes no parameters. Remove it.\n".encode())
        try:
            if path == "/stats":
                return Answer(200, msgspec.json.encode(await self._stats_answer()), _JSON)
            if path == "/holes":
                return Answer(200, msgspec.json.encode(await self._holes()), _JSON)
            if path == "/metrics":
                return await self._metrics(accept)
            return await self._state(path)
        except ServerStuckError as error:
            return _json(503, {"status": "stuck", "reason": str(error)})
        except Exception as error:  # noqa: BLE001 -- a defect in a page must not stop the server
            event("admin_failed", logging.ERROR, path=path, text=f"{type(error).__name__}: {error}")
            return Answer(500, b"Internal error. See the log of the server.\n")

    async def _state(self, path: str) -> Answer:
        state, reason = await self._status()
        good = state != "failed" if path == "/health" else state == "ready"
        return _json(200 if good else 503, {"status": state, "reason": reason})

    async def _metrics(self, accept: str) -> Answer:
        from tickertape.server.admin.metrics import exposition

        return Answer(200, *exposition(await self._stats_answer(), accept))

    async def _stats_answer(self) -> Stats:
        stats = with_topics(await self._stats())
        memory = msgspec.structs.replace(stats.memory, anonymous_bytes=anonymous_bytes())
        rates = self.sampler.rates(time.monotonic())
        return msgspec.structs.replace(stats, memory=memory, rates=rates)


def _json(status: int, value: Mapping[str, str | None]) -> Answer:
    fields = {key: text for key, text in value.items() if text is not None}
    return Answer(status, msgspec.json.encode(fields) + b"\n", _JSON)


def anonymous_bytes() -> int | None:
    """Return the resident memory not backed by a file. None if the system does not report it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
