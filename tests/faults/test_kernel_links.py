"""Outages of a real link (R9, R21, R22) while HA clients publish and read.

Both sides notice in time by heartbeats. Messages published meanwhile are kept. At the end all are stored
once, and were delivered once, in order.
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
def test_ha_client_with_link_outages_notices_and_loses_and_duplicates_nothing(
    tmp_path: Path, full: bool
) -> None:
    if reason := why_no_links():
        pytest.skip(reason)
    given = os.environ.get("TICKERTAPE_FAULT_SEED")
    seed = int(given) if given else Random().getrandbits(32) if full else 7
    cuts, seconds = (CUTS_FULL, SECONDS_FULL_MAX) if full else (1, SECONDS_MAX)
    output = run_inside(
        "tests.faults.network_outages", str(tmp_path), str(seed), str(cuts), seconds=seconds, network=True
    )
    counts = {event: int(times) for times, _, event in (line.partition("\t") for line in output.splitlines())}
    missing = [event for event in (HAPPENS_FULL if full else HAPPENS) if not counts.get(event)]
    assert not missing, f"these events did not occur: {missing} ({counts}), seed {seed}"
