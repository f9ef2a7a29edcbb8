"""Planted defects of claims: publish stores, logons of clients, and answers of servers.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_ENGINE = "unit/engine/sessions/test_claims.py"
_PRODUCT = "unit/engine/replication/test_product_claims.py"
_STORES = "unit/client/publish_store/test_claims.py"
_CLIENT = "unit/client/publishing/test_claims.py"
_HA = "unit/client/ha/test_server_description.py"
_SESSIONS = "engine/sessions/registry.py"
_SENDER = "client/publishing/batch_sender.py"
_FILE = "client/publish_store/file.py"


def _of_engine(name: str, module: str, old: str, new: str) -> Mutation:
    """Return a defect of a server."""
    return Mutation(name, module, old, new, (_ENGINE, _PRODUCT), promise="invariant 11", tier="unit")


def _of_client(name: str, module: str, old: str, new: str, *tests: str) -> Mutation:
    """Return a defect of a client or a store."""
    return Mutation(name, module, old, new, tests, promise="R9", tier="unit")


CLAIM_MUTATIONS: Final = (
    _of_engine(
        "the claim of a logon is ignored",
        _SESSIONS,
        "    return PublisherConnection(command.persisted or None, command.session)\n",
        "    return PublisherConnection(None, command.session)\n",
    ),
    _of_engine(
        "a fresh publish store counts as a claim",
        _SESSIONS,
        "    return PublisherConnection(command.persisted or None, command.session)\n",
        "    return PublisherConnection(command.persisted, command.session)\n",
    ),
    _of_engine(
        "a claim that leaves no sequences is accepted",
        _SESSIONS,
        "    if command.persisted > last_persisted_max:\n",
        "    if command.persisted > last_persisted_max + (1 << 48):\n",
    ),
    _of_engine(
        "the session of a logon is not in the record of the claim",
        _SESSIONS,
        "        session.publishing = publishing\n",
        "        session.publishing.claim = publishing.claim\n",
    ),
    _of_engine(
        "a server is behind because of an unproven hole",
        "engine/runtime/holes.py",
        "bool((own.proven & (own.firsts <= np.uint64(claim))).any())",
        "bool((own.firsts <= np.uint64(claim)).any())",
    ),
    _of_engine(
        "a server is behind because of a hole above the claim",
        "engine/runtime/holes.py",
        "bool((own.proven & (own.firsts <= np.uint64(claim))).any())",
        "bool(own.proven.any())",
    ),
    _of_engine(
        "a claim above the log is not reported to the client",
        "engine/runtime/holes.py",
        "        if claim > self._highest.get(publisher, 0):\n            return True\n",
        "",
    ),
    _of_engine(
        "a log with holes of an earlier replication answers as one without",
        "engine/broker.py",
        "        if exact is None:\n",
        "        if exact is None or self._replication is None:\n",
    ),
    _of_engine(
        "each message of a connection repeats the event of its claim",
        "engine/commands/publish.py",
        "                    publishing.opened = None\n",
        "",
    ),
    _of_client(
        "a client discards messages in a hole of a server that replicates",
        _SENDER,
        "        if not self._outstanding.replicating:\n",
        "        if self._outstanding.replicating in (True, False):\n",
        _CLIENT,
        _PRODUCT,
    ),
    _of_client(
        "a client makes no claim",
        "client/protocol/core.py",
        "heartbeat_ms=beat_ms, **claim._asdict())",
        "heartbeat_ms=beat_ms, session=claim.session)",
        _CLIENT,
        _PRODUCT,
    ),
    _of_client(
        "the claim of a custom store is not limited by its last sequence",
        "client/publishing/store_checks.py",
        "min(store.persisted_sequence, store.last_sequence, last_persisted_max)",
        "min(store.persisted_sequence, last_persisted_max)",
        _CLIENT,
    ),
    _of_client(
        "session numbers fall with another publish store",
        "client/publishing/store_checks.py",
        "        session = max(now.wall, self._session + 1)\n",
        "        session = now.wall\n",
        _CLIENT,
    ),
    _of_client(
        "a reopened file store claims all messages that it ever stored",
        _FILE,
        "        return self._settled\n",
        "        return max(self._settled, self._used)\n",
        _STORES,
        _CLIENT,
    ),
    _of_client(
        "the session number of a file store does not rise after a restart",
        _FILE,
        "        self._session = found.session\n",
        "",
        _STORES,
    ),
    _of_client(
        "a file store numbers logons by the clock alone",
        _FILE,
        "        self._session = max(clock, self._session + 1)\n",
        "        self._session = clock\n",
        _STORES,
    ),
    _of_client(
        "a new segment does not repeat the session number",
        _FILE,
        "        self._put_session(memory)\n",
        "",
        _STORES,
    ),
    _of_client(
        "half of a session number counts",
        "client/publish_store/format.py",
        "    return int(session) if session ^ _WORD_MAX == complement else 0\n",
        "    return int(session)\n",
        _STORES,
    ),
    _of_client(
        "a memory store claims the messages of another process",
        "client/publish_store/memory.py",
        "max(self.persisted_sequence, min(sequence, self.last_sequence))",
        "max(self.persisted_sequence, sequence)",
        _STORES,
    ),
    _of_client(
        "a closed hybrid store forgets its claim",
        "client/publish_store/hybrid.py",
        "        self._file.note_persisted(self._memory.persisted_sequence)\n",
        "",
        _STORES,
    ),
    _of_client(
        "a chooser does not get the group of a server",
        "client/ha/policies.py",
        "    return ServerDescription(answer.instance, replication.group, replication.behind)\n",
        "    return ServerDescription(answer.instance)\n",
        _HA,
    ),
    _of_client(
        "an HA client tries other servers after an error of its publish store",
        "client/ha/reconnect.py",
        "        if isinstance(answer.error, StoreError):  # an error of this process, not of the server\n",
        "        if answer.error is None:\n",
        _HA,
    ),
)
