"""`[[queue]]`: definitions and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.server.config.config import examine, load_config
from tickertape.server.limits import queues_max

ELSEWHERE = "'q' is a queue over 'w', not a topic. Use the topic that its messages are published to."


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def queues(path: Path, text: str) -> list[QueueDefinition]:
    return load_config(write(path / "c.toml", text)).queues


def problems(path: Path, text: str) -> list[str]:
    config, found = examine(write(path / "c.toml", text))
    assert (config is None) == bool(found)
    return [f"{problem.location.line}: {problem.key}: {problem.text}" for problem in found]


def test_queue_with_only_a_name_has_defaults(tmp_path: Path) -> None:
    (queue,) = queues(tmp_path, "[[queue]]\nname = 'work'\n")
    assert queue == QueueDefinition("work", underlying="work")
    assert (queue.topic, queue.sharing, queue.default_publish_target) == ("work", "proportional", None)


def test_full_queue_table_sets_every_key(tmp_path: Path) -> None:
    text = """
[[journal.topic]]
pattern = "^orders/"
[[journal.topic]]
name = "dead"
[[topic]]
name = "orders/fix"
message_type = "fix"
[[queue]]
name = "work"
underlying = "^orders/"
default_publish_target = "orders/new"
filter = "/35 = 'D'"
semantics = "at-least-once"
lease_period = "30s"
fairness_model = "fast"
max_backlog = 1000
max_per_subscription_backlog = "100"
max_deliveries = 5
max_cancels = 0
expiration = "1d"
expiration_model = "message"
priority = "/urgency * 10"
barrier_expression = "/barrier = TRUE AND TOPIC_NAME() = 'orders/new'"
leasing = "strict"
recovery_point = "now"
file_backed_metadata = true
target_queue_depth = 100000
dead_letter = "dead"
"""
    assert queues(tmp_path, text) == [
        QueueDefinition(
            name="work",
            underlying="^orders/",
            default_publish_target="orders/new",
            filter="/35 = 'D'",
            semantics="at-least-once",
            lease_period=30.0,
            fairness="fast",
            max_backlog=1000,
            max_per_subscription_backlog=100,
            max_deliveries=5,
            max_cancels=0,
            expiration=86_400.0,
            expiration_model="message",
            priority="/urgency * 10",
            barrier_expression="/barrier = TRUE AND TOPIC_NAME() = 'orders/new'",
            leasing="strict",
            recovery_point="now",
            file_backed_metadata=True,
            target_queue_depth=100_000,
            dead_letter="dead",
        )
    ]


def test_default_publish_target_is_the_single_underlying_topic(tmp_path: Path) -> None:
    text = "[[queue]]\nname = 'work'\nunderlying = 'orders'\n[[queue]]\nname = 'any'\nunderlying = '^o'\n"
    assert [queue.default_publish_target for queue in queues(tmp_path, text)] == ["orders", None]


def test_at_most_once_queue_uses_round_robin(tmp_path: Path) -> None:
    text = "[[queue]]\nname = 'a'\nsemantics = 'at-most-once'\n"
    assert queues(tmp_path, text)[0].sharing == "round-robin"
    assert queues(tmp_path, text + "fairness_model = 'round-robin'\n")[0].fairness == "round-robin"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("EPOCH", "epoch"),
        ("0", "epoch"),
        ("Now", "now"),
        ("0|1|", "now"),
        ("007|12|", "7|12|"),
        ("20261120T090000", "20261120T090000.000000Z"),
    ],
)
def test_recovery_point_is_normalized(tmp_path: Path, written: str, meant: str) -> None:
    text = f"[[queue]]\nname = 'a'\nrecovery_point = '{written}'\n"
    assert queues(tmp_path, text)[0].recovery_point == meant


def test_lease_period_none_and_number_from_a_variable_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "[[queue]]\nname='a'\nlease_period='none'\nmax_backlog='${N}'\n")
    (queue,) = load_config(file, environment={"N": "12"}).queues
    assert (queue.lease_period, queue.max_backlog) == (None, 12)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("name = 'x*'", "name: must be a topic name, not the pattern 'x*'. Use the full name of a topic."),
        ("name = '$queue'", "name: must be a topic name, not the pattern '$queue'. "),
        ("name = 5", "name: must be a string in quotes, not 5"),
        ("underlying = '(?=a)b'", "underlying: Invalid topic pattern '(?=a)b' at position 0: look-ahead "),
        ("underlying = ''", "underlying: Invalid topic '': it must not be empty"),
        (
            "default_publish_target = '^w'",
            "default_publish_target: must be a topic name, not the pattern '^w'. ",
        ),
        (
            "default_publish_target = 'other'",
            "default_publish_target: 'other' is not a topic of the queue, ",
        ),
        ("dead_letter = 'q'", "dead_letter: 'q' is a topic of the queue itself, "),
        ("filter = '/a ='", "filter: "),
        ("filter = 5", "filter: must be a string in quotes, not 5"),
        ("filter = \"USER() = 'a'\"", "filter: must not use the subscriber or the current time. "),
        ("barrier_expression = '/t < UNIX_TIMESTAMP()'", "barrier_expression: must not use the subscriber "),
        ("priority = '/a +'", "priority: "),
        ("priority = 'BOOKMARK()'", "priority: Invalid filter at column 1: BOOKMARK is not available here"),
        (
            "semantics = 'exactly-once'",
            'semantics: must be one of "at-least-once", "at-most-once", not \'exactly-',
        ),
        (
            "fairness_model = 'fair'",
            'fairness_model: must be one of "fast", "round-robin", "proportional", not \'fa',
        ),
        (
            "expiration_model = 'max'",
            'expiration_model: must be one of "minimum", "message", "queue", not \'max',
        ),
        ("leasing = true", 'leasing: must be one of "lenient", "strict", not true'),
        ("lease_period = 0", 'lease_period: must be 10 ms to 366 days, or "none", not 0'),
        ("lease_period = '367d'", "lease_period: must be 10 ms to 366 days, or \"none\", not '367d'"),
        ("lease_period = []", 'lease_period: must be a time such as 1 (seconds) or "500ms", not a list'),
        ("expiration = 0", "expiration: must be above 0 and at most 36,600 days, not "),
        ("expiration = '36601d'", "expiration: must be above 0 and at most 36,600 days"),
        ("max_backlog = 0", "max_backlog: must be an integer from 1 to 1,000,000, not 0"),
        ("max_backlog = true", "max_backlog: must be an integer from 1 to 1,000,000, not true"),
        ("max_backlog = '1.5'", "max_backlog: must be an integer from 1 to 1,000,000, not '1.5'"),
        (
            "max_per_subscription_backlog = 1000001",
            "max_per_subscription_backlog: must be an integer from 1 to ",
        ),
        ("max_deliveries = 0", "max_deliveries: must be an integer from 1 to 1,000,000, not 0"),
        ("max_cancels = -1", "max_cancels: must be an integer from 0 to 1,000,000, not -1"),
        ("target_queue_depth = 0", "target_queue_depth: must be an integer from 1 to "),
        ("file_backed_metadata = 'yes'", "file_backed_metadata: must be true or false, not 'yes'"),
        ("recovery_point = '1|2|,3|4|'", "recovery_point: must be epoch, now, a bookmark "),
        ("recovery_point = '[0:1|2|]'", "recovery_point: must be epoch, now, a bookmark "),
        ("recovery_point = 'x|y|'", "recovery_point: must be epoch, now, a bookmark "),
        ("recovery_point = 'yesterday'", "recovery_point: "),
        ("max_backlogs = 5", "max_backlogs: unknown key. Did you mean 'max_backlog'? [queue] takes name, "),
    ],
)
def test_invalid_queue_values_are_refused(tmp_path: Path, line: str, problem: str) -> None:
    name = "" if line.startswith("name ") else "name = 'q'\n"
    (found,) = problems(tmp_path, f"[[queue]]\n{name}{line}\n")
    assert found.startswith(f"{3 if name else 2}: queue.{problem}")


@pytest.mark.parametrize("line", ["lease_period = '1m'", "max_deliveries = 2", "max_cancels = 2"])
def test_at_most_once_queue_refuses_lease_keys(tmp_path: Path, line: str) -> None:
    text = f"[[queue]]\nname = 'q'\nsemantics = 'at-most-once'\n{line}\n"
    what = 'has no effect with semantics = "at-most-once", which has no leases. Remove it.'
    assert problems(tmp_path, text) == [f"4: queue.{line.split(maxsplit=1)[0]}: {what}"]


@pytest.mark.parametrize("fairness", ["fast", "proportional"])
def test_at_most_once_queue_refuses_other_fairness_models(tmp_path: Path, fairness: str) -> None:
    text = f"[[queue]]\nname = 'q'\nsemantics = 'at-most-once'\nfairness_model = '{fairness}'\n"
    (found,) = problems(tmp_path, text)
    assert found.startswith('4: queue.fairness_model: must be "round-robin" with semantics = "at-most-once"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[[queue]]\n", ["1: queue.name: is missing here"]),
        ("[queue]\nname = 'q'\n", ["1: queue: must be a list of tables: write [[queue]] and its keys below"]),
        (
            "[[queue]]\nname = 'q'\n[[queue]]\nname = 'q'\nunderlying = 'w'\n",
            ["4: queue.name: duplicate name 'q'. Rename or remove one of them."],
        ),
        (
            (
                "[[journal.topic]]\nname = 'a'\n[[queue]]\nname = 'q'\n"
                "[[queue]]\nname = 'r'\nunderlying = 'b'\ndead_letter = 'c'\n"
            ),
            [
                "4: queue.name: topic 'q' is not persistent. Add a [[journal.topic]] for it.",
                "7: queue.underlying: topic 'b' is not persistent. Add a [[journal.topic]] for it.",
                "8: queue.dead_letter: topic 'c' is not persistent. Add a [[journal.topic]] for it.",
            ],
        ),
        (
            (
                "[[journal.topic]]\npattern = '^w/'\n[[queue]]\nname = 'q'\nunderlying = '^w'\n"
                "default_publish_target = 'wx'\n"
            ),
            [
                (
                    "6: queue.default_publish_target: topic 'wx' is not persistent. "
                    "Add a [[journal.topic]] for it."
                )
            ],
        ),
        (
            "[[queue]]\nname = 'q'\nunderlying = '^w'\ndead_letter = 'w/dead'\n",
            [
                (
                    "4: queue.dead_letter: 'w/dead' is a topic of the queue itself, so dead letters "
                    "would enter it again. Use a topic outside of the queue."
                )
            ],
        ),
        (
            (
                "[[queue]]\nname = 'q'\nunderlying = 'w'\n[[queue]]\nname = 'r'\nunderlying = 'q'\n"
                "[[queue]]\nname = 's'\ndead_letter = 'q'\n"
            ),
            [
                f"6: queue.underlying: {ELSEWHERE}",
                f"9: queue.dead_letter: {ELSEWHERE}",
            ],
        ),
        (
            (
                "[[topic]]\nname = 'b'\nmessage_type = 'binary'\n[[queue]]\nname = 'b'\nfilter = '/a = 1'\n"
                "priority = '/p'\n"
            ),
            [
                "6: queue.filter: ",
                "7: queue.priority: ",
            ],
        ),
    ],
)
def test_conflicting_queue_keys_and_topics_are_refused(tmp_path: Path, text: str, found: list[str]) -> None:
    problem = problems(tmp_path, text)
    assert [line[: len(start)] for line, start in zip(problem, found, strict=True)] == found


def test_queue_on_the_dead_letter_topic_of_another_queue_is_accepted(tmp_path: Path) -> None:
    text = "[[queue]]\nname = 'q'\nunderlying = 'w'\ndead_letter = 'dead'\n[[queue]]\nname = 'dead'\n"
    assert [queue.name for queue in queues(tmp_path, text)] == ["q", "dead"]


def test_invalid_journal_topic_is_reported_once(tmp_path: Path) -> None:
    text = "[[journal.topic]]\nname = 'w*'\n[[queue]]\nname = 'w'\n"
    assert [line[:38] for line in problems(tmp_path, text)] == ["2: journal.topic.name: must be a topic"]


def test_queues_above_the_limit_are_refused(tmp_path: Path) -> None:
    text = "".join(f"[[queue]]\nname = '{n}'\n" for n in range(queues_max + 2))
    problem = problems(tmp_path, text)
    assert problem == [f"{2 * queues_max + 1}: queue: too many queues (limit 1,000). Remove some."]


def test_queue_names_above_the_size_of_the_logon_answer_are_refused(tmp_path: Path) -> None:
    names = [f"{n:0>250}" for n in range(800)]
    text = "".join(f"[[queue]]\nname = '{name}'\n" for name in names)
    (found,) = problems(tmp_path, text)
    assert "validated topics, SOW topics and queues take 202400 bytes" in found


def test_circle_of_dead_letter_topics_is_refused(tmp_path: Path) -> None:
    circle = "[[queue]]\nname = 'a'\ndead_letter = 'b'\n[[queue]]\nname = 'b'\ndead_letter = 'c'\n"
    assert len(queues(tmp_path, circle)) == 2
    found = problems(tmp_path, circle + "[[queue]]\nname = 'c'\ndead_letter = 'a'\n")
    assert len(found) == 3
    assert all("return to it through the dead-letter topics of other queues" in problem for problem in found)
