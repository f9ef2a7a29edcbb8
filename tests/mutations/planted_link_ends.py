"""Planted defects of the links of whole engines: handshakes, ends of connections, pins, reports and holes.

Must never hold one that a single machine of a link shows.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FOLDER = "engine/replication/links/"
_REGISTRY = "unit/engine/replication/test_link_registry.py"
_REPORTING = "unit/engine/replication/test_link_reporting.py"
_ENGINES = "simulation/test_linked_engines.py"


def _of_ends(
    name: str, module: str, old: str, new: str, *, tests: tuple[str, ...] = (_REGISTRY,), promise: str = "R8"
) -> Mutation:
    """Return a defect that a test of linked engines must detect."""
    tier = tests[0].split("/")[0]
    return Mutation(name, _FOLDER + module, old, new, tests, promise=promise, tier=tier)


LINK_END_MUTATIONS: Final = (
    _of_ends(
        "a destination acknowledges rows before they are on its disk",
        "registry.py",
        "                one.taker.log_persisted(end)\n",
        "                one.taker.log_persisted(self._commits.accepted_end)\n",
        promise="invariant 9",
    ),
    _of_ends(
        "a handshake has a place before the disk has its rows",
        "registry.py",
        "        self._places.log_persisted(end)\n",
        "        self._places.log_persisted(self._commits.accepted_end)\n",
        promise="invariant 9",
    ),
    _of_ends(
        "a handshake does not wait for the record of the run",
        "handshakes.py",
        "        if not self._early or self._commits.persisted_end <= self._begun:\n",
        "        if not self._early or self._commits.persisted_end < self._begun:\n",
    ),
    _of_ends(
        "a link is admitted with any token",
        "handshakes.py",
        "            self._policy.admit_link(side.instance, command.token, self._parts.clock.now)\n",
        "            assert self._policy\n",
    ),
    _of_ends(
        "the lost connection of a source stays beside the new one",
        "handshakes.py",
        "                and has_start(side, end.start)\n",
        "                and not has_start(side, end.start)\n",
    ),
    _of_ends(
        "a server refuses links because of its own earlier runs",
        "sides.py",
        "    earlier = {*decode_starts(other.starts).starts[:-1].tolist()}\n",
        "    earlier = {*decode_starts(other.starts).starts[:0].tolist()}\n",
    ),
    _of_ends(
        "a refused link is opened again at once",
        "connections.py",
        "    LimitReached,\n    LinkRefused,\n    PublisherCollision,\n)\n",
        "    LimitReached,\n    PublisherCollision,\n)\n",
    ),
    _of_ends(
        "answers for a paused link have no bound",
        "connections.py",
        "            if end.overfull:\n",
        "            if end.overfull and not end.writable:\n",
        promise="R14",
    ),
    _of_ends(
        "a link is sent to a blocked connection",
        "source_end.py",
        "        return self.writable and self.source is not None and self.source.has_work\n",
        "        return self.source is not None and self.source.has_work\n",
        promise="R14",
    ),
    _of_ends(
        "a link stops after its first read of the log",
        "registry.py",
        "            if isinstance(end, SourceEnd) and end.source is holder:\n",
        "            if isinstance(end, SourceEnd) and end is holder:\n",
    ),
    _of_ends(
        "retention removes rows that a destination lacks while it is away",
        "pins.py",
        "            for state in self._outgoing\n        ]\n",
        "            for state in self._outgoing\n            if state.end is not None\n        ]\n",
        tests=(_REPORTING,),
    ),
    _of_ends(
        "retention removes rows that a log behind a destination lacks",
        "pins.py",
        "            pins += self._of_reporters()\n",
        "            pins += ()\n",
        tests=(_REPORTING,),
    ),
    _of_ends(
        "a start forgets the pins of destinations that are away",
        "pins.py",
        "        return self._view.first_position if log is None else self._reported(log)\n",
        "        return self._view.end_position if log is None else self._reported(log)\n",
        tests=(_REPORTING,),
    ),
    _of_ends(
        "reports do not wait for the log of each destination",
        "reporting.py",
        "        due = None if self._unknown or self._commits.stopping else self._writer.due(now)\n",
        "        due = None if self._commits.stopping else self._writer.due(now)\n",
        tests=(_REPORTING,),
    ),
    _of_ends(
        "a hole is closed although no other log is known",
        "reporting.py",
        "        if self._unknown or not self._logs:\n",
        "        if self._unknown and not self._writer:\n",
        tests=(_REPORTING,),
        promise="invariant 11",
    ),
    _of_ends(
        "reports leave out the logs behind other logs",
        "reporting.py",
        "        reached = self._facts.reports.reached(group)\n",
        "        reached = self._facts.reports.reached(group)[:0]\n",
        tests=(_REPORTING,),
    ),
    _of_ends(
        "retention waits for the lost log of an instance without end",
        "pins.py",
        "        for log in self._facts.reporters - direct - replaced:\n",
        "        for log in self._facts.reporters - direct:\n",
        tests=(_REPORTING,),
    ),
    _of_ends(
        "a log that other links brought rows to counts as an old copy",
        "handshakes.py",
        "        self._outbox.put(SendLink(conn, end.taker.opened(own, reached=reached)))\n",
        "        self._outbox.put(SendLink(conn, end.taker.opened(own, reached=not reached)))\n",
    ),
    _of_ends(
        "handshakes of lost connections are kept while the disk is full",
        "handshakes.py",
        "{one: kept for one, kept in self._early.items() if one in self._connections.ends}",
        "{one: kept for one, kept in self._early.items()}",
        promise="R14",
    ),
    _of_ends(
        "a heartbeat precedes the handshake of a link",
        "handshakes.py",
        "        self._early[conn] = command\n",
        "        self._early[conn] = command\n"
        "        self._parts.heartbeats.begin(conn, command.heartbeat_ms, link=True)\n",
    ),
    _of_ends(
        "all patterns of a peer are compared before their number is checked",
        "sides.py",
        "        few = len(patterns) < sow_patterns_max\n",
        "        few = len(patterns) >= 0\n",
        tests=("unit/engine/replication/test_link_sides.py",),
        promise="R14",
    ),
    Mutation(
        "a transaction on a replicated topic is accepted",
        "engine/commands/publish_checks.py",
        "            if self._replicated is not None and self._replicated.replicates(topic):\n",
        "            if self._replicated is not None and topic in ():\n",
        (_REGISTRY,),
        promise="R8",
        tier="unit",
    ),
    Mutation(
        "a Spark job starts before its topic is checked",
        "engine/transactions/coordinator.py",
        "                self._checks.check_topics_of_transaction(command.topics)\n",
        "",
        (_REGISTRY,),
        promise="R8",
        tier="unit",
    ),
)
