"""Owns the mutations of bounds and checks: what strangers send, what costs too much, what a disk refuses.

Must never hold one that changes nothing a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_COMMITTED = "fuzz/test_fuzz.py::test_what_is_committed_is_taken_or_refused_by_what_is_allowed"

BOUND_MUTATIONS: Final = (
    Mutation(
        "a short write is taken for a whole one",
        "journal/disk.py",
        "            if written == wanted:\n",
        "            if written:\n",
        ("unit/journal/test_disk.py",),
        promise="R5",
        tier="unit",
    ),
    Mutation(
        "where there was no room it is never tried again",
        "journal/reserve.py",
        "        self.retry_at = now.mono + _RETRY_SECONDS\n",
        "        self.retry_at = now.mono + 10**9\n",
        ("unit/journal/test_commit.py",),
        promise="R16",
        tier="unit",
    ),
    Mutation(
        "of what a killed server was writing the highest sequences are forgotten",
        "journal/recovery.py",
        "    indexes.count(highest)\n",
        "",
        ("faults/test_sigkill.py",),
        promise="R6",
        tier="faults",
    ),
    Mutation(
        "offsets that fall are taken",
        "batch/check.py",
        "    falls = offsets[1:] < offsets[:-1]",
        "    falls = offsets[1:] < 0 * offsets[:-1]",
        (f"{_COMMITTED}[batch]",),
        promise="R12",
        tier="fuzz",
    ),
    Mutation(
        "a deep document is more than the identity of a log can bear",
        "journal/identity.py",
        "except (msgspec.MsgspecError, ValueError, RecursionError) as error:",
        "except (msgspec.MsgspecError, ValueError) as error:",
        (f"{_COMMITTED}[identity]",),
        promise="R12",
        tier="fuzz",
    ),
    Mutation(
        "records of a store that contradict each other are believed",
        "client/publish_store/recovery.py",
        "    if any(low.last >= high.first for low, high in pairwise(entries)):",
        "    if any(low is high for low, high in pairwise(entries)):",
        (f"{_COMMITTED}[publish_store]",),
        promise="R12",
        tier="fuzz",
    ),
    Mutation(
        "patterns that are too costly together are accepted",
        "filter/resolve.py",
        "            if states > pattern_states_max:\n",
        "            if states < 0:\n",
        ("unit/filter/test_compile.py",),
        promise="R13",
        tier="unit",
    ),
    Mutation(
        "a stranger may send what is only for those who logged on",
        "wire/connection.py",
        "        limit = frame_bytes_before_logon_max if server else frame_bytes_max\n",
        "        limit = frame_bytes_max\n",
        ("unit/wire/test_connection.py",),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "what a simulated crash leaves is drawn anew each time",
        "testing/disk.py",
        "        return self._clone(self._names.crash_clone(rng, self.counts), rng)\n",
        "        return self._clone(self._names.crash_clone(Random(), self.counts), rng)\n",
        ("unit/testing/test_disk.py::test_equal_seeds_give_equal_futures",),
        promise="R19",
        tier="unit",
    ),
    Mutation(
        "a lease ends by the clock of the wall",
        "engine/queue/work.py",
        "        due = queue.leases.due(now.mono)\n",
        "        due = queue.leases.due(now.wall / _MICROS)\n",
        ("simulation/test_queue_crashes.py",),
        promise="R21",
        tier="simulation",
    ),
    Mutation(
        "an exception of a reload ends the server",
        "server/signals.py",
        "    except Exception as error:",
        "    except KeyError as error:",
        ("unit/server/test_signals.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "alerts that a client provokes wait until something else is sent",
        "server/secure_peer.py",
        "                if self._channel.answers:",
        "                if self._channel.closed:",
        ("unit/server/test_secure_peer.py",),
        promise="R15",
        tier="unit",
    ),
    Mutation(
        "the socket of a running server is taken for one that was left behind",
        "server/listener.py",
        "            probe.connect(path)\n",
        "            raise ConnectionRefusedError\n",
        ("unit/server/test_listener.py",),
        promise="invariant 19",
        tier="unit",
    ),
    Mutation(
        "the admin address answers to any host name",
        "server/admin/http.py",
        "        elif not answers_to(",
        "        elif len(self._hosts) > 9 and not answers_to(",
        ("integration/test_admin.py",),
        promise="R15",
        tier="integration",
    ),
    Mutation(
        "a sequence is stored with which its client can never log on again",
        "engine/publishing.py",
        "    if last > last_persisted_max:\n",
        "    if last > 1 << 64:\n",
        ("unit/engine/test_publishing.py",),
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "a start reads a window of the log for each commit",
        "journal/segment.py",
        "            found = heads or self._commit_at(offset, number)\n",
        "            found = self._commit_at(offset, number) or heads\n",
        ("unit/server/test_start_work.py",),
        promise="R22",
        tier="unit",
    ),
)
