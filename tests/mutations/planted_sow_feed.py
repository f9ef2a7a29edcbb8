"""Planted defects of held log feeds, and of queries that continue with the messages after their result.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_HELD = "unit/engine/delivery/test_held_feeds.py"
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
)
