"""Topologies of servers compared with the paths of single messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Final

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tickertape.base.names import is_pattern
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.engine.replication.topology import ReplicationServer, topology_mismatches

NAMES: Final = "abcd"
TOPICS: Final = ("x", "x/1", "y")
RULES = st.sampled_from(
    [
        tuple(ReplicationRule(topic=topic, sync=False) for topic in topics)
        for topics in ([".*"], [".*"], ["x", ".*"], ["^x"], ["x"], ["x", "y"])
    ]
)
PASSES = st.sampled_from([".*", ".*", "", "^(a|b)$"])
LINKS = st.dictionaries(
    st.sampled_from([*permutations(NAMES, 2)]), st.tuples(RULES, PASSES), min_size=3, max_size=7
)
Links = Mapping[tuple[str, str], tuple[tuple[ReplicationRule, ...], str]]


def topology(links: Links) -> list[ReplicationServer]:
    return [
        ReplicationServer(
            instance=name,
            group=name,
            links=tuple(
                OutgoingLink(destination=to, rules=rules, pass_through=passed, excluded=("replicate",))
                for (start, to), (rules, passed) in sorted(links.items())
                if start == name
            ),
        )
        for name in NAMES
    ]


def topics_of(rules: tuple[ReplicationRule, ...]) -> frozenset[str]:
    """Return the topics that rules without filters replicate."""
    return frozenset(
        topic
        for topic in TOPICS
        for rule in rules
        if (re.search(rule.topic, topic) if is_pattern(rule.topic) else rule.topic == topic)
    )


def paths(
    links: Links, path: tuple[str, ...], topics: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each end of a path from the first server of `path`, with the topics that arrive there."""
    for (start, to), (rules, passed) in links.items():
        own = len(path) == 1
        if start == path[-1] and to not in path and (own or (passed and re.search(passed, path[0]))):
            arriving = topics & topics_of(rules)
            yield to, arriving
            yield from paths(links, (*path, to), arriving)


@pytest.mark.slow
@given(LINKS)
def test_messages_of_an_origin_pass_equal_rules_on_all_paths_unless_routes_are_refused(links: Links) -> None:
    refused = [one for one in topology_mismatches(topology(links)) if one.check == "routes"]
    differ = False
    for name in NAMES:
        arriving: dict[str, set[frozenset[str]]] = {}
        for to, topics in paths(links, (name,), frozenset(TOPICS)):
            arriving.setdefault(to, set()).add(topics)
        differ = differ or any(len(sets) > 1 for sets in arriving.values())
    event(f"refused: {bool(refused)}, differ: {differ}")
    assert refused or not differ


@given(LINKS)
def test_topology_with_the_same_rules_everywhere_has_no_refused_routes(links: Links) -> None:
    same = dict.fromkeys(links, ((ReplicationRule(topic="^x", sync=False),), ".*"))
    assert topology_mismatches(topology(same)) == []
