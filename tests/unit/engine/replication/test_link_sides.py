"""Sides of links: the facts of a handshake, and the reasons to refuse a link."""

from __future__ import annotations

import msgspec
import pytest

from tickertape.base.errors import BadLink, BadOption, BadTopic
from tickertape.base.limits import link_text_bytes_max
from tickertape.engine.limits import link_mismatches_max, link_refusal_bytes_max, sow_patterns_max
from tickertape.engine.replication.link_facts import OriginFacts, OutgoingLink, SowFacts, TopicFacts
from tickertape.engine.replication.links import sides
from tickertape.engine.replication.links.sides import (
    ServerFacts,
    facts_of,
    has_start,
    linked_source,
    newest_start,
    refusal,
)
from tickertape.engine.replication.places import LogStart, LogStarts
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.engine.replication.server_checks import origins_of_link, shortest_paths
from tickertape.wire.link import LinkedSource, LinkRule, LinkSide, LinkSowTopic, LinkTopics

TOPICS = TopicFacts(
    recorded=("orders", "a.*", "sow"),
    message_types={"orders": "json"},
    validated=("orders",),
    sow=(
        SowFacts(name="one", key=("/id",), key_domain="d", pattern="a.*"),
        SowFacts(name="two", missing_key="null", pattern="a.b.*", earlier_patterns=("a.*",)),
        SowFacts(name="sow"),
    ),
    derived=("view",),
)


def rule(topic: str, text: str | None = None) -> ReplicationRule:
    return ReplicationRule(topic=topic, filter=text, sync=False)


def side(name: str, peer: str, number: int, *sources: LinkedSource, topics: TopicFacts = TOPICS) -> LinkSide:
    starts = LogStarts(bytes([number]) * 16, [LogStart(number, 0), LogStart(number + 100, 50)])
    link = OutgoingLink(
        destination=peer, rules=(rule("orders", "/a = 1"), rule("b.*")), pass_through="ny", excluded=("sow",)
    )
    return ServerFacts(name, f"group-{name}", "software", topics, [link]).side(peer, starts, sources)


def test_facts_of_a_side_are_those_of_the_server() -> None:
    made = side("a", "b", 1)
    facts = facts_of(msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=LinkSide))
    assert facts.topics == TOPICS
    assert facts.link is not None
    assert facts.link.rules == (rule("orders", "/a = 1"), rule("b.*"))
    assert (facts.link.pass_through, facts.link.excluded, facts.link.destination) == ("ny", ("sow",), "b")
    assert (facts.instance, facts.group, facts.log, facts.start) == ("a", "group-a", bytes([1]) * 16, 101)
    assert len(made.digests) == 1


def test_side_without_a_link_to_the_peer_has_none() -> None:
    made = ServerFacts("a", "g", "", TOPICS, []).side("b", LogStarts(bytes(16), [LogStart(1, 0)]), ())
    assert facts_of(made).link is None
    assert made.rules == ()
    with pytest.raises(BadLink, match="names no destination"):
        refusal(made, side("b", "a", 2))


def test_source_of_a_link_is_reported_with_the_servers_behind() -> None:
    source = facts_of(side("c", "a", 3))
    assert source.link is not None
    behind = linked_source(side("c", "a", 3), origins_of_link(source, source.link))
    (incoming,) = facts_of(side("a", "b", 1, behind)).incoming
    assert (incoming.instance, incoming.log, incoming.start) == ("c", bytes([3]) * 16, 103)
    assert [origin.instance for origin in incoming.origins] == ["c"]
    assert incoming.rules == source.link.rules


def test_links_report_each_server_behind_once_for_equal_rules() -> None:
    """In a mesh each link brings the messages of all others. Reports of reports must not multiply."""
    names = ("a", "b", "c", "d", "e")
    facts = [OutgoingLink(destination=name, rules=(rule("b.*"),)) for name in names]
    servers = {name: ServerFacts(name, "g", "", TopicFacts(), facts) for name in names}
    known: dict[tuple[str, str], LinkedSource] = {}
    for _ in range(4):
        for at, name in enumerate(names):
            for peer in names:
                if peer != name:
                    sources = [known[edge] for edge in known if edge[1] == name]
                    starts = LogStarts(bytes([at + 1]) * 16, [LogStart(at + 1, 0)])
                    made = facts_of(servers[name].side(peer, starts, sources))
                    assert made.link is not None
                    own = servers[name].side(peer, starts, ())
                    known[name, peer] = linked_source(own, origins_of_link(made, made.link))
    for (source, destination), link in known.items():
        found = sorted((one.instance, one.path) for one in link.origins)
        others = [name for name in names if name not in (source, destination)]
        assert found == sorted([(source, (source,)), *((name, (name, source)) for name in others)])


