"""Whole worlds of the product's own clients, servers, engine and journal, in virtual time: nothing promised
is lost, nothing comes twice, everything comes to its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.processes import source_environment
from tests.helpers.tiers import parts
from tests.world.choices import missing
from tests.world.life import LARGE, MACHINES, PAIR, SHAPES, SMALL, TRIO, Shape, live
from tests.world.machines import MachineShape

WORLDS = 40
"""In so many each fault comes up, and each pair of options where there are clients of each kind."""
SMALLEST = 200
"""The same, of the smallest worlds."""
REGRESSIONS = Path(__file__).with_name("regressions.txt")
TRACES = """
import sys
from collections import Counter
from tests.world.life import SHAPES, live
for seed in range(int(sys.argv[1])):
    print(live(seed, [*SHAPES.values()][seed % 5], Counter()))
"""

pytestmark = pytest.mark.slow


def _lived(shape: Shape | MachineShape, seeds: range, *more: str) -> Counter[str]:
    """Live these worlds; each fault has to happen in one of them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        live(seed, shape, counts)
    never = [name for name in (*shape.kinds, *more) if not counts[name]]
    assert not never, f"{never} never happened: {counts}"
    return counts


def _seeds(part: int) -> range:
    """Those of a part: the later ones are larger."""
    first = part * WORLDS if part < 2 else (4 * part - 6) * WORLDS
    return range(first, first + (WORLDS if part < 2 else 4 * WORLDS))


@pytest.mark.parametrize("part", parts(100, 2))
def test_the_machines_alone_keep_their_promises(part: int) -> None:
    """Each world with a crash of the server and a start from what it left."""
    seeds = range(part * SMALLEST, (part + 1) * SMALLEST)
    _lived(MACHINES, seeds, "power lost in a start", "comes again", "flushed", "closed", "sectors_dropped")


@pytest.mark.parametrize("part", parts(26, 2))
def test_one_server_keeps_its_promises(part: int) -> None:
    _lived(SMALL, _seeds(part))


@pytest.mark.parametrize("part", parts(14))
def test_a_publisher_a_reader_and_a_worker(part: int) -> None:
    _lived(TRIO, _seeds(part), "given back")


@pytest.mark.parametrize("part", parts(14))
def test_publishers_go_to_whichever_server_is_there(part: int) -> None:
    _lived(PAIR, _seeds(part))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", parts(9))
def test_readers_queues_and_transactions_beside_each_other(part: int) -> None:
    counts = _lived(
        LARGE,
        _seeds(part),
        "given back",
        "commit without an answer",
        "publish stores opened",
        "bookmark stores opened",
    )
    assert not missing(counts), "pairs of options that never came up"


@pytest.mark.parametrize("line", REGRESSIONS.read_text().splitlines())
def test_what_once_was_a_defect_is_none_any_more(line: str) -> None:
    seed, shape = line.split("#", maxsplit=1)[0].split()
    live(int(seed), SHAPES[shape], Counter())


def test_equal_seeds_give_equal_worlds_in_every_process(full: bool) -> None:
    traces = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", TRACES, "1000" if full else "10"],
            env={**source_environment(), **_project(), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(done.stdout)
    assert len(traces) == 1
    assert len(set(traces.pop().split())) == (1000 if full else 10)


def _project() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": os.pathsep.join((str(root / "src"), str(root)))}
