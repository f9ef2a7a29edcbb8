"""R16 on a real server and a real file system of 64 MiB that fills up, at places that chance names.

Publishes are refused and say why, nothing that was acknowledged is lost, reading and the admin pages go on, a
server that is stopped or killed meanwhile starts again, and publishing resumes by itself when there is room.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.helpers.namespaces import run_inside, why_no_small_disk

LIVES_FULL = 50
SECONDS_MAX = 50.0
SECONDS_FULL_MAX = 850.0
HAPPENS = {
    "filled by others",
    "filled by the log",
    "killed while full",
    "not a block left",
    "stopped while full",
}
MAY_HAPPEN = {"waited for room"}


@pytest.mark.slow
def test_a_full_disk_refuses_publishes_loses_nothing_and_is_left_by_itself(
    tmp_path: Path, full: bool
) -> None:
    if reason := why_no_small_disk():
        pytest.skip(reason)
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    lives, seconds = (LIVES_FULL, SECONDS_FULL_MAX) if full else (1, SECONDS_MAX)
    told = run_inside("tests.faults.full_log", str(tmp_path), str(seed), str(lives), seconds=seconds)
    happened = {line.partition("\t")[2] for line in told.splitlines()}
    happened -= MAY_HAPPEN
    assert happened <= HAPPENS
    assert happened == HAPPENS if full else happened, told
