"""Owns which planted defects are the gate, and what promises there are for a defect to break.

No change goes in with which one of the gate is not noticed. Must never name a goal that no text has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"

GOALS: Final = {
    "R1": "what was acknowledged survives a crash, once and in order",
    "R2": "a torn write costs nothing that was acknowledged",
    "R3": "a flipped bit is never served and never shortens the log in silence",
    "R4": "after a failed sync nothing is acknowledged",
    "R5": "nor after a write that failed or was short",
    "R6": "a real server may be killed at any moment",
    "R8": "links that are cut, late or half-open lose nothing and give nothing twice",
    "R9": "what is published again is stored once, and what is said of it is so",
    "R10": "from replay to live and back: no gap, no duplicate, in order",
    "R11": "queues lose nothing, and no message is leased twice",
    "R12": "bytes from outside end in listed errors, soon and in little memory",
    "R13": "a filter that is accepted is fast",
    "R14": "slow readers cost bounded memory and delay nobody",
    "R15": "so do strangers",
    "R16": "a full disk refuses, loses nothing, and is recovered from without a restart",
    "R19": "equal seeds, equal traces",
    "R21": "clocks that jump and processes that stand still cost nothing in silence",
    "R22": "nobody waits for ever",
}
"""Each has a defect in the gate. R20, that defects are noticed, and R27, that every fault happened, are about
the tests themselves."""

GATE: Final = (
    "a commit is not synced",
    "acknowledged when it is accepted, not when it is persisted",
    "the names of reserved segments are not synced",
    "recovery does not write again what may only be in the page cache",
    "the chain of commits is not checked",
    "the salt of a commit is not checked",
    "the checksum of a body is not checked at a start",
    "the checksum of a body is not checked when it is read",
    "recovery does not look at what was synced through",
    "no mark after idleness",
    "a failed write or sync is taken for done",
    "a short write is taken for a whole one",
    "the thread of the disk keeps errors to itself",
    "of what a killed server was writing the highest sequences are forgotten",
    "the end of a connection that an earlier attempt left ends the present one",
    "the duplicate filter is off",
    "of a frame that is half known, all is taken for known",
    "a publish returns before what it kept is synced",
    "a flush whose connection is lost says that everything is persisted",
    "a bookmark starts at its message, not after it",
    "who leaves the shared end goes on one message later",
    "who joins the shared end is given the commit at the seam again",
    "the recovery point passes the first message that is not discarded",
    "outcomes are not folded in at a start",
    "returns are not counted",
    "one delivery more than allowed",
    "offsets that fall are taken",
    "a deep document is more than the identity of a log can bear",
    "records of a store that contradict each other are believed",
    "patterns that are too costly together are accepted",
    "a connection is given all that a commit holds for it at once",
    "a stranger may send what is only for those who logged on",
    "where there was no room it is never tried again",
    "segments go before what must outlive them is recorded",
    "each commit of a chain is persisted by itself",
    "a transaction counts as committed before its record is durable",
    "what a simulated crash leaves is drawn anew each time",
    "a lease ends by the clock of the wall",
    "what was read is life, though it had arrived long before",
    "a server waits for three intervals",
    "a server takes every silence for its own",
)
"""Names. Those of a goal stand together."""

SLICE: Final = (
    "no mark after idleness",
    "the chain of commits is not checked",
    "a deep document is more than the identity of a log can bear",
    "patterns that are too costly together are accepted",
    "what a simulated crash leaves is drawn anew each time",
)
"""Those of the gate that are noticed within seconds; the first is planted in every run."""


def is_promise(text: str) -> bool:
    """Whether there is such a goal, behaviour or invariant."""
    kind, _, number = text.partition(" ")
    page = {"behaviour": _DOCS / "reference" / "behaviours.md", "invariant": _DOCS / "invariants.md"}.get(
        kind
    )
    if page is None:
        return text in GOALS
    return number in re.findall(r"^(\d+)\. ", page.read_text(encoding="utf-8"), re.MULTILINE)
