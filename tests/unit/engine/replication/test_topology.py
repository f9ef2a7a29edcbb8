"""Topologies of several servers: those that fit, and refused links with their texts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.helpers.link_facts import rule
from tickertape.engine.replication.link_facts import LinkFacts, OutgoingLink
from tickertape.engine.replication.routes import ReplicationRule, RuleSet
from tickertape.engine.replication.topology import ReplicationServer, link_facts, topology_mismatches

PAIR, CHAIN = ("ab",), ("ab", "bc")
RING, MESH = ("ab", "bc", "cd", "da"), ("ab", "ac", "ad", "bc", "bd", "cd")
EVERY = (rule(".*"),)


def servers(
    pairs: tuple[str, ...],
    rules: Mapping[str, tuple[ReplicationRule, ...]] | None = None,
    pass_through: str = ".*",
) -> list[ReplicationServer]:
    """Return servers with links in both directions of each pair. `rules`: of single directions."""
    directions = sorted({*pairs, *(pair[::-1] for pair in pairs)})
    links = {
        name: tuple(
            OutgoingLink(
                destination=to, rules=(rules or {}).get(start + to, EVERY), pass_through=pass_through
            )
            for start, to in map(tuple, directions)
            if start == name
        )
        for name in sorted({*"".join(pairs)})
    }
    return [ReplicationServer(instance=name, group=name, links=some) for name, some in links.items()]


def facts_of(topology: list[ReplicationServer], pair: str) -> tuple[LinkFacts, LinkFacts]:
    return next((source, to) for source, to in link_facts(topology) if source.instance + to.instance == pair)


@pytest.mark.parametrize("pairs", [PAIR, CHAIN, RING, MESH])
def test_topology_with_equal_rules_fits(pairs: tuple[str, ...]) -> None:
    topology = servers(pairs)
    assert topology_mismatches(topology) == []
    assert len([*link_facts(topology)]) == 2 * len(pairs)


def test_server_receives_the_origins_of_all_servers_behind_the_links() -> None:
    _, there = facts_of(servers(("ab", "bc", "cd")), "ba")
    assert there.incoming == ()
    source, there = facts_of(servers(("ab", "bc", "cd")), "bc")
    assert [one.instance for one in source.incoming] == ["a", "c"]
    assert [(one.instance, one.path) for one in source.incoming[0].origins] == [("a", ("a",))]
    assert [(one.instance, one.path) for one in source.incoming[1].origins] == [
        ("c", ("c",)), ("d", ("d", "c")),
    ]  # fmt: skip
    assert [one.instance for one in there.incoming] == ["d"]


def test_origins_have_the_rules_of_all_links_on_the_path() -> None:
    rules = {"ab": (rule("x"),), "bc": (rule("y"),)}
    source, _ = facts_of(servers(("ab", "bc", "cd"), rules), "cd")
    digests = {one.instance: {*one.digests} for one in source.incoming[0].origins}
    assert digests == {
        "a": RuleSet(rules["ab"]).digests() | RuleSet(rules["bc"]).digests(),
        "b": RuleSet(rules["bc"]).digests(),
    }


def test_one_hop_brings_only_the_messages_of_the_source() -> None:
    source, _ = facts_of(servers(CHAIN, pass_through=""), "bc")
    assert [one.instance for link in source.incoming for one in link.origins] == ["a", "c"]
    _, there = facts_of(servers(("ab", "bc", "cd"), pass_through=""), "ba")
    assert there.incoming == ()
    checks = {one.check for one in topology_mismatches(servers(CHAIN, pass_through=""))}
    assert checks == {"sync_pass_through"}


def test_two_paths_with_other_topics_are_refused_at_both_links() -> None:
    orders = (rule("orders"),)
    topology = servers(("ab", "ac", "bc"), {"ac": orders, "ca": orders})
    texts = {mismatch.text for mismatch in topology_mismatches(topology) if mismatch.check == "routes"}
    text = (
        "Cannot replicate from '{0}' to '{1}': messages of '{2}' also reach '{1}' from '{3}', and other "
        "rules select them. Use rules with equal topics and filters on both paths."
    )
    assert text.format("a", "c", "a", "b") in texts
    assert text.format("b", "c", "a", "a") in texts


def one_way(*links: tuple[str, str, str]) -> list[ReplicationServer]:
    """Return servers with a link of one topic or pattern for each source, destination and topic."""
    return [
        ReplicationServer(
            instance=name,
            group=name,
            links=(OutgoingLink(destination=to, rules=(rule(topic),), excluded=("replicate",)),),
        )
        for name, to, topic in links
    ]


def test_ring_in_one_direction_needs_no_equal_rules() -> None:
    assert topology_mismatches(one_way(("a", "b", "x"), ("b", "c", "y"), ("c", "a", ".*"))) == []


def test_messages_that_return_to_a_server_need_no_equal_rules() -> None:
    ring = one_way(("a", "b", ".*"), ("b", "c", "x"), ("c", "d", ".*"), ("d", "b", ".*"))
    assert topology_mismatches(ring) == []


def test_link_to_a_server_without_a_configuration_is_not_checked() -> None:
    (alone, _) = servers(PAIR)
    assert topology_mismatches([alone]) == []
