"""Configuration files: values of valid ones, and the place and text of each problem."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tickertape.base.errors import ConfigurationError
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.server.config.config import (
    Config,
    InstanceConfig,
    JournalConfig,
    TopicConfig,
    examine,
    load_config,
)
from tickertape.server.config.transports import Transport
from tickertape.server.limits import configuration_bytes_max, include_depth_max, included_files_max

VALUES = "put strings in quotes, other values are numbers, true, false, times and [lists]"
FULL = """
[instance]
name = "ny-1"
data = "log"

[[transport]]
listen = "tcp://127.0.0.1:9007"

[[transport]]
listen = "tcp://0.0.0.0:0"
insecure = true

[[transport]]
listen = "tcp://127.0.0.1:0"

[[transport]]
listen = "unix:///run/tickertape.sock"

[journal]
sync = "interval"
sync_interval = "250ms"
segment_size = "64MB"
create = false
[[journal.topic]]
name = "orders"
[[journal.topic]]
name = "fills.ny"

[[topic]]
name = "orders"
message_type = "json"
validate = false

[[sow]]
name = "orders"
key = ["/account", "/ids[0]"]
key_domain = "all orders"
missing_key = "null"
index = [["/symbol"], ["/account", "/desk"]]
expiration = "30s"
checkpoint_interval = 30

[[sow]]
name = "fills.ny"
durability = "persistent"
expiration = "enabled"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text), encoding="utf-8")
    return path


def problems_of(path: Path, **environment: str) -> list[str]:
    """Return the reported problems, with paths relative to the directory of `path`."""
    config, problems = examine(path, environment=environment)
    assert (config is None) == bool(problems)
    return [str(problem).replace(f"{path.parent}/", "") for problem in problems]


# -- good ones ----------------------------------------------------------------------------------------


def test_no_file_gives_every_default() -> None:
    config = load_config()
    assert config == Config()
    assert config.transports == [Transport(listen="tcp://127.0.0.1:9007", insecure=False)]
    assert config.instance == InstanceConfig(name="tickertape", data="data")
    assert config.journal == JournalConfig(
        sync="always", sync_interval=1.0, segment_size=256 * 1024**2, create=True, topics=None
    )


def test_full_file_sets_every_key(tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "c.toml", FULL), environment={}) == Config(
        instance=InstanceConfig(name="ny-1", data=str(tmp_path / "log")),
        transports=[
            Transport(listen="tcp://127.0.0.1:9007"),
            Transport(listen="tcp://0.0.0.0:0", insecure=True),
            Transport(listen="tcp://127.0.0.1:0"),
            Transport(listen="unix:///run/tickertape.sock"),
        ],
        journal=JournalConfig(
            sync="interval",
            sync_interval=0.25,
            segment_size=64 * 1024**2,
            create=False,
            topics=["orders", "fills.ny"],
        ),
        topics=[TopicConfig(name="orders", message_type="json", validate=False)],
        sow=[
            SowDefinition(
                "orders",
                key=("/account", "/ids[0]"),
                key_domain="all orders",
                missing_key="null",
                index=(("/symbol",), ("/account", "/desk")),
                expiration=30_000,
                checkpoint_interval=30.0,
            ),
            SowDefinition("fills.ny", expiration="enabled"),
        ],
    )


@pytest.mark.parametrize("kind", ["json", "messagepack", "nvfix", "fix", "bson", "binary"])
def test_topic_accepts_each_message_type(tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "c.toml", f"[[topic]]\nname = 'a'\nmessage_type = '{kind}'\nvalidate = true\n")
    assert load_config(file).topics == [TopicConfig(name="a", message_type=kind, validate=True)]


def test_message_type_alias_is_replaced_by_the_standard_name(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "[[topic]]\nname = 'a'\nmessage_type = 'msgpack'\n")
    assert load_config(file).topics[0].message_type == "messagepack"


def test_empty_file_has_the_data_directory_beside_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "c.toml", ""))
    assert config == Config(instance=InstanceConfig(data=str(tmp_path / "data")))


