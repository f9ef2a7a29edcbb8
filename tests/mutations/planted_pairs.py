"""Planted defects of links that joined logs show: lost messages, and exchanges without end.

Must never hold one that needs a single machine of a link only.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FOLDER = "engine/replication/"


def _of_pairs(name: str, module: str, old: str, new: str, *, promise: str = "R8") -> Mutation:
    """Return a defect that the simulation of linked logs must detect."""
    tests = ("simulation/test_pairs.py",)
    return Mutation(name, _FOLDER + module, old, new, tests, promise=promise, tier="simulation")


PAIR_MUTATIONS: Final = (
    _of_pairs(
        "a log that joins behind removed rows opens no holes for them",
        "destination/run_intake.py",
        "            if publisher != CONTROL_PUBLISHER and highest > self._exact.known.highest(publisher)\n",
        "            if publisher != CONTROL_PUBLISHER and highest > highest\n",
        promise="invariant 11",
    ),
    _of_pairs(
        "servers report places of other logs to each other without end",
        "reports.py",
        "    topics = {*batch.topics} - {LINK_TOPIC}\n",
        "    topics = {*batch.topics}\n",
    ),
    _of_pairs(
        "an old copy of a log never gets back lost messages of its own clients",
        "routes.py",
        "        return RunHandling.NAMED if self._log in origin.path else RunHandling.SENT\n",
        "        return RunHandling.LEFT_OUT if self._log in origin.path else RunHandling.SENT\n",
    ),
)
