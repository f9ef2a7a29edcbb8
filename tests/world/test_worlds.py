"""Simulations of whole systems of the product's clients, servers, engine and journal, in virtual time.

Acknowledged messages are never lost, no message is duplicated, and every call ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import source_environment
from tests.helpers.tiers import seeds_of
from tests.world.choices import SOW_TABLES, TABLES, missing
from tests.world.life import HARMED, LARGE, MACHINES, PAIR, RECORDS, SMALL, TRIO, UNLIKE, AnyShape, kept, live

EVERY_RUN = {MACHINES: 60, SMALL: 100, TRIO: 48, PAIR: 16, UNLIKE: 16, LARGE: 20, HARMED: 10, RECORDS: 28}
"""In this many simulations each fault occurs. With clients of each kind, each command is sent, and each pair
of options is chosen.
"""
FULL = {
    MACHINES: 8_000,
    SMALL: 2_000,
    TRIO: 2_000,
    PAIR: 1_000,
    UNLIKE: 1_000,
    LARGE: 1_200,
    HARMED: 1_000,
    RECORDS: 2_000,
}
HAPPENED = (
    "given back", "lease ended", "commit without an answer", "publish stores opened",
    "bookmark stores opened", "silence noticed", "call timed out", "plain subscriptions judged",
    "array published", "invalid array refused", "ended without close, all sent",
    "ranges with a start", "ranges with an end", "readings of the past judged as a whole",
)  # fmt: skip
SOW_HAPPENED = (
    "results judged", "messages after results judged", "restarts judged", "checkpoints removed",
    "queries sent again", "query without a result", "delete without an answer",
    "queries of few records", "queries copied in steps", "changes undone for a query",
)  # fmt: skip
CUT_SHORT = 103
"""Seed of a simulation with the rare event that the others need not have."""
FRAMES = ("frames behind the first of a transaction", "connection lost between two frames")
REGRESSIONS = Path(__file__).with_name("regressions.txt")
TRACES = """
import sys
from collections import Counter
from tests.world.life import SHAPES, live
for seed in range(int(sys.argv[1])):
    print(live(seed, [*SHAPES.values()][seed % 8], Counter()))
"""

pytestmark = pytest.mark.slow


def _lived(shape: AnyShape, seeds: range, *more: str) -> None:
    """Run simulations. Each fault must occur in those of every run."""
    counts: Counter[str] = Counter()
    for seed in seeds_of(seeds, counts, dict.fromkeys((*shape.kinds, *more), 1)):
        live(seed, shape, counts)


def _parts(shape: AnyShape) -> list[Any]:
    """Return the seeds of each part of a test. The first runs every time."""
    number = EVERY_RUN[shape]
    every = range(number)
    later = [range(first, first + 2 * number) for first in range(number, FULL[shape], 2 * number)]
    return [every, *(pytest.param(seeds, marks=pytest.mark.full) for seeds in later)]


@pytest.mark.parametrize("seeds", _parts(MACHINES), ids=str)
def test_state_machines_with_faults_and_crashes_keep_the_guarantees(seeds: range) -> None:
    """Each simulation has a crash of the server and a restart."""
    _lived(MACHINES, seeds, "power lost in a start", "redelivered", "flushed", "closed", "sectors_dropped")


@pytest.mark.parametrize("seeds", _parts(SMALL), ids=str)
def test_publisher_and_reader_with_one_server_keep_the_guarantees(seeds: range) -> None:
    _lived(SMALL, seeds, "plain subscriptions judged", "readings of the past judged as a whole", *FRAMES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", _parts(TRIO), ids=str)
def test_publisher_reader_and_worker_with_one_server_keep_the_guarantees(seeds: range) -> None:
    _lived(TRIO, seeds, "given back", "lease ended", *FRAMES)


@pytest.mark.parametrize("seeds", _parts(PAIR), ids=str)
def test_publishers_failing_over_between_two_servers_keep_the_guarantees(seeds: range) -> None:
    _lived(PAIR, seeds)


@pytest.mark.parametrize("seeds", _parts(HARMED), ids=str)
def test_data_directory_with_lost_or_moved_files_is_refused_or_loses_nothing(seeds: range) -> None:
    _lived(HARMED, seeds, "a start refused lost files", "a disk ended a start")


@pytest.mark.parametrize("seeds", _parts(UNLIKE), ids=str)
def test_publishers_failing_over_to_a_server_with_fewer_topics_lose_nothing(seeds: range) -> None:
    _lived(UNLIKE, seeds, "store refused by a server", "published where it is not recorded")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", _parts(LARGE), ids=str)
def test_readers_queues_and_transactions_on_one_server_keep_the_guarantees(seeds: range) -> None:
    _lived(LARGE, seeds, *HAPPENED, *missing({}, TABLES))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", _parts(RECORDS), ids=str)
def test_changes_and_queries_of_records_on_one_or_two_servers_keep_the_guarantees(seeds: range) -> None:
    _lived(RECORDS, seeds, *SOW_HAPPENED, *missing({}, SOW_TABLES))


def test_stream_of_a_query_that_ends_early_is_judged() -> None:
    counts: Counter[str] = Counter()
    live(CUT_SHORT, RECORDS, counts)
    assert counts["stream cut short"]


@pytest.mark.parametrize("line", REGRESSIONS.read_text().splitlines())
def test_simulation_with_a_seed_that_once_failed_passes(line: str) -> None:
    seed, shape = kept(line)
    live(seed, shape, Counter())


@pytest.mark.timeout(300)
def test_simulations_with_equal_seeds_are_equal_in_every_process(full: bool) -> None:
    traces = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", TRACES, "300" if full else "8"],
            env={**source_environment(), **_project(), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout)
    assert len(traces) == 1
    assert len(set(traces.pop().split())) == (300 if full else 8)


def _project() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": os.pathsep.join((str(root / "src"), str(root)))}
