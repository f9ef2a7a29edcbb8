"""Variants of the rules with their setups, and the failures that the model must find in each."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from tests.models.replication.rules import DESIGN, HIGHEST, Rules
from tests.models.replication.schedule import TOPOLOGIES, Setup


class Variant(NamedTuple):
    """A row of the table."""

    name: str
    rules: Rules
    setup: Setup
    fails: frozenset[str] = frozenset()
    """The failures that occur. None for the design."""
    first: int = 0
    """The first seed of every run. A rare failure has one that fails."""
    seeds: int = 20
    """The number of seeds of every run."""


def _defect(name: str, rules: Rules, setup: Setup, fails: str, first: int = 0, seeds: int = 20) -> Variant:
    return Variant(name, rules, setup, frozenset(fails.split()), first, seeds)


def _faults(topology: str, sync: bool) -> tuple[tuple[str, Setup], ...]:
    setup = Setup(topology, sync)
    lossy = replace(setup, crashes=4)
    removing = replace(setup, crashes=2, removals=15, messages=30)
    return (
        ("", setup),
        (", power losses, an old copy", replace(lossy, restores=1)),
        (", power losses, an empty log", replace(lossy, replacements=1)),
        (", lost stores", replace(lossy, lost_stores=2, messages=30)),
        (", older clients", replace(lossy, older_clients=True)),
        (", removals, an old copy", replace(removing, restores=1)),
        (", removals, an empty log", replace(removing, replacements=1)),
    )


ASYNC: Final = Setup()
SYNC: Final = Setup(sync=True)
BOOKMARKS: Final = Rules(resume="bookmarks")
ONE_HOP: Final = Rules(pass_through=False)
RESTORED: Final = Setup(restores=2)
RESTORED_SYNC: Final = Setup(sync=True, restores=2)
CRASHES: Final = Setup(crashes=4)
CRASHES_SYNC: Final = Setup(sync=True, crashes=4)
REPLACED: Final = Setup(replacements=1)
REMOVALS: Final = Setup(removals=15, messages=30)
CRASHES_REMOVALS: Final = replace(REMOVALS, crashes=12)
NEW: Final = replace(REMOVALS, replacements=1)
NEW_STORES: Final = replace(NEW, sync=True, lost_stores=2)
OLD: Final = replace(REMOVALS, restores=1)
CHAIN_REMOVALS: Final = replace(NEW, topology="chain")
CHAIN_OLD: Final = replace(OLD, topology="chain", crashes=2)
STAR_NEW: Final = replace(NEW, topology="star", sync=True, crashes=2)
STAR_OLD: Final = replace(OLD, topology="star", sync=True, crashes=2)
DESTINATIONS: Final = Rules(pins="destinations")
SPLITS: Final = Rules(holes_rows="splits", pins="none", removed_rows="skipped")
LOST_STORES: Final = Setup(lost_stores=3, messages=30)
STAR_STORES: Final = replace(LOST_STORES, topology="star")
STAR_CRASHES: Final = replace(CRASHES, topology="star", lost_stores=2, messages=30)
RECORDS: Final = Setup(records=True, messages=30)
DELETES: Final = replace(RECORDS, replacements=1)
NEW_RECORDS: Final = replace(DELETES, removals=15)
NEW_RECORDS_CHAIN: Final = replace(NEW_RECORDS, topology="chain")
OLD_RECORDS: Final = replace(RECORDS, topology="chain", restores=1)
NAMED: Final = Setup("chain", records=True, restores=2)
NAMES: Final = Rules(named_stamps=False, forget="never")
AT_ONCE: Final = Rules(wait_for_sources=False)
PARTIAL: Final = Setup(partial=True)
OLDER: Final = Setup(older_clients=True)
OLDER_STAR: Final = Setup("star", older_clients=True)
ONLY_UNPROVEN: Final = Rules(unproven="only", pass_through=False)
PROVEN: Final = Rules(reported_holes="proven")
IGNORED: Final = Rules(open_subscriptions="ignored")
NOT_SENT: Final = Rules(first_holes="not sent")
NEWEST_REPORT: Final = Rules(old_copies="newest report")
UNNAMED: Final = Rules(copies="unnamed")
CLOSED_EARLY: Final = Rules(closing="destinations")
CHAIN: Final = Setup("chain")
PASSED_OVER: Final = Rules(unknown_log="passed over")
BY_NAME: Final = Rules(names=False, paths="names")

VARIANTS: Final = (
    Variant("design, asynchronous", DESIGN, ASYNC),
    Variant("design, synchronous", DESIGN, SYNC),
    Variant("design, two old copies, asynchronous", DESIGN, RESTORED),
    Variant("design, two old copies, synchronous", DESIGN, RESTORED_SYNC),
    *(
        Variant(f"design, {topology}, {kind}{faults}", DESIGN, setup, seeds=4)
        for topology in TOPOLOGIES
        for sync, kind in enumerate(("asynchronous", "synchronous"))
        for faults, setup in _faults(topology, bool(sync))
    ),
    Variant("no reports, chain", Rules(reports=False), CHAIN),
    _defect("place of an unknown log passed over", PASSED_OVER, ASYNC, "missed", first=40),
    _defect("place of an unknown log passed over, chain", PASSED_OVER, CHAIN, "missed", first=20),
    _defect("unequal topics on two routes", Rules(equal_routes=False), ASYNC, "lost missed"),
    *(
        Variant(f"design, {topology}, records", DESIGN, Setup(topology, records=True), seeds=10)
        for topology in TOPOLOGIES
    ),
    Variant("design, mesh, records, removals, an empty log", DESIGN, NEW_RECORDS, seeds=10),
    Variant("design, chain, records, an old copy", DESIGN, OLD_RECORDS, seeds=10),
    _defect("copies not stored", Rules(copies="none"), RECORDS, "states"),
    _defect("copies of deletes that name no message stored", UNNAMED, STAR_CRASHES, "lost twice missed", 200),
    _defect(
        "copies of deletes that name more not stored", Rules(copies="first"), DELETES, "states", first=220
    ),
    _defect("candidates forgotten at once", Rules(forget="at once"), RECORDS, "states"),
    _defect(
        "no candidates of removed rows", Rules(first_records="none"), NEW_RECORDS_CHAIN, "states", first=220
    ),
    _defect("an empty log takes publishes at once", AT_ONCE, NEW_RECORDS, "states", first=620),
    _defect("names without order stamps", NAMES, NAMED, "states", first=1280),
    Variant("design, one of two topics on links", DESIGN, PARTIAL),
    _defect(
        "resent messages of other topics filtered", Rules(unrouted="filtered"), Setup(partial=True), "untrue"
    ),
    _defect("unproven holes ignored", Rules(unproven="ignored"), LOST_STORES, "lost missed"),
    _defect("unproven holes ignored, older clients", Rules(unproven="ignored"), OLDER, "lost missed"),
    _defect("unproven holes in place of proven ones, one hop", ONLY_UNPROVEN, OLDER_STAR, "lost missed"),
    _defect("unproven holes not reported to subscribers", PROVEN, LOST_STORES, "missed"),
    _defect("holes closed when all destinations have them, star", CLOSED_EARLY, STAR_STORES, "lost missed"),
    _defect("report counts on any route", Rules(reports_count="any"), NEW_STORES, "lost", first=160),
    _defect("no pins", Rules(pins="none"), REMOVALS, "lost"),
    _defect("pins of connected destinations only", Rules(pins="connected"), REMOVALS, "lost"),
    _defect("pins of destinations only, chain, an empty log", DESTINATIONS, CHAIN_REMOVALS, "lost", first=20),
    _defect("`After` rows repeated before the first row", Rules(first_rows="after"), NEW, "lost"),
    _defect("removed rows skipped, an old copy", Rules(removed_rows="skipped"), OLD, "lost"),
    _defect("old copy by the newest report, star", NEWEST_REPORT, STAR_OLD, "lost", first=235),
    _defect("open subscriptions ignore removed rows, star", IGNORED, STAR_NEW, "missed", first=160),
    _defect("first holes not sent, chain, an old copy", NOT_SENT, CHAIN_OLD, "missed", first=70),
    _defect("no `Holes` row for the last fill, no pins", SPLITS, CRASHES_REMOVALS, "twice"),
    Variant("rows sent before the sync", Rules(send="accepted"), CRASHES),
    _defect("acknowledged before the sync", Rules(acknowledge="accepted"), CRASHES, "lost untrue"),
    _defect(
        "acknowledged before the sync of the destination",
        Rules(acknowledge="received"),
        CRASHES_SYNC,
        "untrue",
        first=80,
    ),
    _defect("duplicate acknowledged from the local end", Rules(duplicates_wait=False), SYNC, "untrue"),
    _defect("place in a commit before its rows", Rules(place="before"), CRASHES, "lost missed", first=20),
    _defect("no names, paths of instance names, an empty log", BY_NAME, REPLACED, "lost"),
    _defect("highest sequence, bookmarks, asynchronous", HIGHEST, ASYNC, "lost missed"),
    _defect("highest sequence, bookmarks, synchronous", HIGHEST, SYNC, "missed"),
    _defect("bookmarks, asynchronous", BOOKMARKS, ASYNC, "missed"),
    _defect("bookmarks, synchronous", BOOKMARKS, SYNC, "missed"),
    _defect("one hop, asynchronous", ONE_HOP, ASYNC, "missed", first=140),
    _defect(
        "places without starts, two old copies", Rules(start_ids=False), RESTORED, "lost missed", seeds=100
    ),
    _defect("no names, two old copies", Rules(names=False), RESTORED_SYNC, "lost"),
    _defect("claim ignored", Rules(claim=False), ASYNC, "lost missed"),
    _defect("`After` not passed on", Rules(pass_on_after=False), ASYNC, "lost missed"),
    _defect(
        "one hop, no `After` of runs", Rules(pass_through=False, continuity="none"), ASYNC, "lost", seeds=60
    ),
    _defect(
        "one hop, `After` at logon only",
        Rules(pass_through=False, continuity="logon"),
        ASYNC,
        "lost",
        first=340,
    ),
)
