"""R9, R21 and R22 on a real link: it goes down while HA clients publish and read, and comes up again.

Both sides notice in time, by heartbeats; what is published meanwhile is kept; in the end all of it is stored
once and was delivered once, in order.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.helpers.namespaces import run_inside, why_no_links

CUTS_FULL = 40
SECONDS_MAX = 50.0
SECONDS_FULL_MAX = 850.0
HAPPENS = {"published meanwhile", "far end down"}
HAPPENS_FULL = HAPPENS | {"near end down", "connections that outlived a blink"}


@pytest.mark.slow
def test_a_link_that_goes_down_is_noticed_and_loses_and_doubles_nothing(tmp_path: Path, full: bool) -> None:
    if reason := why_no_links():
        pytest.skip(reason)
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    cuts, seconds = (CUTS_FULL, SECONDS_FULL_MAX) if full else (1, SECONDS_MAX)
    told = run_inside(
        "tests.faults.network_outages", str(tmp_path), str(seed), str(cuts), seconds=seconds, network=True
    )
    counts = {what: int(times) for times, _, what in (line.partition("\t") for line in told.splitlines())}
    silent = [what for what in (HAPPENS_FULL if full else HAPPENS) if not counts.get(what)]
    assert not silent, f"these never happened: {silent} ({counts}), seed {seed}"
