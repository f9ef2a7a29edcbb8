"""Whole worlds of the product's own clients, servers, engine and journal, in virtual time: nothing promised
is lost, nothing comes twice, everything comes to its end.
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
from tests.world.choices import missing
from tests.world.life import HARMED, LARGE, MACHINES, PAIR, SMALL, TRIO, UNLIKE, Shape, kept, live
from tests.world.machines import MachineShape

EVERY_RUN = {MACHINES: 160, SMALL: 100, TRIO: 120, PAIR: 40, UNLIKE: 40, LARGE: 40, HARMED: 24}
"""In so many worlds each fault strikes, and, where there are clients of each kind, each command is sent and
each pair of options chosen."""
FULL = {MACHINES: 20_000, SMALL: 4_000, TRIO: 2_000, PAIR: 2_000, UNLIKE: 2_000, LARGE: 1_200, HARMED: 2_000}
HAPPENED = (
    "given back", "lease ended", "commit without an answer", "publish stores opened",
    "bookmark stores opened", "silence noticed", "call timed out", "plain subscriptions judged",
    "array published", "invalid array refused", "ended without close, all sent",
    "ranges with a start", "ranges with an end", "readings of the past judged as a whole",
)  # fmt: skip
FRAMES = ("frames behind the first of a transaction", "connection lost between two frames")
REGRESSIONS = Path(__file__).with_name("regressions.txt")
TRACES = """
import sys
from collections import Counter
from tests.world.life import SHAPES, live
for seed in range(int(sys.argv[1])):
    print(live(seed, [*SHAPES.values()][seed % 6], Counter()))
"""

pytestmark = pytest.mark.slow


def _lived(shape: Shape | MachineShape, seeds: range, *more: str) -> None:
    """Live these worlds; each fault has to happen in one of those of every run."""
    counts: Counter[str] = Counter()
    for seed in seeds_of(seeds, counts, dict.fromkeys((*shape.kinds, *more), 1)):
        live(seed, shape, counts)


def _parts(shape: Shape | MachineShape) -> list[Any]:
    """Seeds for each part of a test: the first is every run's."""
    number = EVERY_RUN[shape]
    every = range(number)
    later = [range(first, first + 2 * number) for first in range(number, FULL[shape], 2 * number)]
    return [every, *(pytest.param(seeds, marks=pytest.mark.full) for seeds in later)]


@pytest.mark.parametrize("seeds", _parts(MACHINES), ids=str)
def test_the_machines_alone_keep_their_promises(seeds: range) -> None:
    """Each world with a crash of the server and a start from what it left."""
    _lived(MACHINES, seeds, "power lost in a start", "redelivered", "flushed", "closed", "sectors_dropped")


@pytest.mark.parametrize("seeds", _parts(SMALL), ids=str)
def test_one_server_keeps_its_promises(seeds: range) -> None:
    _lived(SMALL, seeds, "plain subscriptions judged", "readings of the past judged as a whole", *FRAMES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", _parts(TRIO), ids=str)
def test_a_publisher_a_reader_and_a_worker(seeds: range) -> None:
    _lived(TRIO, seeds, "given back", "lease ended", *FRAMES)


@pytest.mark.parametrize("seeds", _parts(PAIR), ids=str)
def test_publishers_go_to_whichever_server_is_there(seeds: range) -> None:
    _lived(PAIR, seeds)


@pytest.mark.parametrize("seeds", _parts(HARMED), ids=str)
def test_what_happens_to_a_data_directory_is_refused_or_loses_nothing(seeds: range) -> None:
    _lived(HARMED, seeds, "a start refused what was lost", "a disk ended a start")


@pytest.mark.parametrize("seeds", _parts(UNLIKE), ids=str)
def test_publishers_at_a_server_that_does_not_record_all_topics_lose_nothing(seeds: range) -> None:
    _lived(UNLIKE, seeds, "store refused by a server", "published where it is not recorded")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", _parts(LARGE), ids=str)
def test_readers_queues_and_transactions_beside_each_other(seeds: range) -> None:
    _lived(LARGE, seeds, *HAPPENED, *missing({}))


@pytest.mark.parametrize("line", REGRESSIONS.read_text().splitlines())
def test_what_once_was_a_defect_is_none_any_more(line: str) -> None:
    seed, shape = kept(line)
    live(seed, shape, Counter())


def test_equal_seeds_give_equal_worlds_in_every_process(full: bool) -> None:
    traces = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", TRACES, "1000" if full else "6"],
            env={**source_environment(), **_project(), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout)
    assert len(traces) == 1
    assert len(set(traces.pop().split())) == (1000 if full else 6)


def _project() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": os.pathsep.join((str(root / "src"), str(root)))}
