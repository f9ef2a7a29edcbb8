"""Planted defects of the source of a link: frames, credit, requests and pins.

Must never hold one that changes neither frames nor reads nor pins.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_FRAMES: Final = "engine/replication/source/link_frames.py"
_SOURCE: Final = "engine/replication/source/link_source.py"
_NAMES: Final = "engine/replication/source/named_rows.py"
_LOG: Final = "engine/replication/source/routed_log.py"
_HOLES: Final = "engine/replication/source/first_holes.py"


def _of_source(name: str, module: str, old: str, new: str, promise: str, *, tier: str = "unit") -> Mutation:
    """Return a defect that the unit tests of the source must detect, or the simulation."""
    tests = {
        "unit": "unit/engine/replication/test_link_source.py",
        "simulation": "simulation/test_link_source.py",
    }
    return Mutation(name, module, old, new, (tests[tier],), promise=promise, tier=tier)


LINK_SOURCE_MUTATIONS: Final = (
    _of_source(
        "a link names messages of its own clients",
        _LOG,
        "        named: Bools = order >= len(routed.sent)\n",
        "        named: Bools = order >= 0\n",
        "R8",
        tier="simulation",
    ),
    _of_source(
        "rows of a link leave the order of the log",
        _LOG,
        "        order = rows.argsort()\n",
        "        order = np.arange(len(rows))\n",
        "invariant 12",
        tier="simulation",
    ),
    _of_source(
        "the end of runs is behind rows that were not sent",
        _FRAMES,
        "        return CutFrame(LinkFrame(LinkRuns(end=piece.position, ",
        "        return CutFrame(LinkFrame(LinkRuns(end=piece.end, ",
        "invariant 13",
        tier="simulation",
    ),
    _of_source(
        "the end of names is behind rows that were not named",
        _FRAMES,
        "        command = LinkNames(end=piece.position, ",
        "        command = LinkNames(end=piece.end, ",
        "invariant 13",
    ),
    _of_source(
        "an origin number of a link has no meaning",
        _FRAMES,
        "        return count, tuple(LinkOrigin(number, *self._origins[number]) for _, number in new)\n",
        "        return count, ()\n",
        "R12",
    ),
    _of_source(
        "an origin number of a link gets its meaning in each frame",
        _FRAMES,
        "        self._known.update(number for _, number in new)\n",
        "",
        "R12",
    ),
    _of_source(
        "one frame introduces any number of origins",
        _FRAMES,
        "        if len(new) > link_origins_per_frame_max:\n",
        "        if len(new) > link_rows_max:\n",
        "R12",
    ),
    _of_source(
        "a link sends runs above its credit",
        _FRAMES,
        '        count = int(total.searchsorted(credit, "right"))\n',
        "        count = len(rows)\n",
        "invariant 22",
    ),
    _of_source(
        "a message above the window of a link is never sent",
        _FRAMES,
        "        if not count:\n            if not alone:\n",
        "        if not count:\n            if not count:\n",
        "R9",
    ),
    _of_source(
        "a link reads the log without credit",
        _SOURCE,
        "        return self._stream(self._routed) if self._has_credit else []\n",
        "        return self._stream(self._routed)\n",
        "invariant 22",
        tier="simulation",
    ),
    _of_source(
        "runs of a link lose their order stamps",
        _FRAMES,
        "                order_stamps=batch.order_stamps,\n",
        "",
        "invariant 1",
        tier="simulation",
    ),
    _of_source(
        "names of a link lose their order stamps",
        _FRAMES,
        'runs["timestamp"] if batch.order_stamps is None else batch.order_stamps[of_run[begins]]',
        'runs["timestamp"]',
        "invariant 1",
    ),
    _of_source(
        "a link sends the flags of its messages",
        _FRAMES,
        "            batch.message_flags is None\n            and (flags",
        "            (flags",
        "R12",
        tier="simulation",
    ),
    _of_source(
        "a link sends late runs as late",
        _FRAMES,
        "np.uint32(~RUN_LATE & (1 << 32) - 1)",
        "np.uint32((1 << 32) - 1)",
        "invariant 11",
    ),
    _of_source(
        "a foreign control record of a link has the publisher of this log",
        _FRAMES,
        "        if foreign.any():\n",
        "        if foreign.all() and not foreign.any():\n",
        "R12",
    ),
    _of_source(
        "a control record of another log leaves without its origin",
        _FRAMES,
        '            if decode_head(body).log not in (b"", self._log):\n',
        '            if decode_head(body).log == b"?":\n',
        "invariant 1",
    ),
    _of_source(
        "a name covers messages between its sequences that are not for the link",
        _FRAMES,
        "            | (sequences[1:] != sequences[:-1] + np.uint64(1))\n",
        "",
        "R8",
        tier="simulation",
    ),
    _of_source(
        "places alone move the end of a link",
        _LOG,
        "    if LINK_TOPIC not in batch.topics:\n",
        "    if batch.topics:\n",
        "R9",
    ),
    _of_source(
        "one step of a link examines a whole commit",
        _LOG,
        "        high = min(self._routes.piece_end(stretch.batch, low), max(most, low + 1))\n",
        "        high = max(most, stretch.batch.count)\n",
        "invariant 22",
    ),
    _of_source(
        "a link skips removed rows that it has not sent",
        _LOG,
        "        if parts[0].first_position > self._next:\n",
        "        if parts[0].first_position < 0:\n",
        "invariant 14",
    ),
    _of_source(
        "a link reports no lost rows if the destination has an older place",
        _SOURCE,
        "link_start(facts, destination, places[::-1])",
        "link_start(facts, destination, places)",
        "invariant 13",
    ),
    _of_source(
        "retention may remove rows that a link has only sent",
        _SOURCE,
        "        return self.durable if named is None else min(self.durable, named)\n",
        "        return self.end if named is None else min(self.end, named)\n",
        "R1",
    ),
    _of_source(
        "retention may remove rows that a destination may request",
        _SOURCE,
        "        return self.durable if named is None else min(self.durable, named)\n",
        "        return self.durable\n",
        "R1",
    ),
    _of_source(
        "a link is resynced when it has sent the rows of its handshake",
        _SOURCE,
        "        return self._goal_end is not None and self.durable >= self._goal_end\n",
        "        return self._goal_end is not None\n",
        "R1",
    ),
    _of_source(
        "requests of a link are answered in reverse order",
        _NAMES,
        "            self._requested.append(\n",
        "            self._requested.appendleft(\n",
        "R12",
    ),
    _of_source(
        "a link remembers processed names",
        _NAMES,
        "        while self._frames and self._frames[0].spent <= credit:\n",
        "        while self._frames and self._frames[0].spent < 0:\n",
        "invariant 22",
    ),
    _of_source(
        "a link answers with other rows than the requested ones after a removal",
        _NAMES,
        "                if parts[0].first_position > position:\n",
        "                if parts[0].first_position < 0:\n",
        "invariant 14",
    ),
    _of_source(
        "first holes have the own control records of the source",
        _HOLES,
        "    renamed = [control_publisher(log)] if control else []\n",
        "    renamed = [CONTROL_PUBLISHER] if control else []\n",
        "invariant 11",
    ),
    _of_source(
        "first holes end after one frame",
        _HOLES,
        "        self.over = count == left\n",
        "        self.over = count <= left\n",
        "invariant 11",
    ),
)
