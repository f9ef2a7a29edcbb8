"""Planted defects of the destination of a link: order, places, acknowledgements, credit and origins.

Must never hold one without an effect on the log or on the commands to the source.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FOLDER = "engine/replication/destination/"
_DESTINATION = _FOLDER + "link_destination.py"
_INTAKE = _FOLDER + "run_intake.py"
_PLACES = _FOLDER + "link_places.py"
_EXACT = "engine/runtime/exact_append.py"


def _of_destination(name: str, module: str, old: str, new: str, *, promise: str = "R12") -> Mutation:
    """Return a defect that the simulation of destinations must detect."""
    tests = ("simulation/test_link_destination.py",)
    return Mutation(name, module, old, new, tests, promise=promise, tier="simulation")


DESTINATION_MUTATIONS: Final = (
    _of_destination(
        "the place of a link is in a commit before its rows",
        _DESTINATION,
        "            self._hold(_HeldFrame(command.end, batch.cost, batch))\n",
        "            self._hold(_HeldFrame(command.end, batch.cost, batch))\n"
        "            self._intake.move_place(command.end)\n",
    ),
    _of_destination(
        "a link acknowledges taken rows, not durable ones",
        _DESTINATION,
        "        while self._processed and self._processed[0].position < end:\n",
        "        while self._processed:\n",
    ),
    _of_destination(
        "a destination reports a place that is not persisted",
        _PLACES,
        "        while self._waiting and self._waiting[0].position < end:\n",
        "        while self._waiting:\n",
    ),
    _of_destination(
        "a destination takes frames behind a requested row",
        _DESTINATION,
        "            self._requested = len(lacking)\n",
        "            self._complete_done()\n",
    ),
    _of_destination(
        "the origin number of a source is stored as it is",
        _INTAKE,
        "            self._exact.append_linked(run, known, LinkedRun(self._number(row.origin), stamp))\n",
        "            self._exact.append_linked(run, known, LinkedRun(row.origin, stamp))\n",
    ),
    _of_destination(
        "messages that passed this log before count as messages of another one",
        _INTAKE,
        "        if self._log.journal_id in path:\n",
        "        if not path:\n",
    ),
    _of_destination(
        "a message of a link does not cut its hole",
        _EXACT,
        "            self.known.fill(publisher, sequences[late])\n",
        "            self.known.fill(publisher, sequences[late][-1:])\n",
        promise="invariant 11",
    ),
    _of_destination(
        "a destination returns the credit of held frames",
        _DESTINATION,
        "            self._hold(_HeldFrame(command.end, batch.cost, batch))\n",
        "            self._hold(_HeldFrame(command.end, 0, batch))\n            self._credit += batch.cost\n",
    ),
    _of_destination(
        "a message of a link loses its order stamp",
        _INTAKE,
        "        stamp = row.timestamp if run.order_stamps is None else int(run.order_stamps[0])\n",
        "        stamp = row.timestamp\n",
    ),
    _of_destination(
        "a message of a link keeps the late flag of its source",
        "batch/derive.py",
        "    flags = run.flags | RUN_LATE if late else run.flags & ~RUN_LATE\n",
        "    flags = run.flags | RUN_LATE if late else run.flags\n",
    ),
    _of_destination(
        "a record of another log opens no hole",
        _INTAKE,
        "        if not self._store(encode_record(foreign), run, opening=record):\n",
        "        if not self._store(encode_record(foreign), run):\n",
        promise="invariant 11",
    ),
    _of_destination(
        "a named row in an open hole counts as known",
        "engine/runtime/holes.py",
        "            lacking[below] |= own.firsts[at[below]] <= lasts[below]\n",
        "            lacking[below] |= False\n",
        promise="invariant 11",
    ),
    Mutation(
        "a step takes any number of small runs of a link",
        _DESTINATION,
        "        work = max(count * each, least)\n",
        "        work = count\n",
        ("unit/engine/replication/test_link_destination.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "held small frames of a link keep the memory of columns",
        _DESTINATION,
        "            frame.pack()\n",
        "            pass\n",
        ("unit/engine/replication/test_link_destination.py",),
        promise="R12",
        tier="unit",
    ),
)