def test_absolute_data_directory_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[instance]\ndata = "/var/lib/tickertape"\n')
    assert load_config(path).instance.data == "/var/lib/tickertape"


def test_empty_list_of_journal_topics_records_no_topic(tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "c.toml", "[journal]\ntopic = []\n")).journal.topics == []


def test_command_line_overrides_the_file(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path / "c.toml", FULL), name="other", data="here", listen=["tcp://127.0.0.1:1", "unix:///s"]
    )
    assert config.instance == InstanceConfig(name="other", data="here")
    assert config.transports == [Transport(listen="tcp://127.0.0.1:1"), Transport(listen="unix:///s")]
    assert config.journal.topics == ["orders", "fills.ny"]


def test_values_of_the_command_line_are_checked() -> None:
    _, problems = examine(None, name="", data="", listen=["tcp://0.0.0.0:9007", "x"])
    assert [(str(problem.location), problem.key, problem.text.split(". ")[0]) for problem in problems] == [
        (
            "command line",
            "instance.name",
            "must be 1 to 256 bytes without control characters, not ''",
        ),
        ("command line", "instance.data", "must be the path of a directory, not ''"),
        (
            "command line",
            "transport.listen",
            "tcp://0.0.0.0:9007 is reachable from other machines and not encrypted",
        ),
        ("command line", "transport.listen", "Invalid listen address 'x'"),
    ]


PATTERN = "must be a topic name, not the pattern '^orders/'. Write pattern = ... for a pattern."


# -- variables and includes ---------------------------------------------------------------------------


@pytest.mark.behaviour(12)
def test_environment_variables_are_expanded_in_strings(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml",
        """
        [instance]
        name = "${REGION}-${NUMBER}"
        data = "a$${b}$c"
        [journal]
        segment_size = "${SIZE}"
        create = "${CREATE}"
        [[journal.topic]]
        name = "${TOPIC}"
        """,
    )
    environment = {"REGION": "ny", "NUMBER": "1", "SIZE": "2MB", "CREATE": "false", "TOPIC": "orders"}
    config = load_config(path, environment=environment)
    assert config.instance == InstanceConfig(name="ny-1", data=str(tmp_path / "a${b}$c"))
    assert config.journal == JournalConfig(segment_size=2 * 1024**2, create=False, topics=["orders"])


@pytest.mark.behaviour(12)
def test_variable_value_is_not_parsed_as_toml(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", '[instance]\nname = "${NAME}"\n')
    hostile = 'x"\ndata = "/etc'
    assert problems_of(path, NAME=hostile) == [
        f"c.toml:2: instance.name: must be 1 to 256 bytes without control characters, not {hostile!r}",
    ]


@pytest.mark.behaviour(12)
def test_unset_or_malformed_variable_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml",
        """
        [instance]
        name = "${NOWHERE}"
        data = "${not closed"
        [[journal.topic]]
        name = "${A B}"
        """,
    )
    assert problems_of(path) == [
        "c.toml:3: instance.name: environment variable 'NOWHERE' is not set",
        "c.toml:4: instance.data: Invalid variable '${not closed'. Write ${NAME}, or $${ for a literal ${.",
        "c.toml:6: journal.topic.name: Invalid variable '${A B}'. Write ${NAME}, or $${ for a literal ${.",
    ]


def test_unset_variable_is_one_problem_for_each_key(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.toml",
        """
        include = ["${NOPE}"]
        [[transport]]
        listen = "${NOPE}"
        insecure = "${NOPE}"
        [[transport]]
        listen = "tcp://0.0.0.0:1"
        insecure = "x${NOPE}"
        [journal]
        sync = "${NOPE}"
        sync_interval = "5s"
        [[topic]]
        name = "${NOPE}"
        validate = "${NOPE}"
        [admin]
        listen = "http://0.0.0.0:1"
        insecure = "${NOPE}"
        [logging]
        level = "${NOPE}"
        """,
    )
    found = problems_of(path)
    assert [text.rpartition(": ")[2] for text in found] == ["environment variable 'NOPE' is not set"] * len(
        found
    )
    assert [int(text.split(":")[1]) for text in found] == [2, 4, 5, 8, 10, 13, 14, 17, 19]


