"""Server checks: whether servers may be connected, and the paths of messages between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tickertape.base.text_format import shown
from tickertape.engine.replication.link_facts import IncomingLink, LinkFacts, OriginFacts, OutgoingLink
from tickertape.engine.replication.link_pair import LinkPair, Mismatch
from tickertape.engine.replication.routes import PassThrough, RuleSet

_RENAME = "Rename one of them with `tickertape journal rename`"


def instance_name(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that the address of the destination leads to the configured server."""
    expected = pair.link.destination
    if expected != pair.destination.instance:
        yield pair.mandatory(
            "instance_name",
            f"{pair.here} expects {shown(expected)} at this address",
            f"Correct name or addresses in [[replication.destination]] at {pair.here}",
        )


def link_version(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that both servers support a common version, and all features that the other one needs."""
    here, there = pair.source.versions, pair.destination.versions
    if here and there and not {*here} & {*there}:
        yield pair.mandatory(
            "link_version",
            f"{pair.here} supports link versions {_joined(map(str, here))}, and {pair.there} "
            f"{_joined(map(str, there))}",
            "Update the older server",
        )
    for one, other in ((pair.source, pair.destination), (pair.destination, pair.source)):
        missing = sorted({*one.required} - {*other.features})
        if missing and here and there:
            yield pair.mandatory(
                "link_version",
                f"{shown(one.instance)} needs {_joined(map(shown, missing))}, which {shown(other.instance)} "
                "does not support",
                f"Update {shown(other.instance)}",
            )


def log_twice(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that each server has a log of its own. A copied data directory has the log of another server."""
    cure = "Stop one of them, and start it with an empty data directory"
    source, destination = pair.source, pair.destination
    if source.log and source.log == destination.log:
        yield pair.mandatory("log_twice", f"both have the log {source.log.hex()}", cure)
    for one, other in ((source, destination), (destination, source)):
        for link in other.incoming:
            if one.log and link.log == one.log and not _is_of(link, one):
                yield pair.mandatory(
                    "log_twice",
                    f"another start of {shown(link.instance)} that is connected to {shown(other.instance)} "
                    f"also has the log {one.log.hex()} of {shown(one.instance)}",
                    cure,
                )


def instance_twice(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that a name belongs to one log. Two logs of one name number messages of one client separately."""
    source, destination = pair.source, pair.destination
    same_log = source.log and source.log == destination.log
    if source.instance == destination.instance and not same_log:
        yield pair.mandatory("instance_twice", "both have the same name", _RENAME)
        return
    ignored = {b"", *source.replaced, *destination.replaced}
    logs: dict[str, set[bytes]] = {}
    for instance, log in (*source.known_logs(), *destination.known_logs()):
        if log not in ignored:
            logs.setdefault(instance, set()).add(log)
    for instance, known in sorted(logs.items()):
        if len(known) > 1:
            yield pair.mandatory(
                "instance_twice",
                f"instance {shown(instance)} has the logs {_joined(sorted(log.hex() for log in known))}",
                f"{_RENAME}, or run `tickertape replication forget LOG` for a log that another one replaced",
            )


def one_stream(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that one link connects the servers in this direction."""
    if any(_is_of(link, pair.source) for link in pair.destination.incoming):
        yield pair.mandatory(
            "one_stream",
            f"{pair.there} already has a link from {pair.here}",
            f"Use one [[replication.destination]] for {pair.there} at {pair.here}, with all topics",
        )


def routes(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that messages of one origin pass equal rules on all paths to the destination."""
    brought = [*origins_of_link(pair.source, pair.link)]
    for link in pair.destination.incoming:
        if link.instance == pair.source.instance:
            continue
        for origin in link.origins:
            others = [one for one in brought if one.instance == origin.instance]
            if any({*one.digests} != {*origin.digests} for one in others):
                yield pair.mandatory(
                    "routes",
                    f"messages of {shown(origin.instance)} also reach {pair.there} from "
                    f"{shown(link.instance)}, and other rules select them",
                    "Use rules with equal topics and filters on both paths",
                )


def origins_of_link(source: LinkFacts, link: OutgoingLink) -> Iterator[OriginFacts]:
    """Yield the origins whose messages a link of `source` brings, with the rules and servers on their paths.

    Raises `BadTopic` or `BadOption` for an invalid pattern."""
    digests = RuleSet(link.rules, source.topics.derived).digests()
    own = OriginFacts(instance=source.instance, group=source.group, log=source.log, path=(source.instance,))
    pass_through = PassThrough(link.pass_through)
    # All messages of a link from the destination are there.
    received = (one for one in source.incoming if one.instance != link.destination)
    passed = (
        origin
        for one in received
        for origin in one.origins
        if origin.instance != source.instance
        and link.destination not in (origin.instance, *origin.path)
        and pass_through.passes(origin.group)
    )
    for origin in (own, *passed):
        path = origin.path if origin is own else (*origin.path, source.instance)
        union = tuple(sorted({*origin.digests, *digests}))
        yield msgspec.structs.replace(origin, digests=union, path=path)


def shortest_paths(origins: Iterable[OriginFacts]) -> list[OriginFacts]:
    """Return the origins without those that differ from another one only by more servers on their path."""
    kept: list[OriginFacts] = []
    paths: dict[tuple[str, tuple[bytes, ...]], list[set[str]]] = {}
    for origin in sorted(origins, key=lambda one: (len(one.path), one.path, one.digests)):
        path, same = {*origin.path}, paths.setdefault((origin.instance, origin.digests), [])
        if not any(one <= path for one in same):
            kept.append(origin)
            same.append(path)
    return kept


def sync_pass_through(pair: LinkPair) -> Iterator[Mismatch]:
    """Check that a synchronous destination gets all messages of its topics, also those of other servers.

    The messages of the destination itself count: it may lose them, and then needs them back."""
    left_out: dict[str, str] = {}
    for link in pair.source.incoming:
        topic = _shared_sync_topic(pair.rules, RuleSet(link.rules))
        if topic is not None:
            for origin in link.origins:
                if origin.instance != pair.source.instance and not pair.pass_through.passes(origin.group):
                    left_out.setdefault(origin.group, topic)
    for group, topic in sorted(left_out.items()):
        yield pair.mandatory(
            "sync_pass_through",
            f"{pair.here} receives {shown(topic)} from group {shown(group)}, which pass_through leaves out, "
            f"and waits for {pair.there}",
            f'Set pass_through = ".*" for {pair.there} at {pair.here}, or sync = false',
        )


def _shared_sync_topic(rules: RuleSet, received: RuleSet) -> str | None:
    """Return a name or pattern that both rule sets may match, the first one synchronously, or None."""
    for rule in rules.names:
        if rule.sync and received.rule_of(rule.topic) is not None:
            return rule.topic
    for rule in received.names:
        if rules.is_sync(rule.topic):
            return rule.topic
    for rule in received.patterns:
        if any(one.sync for one in rules.overlapping(rule.topic)):
            return rule.topic
    return None


def _is_of(link: IncomingLink, source: LinkFacts) -> bool:
    """Return whether a link comes from a server, and not from another start of a copy of its log."""
    return (link.instance, link.log, link.start) == (source.instance, source.log, source.start)


def _joined(texts: Iterable[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last
