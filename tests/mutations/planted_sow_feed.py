"""Planted defects of held log feeds, and of queries that continue with the messages after their result.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FEED = "unit/engine/sow/test_feed.py"
_HELD = "unit/engine/delivery/test_held_feeds.py"
_HANDOVER = "simulation/test_sow_handover.py"
_HELD_WORLDS = "simulation/test_held_feeds.py"

SOW_FEED_MUTATIONS: Final = (
    Mutation(
        "retention removes the messages that a held feed needs",
        "engine/delivery/log_delivery.py",
        "            needed = self._needed(sub)\n",
        "            needed = least if sub.held else self._needed(sub)\n",
        (_HELD, _HELD_WORLDS),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a held feed is sent messages before its release",
        "engine/delivery/cursor.py",
        "not (first.paused or first.held)",
        "not first.paused",
        (_HELD, _HELD_WORLDS),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "feeds resumed together share the cursor of a held one",
        "engine/subscriptions/log_feed.py",
        "        return not self.held and self.conflating is None and (",
        "        return self.conflating is None and (",
        (_HELD,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a query does not wait for messages that were persisted before",
        "engine/sow/queries.py",
        "        elif not fold.whole or fold.folded < feed.needed:\n",
        "        elif not fold.whole:\n",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a query starts in the middle of a commit",
        "engine/sow/queries.py",
        "        elif not fold.whole or fold.folded < feed.needed:\n",
        "        elif fold.folded < feed.needed:\n",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "messages after a result start after the first of them",
        "engine/sow/feed.py",
        "ReplayRange(self.position)",
        "ReplayRange(self.position + 1)",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "messages after a result are sent before the end of the result",
        "engine/sow/feed.py",
        "            log.hold(self.log_feed)\n",
        "            log.hold(self.log_feed)\n            log.release(self.log_feed)\n",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "messages after a result are never sent",
        "engine/sow/queries.py",
        "            self._log.release(feed.log_feed)\n",
        "            self._log.hold(feed.log_feed)\n",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a control record at the end hides the bookmark of a result",
        "engine/sow/log_fold.py",
        "_last_message(part.batch) or self.last",
        "_last_message(part.batch)",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "records of a result cost no credit",
        "engine/sow/feed.py",
        "        self.spend(sent)\n",
        "",
        (_FEED,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "results of slow readers have no memory limit",
        "engine/sow/queries.py",
        "            if self.results_bytes <= self.results_bytes_max:\n",
        "            if self.results_bytes >= 0:\n",
        (_FEED,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "an ended query keeps the memory of its result",
        "engine/sow/queries.py",
        "        feed.stop()\n",
        "",
        (_FEED,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "a subscription is replaced while its result is sent",
        "engine/commands/subscribe_checks.py",
        "    if sub.feed(SowFeed) is not None:\n",
        "    if sub.feed(SowFeed) is sub:\n",
        (_FEED,),
        promise="R10",
        tier="unit",
    ),
    Mutation(
        "a result has changes from after the position of the query",
        "engine/sow/query/record_copy.py",
        "            self._undo(changes.earlier(number))\n",
        "",
        (_HANDOVER,),
        promise="R10",
        tier="simulation",
    ),
    Mutation(
        "the end of a query pins the bodies of its records once more",
        "engine/sow/state/blocks.py",
        "            self._pins.remove(number)\n        self._buffers = {}",
        "            self._pins.add(number)\n        self._buffers = {}",
        (_FEED,),
        promise="R14",
        tier="unit",
    ),
    Mutation(
        "the result and its messages have different positions",
        "engine/sow/feed.py",
        "        self.position = fold.folded\n",
        "        self.position = fold.folded + 1\n",
        (_HANDOVER,),
        promise="R10",
        tier="simulation",
    ),
    Mutation(
        "small queries that arrive together are executed in one step",
        "engine/sow/queries.py",
        " and self._clock.mono != self._begun_at:\n",
        ":\n",
        ("unit/engine/sow/test_small_queries.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a small query takes a turn for each of its steps",
        "engine/sow/feed.py",
        "        while more and steps < query_small_steps_max and self.is_small:\n",
        "        while False:\n",
        ("unit/engine/sow/test_small_queries.py",),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a query of few records with large bodies takes its steps at once",
        "engine/sow/query/query.py",
        "                self.is_small = copy.body_bytes <= query_piece_bytes_max\n",
        "                pass\n",
        ("unit/engine/sow/test_small_queries.py",),
        promise="R12",
        tier="unit",
    ),
)