def test_starts_of_a_side() -> None:
    made = side("a", "b", 1)
    assert newest_start(made) == 101
    assert has_start(made, 1)
    assert not has_start(made, 2)


def test_both_ends_find_equal_mismatches() -> None:
    here = side("a", "b", 1)
    there = side("b", "a", 2, topics=TopicFacts(recorded=("other",)))
    found = refusal(here, there)
    assert found is not None
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(here), type=LinkSide)
    again = refusal(sent, there)
    assert again is not None
    assert (str(again.error), again.mismatches) == (str(found.error), found.mismatches)
    assert {one.check for one in found.mismatches} >= {"txlog", "message_type"}
    assert str(found.error) == " ".join(one.text for one in found.mismatches)
    assert refusal(side("a", "b", 1), side("b", "a", 2)) is None


def test_lost_connection_of_an_earlier_run_is_no_reason() -> None:
    earlier = linked_source(side("a", "b", 1), ())
    for start, refused in ((1, False), (101, True), (7, True)):
        known = msgspec.structs.replace(earlier, start=start)
        found = refusal(side("a", "b", 1), side("b", "a", 2, known))
        assert (found is not None) == refused, start
        back = refusal(side("b", "a", 2, known), side("a", "b", 1))
        assert (back is not None) == (start == 7), start


def test_long_texts_of_mismatches_are_shortened() -> None:
    names = tuple(f"{'t' * 240}{number}" for number in range(link_mismatches_max + 40))
    here = side("a", "b", 1, topics=TopicFacts(recorded=names))
    rules = tuple(LinkRule(topic=name, sync=False) for name in names)
    found = refusal(
        msgspec.structs.replace(here, rules=rules),
        side("b", "a", 2, topics=TopicFacts(recorded=("other",))),
    )
    assert found is not None
    assert len(found.mismatches) == link_mismatches_max + 1
    assert len(str(found.error).encode()) <= link_refusal_bytes_max
    assert str(found.error).endswith("...")
    assert all(len(one.text.encode()) <= link_text_bytes_max for one in found.mismatches)


def test_invalid_facts_of_the_peer_are_refused() -> None:
    here = side("a", "b", 1)
    bad = msgspec.structs.replace(here, rules=(LinkRule(topic="(", sync=False),))
    with pytest.raises(BadTopic):
        refusal(bad, side("b", "a", 2, topics=TopicFacts(recorded=("a.*",))))
    table = LinkSowTopic(name="x", missing_key="other")
    with pytest.raises(BadLink, match="missing_key"):
        facts_of(msgspec.structs.replace(here, topics=LinkTopics(sow=(table,))))


def test_too_many_patterns_of_a_peer_are_refused_without_a_comparison_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        pairs.append((one, other))
        return False

    monkeypatch.setattr(sides, "may_overlap", compare)
    sow = tuple(
        LinkSowTopic(name=f"t{number}", missing_key="null", pattern=f"^t{number}/") for number in range(500)
    )
    peer = msgspec.structs.replace(side("a", "b", 1), topics=LinkTopics(sow=sow))
    with pytest.raises(BadOption, match="500 patterns, more than 64"):
        refusal(peer, side("b", "a", 2))
    assert len(pairs) <= sow_patterns_max**2


class CountedName(str):
    """A name that counts its comparisons."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_servers_behind_a_source_are_compared_only_with_themselves() -> None:
    names = [f"server-{number}" for number in range(300)]
    origins = [
        OriginFacts(instance=CountedName(name), group="g", path=path)
        for name in names
        for path in ((name, "x", "y"), (name, "x"))
    ]
    kept = shortest_paths(origins)
    assert [one.path for one in kept] == sorted((name, "x") for name in names)
    assert CountedName.compared <= 10 * len(origins)
