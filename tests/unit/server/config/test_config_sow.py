"""`[[sow]]`: definitions and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.engine.limits import sow_patterns_max, sow_topics_max
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.server.config.config import examine, load_config

MANY = ", ".join(f"'/k{number}'" for number in range(17))
MANY_INDEXES = ", ".join(f"['/k{number}']" for number in range(17))
"""One above the limits."""
KEYS = "name, pattern, durability, key, key_domain, missing_key, index, expiration, checkpoint_interval"
NOT_SUPPORTED = "SOW topics that are not persistent are not supported."
NOT_PERSISTENT = f"is not persistent. {NOT_SUPPORTED} Add a [[journal.topic]] for it."
NO_MATCH = "matches no persistent topic but the name. Add a [[journal.topic]], or remove the key."
OWN_NAME = (
    "is the name of a queue. Rename the queue, because a queue over a SOW topic needs a name of its own."
)
DEAD = "Use another dead_letter, because a SOW topic refuses messages without a key."
BINARY = "messages of type binary have no fields. Remove it."


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def sow(path: Path, text: str) -> list[SowDefinition]:
    return load_config(write(path / "c.toml", text)).sow


def problems(path: Path, text: str) -> list[str]:
    config, found = examine(write(path / "c.toml", text))
    assert (config is None) == bool(found)
    return [f"{problem.location.line}: {problem.key}: {problem.text}" for problem in found]


# -- definitions --------------------------------------------------------------------------------------


def test_sow_topic_with_only_a_name_has_defaults(tmp_path: Path) -> None:
    assert sow(tmp_path, "[[sow]]\nname = 'positions'\n") == [SowDefinition("positions")]
    assert load_config(None).sow == []


def test_full_sow_table_sets_every_key(tmp_path: Path) -> None:
    text = """
