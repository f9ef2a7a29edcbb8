"""Validation of a link: truth tables of all checks, texts, exclusions, and all mismatches at once."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.link_facts import facts, incoming, origin, rule
from tickertape.base.errors import BadOption, BadTopic
from tickertape.engine.limits import link_mismatches_max
from tickertape.engine.replication.link_facts import IncomingLink, LinkFacts, SowFacts, TopicFacts
from tickertape.engine.replication.validation import EXCLUDABLE, MANDATORY, mismatches, publisher_collision
from tickertape.engine.runtime.sow_definition import SowDefinition

SYNC, ASYNC = rule("orders"), rule("orders", sync=False)
FIX = TopicFacts(message_types={"orders": "fix"})
NO_ORDERS = TopicFacts(recorded=("trades",))
KEYED = SowFacts.of(SowDefinition("orders", key=("/id",)))


def topics(**fields: object) -> TopicFacts:
    return msgspec.structs.replace(TopicFacts(), **fields)


def found(source: LinkFacts, destination: LinkFacts) -> list[str]:
    """Return the names of the failed checks."""
    return [mismatch.check for mismatch in mismatches(source, destination)]


def texts(source: LinkFacts, destination: LinkFacts) -> list[str]:
    return [str(mismatch) for mismatch in mismatches(source, destination)]


# -- servers that fit ---------------------------------------------------------------------------------


def test_servers_with_equal_topics_and_rules_fit_in_both_directions() -> None:
    rules = (rule("orders"), rule("^trades/", "/n > 1", sync=False), rule(".*"))
    known = TopicFacts(
        message_types={"orders": "fix"}, validated=("orders",), sow=(SowFacts.of(SowDefinition("orders")),)
    )
    a, b = facts("a", "b", *rules, topics=known), facts("b", "a", *rules, topics=known)
    assert mismatches(a, b) == mismatches(b, a) == []


def test_triangle_with_equal_rules_fits() -> None:
    rules = (rule(".*"),)
    a = facts("a", "c", *rules, incoming=(incoming("b", origin("c", rules, rules), rules=rules),))
    c = facts("c", "a", *rules, incoming=(incoming("b", origin("a", rules, rules), rules=rules),))
    assert mismatches(a, c) == mismatches(c, a) == []


def test_facts_without_logs_and_versions_fit() -> None:
    a = facts("a", "b", log=b"", start=0, versions=(), features=("x",))
    b = facts("b", "a", log=b"", start=0, versions=(), required=("y",))
    assert mismatches(a, b) == []


# -- truth tables -------------------------------------------------------------------------------------

TABLE = [
    # V1: persistent at the destination
    ("txlog", facts("a", "b"), facts("b", "a", topics=NO_ORDERS)),
    ("", facts("a", "b"), facts("b", "a", topics=topics(recorded=("^ord", "trades")))),
    ("txlog", facts("a", "b", rule(".*")), facts("b", "a", rule(".*"), topics=NO_ORDERS)),
    ("txlog", facts("a", "b", rule("^o")), facts("b", "a", rule("^o"), topics=topics(recorded=("^or",)))),
    ("", facts("a", "b", rule("^or")), facts("b", "a", rule("^or"), topics=topics(recorded=("^o",)))),
    (
        "",
        facts("a", "b", rule(".*"), topics=topics(recorded=("^ord",))),
        facts("b", "a", rule(".*"), topics=topics(recorded=("^or",))),
    ),
    (
        "",
        facts("a", "b", rule(".*"), topics=topics(recorded=("orders",))),
        facts("b", "a", rule(".*"), topics=topics(recorded=("orders", "trades"))),
    ),
    (
        "txlog",
        facts("a", "b", rule(".*"), topics=topics(recorded=("orders", "trades"))),
        facts("b", "a", rule(".*"), topics=topics(recorded=("orders",))),
    ),
    # V2: replicated back
    ("replicate", facts("a", "b"), facts("b", "a", link=None)),
    ("replicate", facts("a", "b"), facts("b", "a", rule("trades"))),
    ("", facts("a", "b"), facts("b", "a", rule("^ord"))),
    ("replicate", facts("a", "b", rule("^o")), facts("b", "a", rule("^or"))),
    ("", facts("a", "b", rule("^or")), facts("b", "a", rule("^o"))),
    (
        "",
        facts("a", "b", rule("^o"), topics=topics(recorded=("orders",))),
        facts("b", "a", rule("orders")),
    ),
    # V3: message type and validation
    ("message_type", facts("a", "b", topics=FIX), facts("b", "a")),
    ("message_type", facts("a", "b"), facts("b", "a", topics=FIX)),
    ("message_type", facts("a", "b", rule("^o")), facts("b", "a", rule("^o"), topics=FIX)),
    ("", facts("a", "b", rule("^t")), facts("b", "a", rule("^t"), topics=FIX)),
    ("message_type", facts("a", "b", topics=topics(validated=("orders",))), facts("b", "a")),
    (
        "",
        facts("a", "b", topics=topics(message_types={"orders": "binary"}, validated=("orders",))),
        facts("b", "a", topics=topics(message_types={"orders": "binary"})),
    ),
    # V4: equal rules on all paths of an origin
    ("routes", facts("b", "c"), facts("c", "b", incoming=(incoming("a", origin("b", (rule(".*"),))),))),
    ("", facts("b", "c"), facts("c", "b", incoming=(incoming("a", origin("b", (SYNC,), (ASYNC,))),))),
    (
        "routes",
        facts("b", "c", incoming=(incoming("a", rules=(rule("orders", "/n"),)),)),
        facts("c", "b", incoming=(incoming("a"),)),
    ),
    (
        "",
        facts("b", "c", incoming=(incoming("a", rules=(rule("orders", "/n"),)),)),
        facts("c", "b", incoming=(incoming("d"),)),
    ),
    (
        "routes",
        facts("b", "c", rule("orders", "/n"), incoming=(incoming("a"),)),
        facts("c", "b", rule("orders", "/n"), incoming=(incoming("a"),)),
    ),
    (
        "",
        facts(
            "b",
            "c",
            rule("orders", sync=False),
            pass_through="",
            incoming=(incoming("a", rules=(rule(".*"),)),),
        ),
        facts("c", "b", rule("orders"), incoming=(incoming("a"),)),
    ),
    (
        "",
        facts("b", "c", incoming=(incoming("c", origin("a", (rule(".*"),))),)),
        facts("c", "b", incoming=(incoming("a"),)),
    ),
    # V5: one link
    ("one_stream", facts("a", "b"), facts("b", "a", incoming=(incoming("a"),))),
    (
        "one_stream",
        facts("a", "b", log=b"", start=0),
        facts("b", "a", log=b"", start=0, incoming=(IncomingLink(instance="a"),)),
    ),
    ("", facts("a", "b"), facts("b", "a", incoming=(incoming("c"),))),
    # V6: all origins of synchronous topics
    ("sync_pass_through", facts("a", "b", pass_through="", incoming=(incoming("c"),)), facts("b", "a")),
    ("sync_pass_through", facts("a", "b", pass_through="", incoming=(incoming("b"),)), facts("b", "a")),
    (
        "sync_pass_through",
        facts("a", "b", pass_through="^c$", incoming=(incoming("c", origin("d")),)),
        facts("b", "a"),
    ),
    ("", facts("a", "b", pass_through="^c$", incoming=(incoming("c"),)), facts("b", "a")),
    (
        "",
        facts("a", "b", pass_through="", incoming=(incoming("c", rules=(rule("trades"),)),)),
        facts("b", "a"),
    ),
    ("", facts("a", "b", ASYNC, pass_through="", incoming=(incoming("c"),)), facts("b", "a", ASYNC)),
    (
        "sync_pass_through",
        facts("a", "b", pass_through="", incoming=(incoming("c", rules=(rule("^o"),)),)),
        facts("b", "a"),
    ),
    (
        "sync_pass_through",
        facts("a", "b", rule("^o"), pass_through="", incoming=(incoming("c"),)),
        facts("b", "a", rule("^o")),
    ),
    (
        "sync_pass_through",
        facts("a", "b", rule("^o"), pass_through="", incoming=(incoming("c", rules=(rule("^or"),)),)),
        facts("b", "a", rule("^o")),
    ),
    (
        "",
        facts(
            "a",
            "b",
            rule("^or", sync=False),
            rule("^o"),
            pass_through="",
            incoming=(incoming("c", rules=(rule("^or"),)),),
        ),
        facts("b", "a", rule("^or", sync=False), rule("^o")),
    ),
    # V9: synchronous in both directions
    ("sync_type", facts("a", "b", SYNC), facts("b", "a", ASYNC)),
    ("", facts("a", "b", ASYNC), facts("b", "a", SYNC)),
    ("sync_type", facts("a", "b", rule("^o")), facts("b", "a", rule("^o", sync=False))),
    ("sync_type", facts("a", "b", rule(".*")), facts("b", "a", rule("^o", sync=False), rule(".*"))),
    (
        "",
        facts("a", "b", rule("^o", sync=False), rule(".*")),
        facts("b", "a", rule("^o", sync=False), rule(".*")),
    ),
    ("", facts("a", "b", rule("^o")), facts("b", "a", rule("^t", sync=False), rule(".*"))),
    # V10: servers, names, logs, versions
    ("instance_name", facts("a", "b", destination="c"), facts("b", "a")),
    ("log_twice", facts("a", "b", log=b"x" * 16), facts("b", "a", log=b"x" * 16)),
    ("log_twice", facts("a", "b", start=9), facts("b", "a", incoming=(incoming("a"),))),
    ("log_twice", facts("a", "b", log=b"c" * 16), facts("b", "a", incoming=(incoming("c"),))),
    ("log_twice", facts("a", "b", incoming=(incoming("c"),)), facts("b", "a", log=b"c" * 16)),
    ("", facts("a", "b", incoming=(incoming("b"),)), facts("b", "a")),
    ("instance_twice", facts("a", "a"), facts("a", "a", log=b"x" * 16)),
    ("instance_twice", facts("a", "a", log=b""), facts("a", "a", log=b"")),
    (
        "instance_twice",
        facts("a", "b", incoming=(incoming("c", origin("d")),)),
        facts("b", "a", incoming=(msgspec.structs.replace(incoming("d"), log=b"x" * 16),)),
    ),
    (
        "instance_twice",
        facts("a", "b"),
        facts(
            "b", "a", incoming=(incoming("c", msgspec.structs.replace(origin("a", (SYNC,)), log=b"x" * 16)),)
        ),
    ),
    (
        "",
        facts("a", "b"),
        facts(
            "b",
            "a",
            replaced=(b"x" * 16,),
            incoming=(incoming("c", msgspec.structs.replace(origin("a", (SYNC,)), log=b"x" * 16)),),
        ),
    ),
    ("link_version", facts("a", "b", versions=(1, 2)), facts("b", "a", versions=(3,))),
    ("", facts("a", "b", versions=(1, 2)), facts("b", "a", versions=(2, 3))),
    ("link_version", facts("a", "b", required=("late",)), facts("b", "a")),
    ("link_version", facts("a", "b"), facts("b", "a", required=("late",))),
    ("", facts("a", "b", required=("late",)), facts("b", "a", features=("late", "names"))),
    # V11: records
    ("sow", facts("a", "b", topics=topics(sow=(KEYED,))), facts("b", "a")),
    ("sow", facts("a", "b"), facts("b", "a", topics=topics(sow=(KEYED,)))),
    ("", facts("a", "b", rule("trades")), facts("b", "a", rule("trades"), topics=topics(sow=(KEYED,)))),
    # V12: topics that each server computes
    ("derived_topic", facts("a", "b", topics=topics(derived=("orders",))), facts("b", "a")),
    ("derived_topic", facts("a", "b"), facts("b", "a", rule(".*"), topics=topics(derived=("orders",)))),
    ("", facts("a", "b", rule(".*"), topics=topics(derived=("orders",))), facts("b", "a", rule(".*"))),
    ("derived_topic", facts("a", "b", rule("/tickertape/log"), rule(".*")), facts("b", "a", rule(".*"))),
]


@pytest.mark.parametrize(("check", "source", "destination"), TABLE)
def test_link_is_refused_by_one_check_or_accepted(
    check: str, source: LinkFacts, destination: LinkFacts
) -> None:
    expected = [check] if check else []
    allowed = {"replicate"} if check == "derived_topic" else set[str]()
    assert [one for one in found(source, destination) if one not in allowed] == expected


def test_truth_table_has_each_check() -> None:
    assert {check for check, *_ in TABLE if check} | {"publisher_collision"} == {*EXCLUDABLE, *MANDATORY}


@pytest.mark.parametrize(("check", "source", "destination"), [row for row in TABLE if row[0]])
def test_exclusion_of_all_checks_leaves_the_mandatory_ones(
    check: str, source: LinkFacts, destination: LinkFacts
) -> None:
    assert source.link is not None
    link = msgspec.structs.replace(source.link, excluded=(*EXCLUDABLE, *MANDATORY))
    excluding = msgspec.structs.replace(source, link=link)
    assert found(excluding, destination) == ([check] if check in MANDATORY else [])


def test_exclusion_counts_at_the_source_only() -> None:
    destination = facts("b", "a", topics=NO_ORDERS, excluded=("txlog",))
    assert found(facts("a", "b"), destination) == ["txlog"]
    assert found(facts("a", "b", excluded=("txlog",)), destination) == []
    assert found(facts("a", "b", excluded=("replicate",)), destination) == ["txlog"]


# -- SOW topics ---------------------------------------------------------------------------------------


def sow_texts(source: list[SowDefinition], destination: list[SowDefinition], *excluded: str) -> list[str]:
    """Return the texts of servers with these SOW topics and a link for all topics."""
    a, b = (topics(sow=tuple(map(SowFacts.of, one))) for one in (source, destination))
    every = rule(".*")
    return texts(facts("a", "b", every, topics=a, excluded=excluded), facts("b", "a", every, topics=b))


@pytest.mark.parametrize(
    ("one", "other", "differing"),
    [
        (SowDefinition("o", key=("/a",)), SowDefinition("o", key=("/b",)), "key"),
        (SowDefinition("o", key=("/a",)), SowDefinition("o"), "key"),
        (SowDefinition("o", key=("/a",)), SowDefinition("o", key=("/a",), key_domain="x"), "key_domain"),
        (SowDefinition("o", key=("/a",)), SowDefinition("o", key=("/a",), missing_key="null"), "missing_key"),
        (SowDefinition("o", pattern="^x"), SowDefinition("o"), "pattern"),
        (SowDefinition("o", pattern="^x"), SowDefinition("o", pattern="^y", key=("/a",)), "key and pattern"),
    ],
)
def test_sow_topics_with_other_keys_or_topics_are_refused_despite_the_exclusion(
    one: SowDefinition, other: SowDefinition, differing: str
) -> None:
    text = (
        f"Cannot replicate topic 'o' from 'a' to 'b': {differing} in [[sow]] differ. "
        "Use equal tables at both servers."
    )
    assert sow_texts([one], [other], "sow") == sow_texts([other], [one], "sow") == [text]


def test_sow_topics_in_another_order_with_patterns_that_may_overlap_are_refused() -> None:
    one = SowDefinition("o", pattern="^x")
    other = SowDefinition("o", pattern="^x", earlier_patterns=("1$",))
    assert sow_texts([one], [other], "sow") == [
        (
            "Cannot replicate topic 'o' from 'a' to 'b': order of tables in [[sow]] differ. Use equal "
            "tables at both servers."
        )
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SowDefinition("o"), SowDefinition("o", key_domain="x", missing_key="null")),
        (SowDefinition("o", expiration=5), SowDefinition("o", index=(("/a",),), checkpoint_interval=5.0)),
    ],
)
def test_sow_topics_with_equal_records_fit(one: SowDefinition, other: SowDefinition) -> None:
    assert sow_texts([one], [other]) == []


def test_sow_topic_at_one_server_may_be_excluded() -> None:
    text = (
        "Cannot replicate topic 'o' from 'a' to 'b': it has a [[sow]] only at {0}. Add the table "
        "at {1}, or set exclude_validation = [\"sow\"] for 'b' at 'a'."
    )
    assert sow_texts([SowDefinition("o")], []) == [text.format("'a'", "'b'")]
    assert sow_texts([], [SowDefinition("o")]) == [text.format("'b'", "'a'")]
    assert sow_texts([], [SowDefinition("o", pattern="^x")], "sow") == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (SowDefinition("o", pattern="^x"), SowDefinition("p", pattern="^x/")),
        (SowDefinition("o", pattern="^x"), SowDefinition("x/1")),
        (SowDefinition("x/1"), SowDefinition("o", pattern="^x")),
    ],
)
def test_topic_in_sow_topics_of_two_names_is_refused_despite_the_exclusion(
    one: SowDefinition, other: SowDefinition
) -> None:
    text = "Cannot replicate topic '{0}' from 'a' to 'b': its records belong to [[sow]] '{1}' at '{2}'. "
    cure = "Use equal tables at both servers."
    pairs = sorted([(one.name, other.name, "b"), (other.name, one.name, "a")])
    assert sow_texts([one], [other], "sow") == [text.format(*names) + cure for names in pairs]


def test_sow_topic_of_other_topics_is_not_compared() -> None:
    def sides(*rules: str) -> list[str]:
        some = [rule(topic) for topic in rules]
        table = SowDefinition("o", pattern="^x/")
        a = facts("a", "b", *some, topics=topics(sow=(SowFacts.of(table),)))
        return found(a, facts("b", "a", *some))

    assert sides("p", "^y") == []
    assert sides("o") == sides("x/1") == sides("^x") == ["sow"]


# -- several mismatches ----------------------------------------------------------------------------


def test_all_mismatches_are_reported_at_once_in_one_order() -> None:
    a = facts("a", "b", rule("x"), rule("y", sync=True), destination="c", topics=topics(validated=("x",)))
    b = facts("b", "a", rule("y", sync=False), topics=topics(recorded=("y",)), versions=(9,))
    assert found(a, b) == [
        "instance_name", "link_version", "txlog", "replicate", "sync_type", "message_type",
    ]  # fmt: skip


def test_pattern_that_fails_is_reported_once_without_topics() -> None:
    known = topics(message_types={f"o{number}": "fix" for number in range(9)})
    a, b = facts("a", "b", rule("^o"), topics=known), facts("b", "a", rule("orders"), topics=known)
    assert found(a, b) == ["replicate"]


def test_mismatches_above_the_limit_are_counted() -> None:
    rules = [rule(f"t{number:03}") for number in range(link_mismatches_max + 3)]
    listed = texts(facts("a", "b", *rules), facts("b", "a", *rules, topics=NO_ORDERS))
    assert len(listed) == link_mismatches_max + 1
    assert listed[-2].startswith("Cannot replicate topic 't099' ")
    assert listed[-1] == "Cannot replicate from 'a' to 'b': 3 more mismatches. Correct the others first."


def test_publisher_with_two_names_is_a_mismatch() -> None:
    a, b = facts("a", "b"), facts("b", "a")
    assert publisher_collision(a, b, 7, ("x", "x")) is None
    mismatch = publisher_collision(a, b, 7, ("x", "y"))
    assert mismatch is not None
    assert mismatch.check == "publisher_collision"
    assert str(mismatch) == (
        "Cannot replicate from 'a' to 'b': publisher 7 is client 'x' at 'a' and 'y' at 'b'. Rename "
        "one of the clients."
    )


# -- invalid facts ------------------------------------------------------------------------------------


def test_invalid_patterns_of_a_server_are_refused() -> None:
    with pytest.raises(BadTopic):
        mismatches(facts("a", "b"), facts("b", "a", rule("(")))
    with pytest.raises(BadTopic):
        mismatches(facts("a", "b"), facts("b", "a", topics=topics(recorded=("(",))))
    with pytest.raises(BadOption):
        mismatches(facts("a", "b", pass_through="("), facts("b", "a"))
    with pytest.raises(ValueError, match="no link"):
        mismatches(facts("a", "b", link=None), facts("b", "a"))


@pytest.mark.parametrize(
    ("destination", "excess"),
    [
        (facts("b", "a", *[rule(f"t{n}") for n in range(1025)]), "1,025 rules, more than 1,024"),
        (facts("b", "a", *[rule(f"^{n:02}") for n in range(65)]), "65 patterns, more than 64"),
        (facts("b", "a", incoming=(incoming("c"),) * 65), "65 links, more than 64"),
        (
            facts("b", "a", incoming=(incoming("c", rules=(rule("t"),) * 1025),)),
            "1,025 rules, more than 1,024",
        ),
        (
            facts("b", "a", topics=topics(sow=tuple(SowFacts(name=f"t{n}") for n in range(1025)))),
            "1,025 SOW topics, more than 1,024",
        ),
        (
            facts(
                "b", "a", topics=topics(sow=tuple(SowFacts(name=f"t{n}", pattern="^x") for n in range(65)))
            ),
            "65 patterns, more than 64",
        ),
    ],
    ids=["rules", "patterns", "links", "rules of a link", "tables", "patterns of tables"],
)
def test_facts_above_the_limits_of_a_server_are_refused(destination: LinkFacts, excess: str) -> None:
    text = f"Cannot validate a replication link of server 'b': the server has {excess}. Remove some of them."
    for source, other in ((facts("a", "b"), destination), (destination, facts("a", "b"))):
        with pytest.raises(BadOption) as caught:
            mismatches(source, other)
        assert str(caught.value) == text


def test_facts_survive_the_encoding_of_a_handshake() -> None:
    made = facts("a", "b", topics=topics(sow=(KEYED,), recorded=("x",)), incoming=(incoming("c"),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=LinkFacts) == made
