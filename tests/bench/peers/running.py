"""Runs the rows: servers of a row side by side, measured in turns, with the figures saved after each turn."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.peers.contenders import Contender
from tests.bench.peers.results import Results
from tests.bench.peers.rows import Row
from tests.bench.peers.serving import PeerServer
from tests.bench.peers.slow_disk import SlowDisk
from tests.bench.peers.working import NotReached, Turn

OVERHEAD_SECONDS: Final = 3.0
"""Start of the load programs and sync of the disk, for each turn."""
START_SECONDS: Final = 10.0
"""Start of the servers, for each row."""
ALWAYS: Final = ("tickertape", "disk")
"""Modules that a choice of peers does not leave out."""
FILL_TURNS: Final = 3
"""A turn of a queue takes as many times its seconds: its queue is filled and calibrated before."""


@dataclass(frozen=True)
class Plan:
    """Which rows run, for how long, and where."""

    rows: Sequence[Row]
    seconds: float
    """Measured seconds of a contender in a row."""
    point_seconds: float
    """The same for a point of a curve."""
    turns: int
    directory: Path
    file: Path
    """File of the results."""
    peers: Sequence[str] = ()
    """Modules of the only peers beside Tickertape, or empty for all."""

    def available(self, row: Row) -> tuple[list[Contender], list[str]]:
        """Return the contenders of a row on this machine, and notes about the missing ones."""
        chosen = [c for c in row.contenders if not self.peers or c.peer in (*self.peers, *ALWAYS)]
        missing = {contender: contender.server.missing() for contender in chosen}
        notes = [f"{contender.name} is not measured: {text}." for contender, text in missing.items() if text]
        return [contender for contender, text in missing.items() if not text], notes

    def seconds_of(self, row: Row) -> float:
        return self.point_seconds if row.curve else self.seconds

    def turns_of(self, row: Row) -> int:
        return 1 if row.curve else self.turns

    def total(self) -> float:
        """Return the seconds that the run takes, as far as they are known."""
        return sum(
            START_SECONDS
            + len(self.available(row)[0])
            * (
                self.seconds_of(row) * (FILL_TURNS if row.work == "queue" else 1)
                + self.turns_of(row) * OVERHEAD_SECONDS
            )
            for row in self.rows
        )


def rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """Return the contenders in the order of a turn: each turn starts with another one."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]


class Run:
    """One run of a plan."""

    def __init__(self, plan: Plan, results: Results, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._results = results
        self._say = say
        self._began = time.monotonic()

    def perform(self) -> None:
        """Measure everything that the results do not have yet."""
        slow: SlowDisk | None = None
        try:
            for number, row in enumerate(self._plan.rows, 1):
                contenders, notes = self._plan.available(row)
                for note in notes:
                    self._results.note(note)
                wanted = [c for c in contenders if self._missing_turns(row, c)]
                place = f"{number}/{len(self._plan.rows)} {row.name}"
                if not wanted:
                    self._say(f"{place}: measured already")
                    continue
                directory = self._plan.directory
                if row.sync_milliseconds:
                    try:
                        slow = slow or SlowDisk(self._plan.directory / "slow")
                    except (OSError, RuntimeError) as error:
                        self._results.note(f"The curve over sync time is not measured: {error}.")
                        self._say(f"{place}: {error}")
                        continue
                    slow.set_delay(row.sync_milliseconds / 1e3)
                    directory = slow.mount / "servers"
                self._row(row, wanted, directory, place)
        finally:
            if slow is not None:
                slow.close()
            self._results.save(self._plan.file)

    def _missing_turns(self, row: Row, contender: Contender) -> list[int]:
        measured = self._results.of(row.name, contender.key)
        if measured.failed:
            return []
        return [n for n in range(self._plan.turns_of(row)) if str(n) not in measured.turns]

    def _row(self, row: Row, contenders: list[Contender], directory: Path, place: str) -> None:
        servers = {
            contender: contender.server(directory / contender.peer, contender.setting)
            for contender in contenders
        }
        try:
            with ThreadPoolExecutor(len(servers)) as pool:
                started = dict(zip(servers, pool.map(self._start, servers.values()), strict=True))
            for contender, reason in started.items():
                if reason:
                    self._fail(row, contender, reason)
                else:
                    servers[contender].pause()
            for turn in range(self._plan.turns_of(row)):
                for contender in rotated(contenders, turn):
                    if turn in self._missing_turns(row, contender):
                        self._turn(row, contender, servers[contender], turn, place)
        finally:
            for server in servers.values():
                server.stop()

    @staticmethod
    def _start(server: PeerServer) -> str:
        try:
            server.start()
        except Exception as error:  # noqa: BLE001 -- shown in the table
            return f"{type(error).__name__}: {error}"
        return ""

    def _turn(self, row: Row, contender: Contender, server: PeerServer, number: int, place: str) -> None:
        seconds = self._plan.seconds_of(row) / self._plan.turns_of(row)
        after = time.monotonic() - self._began
        self._say(f"{place}, turn {number + 1}: {contender.name} (after {after:.0f} s)")
        turn = Turn(row, contender, server, seconds, number)
        os.sync()  # writes of other contenders must not be part of the measurement
        server.resume()
        try:
            if not server.prepared:
                turn.prepare()
                server.prepared = True
            found = turn.measure()
        except NotReached as reason:
            self._fail(row, contender, str(reason))
        except Exception as error:  # noqa: BLE001 -- shown in the table
            self._fail(row, contender, f"failed: {error}")
        else:
            self._results.of(row.name, contender.key).turns[str(number)] = found
        finally:
            server.pause()
        self._results.save(self._plan.file)

    def _fail(self, row: Row, contender: Contender, reason: str) -> None:
        self._results.of(row.name, contender.key).failed = reason
        self._results.save(self._plan.file)


def show_progress(text: str) -> None:
    """Print the progress: on a terminal in a temporary line, elsewhere in lines of their own."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)
