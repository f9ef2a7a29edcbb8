"""Gate of planted defects, and the guarantees that a defect can break.

Every change must leave each defect of the gate detectable. Must never name a goal that the documentation
lacks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).resolve().parent.parent.parent / "docs"

GOALS: Final = {
    "R1": "acknowledged messages survive a crash, once and in order",
    "R2": "a torn write loses no acknowledged message",
    "R3": "a flipped bit is never delivered and never shortens the log without a report",
    "R4": "no message is acknowledged after a failed sync",
    "R5": "no message is acknowledged after a failed or short write",
    "R6": "a real server may be killed at any time",
    "R8": "cut, slow or half-open links lose and duplicate nothing",
    "R9": "resent messages are stored once, and reported results are true",
    "R10": "replay to live and back: no gap, no duplicate, in order",
    "R11": "queues lose nothing, and no message is leased twice",
    "R12": "external bytes cause only listed errors, in bounded time and memory",
    "R13": "an accepted filter is fast",
    "R14": "slow readers cost bounded memory and delay no other client",
    "R15": "connections without a logon cost bounded memory and delay no other client",
    "R16": "a full disk refuses publishes, loses nothing, and needs no restart",
    "R19": "equal seeds, equal traces",
    "R21": "jumps of clocks and suspended processes have no unnoticed effect",
    "R22": "every call ends",
}
"""Each has a defect in the gate. R20, detected defects, and R27, faults that occurred, are about
the tests themselves."""

GATE: Final = (
    "a commit is not synced",
    "a publish is acknowledged when accepted, not when persisted",
    "the directory of reserved segments is not synced",
    "recovery does not rewrite commits that may be only in the page cache",
    "the chain of commits is not checked",
    "the salt of a commit is not checked",
    "the checksum of a body is not verified at a start",
    "the checksum of a body is not verified by readers",
    "recovery ignores the synced-through mark of later commits",
    "no mark is written after an idle time",
    "a failed write or sync counts as completed",
    "a short write counts as complete",
    "errors of the disk thread are dropped",
    "the highest sequences of the segment in use at a kill are forgotten",
    "the end of an earlier attempt's connection ends the current one",
    "the duplicate filter is off",
    "all messages of a partly duplicate frame are dropped",
    "a publish returns before its message is synced",
    "a flush on a lost connection reports everything as persisted",
    "a bookmark starts at its message, not after it",
    "a subscription that leaves the live fan-out skips one message",
    "a subscription that joins the live fan-out gets the commit at its position twice",
    "the recovery point passes the first undiscarded message",
    "outcomes are not applied at a start",
    "returns are not counted",
    "one delivery more than allowed",
    "descending offsets are accepted",
    "a deep document in the identity file raises an unexpected error",
    "contradictory records of a store are accepted",
    "patterns that are too costly together are accepted",
    "a connection gets all its messages of a commit at once",
    "frames of any size are accepted before the logon",
    "a segment reservation is not retried after a full disk",
    "segments are removed before the retired state is written",
    "each commit of a chain is persisted separately",
    "a transaction counts as committed before its record is durable",
    "a simulated crash ignores its seed",
    "a lease ends by the wall clock",
    "a read of data that arrived long before counts as a sign of life",
    "a server ends a connection only after three silent intervals",
    "a server excuses the silence of a client as its own stall",
)
"""Names, grouped by goal."""

SLICE: Final = (
    "no mark is written after an idle time",
    "the chain of commits is not checked",
    "a deep document in the identity file raises an unexpected error",
    "patterns that are too costly together are accepted",
    "a simulated crash ignores its seed",
)
"""Defects of the gate that are detected within seconds. The first is planted in every run."""


def is_promise(text: str) -> bool:
    """Return whether a goal, behaviour or invariant of this name exists."""
    kind, _, number = text.partition(" ")
    page = {"behaviour": _DOCS / "reference" / "behaviours.md", "invariant": _DOCS / "invariants.md"}.get(
        kind
    )
    if page is None:
        return text in GOALS
    return number in re.findall(r"^(\d+)\. ", page.read_text(encoding="utf-8"), re.MULTILINE)
