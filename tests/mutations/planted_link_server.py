"""Planted defects of replication links at the server: connections, rights and configuration.

Must never hold one without an effect that an operator could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_ACCEPTED = "unit/wire/test_accepted_connection.py"
_DIALER = "unit/server/network/test_link_dialer.py"
_LINKS = "unit/server/network/test_links.py"
_TOKENS = "unit/server/access/test_tokens.py"
_CONFIG = "unit/server/config/test_config_replication.py"
_CHECK = "unit/cli/commands/test_check.py"
_SERVERS = "integration/test_links.py"
_RIGHTS = "integration/test_link_rights.py"

LINK_SERVER_MUTATIONS: Final = (
    Mutation(
        "an address without clients accepts clients",
        "wire/accepted_connection.py",
        "Connection(_EITHER if clients else _SOURCE_ONLY, scratch=scratch)",
        "Connection(_EITHER, scratch=scratch)",
        (_ACCEPTED,),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "the order of a link's frames is not checked at an accepted connection",
        "wire/accepted_connection.py",
        "        return self.link.judged(events)\n",
        "        return events\n",
        (_ACCEPTED,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a client may open a link after a logon",
        "wire/accepted_connection.py",
        "    alternatives=(_CLIENT, _SOURCE),\n",
        "    alternatives=(_SOURCE,),\n",
        (_ACCEPTED,),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a refused link is tried again at once",
        "server/network/link_dialer.py",
        "            self.due = now + link_refused_seconds\n",
        "            self.due = now\n",
        (_DIALER,),
        promise="R8",
        tier="unit",
    ),
    Mutation(
        "a link lost at once is connected again without a wait",
        "server/network/link_dialer.py",
        "        elif ends_round or opened_at is not None:\n",
        "        elif ends_round and opened_at is None:\n",
        (_DIALER,),
        promise="R8",
        tier="unit",
    ),
    Mutation(
        "a stop leaves an attempt to connect behind",
        "server/network/links.py",
        "not link.connection.registered:\n                link.connection.give_up()\n",
        "not link.connection.registered:\n                pass\n",
        (_LINKS,),
        promise="R8",
        tier="unit",
    ),
    Mutation(
        "a link is passed to the engine before TLS is established",
        "server/network/link_source.py",
        "        self._channel.shake()\n        self._write_out(self._channel.take())\n",
        "        self._channel.shake()\n        self._write_out(self._channel.take())\n"
        "        LinkSourceConnection._begin(self)\n",
        (_LINKS,),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "a token of clients opens links",
        "server/access/tokens.py",
        "        if known.links is None:\n",
        "        if False:\n",
        (_TOKENS,),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "a token of links logs clients on",
        "server/access/tokens.py",
        "    if known.links is not None:\n        raise",
        "    if False:\n        raise",
        (_TOKENS,),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "a token opens links of every instance",
        "server/access/tokens.py",
        "        if not known.links.search(instance):\n",
        "        if False:\n",
        (_TOKENS,),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "a revoked token keeps its link",
        "server/session_expiry.py",
        "            if source and (",
        "            if not source and (",
        ("unit/server/test_session_expiry.py", _RIGHTS),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "a synchronous topic is accepted and acknowledged asynchronously",
        "server/config/replicated_topics.py",
        "    return ReplicationRule(topic=topic, filter=text, sync=sync)\n",
        "    return ReplicationRule(topic=topic, filter=text, sync=sync and not topic)\n",
        (_CONFIG,),
        promise="R9",
        tier="unit",
    ),
    Mutation(
        "records beside replication are accepted",
        "server/config/config.py",
        '    if root.has("sow"):\n',
        "    if False:\n",
        (_CONFIG,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "mismatches of other configurations are not reported",
        "server/config/topology.py",
        "    yield from map(str, topology_mismatches(servers.values()))\n",
        "    yield from map(str, topology_mismatches([]))\n",
        (_CHECK,),
        promise="R8",
        tier="unit",
    ),
    Mutation(
        "an invalid handshake of a link stops the server",
        "server/engine_driver.py",
        "        if isinstance(first, Received):\n",
        "        if True:\n",
        (_RIGHTS,),
        promise="R12",
        tier="integration",
    ),
    Mutation(
        "incomplete handshakes of links take the memory of frames of clients",
        "server/engine_driver.py",
        "        if connection.takes_logon and not connection.destination:\n",
        "        if False:\n",
        (_RIGHTS,),
        promise="R12",
        tier="integration",
    ),
    Mutation(
        "a lost link is never connected again",
        "server/engine_driver.py",
        "            self.links.ended(effect.destination, refused=effect.refused)\n",
        "            pass\n",
        (_SERVERS,),
        promise="R8",
        tier="integration",
    ),
    Mutation(
        "frames of a link follow one that was not sent",
        "server/engine_driver.py",
        "            del self._link_states[effect.conn]  # later frames that are waiting assume this one\n",
        "            assert link\n",
        ("unit/server/test_link_sends.py",),
        promise="R8",
        tier="unit",
    ),
)
