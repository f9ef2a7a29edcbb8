"""Full disk (R16) of a real server: a file system of 64 MiB that fills up at random places.

Publishes are refused with an error. No acknowledged message is lost. Reads and admin pages continue. A server
that is stopped or killed meanwhile restarts. Publishing resumes by itself when space is free.
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
MAY_HAPPEN = {"waited for space"}


@pytest.mark.slow
def test_server_on_a_full_disk_refuses_publishes_loses_nothing_and_resumes_with_space(
    tmp_path: Path, full: bool
) -> None:
    if reason := why_no_small_disk():
        pytest.skip(reason)
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    lives, seconds = (LIVES_FULL, SECONDS_FULL_MAX) if full else (1, SECONDS_MAX)
    output = run_inside("tests.faults.full_log", str(tmp_path), str(seed), str(lives), seconds=seconds)
    happened = {line.partition("\t")[2] for line in output.splitlines()}
    happened -= MAY_HAPPEN
    assert happened <= HAPPENS
    assert happened == HAPPENS if full else happened, output
