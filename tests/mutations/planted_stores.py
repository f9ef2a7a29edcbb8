"""Owns the mutations of the stores of clients.

Must never hold one that changes nothing a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_STORE_POWER = "simulation/test_publish_store_power.py"
_STORE_MODEL = "property/test_publish_stores.py"
_BOOKMARKS = "property/test_bookmark_stores.py"

STORE_MUTATIONS: Final = (
    Mutation(
        "a batch that is put is not synced",
        "client/publish_store/file.py",
        "            self._flush(segment, at, place)\n",
        "            self._flush(segment, at, at)\n",
        (_STORE_POWER,),
    ),
    Mutation(
        "a publish returns before what it kept is synced",
        "client/publish_store/file.py",
        "            self._flush(segment, at, stop)\n",
        "            self._flush(segment, at, at)\n",
        (_STORE_POWER,),
    ),
    Mutation(
        "names of segments that were removed and are back are taken for a gap",
        "client/publish_store/recovery.py",
        "        if headers[i].number < oldest:\n",
        "        if headers[i].number < 0:\n",
        (_STORE_POWER,),
    ),
    Mutation(
        "what is left of a batch goes with the segment that the batch was in",
        "client/publish_store/recovery.py",
        "rest) and rest is not None:",
        "rest) and rest is self:",
        (_STORE_MODEL,),
    ),
    Mutation(
        "a publish that was interrupted comes before what it interrupted",
        "client/publish_store/recovery.py",
        "self.ledger.replace(first, max(last, self._highest), None)",
        "self.ledger.replace(first, last, None)",
        (_STORE_MODEL,),
    ),
    Mutation(
        "a number that was given twice is read twice",
        "client/publish_store/file.py",
        "if gathered is None or not whole or self._again:",
        "if gathered is None or not whole:",
        (_STORE_MODEL,),
    ),
    Mutation(
        "a store on disk settles one message too many",
        "client/publish_store/ledger.py",
        "rest = self._part(entry, sequence + 1, entry.last)",
        "rest = self._part(entry, sequence + 2, entry.last)",
        (_STORE_MODEL,),
    ),
    Mutation(
        "a hybrid store gives numbers again that a killed process may have used",
        "client/publish_store/hybrid.py",
        "self._file.note_used(ahead)",
        "self._file.note_used(stored.first - 1)",
        (_STORE_MODEL,),
    ),
    Mutation(
        "all that a publish store holds is sent at once",
        "client/backlog.py",
        "return self._bytes < republish_bytes_max",
        "return self._bytes >= 0",
        ("unit/client/test_backlog.py",),
    ),
    Mutation(
        "what is published during a backlog passes it",
        "client/publishing.py",
        "        if self._connected and self._backlog is None:\n",
        "        if self._connected:\n",
        ("unit/client/test_backlog.py",),
    ),
    Mutation(
        "the recovery point passes the first message that is not discarded",
        "client/bookmark_store/progress.py",
        "                self.head = block.base + at\n                return",
        "                self.head = block.base + at + 1\n                return",
        (_BOOKMARKS,),
    ),
    Mutation(
        "a message that was not discarded passes for a duplicate when it comes again",
        "client/bookmark_store/progress.py",
        "if block.states[at] == EXPECTED:",
        "if block.states[at] > EXPECTED:",
        (_BOOKMARKS,),
    ),
    Mutation(
        "a notice counts before what was delivered ahead of it is discarded",
        "client/bookmark_store/recovery.py",
        "self.pending[0] <= head:",
        "self.pending[0] <= head + 1:",
        (_BOOKMARKS,),
    ),
    Mutation(
        "a notice of what was delivered long ago moves the recovery point back",
        "client/bookmark_store/progress.py",
        "return ordinal < self._next - 1",
        "return ordinal < 0",
        (_BOOKMARKS,),
    ),
    Mutation(
        "pruning forgets what is discarded beyond the prefix",
        "client/bookmark_store/records.py",
        "    if flags & _STATES:\n",
        "    if flags < 0:\n",
        (_BOOKMARKS,),
    ),
    Mutation(
        "a log does not know what was forgotten",
        "client/bookmark_store/records.py",
        "        progress.resume(forget=True)",
        "        progress.resume(forget=False)",
        (_BOOKMARKS,),
    ),
    Mutation(
        "of the two slots of a ring the older one is believed",
        "client/bookmark_store/cells.py",
        "best = max((v for",
        "best = min((v for",
        (_BOOKMARKS,),
    ),
    Mutation(
        "a ring records the message that closed a gap, not how far that reaches",
        "client/bookmark_store/ring.py",
        "if cell is None or progress.head != ordinal + 1:",
        "if cell is None:",
        ("unit/client/bookmark_store/test_store_files.py", _BOOKMARKS),
    ),
    Mutation(
        "a duplicate on the same connection is delivered",
        "client/bookmark_store/progress.py",
        "                        block.states[at] = DELIVERED\n",
        "",
        (_BOOKMARKS,),
    ),
)
