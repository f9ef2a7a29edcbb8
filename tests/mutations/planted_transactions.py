"""Planted defects of transactions, with the tests that must detect them.

Must never hold one without an effect that a client could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_CHAINS = "unit/journal/commit/test_chains.py"
_ENGINE = "unit/engine/transactions/test_coordinator.py"
_GATHERED = "unit/client/protocol/test_transactions.py"
_KNOWN = "unit/engine/transactions/test_records.py"
_UNFINISHED = "unit/journal/recovery/test_incomplete_transaction.py"
_LIVES = "simulation/test_transactions.py"
_STAGING = "unit/engine/transactions/test_staging_area.py"
_REBUILT = "unit/journal/index/test_rebuild.py"
_STAGED = "unit/journal/format/test_staging_file.py"

TRANSACTION_MUTATIONS: Final = (
    Mutation(
        "an empty commit exhausts the numbers of a space",
        "engine/limits.py",
        "transaction_empty_number_max: Final = 10**17 - 1",
        "transaction_empty_number_max: Final = 10**18",
        ("unit/engine/transactions/test_coordinator.py",),
        promise="invariant 20",
        tier="unit",
    ),
    Mutation(
        "accepted messages of a transaction are live before its end",
        "journal/journal.py",
        "        self.accepted.append(AcceptedBatch(self.commits.accepted_end, None, None))\n",
        "        self._accepted += [AcceptedBatch(first, batch, stamp) for batch, stamp in parts]\n",
        (_ENGINE,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "each commit of a chain is persisted separately",
        "journal/commit/group_commit.py",
        "            if not flight.chain_continues:\n",
        "            if flight.chain_continues is not None:\n",
        (_CHAINS,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "a transaction counts as committed before its record is durable",
        "engine/transactions/coordinator.py",
        "        current.opened = {}\n        current.end",
        "        current.opened = {}\n        self._committed.take(current.record)\n        current.end",
        (_ENGINE,),
        promise="invariant 11",
        tier="unit",
    ),
    Mutation(
        "recovery keeps a chain without its end",
        "journal/recovery/recovery.py",
        "    if chain is None or ending.verdict not in",
        "    if chain is not None or ending.verdict not in",
        (_CHAINS,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "a start walks chained commits one by one",
        "journal/format/commit_headers.py",
        "    valid &= (kinds >= CommitKind.DATA) & (kinds <= CommitKind.SEAL)\n",
        "    valid &= (kinds >= CommitKind.DATA) & (kinds <= CommitKind.SEAL) & (rows['flags'] == 0)\n",
        (_REBUILT,),
        promise="R22",
        tier="unit",
    ),
    Mutation(
        "a chain over two windows starts with the second",
        "journal/format/commit_headers.py",
        "            return before or self.header(0)\n",
        "            return self.header(0)\n",
        (_REBUILT,),
        promise="invariant 5",
        tier="unit",
    ),
    Mutation(
        "a waiting lower number is committed after a higher one",
        "engine/transactions/coordinator.py",
        "        if current.transaction in self._committed:\n",
        "        if current in self._next:\n",
        (_ENGINE,),
        promise="invariant 12",
        tier="unit",
    ),
    Mutation(
        "a part is reported as prepared before its file is synced",
        "journal/format/staging_file.py",
        "        self._disk.sync(handle)\n        self._disk.rename(path_of",
        "        self._disk.rename(path_of",
        (_STAGED,),
        promise="invariant 8",
        tier="unit",
    ),
    Mutation(
        "staged parts are dropped before the log has the transaction",
        "engine/transactions/coordinator.py",
        "        current.opened = {}\n        current.end",
        "        current.opened = {}\n        self.staging.drop_all(transaction)\n        current.end",
        (_LIVES,),
        promise="invariant 5",
        tier="simulation",
    ),
    Mutation(
        "staged parts of a committed transaction are dropped before the log is synced",
        "engine/transactions/coordinator.py",
        "        self.staging.committed(current.transaction, current.end)\n",
        "        self.staging.committed(current.transaction, 0)\n",
        (_STAGING,),
        promise="invariant 16",
        tier="unit",
    ),
    Mutation(
        "recovery takes each unfinished transaction for a staged one",
        "journal/recovery/recovery.py",
        "    begin = chain.end if staged else offset\n",
        "    begin = chain.end\n",
        (_UNFINISHED,),
        promise="invariant 16",
        tier="unit",
    ),
    Mutation(
        "a damaged part counts as one that can be recommitted",
        "journal/recovery/recovery.py",
        "            missing -= {_digest(block) for block in blocks}\n",
        "            for block in blocks:\n                missing.discard(_digest(block))\n",
        (_UNFINISHED,),
        promise="invariant 16",
        tier="unit",
    ),
    Mutation(
        "an abort is answered before it is durable",
        "journal/format/staging_file.py",
        "            self._disk.sync_directory(STAGING_DIRECTORY)\n",
        "            pass\n",
        (_STAGING,),
        promise="invariant 4",
        tier="unit",
    ),
    Mutation(
        "the publisher with the fewest transaction names loses one, not the largest",
        "engine/transactions/records.py",
        "        most = max(self._sizes)\n",
        "        most = min(self._sizes)\n",
        (_KNOWN,),
        promise="invariant 11",
        tier="unit",
    ),
    Mutation(
        "a transaction is staged over several connections",
        "client/protocol/transactions.py",
        "        elif logged_on is not None and logged_on is not self._first:\n",
        "        elif logged_on is not None and logged_on is None:\n",
        ("conformance/test_transactions.py",),
        promise="invariant 5",
        tier="conformance",
    ),
    Mutation(
        "parts of an earlier attempt stay beside those of the next one",
        "client/protocol/transactions.py",
        "        if left:\n            yield aborting(self.key), None\n",
        "        if left and not part:\n            yield aborting(self.key), None\n",
        (_GATHERED,),
        promise="invariant 20",
        tier="unit",
    ),
    Mutation(
        "an abort is not sent to the server",
        "client/blocking/transactions.py",
        "            if make is not None:\n",
        "            if make is not None and self.uncertain:\n",
        ("conformance/test_transactions.py",),
        promise="invariant 20",
        tier="conformance",
    ),
    Mutation(
        "a staged frame has any number of topics",
        "client/protocol/transactions.py",
        "            and (builder.topic_count < publish_topics_max or builder.has_topic(topic))\n",
        "",
        (_GATHERED,),
        promise="invariant 20",
        tier="unit",
    ),
    Mutation(
        "a frame ends after a message that does not fit",
        "client/protocol/transactions.py",
        "            builder.size_bytes + cost <= stage_frame_bytes\n",
        "            builder.size_bytes <= stage_frame_bytes\n",
        (_GATHERED,),
        promise="invariant 20",
        tier="unit",
    ),
    Mutation(
        "a commit is resent although the server ends each connection because of it",
        "client/api/transactions.py",
        "                if refused_for_good(lost) or not",
        "                if not",
        ("conformance/test_transactions.py",),
        promise="R22",
        tier="conformance",
    ),
)
