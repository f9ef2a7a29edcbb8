"""Texts of mismatches between the servers of a link."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.link_facts import facts, incoming, origin, rule
from tickertape.engine.replication.link_facts import LinkFacts, TopicFacts
from tickertape.engine.replication.validation import mismatches

LOG_A, LOG_D, LOG_X = ((letter * 16).encode().hex() for letter in "adx")


def topics(**fields: object) -> TopicFacts:
    return msgspec.structs.replace(TopicFacts(), **fields)


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        (
            facts("a", "b"),
            facts("b", "a", topics=topics(recorded=("trades",))),
            (
                "Cannot replicate topic 'orders' from 'a' to 'b': 'b' does not record it. Add a "
                "[[journal.topic]] at 'b', or set exclude_validation = [\"txlog\"] for 'b' at 'a'."
            ),
        ),
        (
            facts("a", "b", rule("^o")),
            facts("b", "a", rule("^o"), topics=topics(recorded=("trades",))),
            (
                "Cannot replicate topics matching '^o' from 'a' to 'b': 'b' has no pattern for all of "
                "them in [[journal.topic]]. Add a [[journal.topic]] at 'b', or set exclude_validation = "
                "[\"txlog\"] for 'b' at 'a'."
            ),
        ),
        (
            facts("a", "b"),
            facts("b", "a", link=None),
            (
                "Cannot replicate from 'a' to 'b': 'b' does not replicate back. Add a "
                "[[replication.destination]] for 'a' at 'b', or set exclude_validation = [\"replicate\"] "
                "for 'b' at 'a'."
            ),
        ),
        (
            facts("a", "b"),
            facts("b", "a", rule("trades")),
            (
                "Cannot replicate topic 'orders' from 'a' to 'b': 'b' does not replicate it back. Add a "
                "[[replication.destination.topic]] for 'a' at 'b', or set exclude_validation = "
                "[\"replicate\"] for 'b' at 'a'."
            ),
        ),
        (
            facts("a", "b", rule("orders")),
            facts("b", "a", rule("orders", sync=False)),
            (
                "Cannot replicate topic 'orders' from 'a' to 'b': sync is true at 'a' and false at 'b'. "
                "Use one value in both directions, or set exclude_validation = [\"sync_type\"] for 'b' at "
                "'a'."
            ),
        ),
        (
            facts("a", "b"),
            facts("b", "a", topics=topics(message_types={"orders": "fix"})),
            (
                "Cannot replicate topic 'orders' from 'a' to 'b': its message_type is 'json' at 'a' and "
                "'fix' at 'b'. Use one value in both [[topic]] tables, or set exclude_validation = "
                "[\"message_type\"] for 'b' at 'a'."
            ),
        ),
        (
            facts("a", "b", topics=topics(validated=("orders",))),
            facts("b", "a"),
            (
                "Cannot replicate topic 'orders' from 'a' to 'b': only 'a' has validate = true. Use one "
                "value in both [[topic]] tables, or set exclude_validation = [\"message_type\"] for 'b' at "
                "'a'."
            ),
        ),
        (
            facts("b", "c"),
            facts("c", "b", incoming=(incoming("a", origin("b", (rule(".*"),))),)),
            (
                "Cannot replicate from 'b' to 'c': messages of 'b' also reach 'c' from 'a', and other "
                "rules select them. Use rules with equal topics and filters on both paths."
            ),
        ),
        (
            facts("a", "b"),
            facts("b", "a", incoming=(incoming("a"),)),
            (
                "Cannot replicate from 'a' to 'b': 'b' already has a link from 'a'. Use one "
                "[[replication.destination]] for 'b' at 'a', with all topics."
            ),
        ),
        (
            facts("a", "b", pass_through="", incoming=(incoming("c"),)),
            facts("b", "a"),
            (
                "Cannot replicate from 'a' to 'b': 'a' receives 'orders' from group 'c', which "
                "pass_through leaves out, and waits for 'b'. Set pass_through = \".*\" for 'b' at 'a', or "
                "sync = false."
            ),
        ),
        (
            facts("a", "b", destination="c"),
            facts("b", "a"),
            (
                "Cannot replicate from 'a' to 'b': 'a' expects 'c' at this address. Correct name or "
                "addresses in [[replication.destination]] at 'a'."
            ),
        ),
        (
            facts("a", "b", log=b"x" * 16),
            facts("b", "a", log=b"x" * 16),
            (
                f"Cannot replicate from 'a' to 'b': both have the log {LOG_X}. Stop one of them, and start "
                "it with an empty data directory."
            ),
        ),
        (
            facts("a", "b", start=9),
            facts("b", "a", incoming=(incoming("a"),)),
            (
                "Cannot replicate from 'a' to 'b': another start of 'a' that is connected to 'b' also has "
                f"the log {LOG_A} of 'a'. Stop one of them, and start it with an empty data directory."
            ),
        ),
        (
            facts("a", "a"),
            facts("a", "a", log=b"x" * 16),
            (
                "Cannot replicate from 'a' to 'a': both have the same name. Rename one of them with "
                "`tickertape journal rename`."
            ),
        ),
        (
            facts("a", "b", incoming=(incoming("c", origin("d")),)),
            facts("b", "a", incoming=(msgspec.structs.replace(incoming("d"), log=b"x" * 16),)),
            (
                f"Cannot replicate from 'a' to 'b': instance 'd' has the logs {LOG_D} and {LOG_X}. Rename "
                "one of them with `tickertape journal rename`, or run `tickertape replication forget LOG` "
                "for a log that another one replaced."
            ),
        ),
        (
            facts("a", "b", versions=(1, 2)),
            facts("b", "a", versions=(3,)),
            (
                "Cannot replicate from 'a' to 'b': 'a' supports link versions 1 and 2, and 'b' 3. Update "
                "the older server."
            ),
        ),
        (
            facts("a", "b", required=("late", "names")),
            facts("b", "a"),
            (
                "Cannot replicate from 'a' to 'b': 'a' needs 'late' and 'names', which 'b' does not "
                "support. Update 'b'."
            ),
        ),
        (
            facts("a", "b", topics=topics(derived=("orders",))),
            facts("b", "a", topics=topics(derived=("orders",)), link=None),
            (
                "Cannot replicate topic 'orders' from 'a' to 'b': a view computes it at 'a' and 'b'. "
                "Change the rules for 'b' at 'a' so that none matches it."
            ),
        ),
        (
            facts("a", "b", rule("/tickertape/log")),
            facts("b", "a", rule("/tickertape/log")),
            (
                "Cannot replicate topic '/tickertape/log' from 'a' to 'b': each server publishes its own "
                "messages to it. Change the rules for 'b' at 'a' so that none matches it."
            ),
        ),
    ],
)
def test_mismatch_text_names_cause_and_cure(source: LinkFacts, destination: LinkFacts, expected: str) -> None:
    assert str(mismatches(source, destination)[0]) == expected
