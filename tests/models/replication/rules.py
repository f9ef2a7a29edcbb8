"""Variants of the rules of replication: the design, and each rule that it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rules:
    """The rules that all instances, links and clients of a schedule follow. The defaults are the design."""

    filter: Literal["holes", "highest"] = "holes"
    """A duplicate is at or below the highest sequence and in no hole, or only at or below the highest."""
    claim: bool = True
    """The first message of a connection opens a hole up to the acknowledged sequence of its publisher."""
    continuity: Literal["runs", "logon", "none"] = "runs"
    """An `After` row precedes each run that does not continue its connection, the first run, or none."""
    pass_on_after: bool = True
    """Links pass `After` rows on."""
    pass_through: bool = True
    """Links pass on messages of other origins."""
    names: bool = True
    """Messages that went through the destination are named, and sent if the destination lacks them."""
    paths: Literal["log ids", "names"] = "log ids"
    """Elements of the path of a message."""
    start_ids: bool = True
    """A place counts only with the start in which it was written."""
    resume: Literal["places", "bookmarks"] = "places"
    """A subscriber resumes by the places of logs, or by the newest bookmark of each publisher."""
    reports: bool = True
    """Links pass on the places of other logs."""
    unknown_log: Literal["whole", "passed over"] = "whole"
    """A subscriber without a place of a log starts with its first row, or by bookmarks only."""
    send: Literal["synced", "accepted"] = "synced"
    """Links send rows that are on disk, or all rows."""
    place: Literal["with", "before"] = "with"
    """The place of a link is in the commit of its rows, or in one before it."""
    acknowledge: Literal["synced", "received", "accepted"] = "synced"
    """A message is acknowledged when it is on each disk, taken by each destination, or accepted."""
    duplicates_wait: bool = True
    """A duplicate is acknowledged when the destinations have all rows before it."""
    pins: Literal["members", "destinations", "connected", "none"] = "members"
    """Retention keeps the rows that a member of the group lacks, or a destination, or a connected one."""
    holes_rows: Literal["changes", "splits"] = "changes"
    """Each commit that changes holes of a publisher ends with all of them, or only if several are open."""
    first_rows: Literal["holes", "after", "none"] = "holes"
    """A link that starts behind removed rows opens holes for them, or repeats the last `After` rows."""
    removed_rows: Literal["refused", "skipped"] = "refused"
    """A destination whose place is before the first row is refused, or skips rows."""
    old_copies: Literal["any report", "newest report"] = "any report"
    """A destination without a place is an old copy if it reported rows of the source once, or lately."""
    missing: Literal["searched", "held back", "ignored"] = "searched"
    """A subscriber resumes before messages of its holes, behind the message before, or ignores holes."""
    unproven: Literal["also", "only", "ignored"] = "also"
    """The first message of a connection without a claim opens an unproven hole, after the row of its run,
    in place of that row, or not at all."""
    open_subscriptions: Literal["notified", "ignored"] = "notified"
    """Open subscriptions are notified that a link starts behind removed rows, or only later ones are."""
    first_holes: Literal["sent", "not sent"] = "sent"
    """A subscription that starts at the first row gets the holes of the removed rows, or does not."""
    reported_holes: Literal["all", "proven"] = "all"
    """Subscribers know all holes, or only proven ones."""
    closing: Literal["members", "destinations", "never"] = "members"
    """A hole is closed when all members have no message for it, or all destinations."""
    reports_count: Literal["direct", "any"] = "direct"
    """A report of a direct source counts when it came over its link, or over any route."""
    copies: Literal["all", "unnamed", "first", "none"] = "all"
    """The first copy of a message counts, also if it arrives later, and so does a delete that names more.
    With "unnamed", the first copy of a delete counts also on keys for which it names no message."""
    named_stamps: bool = True
    """A named message has the order stamp of its copy, so that a copy that counts is asked for."""
    forget: Literal["stable", "at once", "never"] = "stable"
    """Candidates that lost are forgotten when all members have them, at once, or never."""
    first_records: Literal["candidates", "none"] = "candidates"
    """A link that starts behind removed rows first sends the candidates of these rows, or nothing."""
    wait_for_sources: bool = True
    """An instance that lost rows takes no publishes before it has all rows of its sources."""
    unrouted: Literal["looked up", "filtered"] = "looked up"
    """A client's message on a topic that no link brings is looked up in the log, or filtered by sequence."""
    equal_routes: bool = True
    """All links of an instance pass the same topics."""


DESIGN = Rules()
HIGHEST = Rules(filter="highest", resume="bookmarks")
"""The rule of the reference: at or below the highest sequence of its publisher is a duplicate."""