[[journal.topic]]
name = "positions"
[[journal.topic]]
pattern = "^desk/"
[[topic]]
name = "desk/fix"
message_type = "fix"
[[topic]]
name = "desk/text"
message_type = "nvfix"
[[topic]]
name = "other"
message_type = "fix"
[[sow]]
name = "positions"
pattern = "^desk/"
durability = "persistent"
key = ["/1", "/55"]
key_domain = "desks of ny"
missing_key = "null"
index = [["/55"], ["/1", "/55"]]
expiration = "1.5s"
checkpoint_interval = "2m"
"""
    assert sow(tmp_path, text) == [
        SowDefinition(
            name="positions",
            pattern="^desk/",
            key=("/1", "/55"),
            key_domain="desks of ny",
            missing_key="null",
            index=(("/55",), ("/1", "/55")),
            expiration=1500,
            checkpoint_interval=120.0,
            message_types=(("desk/fix", "fix"), ("desk/text", "nvfix")),
        )
    ]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("'enabled'", "enabled"),
        ("'1ms'", 1),
        ("0.25", 250),
        ("'36600d'", 36_600 * 86_400_000),
        ("'${L}'", 7000),
    ],
)
def test_expiration_is_milliseconds_or_enabled(tmp_path: Path, value: str, meant: int | str) -> None:
    file = write(tmp_path / "c.toml", f"[[sow]]\nname = 'a'\nexpiration = {value}\n")
    assert load_config(file, environment={"L": "7s"}).sow[0].expiration == meant


def test_empty_index_list_is_no_index(tmp_path: Path) -> None:
    assert sow(tmp_path, "[[sow]]\nname = 'a'\nindex = []\n") == [SowDefinition("a")]


def test_transient_sow_topic_is_refused_with_and_without_the_topic_in_the_journal(tmp_path: Path) -> None:
    for journal in ("", "[[journal.topic]]\nname = 'a'\n", "[journal]\ntopic = []\n"):
        text = f"{journal}[[sow]]\nname = 'a'\ndurability = 'transient'\n"
        found = [line.partition(": ")[2] for line in problems(tmp_path, text)]
        assert f'sow.durability: cannot be "transient". {NOT_SUPPORTED} Remove the key.' in found


def test_message_type_of_the_topic_is_part_of_the_definition(tmp_path: Path) -> None:
    text = "[[topic]]\nname = 'a'\nmessage_type = 'binary'\n[[sow]]\nname = 'a'\n[[sow]]\nname = 'b'\n"
    assert [one.message_types for one in sow(tmp_path, text)] == [(("a", "binary"),), ()]


# -- refused values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("name = 'x*'", "name: must be a topic name, not the pattern 'x*'. Use the full name of a topic."),
        ("name = '$sow'", "name: must be a topic name, not the pattern '$sow'. Use the full name "),
        ("name = ''", "name: Invalid topic '': it must not be empty. Use another name."),
        ("name = 5", "name: must be a string in quotes, not 5"),
        ("pattern = 'orders'", "pattern: must be a pattern, but 'orders' has none of "),
        ("pattern = '(?=a)b'", "pattern: Invalid topic pattern '(?=a)b' at position 0: look-ahead "),
        (
            "durability = 'persistant'",
            "durability: must be \"persistent\", not 'persistant'. Did you mean 'persistent'?",
        ),
        ("durability = 'transient'", f'durability: cannot be "transient". {NOT_SUPPORTED} Remove the key.'),
        ("key = []", "key: must have at least one field. Remove the key for explicit keys of publishers."),
        ("key = '/id'", "key: must be a list of field paths such as [\"/id\"], not '/id'"),
        ("key = [5]", "key: must be a string in quotes, not 5"),
        ("key = [['/id']]", "key: must be a string in quotes, not a list"),
        ("key = ['id']", "key: Invalid path 'id' at position 0: a path starts with / and a name. Use /name"),
        ("key = ['/a', '/b c']", "key: Invalid path '/b c' at position 2: a name cannot contain ' '"),
        ("key = ['/a[1]', '/a[01]']", "key: has the field '/a[1]' twice. Remove one of them."),
        (
            f"key = [{MANY}]",
            "key: must have at most 16 fields in one key, not 17",
        ),
        (
            "key = ['/a[0]/b/c', '/a/b[0]/c', '/a/b/c[0]']",
            "key: not possible for topic 'q': too many forms of the path ",
        ),
        ("key_domain = 'x'", "key_domain: has no effect without key. Remove it, or add key."),
        ("missing_key = 'null'", "missing_key: has no effect without key. Remove it, or add key."),
        ("index = ['/a']", "index: must be a list of lists of field paths such as [[\"/symbol\"]], not '/a'"),
        ("index = '/a'", "index: must be a list of lists of field paths such as [[\"/symbol\"]], not '/a'"),
        ("index = [[]]", "index: must have at least one field. Remove the empty list."),
        ("index = [['a']]", "index: Invalid path 'a' at position 0: a path starts with / and a name. "),
        ("index = [['/a', '/a']]", "index: has the field '/a' twice. Remove one of them."),
        ("index = [['/a', '/b'], ['/b', '/a']]", "index: has two indexes of '/b, /a'. Remove one of them."),
        (
            f"index = [{MANY_INDEXES}]",
            "index: must have at most 16 indexes, not 17",
        ),
        (
            f"index = [[{MANY}]]",
            "index: must have at most 16 fields in one index, not 17",
        ),
        ("expiration = 0", 'expiration: must be 1 ms to 36,600 days, or "enabled", not 0. Remove the '),
        ("expiration = '0.9ms'", "expiration: must be 1 ms to 36,600 days, or \"enabled\", not '0.9ms'. "),
        ("expiration = '36601d'", "expiration: must be 1 ms to 36,600 days, or \"enabled\", not '36601d'. "),
        ("expiration = -1", "expiration: Invalid interval '-1'. Use a finite number of seconds >= 0."),
        ("expiration = 'enable'", "expiration: Invalid interval 'enable'. Use seconds or a number with us, "),
        ("expiration = true", "expiration: Invalid interval of type bool. Use "),
        ("expiration = []", 'expiration: must be a time such as 1 (seconds) or "500ms", not a list'),
        ("checkpoint_interval = '999ms'", "checkpoint_interval: must be 1 s to 24 h, not '999ms'"),
        ("checkpoint_interval = '25h'", "checkpoint_interval: must be 1 s to 24 h, not '25h'"),
        ("history = { window = '7d' }", f"history: unknown key. [sow] takes {KEYS}"),
        ("enrich = []", f"enrich: unknown key. [sow] takes {KEYS}"),
        ("preprocess = []", f"preprocess: unknown key. [sow] takes {KEYS}"),
        ("keys = ['/a']", f"keys: unknown key. Did you mean 'key'? [sow] takes {KEYS}"),
    ],
)
def test_invalid_sow_values_are_refused(tmp_path: Path, line: str, problem: str) -> None:
    name = "" if line.startswith("name ") else "name = 'q'\n"
    (found,) = problems(tmp_path, f"[[sow]]\n{name}{line}\n")
    assert found.startswith(f"{3 if name else 2}: sow.{problem}")


def test_misspelt_enabled_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "[[sow]]\nname = 'q'\nexpiration = 'enable'\n")
    assert found.endswith("Did you mean 'enabled'?")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("''", "must be 1 to 1,024 bytes without control characters, not ''"),
        (f"'{'d' * 1025}'", "must be 1 to 1,024 bytes without control characters, not 'ddd"),
        ('"a\\u0000b"', "must be 1 to 1,024 bytes without control characters, not 'a\\x00b'"),
        ("5", "must be a string in quotes, not 5"),
    ],
)
def test_invalid_key_domain_is_refused(tmp_path: Path, value: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"[[sow]]\nname = 'q'\nkey = ['/a']\nkey_domain = {value}\n")
    assert found.startswith(f"4: sow.key_domain: {problem}")


def test_invalid_missing_key_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "[[sow]]\nname = 'q'\nkey = ['/a']\nmissing_key = 'zero'\n")
    assert found == '4: sow.missing_key: must be one of "refuse", "null", not \'zero\''


def test_unset_variable_in_a_list_is_one_problem(tmp_path: Path) -> None:
    text = "[[sow]]\nname = 'q'\nkey = ['${NO}']\nindex = [['${NO}'], '${NO}', ['${NO}']]\n"
    config, found = examine(write(tmp_path / "c.toml", text), environment={})
    assert config is None
    assert {problem.text for problem in found} == {"environment variable 'NO' is not set"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[[sow]]\n", ["1: sow.name: is missing here"]),
        ("[sow]\nname = 'q'\n", ["1: sow: must be a list of tables: write [[sow]] and its keys below"]),
        (
            "[[sow]]\nname = 'q'\n[[sow]]\nname = 'q'\nkey = ['/a']\n",
            ["4: sow.name: duplicate name 'q'. Rename or remove one of them."],
        ),
        # topics of the journal
        (
            "[[journal.topic]]\nname = 'a'\n[[sow]]\nname = 'b'\n",
            [f"4: sow.name: topic 'b' {NOT_PERSISTENT}"],
        ),
        (
            "[[journal.topic]]\npattern = '^a'\n[[sow]]\nname = 'b'\ndurability = 'persistent'\n",
            [f"4: sow.name: topic 'b' {NOT_PERSISTENT}"],
        ),
        (
            "[[journal.topic]]\nname = 'a'\n[[sow]]\nname = 'b'\ndurability = 'other'\n",
            [
                f"4: sow.name: topic 'b' {NOT_PERSISTENT}",
                "5: sow.durability: must be \"persistent\", not 'other'",
            ],
        ),
        (
            "[[journal.topic]]\nname = 'a'\n[[sow]]\nname = 'a'\npattern = '^a'\n",
            [f"5: sow.pattern: {NO_MATCH}"],
        ),
        # two SOW topics of one topic
        (
            "[[sow]]\nname = 'a/1'\n[[sow]]\nname = 'a'\npattern = '^a/'\n",
            [
                (
                    "2: sow.name: 'a/1' belongs to the SOW topic 'a', too, because its pattern matches. "
                    "Change the pattern, or remove one of the two tables."
                )
            ],
        ),
        # message types
        (
            "[[topic]]\nname = 'b'\nmessage_type = 'binary'\n[[sow]]\nname = 'b'\nkey = ['/a']\n",
            [f"6: sow.key: not possible for topic 'b': invalid field '/a': {BINARY}"],
        ),
        (
            "[[topic]]\nname = 'b'\nmessage_type = 'binary'\n[[sow]]\nname = 'b'\nindex = [['/a']]\n",
            [f"6: sow.index: not possible for topic 'b': invalid field '/a': {BINARY}"],
        ),
        (
            (
                "[[topic]]\nname = 'p/1'\nmessage_type = 'fix'\n[[sow]]\nname = 'p'\npattern = '^p/'\n"
                "key = ['/a']\n"
            ),
            ["7: sow.key: not possible for topic 'p/1': invalid field '/a': fields of fix are numeric "],
        ),
        # queues
        ("[[queue]]\nname = 'w'\n[[sow]]\nname = 'w'\n", [f"4: sow.name: 'w' {OWN_NAME}"]),
        (
            "[[queue]]\nname = 'w'\nunderlying = 'o'\n[[sow]]\nname = 'w'\n",
            [f"5: sow.name: 'w' {OWN_NAME}"],
        ),
        (
            "[[queue]]\nname = 'o/w'\n[[sow]]\nname = 'o'\npattern = '^o/'\n",
            [f"5: sow.pattern: 'o/w' {OWN_NAME}"],
        ),
        (
            "[[queue]]\nname = 'w'\nunderlying = 'o'\ndead_letter = 'd'\n[[sow]]\nname = 'd'\n",
            [f"6: sow.name: 'd' is the dead-letter topic of queue 'w'. {DEAD}"],
        ),
        (
            (
                "[[queue]]\nname = 'w'\nunderlying = 'o'\ndead_letter = 'd'\n"
                "[[sow]]\nname = 'e'\npattern = '^d'\n"
            ),
            [f"7: sow.pattern: 'd' is the dead-letter topic of queue 'w'. {DEAD}"],
        ),
    ],
)
def test_conflicting_sow_keys_topics_and_queues_are_refused(
    tmp_path: Path, text: str, found: list[str]
) -> None:
    problem = problems(tmp_path, text)
    assert [line[: len(start)] for line, start in zip(problem, found, strict=True)] == found


@pytest.mark.parametrize(
    "text",
    [
        # a queue over a SOW topic with another name, and one whose name only matches a pattern
        "[[queue]]\nname = 'w'\nunderlying = 'o'\ndead_letter = 'd'\n[[sow]]\nname = 'o'\n",
        "[[queue]]\nname = 'w'\nunderlying = 'o'\n[[sow]]\nname = 'all'\npattern = '.*'\n",
        # an explicit key needs no field
        "[[topic]]\nname = 'b'\nmessage_type = 'binary'\n[[sow]]\nname = 'b'\n",
        # a topic of an earlier pattern needs no field of a later one
        (
            "[[topic]]\nname = 'p/1'\nmessage_type = 'fix'\n[[sow]]\nname = 'p'\npattern = '^p/'\n"
            "key = ['/1']\n[[sow]]\nname = 'all'\npattern = '^.*/'\nkey = ['/a']\n"
        ),
    ],
)
def test_topics_and_queues_without_a_conflict_are_accepted(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == []


def test_invalid_journal_topic_is_reported_without_a_second_problem(tmp_path: Path) -> None:
    text = "[[journal.topic]]\nname = 'w*'\n[[sow]]\nname = 'w'\n"
    assert [line[:38] for line in problems(tmp_path, text)] == ["2: journal.topic.name: must be a topic"]


def test_sow_topics_and_patterns_above_the_limits_are_refused(tmp_path: Path) -> None:
    text = "".join(f"[[sow]]\nname = '{n}'\n" for n in range(sow_topics_max + 2))
    line = 2 * sow_topics_max + 1
    assert problems(tmp_path, text) == [f"{line}: sow: too many SOW topics (limit 1,024). Remove some."]
    text = "".join(f"[[sow]]\nname = '{n}'\npattern = '^{n}/'\n" for n in range(sow_patterns_max + 2))
    line = 3 * (sow_patterns_max + 1)
    assert problems(tmp_path, text) == [f"{line}: sow.pattern: too many patterns (limit 64). Merge some."]


# -- patterns -----------------------------------------------------------------------------------------


def test_definition_has_earlier_patterns_that_may_match_the_same_topics(tmp_path: Path) -> None:
    tables = [("a", "^a/"), ("b", "^b/"), ("any", "/x$"), ("aa", "^a/[0-9]"), ("c", None)]
    text = "".join(
        f"[[sow]]\nname = '{name}'\n" + (f"pattern = '{pattern}'\n" if pattern else "")
        for name, pattern in tables
    )
    assert {one.name: one.earlier_patterns for one in sow(tmp_path, text)} == {
        "a": (),
        "b": (),
        "any": ("^a/", "^b/"),
        "aa": ("^a/", "/x$"),
        "c": (),
    }


def test_key_paths_are_read_in_canonical_form(tmp_path: Path) -> None:
    assert sow(tmp_path, "[[sow]]\nname = 'a'\nkey = ['/ids[007]/b']\n")[0].key == ("/ids[7]/b",)
