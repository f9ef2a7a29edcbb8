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
from tests.world.life import LARGE, PAIR, SHAPES, SMALL, Shape, live

WORLDS = 40
"""In so many each fault comes up, and each pair of options where there are clients of each kind."""
REGRESSIONS = Path(__file__).with_name("regressions.txt")
TRACES = """
import sys
from collections import Counter
from tests.world.life import SHAPES, live
for seed in range(int(sys.argv[1])):
    print(live(seed, [*SHAPES.values()][seed % 3], Counter()))
"""

pytestmark = pytest.mark.slow


def _lived(shape: Shape, part: int, *more: str) -> Counter[str]:
    """Live a part of all worlds; each fault has to happen in it. Later parts are larger."""
    counts: Counter[str] = Counter()
    first = part * WORLDS if part < 2 else (4 * part - 6) * WORLDS
    for seed in range(first, first + (WORLDS if part < 2 else 4 * WORLDS)):
        live(seed, shape, counts)
    never = [name for name in (*shape.kinds, *more) if not counts[name]]
    assert not never, f"{never} never happened: {counts}"
    return counts


@pytest.mark.parametrize("part", parts(26, 2))
def test_one_server_keeps_its_promises(part: int) -> None:
    _lived(SMALL, part)


@pytest.mark.parametrize("part", parts(14))
def test_publishers_go_to_whichever_server_is_there(part: int) -> None:
    _lived(PAIR, part)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", parts(9))
def test_readers_queues_and_transactions_beside_each_other(part: int) -> None:
    counts = _lived(
        LARGE,
        part,
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