@pytest.mark.behaviour(12)
def test_included_files_apply_first_and_arrays_of_tables_are_joined(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    write(
        tmp_path / "parts" / "log.toml",
        """
        include = ["topics.toml"]
        [instance]
        name = "inner"
        data = "log"
        [journal]
        segment_size = "2MB"
        """,
    )
    write(tmp_path / "parts" / "topics.toml", '[[journal.topic]]\nname = "included"\n')
    path = write(
        tmp_path / "c.toml",
        """
        include = ["${PARTS}/log.toml"]
        [instance]
        name = "outer"
        [journal]
        create = false
        [[journal.topic]]
        name = "own"
        """,
    )
    config = load_config(path, environment={"PARTS": "parts"})
    # a relative directory belongs to the file that names it
    assert config.instance == InstanceConfig(name="outer", data=str(tmp_path / "parts" / "log"))
    assert config.journal == JournalConfig(segment_size=2 * 1024**2, create=False, topics=["included", "own"])


@pytest.mark.behaviour(12)
def test_problem_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    write(tmp_path / "inner.toml", '\n\n[journal]\nsync = "maybe"\n')
    write(tmp_path / "broken.toml", "a = 1\nb = \n")
    path = write(tmp_path / "c.toml", 'include = [\n  "inner.toml",\n  "broken.toml",\n  "absent.toml",\n]\n')
    assert problems_of(path) == [
        f"c.toml:4: include: Cannot read 'absent.toml': No such file or directory. {CHECK}",
        f"broken.toml:1: a: unknown key. The file takes {TAKES}",
        f"broken.toml:2: Invalid TOML: Invalid value ({VALUES})",
        'inner.toml:4: journal.sync: must be one of "always", "interval", "never", not \'maybe\'',
    ]


@pytest.mark.behaviour(12)
def test_circular_include_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", '# first\ninclude = ["b.toml"]\n')
    write(tmp_path / "b.toml", 'include = ["./a.toml"]\n')
    assert problems_of(tmp_path / "a.toml") == [
        "b.toml:1: include: Circular include: a.toml -> b.toml -> a.toml. Remove one of these includes.",
    ]


@pytest.mark.behaviour(12)
def test_includes_have_a_bound_in_depth_and_number(tmp_path: Path) -> None:
    for n in range(include_depth_max + 2):
        write(tmp_path / f"{n}.toml", f'include = ["{n + 1}.toml"]\n')
    assert problems_of(tmp_path / "0.toml") == [
        (
            f"{include_depth_max}.toml:1: include: Includes nested more than "
            f"{include_depth_max} deep. Use fewer levels."
        ),
    ]
    write(tmp_path / "leaf.toml", "")
    members = ",\n".join(['"leaf.toml"'] * (included_files_max + 1))
    path = write(tmp_path / "many.toml", f"include = [\n{members}]\n")
    assert problems_of(path) == [
        (
            f"many.toml:{included_files_max + 2}: include: More than {included_files_max} "
            f"included files. Merge some of them."
        ),
    ]


# -- bad ones -----------------------------------------------------------------------------------------

CHECK = "Check the path and its permissions."
OF_SYNC = "[journal] or [[replication.destination.topic]]"
TAKES = (
    "instance, transport, authentication, journal, topic, queue, sow, slow_clients, transactions, "
    "limits, archive, replication, admin, logging, include"
)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a = ", [f"1: Invalid TOML: Invalid value, at the end of the file ({VALUES})"]),
        (
            "a = 1\na = 2\n",
            [
                f"1: a: unknown key. The file takes {TAKES}",
                "2: Invalid TOML: Cannot overwrite a value (remove the duplicate key)",
            ],
        ),
        ("\ninclude = 'a.toml'\n", ['2: include: must be a list of file names, such as ["topics.toml"]']),
        ("include = [1]\n", ['1: include: must be a list of file names, such as ["topics.toml"]']),
        # unknown keys
        ("\n[jornal]\n", [f"2: jornal: unknown key. Did you mean 'journal'? The file takes {TAKES}"]),
        ("zzz = 1\n", [f"1: zzz: unknown key. The file takes {TAKES}"]),
        (
            "sync = 'never'\n",
            [f"1: sync: unknown key. Move it to {OF_SYNC}. The file takes {TAKES}"],
        ),
        (
            "[instance]\ndisk_limit = '1GB'\n",
            [
                (
                    "2: instance.disk_limit: unknown key. Move it to [slow_clients] or [transactions]. "
                    "[instance] takes name, group, data, drain_timeout"
                )
            ],
        ),
        (
            "[instance]\nname = 'a'\nDATA = 'b'\n",
            [
                (
                    "3: instance.DATA: unknown key. Did you mean 'data'? [instance] takes "
                    "name, group, data, drain_timeout"
                )
            ],
        ),
        (
            "[journal]\nsync-interval = 1\n",
            [
                (
                    "2: journal.sync-interval: unknown key. Did you mean 'sync_interval'? [journal] takes "
                    "sync, "
                    "sync_interval, segment_size, write_on_loop, create, retain, retain_size, topic"
                )
            ],
        ),
        # not built yet
        ("[[view]]\nname = 'q'\n", ["1: view: is not supported yet. Remove it."]),
        ("\n[view]\n", ["2: view: is not supported yet. Remove it."]),
        (
            "[journal]\nretain = 0\nretain_size = '767MB'\n",
            [
                (
                    '2: journal.retain: must be above 0, such as "7d", not 0. Remove the '
                    "key to keep all messages."
                ),
                (
                    "3: journal.retain_size: must be at least 805,306,368 bytes, 3 times segment_size "
                    "(268,435,456 bytes), not 804,257,792"
                ),
            ],
        ),
        (
            "[journal]\nretain = '7 days'\nretain_size = []\n",
            [
                (
                    "2: journal.retain: Invalid interval '7 days'. Use seconds or a number with us, ms, s, "
                    "m, h, d or w, such as '500ms'."
                ),
                '3: journal.retain_size: must be a size such as "256MB", not a list',
            ],
        ),
        (
            "[[topic]]\npattern = '^orders/'\n",
            ["2: topic.pattern: is not supported yet. Remove it."],
        ),
        (
            "[[topic]]\nname = 'a'\nmessage_type = 'xml'\n",
            [
                (
                    '3: topic.message_type: Cannot use message type "xml": not supported yet. Use one of '
                    '"json", "messagepack", "nvfix", "fix", "bson", "binary".'
                )
            ],
        ),
        (
            "[[topic]]\nname = 'a'\nmessage_type = 'joson'\n",
            [
                (
                    '3: topic.message_type: must be one of "json", "messagepack", "nvfix", "fix", "bson", '
                    "\"binary\", not 'joson'. Did you mean 'json'?"
                )
            ],
        ),
        (
            "[[topic]]\nname = 'a'\nvalidate = 1\n",
            ["3: topic.validate: must be true or false, not 1"],
        ),
        (
            "[[topic]]\nname = 'a'\nfilter = '/x = 1'\n",
            ["3: topic.filter: is not supported yet. Remove it."],
        ),
        # wrong kinds
        ("instance = 1\n", ["1: instance: must be a table: write [instance] and its keys below"]),
        (
            "transport = 1\n",
            ["1: transport: must be a list of tables: write [[transport]] and its keys below"],
        ),
        (
            "[transport]\nlisten = 'unix:///a'\n",
            ["1: transport: must be a list of tables: write [[transport]] and its keys below"],
        ),
        (
            "transport = [1]\n",
            ["1: transport: must be a list of tables: write [[transport]] and its keys below"],
        ),
        (
            "transport = []\n",
            ["1: transport: must have at least one table. Remove the key for the default address."],
        ),
        ("[instance]\nname = 1\n", ["2: instance.name: must be a string in quotes, not 1"]),
        ("[instance]\ndata = ['a']\n", ["2: instance.data: must be a string in quotes, not a list"]),
        ("[journal]\ncreate = 'yes'\n", ["2: journal.create: must be true or false, not 'yes'"]),
        ("[journal]\ncreate = 0\n", ["2: journal.create: must be true or false, not 0"]),
        (
            "[journal]\nsync = true\n",
            ['2: journal.sync: must be one of "always", "interval", "never", not true'],
        ),
        (
            "[journal]\nsync = {}\n",
            ['2: journal.sync: must be one of "always", "interval", "never", not a table'],
        ),
        # values out of bounds
        (
            "[journal]\nsegment_size = '512KB'\n",
            ["2: journal.segment_size: must be at least 1MB, not '512KB'"],
        ),
        (
            "[journal]\nsegment_size = '1 parsec'\n",
            [
                (
                    "2: journal.segment_size: Invalid size '1 parsec'. Use bytes or a number with B, KB, "
                    "MB, GB or TB (1024s), such as '64MB'."
                )
            ],
        ),
        (
            "[journal]\nsync = 'interval'\nsync_interval = 0\n",
            ["3: journal.sync_interval: must be at least 1 ms, not 0"],
        ),
        (
            "[journal]\nsync_interval = 1\n",
            [
                (
                    '2: journal.sync_interval: has no effect with sync = "always". Set sync '
                    '= "interval", or remove the key.'
                )
            ],
        ),
        # topics
        ("[[journal.topic]]\n", ["1: journal.topic.name: is missing here"]),
        (
            "[[journal.topic]]\nname = '^orders/'\n",
            [f"2: journal.topic.name: {PATTERN}"],
        ),
        (
            "[[journal.topic]]\nname = ''\n",
            ["2: journal.topic.name: Invalid topic '': it must not be empty. Use another name."],
        ),
        (
            "[[journal.topic]]\nname = 'a'\n[[journal.topic]]\nname = 'a'\n",
            ["4: journal.topic.name: duplicate name 'a'. Remove one of them."],
        ),
        # transports
        ("\n[[transport]]\n", ["2: transport.listen: is missing here"]),
        (
            "[[transport]]\nlisten = 'unix:///a'\n[[transport]]\nlisten = 'unix:///a'\n",
            ["4: transport.listen: duplicate address unix:///a. Remove one of them."],
        ),
    ],
)
def test_invalid_file_reports_each_problem_with_line_and_key(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    wanted = [f"c.toml:{problem}" for problem in problems]
    assert problems_of(path) == wanted


def test_all_problems_are_reported_in_line_order(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "x = 1\n[journal]\ncreate = 2\n[instance]\nname = 3\n")
    assert [problem.split(":")[1] for problem in problems_of(path)] == ["1", "3", "5"]
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:1: x: unknown key. ")
    assert str(caught.value).endswith(f" (and 2 more, listed by `tickertape check {path}`)")


def test_single_problem_is_raised_without_a_count_of_others(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", "[instance]\nname = 3\n")
    with pytest.raises(ConfigurationError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}:2: instance.name: must be a string in quotes, not 3"


def test_windows_line_ends_keep_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"[instance]\r\n\r\nname = 3\r\n")
    assert problems_of(tmp_path / "c.toml") == ["c.toml:3: instance.name: must be a string in quotes, not 3"]


def test_unreadable_file_is_a_problem_with_the_cause(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "none.toml") == [
        f"Cannot read 'none.toml': No such file or directory. {CHECK}"
    ]
    assert problems_of(tmp_path) == [f"Cannot read '{tmp_path.name}': Is a directory. {CHECK}"]
    (tmp_path / "latin.toml").write_bytes(b"a = 1\nb = '\xe9'\n")
    assert problems_of(tmp_path / "latin.toml") == [
        "latin.toml:2: not UTF-8 (byte 11). Save the file as UTF-8."
    ]
    (tmp_path / "deep.toml").write_text("x = " + "[" * 5000)
    assert problems_of(tmp_path / "deep.toml") == [
        "Cannot read 'deep.toml': nested too deeply. Use fewer levels."
    ]
    (tmp_path / "large.toml").write_bytes(b"#" * (configuration_bytes_max + 1))
    assert problems_of(tmp_path / "large.toml") == [
        f"Cannot read 'large.toml': it has more than {configuration_bytes_max} bytes. Split it."
    ]
