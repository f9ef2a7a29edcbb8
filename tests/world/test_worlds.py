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
from tests.world.faults import FAULTS
from tests.world.life import LARGE, SMALL, live

SMALL_WORLDS = 40
LARGE_WORLDS = 30
"""In so many each pair of options and each fault comes up."""
REGRESSIONS = Path(__file__).with_name("regressions.txt")
TRACES = """
import sys
from collections import Counter
from tests.world.life import LARGE, SMALL, live
for seed in range(int(sys.argv[1])):
    print(live(seed, LARGE if seed % 2 else SMALL, Counter()))
"""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", parts(100, 2))
def test_one_server_keeps_its_promises(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * SMALL_WORLDS, (part + 1) * SMALL_WORLDS):
        live(seed, SMALL, counts)
    never = [name for name in FAULTS if not counts[name]]
    assert not never, f"{never} never happened: {counts}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", parts(40))
def test_readers_queues_and_transactions_beside_each_other(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * LARGE_WORLDS, (part + 1) * LARGE_WORLDS):
        live(seed, LARGE, counts)
    never = [name for name in (*FAULTS, "given back", "commit without an answer") if not counts[name]]
    assert not never, f"{never} never happened: {counts}"
    assert not missing(counts), "pairs of options that never came up"


@pytest.mark.parametrize("line", REGRESSIONS.read_text().splitlines())
def test_what_once_was_a_defect_is_none_any_more(line: str) -> None:
    seed, shape = line.split("#", maxsplit=1)[0].split()
    live(int(seed), {"small": SMALL, "large": LARGE}[shape], Counter())


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
