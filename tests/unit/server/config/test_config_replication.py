"""`[replication]`: destinations, rules and refused values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tickertape.engine.limits import replication_patterns_max, replication_rules_max
from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.engine.replication.validation import MANDATORY
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.server.config.config import Config, examine
from tickertape.server.config.document import ConfigProblems, Section, read_document
from tickertape.server.config.queues import read_queues
from tickertape.server.config.replicated_topics import ReplicatingServer
from tickertape.server.config.replication import (
    DestinationConfig,
    ReplicationConfig,
    read_replication,
)
from tickertape.server.limits import destinations_max

BASE = """
[[replication.destination]]
name = "ny-2"
addresses = ["tls://ny-2:9107"]
"""
TOPIC = """
[[replication.destination.topic]]
name = "orders"
sync = true
"""
ASYNC = TOPIC.replace("true", "false")
FULL = """
[replication]
acknowledge = "any 1"
behind_wait = "2s"
history_wait = "5m"
merge_when_behind = "accept"
ready = "synchronous"
peak_rate = 1000
[[replication.destination]]
name = "ny-2"
addresses = ["tls://ny-2a:9107", "tcp://10.0.0.1:9107", "unix:///run/t.sock"]
token_file = "token"
ca = "ca.pem"
insecure = "${T}"
pass_through = "^ny$"
downgrade_after = "5m"
downgrade_grace = "30s"
upgrade_below = "1m"
ack_interval = "10ms"
exclude_validation = ["replicate", "sow"]
[[replication.destination.topic]]
name = "orders"
filter = "/quantity > 0"
sync = true
[[replication.destination.topic]]
pattern = "^trades/"
sync = false
[[replication.destination]]
name = "ldn"
addresses = ["tcp://127.0.0.1:9107"]
pass_through = ""
downgrade_after = "never"
[[replication.destination.topic]]
pattern = ".*"
sync = true
"""
NOT_CONSTANT = "must not use the subscriber or the current time. Remove these functions from the filter."
KEYS = (
    "name, addresses, insecure, pass_through, downgrade_after, downgrade_grace, upgrade_below, "
    "ack_interval, exclude_validation, token_file, ca, topic"
)


def read(
    path: Path,
    text: str,
    *,
    is_named: bool = True,
    recorded: list[str] | None = None,
    types: dict[str, str] | None = None,
    queues: tuple[QueueDefinition, ...] = (),
    local_queues: frozenset[str] = frozenset(),
) -> tuple[ReplicationConfig, list[str]]:
    """Return the configuration of a file, and its problems."""
    file = path / "c.toml"
    file.write_text(text)
    problems = ConfigProblems()
    root = Section(read_document(file, {"T": "true", "N": "2"}, problems), "", problems)
    server = ReplicatingServer("ny-1", is_named, recorded, types or {}, queues, local_queues)
    config = read_replication(root.table("replication"), server)
    return config, [
        f"{problem.key.removeprefix('replication').lstrip('.')}: {problem.text}" for problem in problems
    ]


def only(path: Path, text: str, **server: object) -> str:
    """Return the only problem of a file."""
    _, problems = read(path, text, **server)  # type: ignore[arg-type]
    (problem,) = problems
    return problem


# -- the loader ---------------------------------------------------------------------------------------

NAMED = "[instance]\nname = 'ny-1'\n"


def loaded(path: Path, text: str) -> tuple[Config | None, list[str]]:
    """Return the configuration that the loader reads, and its problems."""
    file = path / "c.toml"
    file.write_text(text)
    config, problems = examine(file)
    return config, [f"{problem.key}: {problem.text}" for problem in problems]


def test_loader_reads_replication_with_asynchronous_topics(tmp_path: Path) -> None:
    config, problems = loaded(tmp_path, NAMED + BASE + ASYNC)
    assert problems == []
    assert config is not None
    assert config.instance.group is None
    assert config.replication is not None
    (destination,) = config.replication.destinations
    assert destination.link() == OutgoingLink(
        destination="ny-2", rules=(ReplicationRule(topic="orders", sync=False),)
    )


def test_loader_reads_synchronous_topics(tmp_path: Path) -> None:
    text = NAMED + "[replication]\nacknowledge = 'any 1'\n" + BASE + TOPIC
    config, problems = loaded(tmp_path, text)
    assert problems == []
    assert config is not None
    assert config.replication is not None
    assert config.replication.acknowledge == 1
    assert config.replication.destinations[0].rules == (ReplicationRule(topic="orders", sync=True),)


def test_loader_reads_keys_of_downgrades(tmp_path: Path) -> None:
    keys = 'downgrade_after = "5m"\ndowngrade_grace = "30s"\nupgrade_below = "1m"'
    table = "[replication]\nready = 'synchronous'\npeak_rate = 1000\n"
    config, problems = loaded(tmp_path, NAMED + table + BASE + keys + TOPIC)
    assert problems == []
    assert config is not None
    assert config.replication is not None
    assert (config.replication.ready, config.replication.stored_messages_max) == ("synchronous", 300_000)
    assert config.replication.destinations[0].policy == DowngradePolicy(300.0, 30.0, 60.0)


def test_loader_refuses_keys_of_waits(tmp_path: Path) -> None:
    keys = ("behind_wait", "history_wait", "merge_when_behind")
    destination = ("ack_interval",)
    config, problems = loaded(tmp_path, NAMED + FULL.replace('"${T}"', "true").replace("token_file", "#"))
    assert config is None
    for key in (*keys, *(f"destination.{key}" for key in destination)):
        assert f"replication.{key}: is not supported yet. Remove it." in problems
    assert len(problems) == 4


def test_unknown_key_of_replication_lists_supported_keys_only(tmp_path: Path) -> None:
    _, problems = loaded(tmp_path, NAMED + "[replication]\nacknowledged = 1\n" + BASE + ASYNC)
    assert problems == [
        (
            "replication.acknowledged: unknown key. Did you mean 'acknowledge'? [replication] takes "
            "acknowledge, ready, peak_rate, destination"
        )
    ]


def test_loader_refuses_keys_of_replication_without_the_table(tmp_path: Path) -> None:
    for text, problem in (
        (
            NAMED + "group = 'ny'\n",
            "instance.group: has no effect without a table [replication]. Remove it.",
        ),
        (
            "[[transport]]\nlisten = 'tcp://127.0.0.1:0'\nreplication = true\n",
            (
                "transport: An address with replication = true needs a table [replication], which may be "
                "empty. Add the table, or remove the key."
            ),
        ),
        (
            "[[queue]]\nname = 'work'\nreplication = 'local'\n",
            "queue.replication: has no effect without a table [replication]. Remove it.",
        ),
    ):
        assert loaded(tmp_path, text) == (None, [problem])


def test_loader_refuses_replication_without_destination_and_address(tmp_path: Path) -> None:
    _, problems = loaded(tmp_path, NAMED + "[replication]\n")
    (problem,) = problems
    assert problem == (
        "replication: has no effect without a destination and without a [[transport]] with replication = "
        "true. Add one of them."
    )


def test_server_that_only_receives_has_an_empty_table(tmp_path: Path) -> None:
    text = "[[transport]]\nlisten = 'tcp://127.0.0.1:0'\nreplication = true\nclients = false\n[replication]\n"
    config, problems = loaded(tmp_path, NAMED + "group = 'ny'\n" + text)
    assert problems == []
    assert config is not None
    assert config.instance.group == "ny"
    assert config.replication == ReplicationConfig()
    assert [(one.replication, one.clients) for one in config.transports] == [(True, False)]


def test_loader_refuses_an_address_without_clients_and_links(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[[transport]]\nlisten = 'tcp://127.0.0.1:0'\nclients = false\n") == (
        None,
        ["transport.clients: must not be false without replication = true: nothing could connect"],
    )


def test_loader_refuses_records_beside_replication(tmp_path: Path) -> None:
    _, problems = loaded(tmp_path, NAMED + BASE + ASYNC + "[[sow]]\nname = 'positions'\n")
    (problem,) = problems
    assert problem == (
        "sow: cannot be combined with [replication]: messages of links do not change records yet. Remove "
        "one of them."
    )


def test_queue_over_a_replicated_topic_must_be_local(tmp_path: Path) -> None:
    queue = "[[queue]]\nname = 'work'\nunderlying = 'orders'\n"
    _, problems = loaded(tmp_path, NAMED + BASE + ASYNC + queue)
    assert problems == [
        (
            "replication.destination.topic.name: 'orders' has messages of queue 'work'. Set replication = "
            '"local" in its [[queue]]: then each server delivers its own copy of each message.'
        )
    ]
    config, problems = loaded(tmp_path, NAMED + BASE + ASYNC + queue + "replication = 'local'\n")
    assert problems == []
    assert config is not None


# -- values -------------------------------------------------------------------------------------------


def test_destination_with_required_keys_has_defaults(tmp_path: Path) -> None:
    config, problems = read(tmp_path, BASE + TOPIC)
    assert problems == []
    rule = ReplicationRule(topic="orders", sync=True)
    assert config == ReplicationConfig(
        acknowledge=None,
        behind_wait=1.0,
        history_wait=60.0,
        merge_when_behind="refuse",
        ready="local",
        peak_rate=None,
        destinations=(
            DestinationConfig(
                name="ny-2",
                addresses=("tls://ny-2:9107",),
                rules=(rule,),
                token_file=None,
                ca=None,
                insecure=False,
                pass_through=".*",
                downgrade_after=None,
                downgrade_grace=60.0,
                upgrade_below=None,
                ack_interval=0.0,
                exclude_validation=(),
            ),
        ),
    )
    assert config.stored_messages_max is None


def test_full_replication_sets_every_key(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    (tmp_path / "token").chmod(0o600)
    config, problems = read(tmp_path, FULL)
    assert problems == []
    assert config == ReplicationConfig(
        acknowledge=1,
        behind_wait=2.0,
        history_wait=300.0,
        merge_when_behind="accept",
        ready="synchronous",
        peak_rate=1000,
        destinations=(
            DestinationConfig(
                name="ny-2",
                addresses=("tls://ny-2a:9107", "tcp://10.0.0.1:9107", "unix:///run/t.sock"),
                rules=(
                    ReplicationRule(topic="orders", filter="/quantity > 0", sync=True),
                    ReplicationRule(topic="^trades/", sync=False),
                ),
                token_file=str(tmp_path / "token"),
                ca=str(tmp_path / "ca.pem"),
                insecure=True,
                pass_through="^ny$",
                downgrade_after=300.0,
                downgrade_grace=30.0,
                upgrade_below=60.0,
                ack_interval=0.01,
                exclude_validation=("replicate", "sow"),
            ),
            DestinationConfig(
                name="ldn",
                addresses=("tcp://127.0.0.1:9107",),
                rules=(ReplicationRule(topic=".*", sync=True),),
                pass_through="",
            ),
        ),
    )
    assert config.stored_messages_max == 300_000
    assert config.destinations[0].link() == OutgoingLink(
        destination="ny-2",
        rules=config.destinations[0].rules,
        pass_through="^ny$",
        excluded=("replicate", "sow"),
    )


def test_upgrade_below_is_half_of_downgrade_after_by_default(tmp_path: Path) -> None:
    config, problems = read(tmp_path, BASE + 'downgrade_after = "5m"' + TOPIC)
    assert problems == []
    assert config.destinations[0].upgrade_below == 150.0


def test_table_without_destinations_only_receives(tmp_path: Path) -> None:
    assert read(tmp_path, "[replication]\n") == (ReplicationConfig(), [])


# -- refused values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("acknowledge = 'any'", 'acknowledge: must be "all" or "any N" with N from 1 to 64, not \'any\''),
        ("acknowledge = 'any 0'", 'acknowledge: must be "all" or "any N" with N from 1 to 64, not \'any 0\''),
        (
            "acknowledge = 'any 65'",
            'acknowledge: must be "all" or "any N" with N from 1 to 64, not \'any 65\'',
        ),
        ("acknowledge = 1", "acknowledge: must be a string in quotes, not 1"),
        ("acknowledge = 'any 1'", "acknowledge: has no effect without a topic with sync = true. Remove it."),
        ("behind_wait = '2d'", "behind_wait: must be at most 24 h, not '2d'"),
        ("history_wait = -1", "history_wait: "),
        ("merge_when_behind = 'accpet'", 'merge_when_behind: must be one of "refuse", "accept", not '),
        ("ready = 'always'", 'ready: must be one of "local", "synchronous", not '),
        ("ready = 'local'", "ready: has no effect without a synchronous topic. Remove it."),
        ("peak_rate = 0", "peak_rate: must be an integer from 1 to 1,000,000,000, not 0"),
        ("peak_rate = 5", "peak_rate: has no effect without downgrade_after. Remove it."),
        ("wait_for_peers = '30s'", "wait_for_peers: is not supported yet. Remove it."),
        (
            "compression = 'auto'",
            (
                "compression: unknown key. [replication] takes acknowledge, behind_wait, history_wait, "
                "merge_when_behind, ready, peak_rate, destination"
            ),
        ),
        ("acknowlege = 'all'", "acknowlege: unknown key. Did you mean 'acknowledge'? [replication] takes "),
        ("destination = 5", "destination: must be a list of tables: write [[replication.destination]] and "),
    ],
)
def test_invalid_value_of_the_table_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    assert only(tmp_path, f"[replication]\n{line}\n").startswith(problem)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("pass_through = '('", "pass_through: Invalid pattern '(' at position "),
        ("pass_through = 5", "pass_through: must be a string in quotes, not 5"),
        ("downgrade_after = 0", 'downgrade_after: must be above 0, or "never", not 0'),
        ("downgrade_after = 'often'", "downgrade_after: "),
        ("downgrade_grace = '1m'", "downgrade_grace: has no effect without downgrade_after. Remove it."),
        ("upgrade_below = '1m'", "upgrade_below: has no effect without downgrade_after. Remove it."),
        (
            "downgrade_after = '1m'\nupgrade_below = '1m'",
            "upgrade_below: must be below downgrade_after (60 s), not 60 s",
        ),
        (
            "downgrade_after = '1m'\nupgrade_below = '90s'",
            "upgrade_below: must be below downgrade_after (60 s), not 90 s",
        ),
        ("ack_interval = '61s'", "ack_interval: must be at most 60 s, not '61s'"),
        ("hold_max = 'none'", "hold_max: is not supported yet. Remove it."),
        ("insecure = true", "insecure: has no effect on tls:// and loopback addresses. Remove it."),
        ("ca = ''", "ca: must be the path of a file, not ''"),
        (
            "exclude_validation = 'txlog'",
            'exclude_validation: must be a list of "message_type", "replicate", ',
        ),
        (
            "exclude_validation = ['txlgo']",
            (
                'exclude_validation: must have only "message_type", "replicate", "sow", "sync_type", '
                "\"txlog\", not 'txlgo'. Did you mean 'txlog'?"
            ),
        ),
        ("exclude_validation = ['sow', 'sow']", "exclude_validation: has 'sow' twice. Remove one of them."),
        ("compression = 'zstd'", f"compression: unknown key. [replication.destination] takes {KEYS}"),
    ],
)
def test_invalid_value_of_a_destination_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    assert only(tmp_path, BASE + line + "\n" + TOPIC).startswith(f"destination.{problem}")


@pytest.mark.parametrize("check", MANDATORY)
def test_checks_without_which_messages_are_lost_cannot_be_excluded(tmp_path: Path, check: str) -> None:
    assert only(tmp_path, BASE + f"exclude_validation = ['{check}']\n" + TOPIC) == (
        f"destination.exclude_validation: cannot have '{check}': without this check a link loses messages"
    )


@pytest.mark.parametrize(
    ("addresses", "problem"),
    [
        ("'tls://a:1'", "must be a list of addresses such as [\"tls://host:9107\"], not 'tls://a:1'"),
        ("[]", "must have 1 to 16 addresses, not 0"),
        (f"{[f'tls://a:{port}' for port in range(1, 18)]}", "must have 1 to 16 addresses, not 17"),
        ("['tls://a:1', 'tls://a:1']", "has the address 'tls://a:1' twice. Remove one of them."),
        ("['http://a:1']", "Invalid server address 'http://a:1'. Use tls://host:port, tcp://host:port or "),
        ("['tls://a:0']", "Invalid port '0' in 'tls://a:0'. Use 1 to 65535."),
        ("['tls://a']", "Invalid address 'tls://a': host or port is missing. Use tls://host:port, "),
        ("['tls://user:password@a:1']", "Invalid host "),
        ("['unix://a']", "Invalid Unix socket address 'unix://a'. Use an absolute path, "),
        (
            "['tls://a:1', 'tcp://a:1']",
            "tcp://a:1 leads to another machine without encryption. Use tls://, or set insecure = true.",
        ),
    ],
)
def test_invalid_addresses_are_refused(tmp_path: Path, addresses: str, problem: str) -> None:
    text = BASE.replace('["tls://ny-2:9107"]', addresses) + TOPIC
    assert only(tmp_path, text).startswith(f"destination.addresses: {problem}")


def test_loopback_needs_no_encryption(tmp_path: Path) -> None:
    for address in ("tcp://127.0.0.1:1", "tcp://[::1]:1", "unix:///run/t.sock", "tcp://localhost:1"):
        assert read(tmp_path, BASE.replace("tls://ny-2:9107", address) + TOPIC)[1] == []


def test_ca_without_a_tls_address_has_no_effect(tmp_path: Path) -> None:
    text = BASE.replace("tls://ny-2:9107", "tcp://127.0.0.1:1") + "ca = 'ca.pem'\n" + TOPIC
    assert only(tmp_path, text) == "destination.ca: has an effect on tls:// addresses only. Remove it."


def test_token_file_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    token.chmod(0o640)
    text = BASE + "token_file = 'token'\n" + TOPIC
    assert read(tmp_path, text)[1] == []
    token.chmod(0o644)
    assert only(tmp_path, text) == (
        f"destination.token_file: Cannot use token file '{token}': it is accessible to other users (mode "
        f"0644). Run: chmod 600 {str(token)!r}"
    )
    token.unlink()
    assert only(tmp_path, text).startswith(f"destination.token_file: Cannot read token file '{token}': ")


def test_server_without_a_name_is_refused(tmp_path: Path) -> None:
    assert only(tmp_path, BASE + TOPIC, is_named=False) == (
        ": requires a name of this server: two servers with the default name would number messages of a "
        "client alike. Set name in [instance]."
    )


def test_destinations_need_a_name_addresses_and_topics(tmp_path: Path) -> None:
    assert read(tmp_path, "[[replication.destination]]\n")[1] == [
        "destination.name: is missing here",
        "destination.addresses: is missing here",
        "destination.topic: is missing: write [[replication.destination.topic]] for each topic",
    ]


def test_own_name_and_doubled_destination_are_refused(tmp_path: Path) -> None:
    assert only(tmp_path, BASE.replace("ny-2", "ny-1") + TOPIC) == (
        "destination.name: 'ny-1' is this server. Use the name of another server."
    )
    config, problems = read(tmp_path, BASE + TOPIC + BASE + ASYNC)
    assert problems == ["destination.name: duplicate destination 'ny-2'. Use one table with all topics."]
    assert [rule.sync for one in config.destinations for rule in one.rules] == [True]


def test_destinations_have_a_limit(tmp_path: Path) -> None:
    tables = [BASE.replace("ny-2", f"s{number}") + ASYNC for number in range(destinations_max + 1)]
    assert read(tmp_path, "".join(tables[:-1]))[1] == []
    assert only(tmp_path, "".join(tables)) == "destination: too many destinations (limit 64). Remove some."


# -- downgrade and acknowledgements -------------------------------------------------------------------


def test_downgrade_without_a_synchronous_topic_is_refused(tmp_path: Path) -> None:
    assert only(tmp_path, BASE + "downgrade_after = '1m'" + ASYNC) == (
        "destination.downgrade_after: has no effect without a topic with sync = true. Remove it."
    )


def destinations(*rules: str) -> str:
    """Return a file with a destination for each text of rules: names or patterns, `+` for synchronous."""
    text = "[replication]\nacknowledge = 'any 2'\n"
    for number, one in enumerate(rules):
        text += BASE.replace("ny-2", f"s{number}")
        for rule in one.split():
            topic = rule.removesuffix("+")
            key = "pattern" if topic[0] in "^." else "name"
            text += f"[[replication.destination.topic]]\n{key} = '{topic}'\n"
            text += f"sync = {str(rule.endswith('+')).lower()}\n"
    return text


@pytest.mark.parametrize(
    ("rules", "topic", "count"),
    [
        (("a+",), "a", 1),
        (("^a/ ^a+",), "^a", 1),
        (("^a/ ^a+", "^a/ ^a"), "^a", 1),
        (("a+", "a"), "a", 1),
        (("a+", "b+"), "a", 1),
        (("a+ b+", "a+ b+", "c+"), "c", 1),
        (("^a+",), "^a", 1),
        (("^a+", "^b+"), "^a", 1),
        (("^a/+", "a/x ^a+"), "a/x", 1),
        (("^a/+", "^a/x ^a+"), "^a/", 1),
        (("a+", "^a+"), "^a", 1),
        (("^a/+", ".*+"), ".*", 1),
    ],
)
def test_any_n_above_the_synchronous_destinations_of_a_topic_is_refused(
    tmp_path: Path, rules: tuple[str, ...], topic: str, count: int
) -> None:
    expected = (
        f"acknowledge: must be at most \"any {count}\", because '{topic}' has synchronous rules for only "
        f'{count} of the destinations, not "any 2"'
    )
    assert read(tmp_path, destinations(*rules))[1] == [expected] * bool(topic)


@pytest.mark.parametrize(
    "rules",
    [("a+", "a+"), ("a+ b", "a+ b", "c"), ("^a+", "^a+"), (".*+", ".*+", "x+"), ("^a/ ^a+", "^a/ ^a+")],
)
def test_any_n_is_accepted_with_enough_synchronous_destinations(
    tmp_path: Path, rules: tuple[str, ...]
) -> None:
    problems = read(tmp_path, destinations(*rules))[1]
    assert problems == []


# -- rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("name = 'a'", "sync: is missing here"),
        ("sync = true", "name: is missing here"),
        ("name = 'a'\nsync = 'yes'", "sync: must be true or false, not 'yes'"),
        (
            "name = '^a'\nsync = true",
            "name: must be a topic name, not the pattern '^a'. Write pattern = ... ",
        ),
        ("name = '$sow'\nsync = true", "name: must be a topic name, not the pattern '$sow'. "),
        ("name = ''\nsync = true", "name: Invalid topic '': it must not be empty. Use another name."),
        ("pattern = 'a'\nsync = true", "pattern: must be a pattern, but 'a' has none of "),
        ("pattern = '('\nsync = true", "pattern: Invalid topic pattern '('"),
        ("name = 'a'\npattern = '^a'\nsync = true", "pattern: excludes name. Remove one of the two keys."),
        (
            "name = '/tickertape/log'\nsync = true",
            "name: '/tickertape/log' has messages of this server, which are not replicated. Remove it.",
        ),
        ("name = 'a'\nsync = true\nfilter = '/x >'", "filter: "),
        (
            "name = 'a'\nsync = true\nfilter = '/x = USER()'",
            f"filter: {NOT_CONSTANT}",
        ),
        (
            "name = 'a'\nsync = true\nfilter = '/x < UNIX_TIMESTAMP()'",
            f"filter: {NOT_CONSTANT}",
        ),
        (
            "name = 'a'\nsync = true\nkey = 'b'",
            (
                "key: unknown key. Move it to [[transport]] or [[sow]]. [replication.destination.topic] "
                "takes name, pattern, filter, sync"
            ),
        ),
    ],
)
def test_invalid_rule_is_refused(tmp_path: Path, lines: str, problem: str) -> None:
    text = BASE + "[[replication.destination.topic]]\n" + lines + "\n"
    assert only(tmp_path, text).startswith(f"destination.topic.{problem}")


def rules(*lines: str) -> str:
    return BASE + "".join(f"[[replication.destination.topic]]\n{line}\n" for line in lines)


def test_filter_must_fit_the_message_type_of_the_topic(tmp_path: Path) -> None:
    text = rules("name = 'a'\nfilter = '/x > 1'\nsync = true")
    assert read(tmp_path, text, types={"b": "binary"})[1] == []
    assert only(tmp_path, text, types={"a": "binary"}).startswith("destination.topic.filter: ")
    pattern = text.replace("name = 'a'", "pattern = '^a'")
    assert read(tmp_path, pattern, types={"a": "binary"})[1] == []


def test_topics_that_are_not_persistent_are_refused(tmp_path: Path) -> None:
    named, pattern = rules("name = 'a'\nsync = true"), rules("pattern = '^a/'\nsync = true")
    for recorded in (["a"], ["^a"], None, ["", "b"]):
        assert read(tmp_path, named, recorded=recorded)[1] == []
    for recorded in (["a/1"], ["^a"], ["^a/x"], None, ["", "b"]):
        assert read(tmp_path, pattern, recorded=recorded)[1] == []
    for recorded in (["b"], []):
        assert only(tmp_path, named, recorded=recorded) == (
            "destination.topic.name: topic 'a' is not persistent. Add a [[journal.topic]] for it."
        )
    for recorded in (["b"], [], ["^b", "a"]):
        assert only(tmp_path, pattern, recorded=recorded) == (
            "destination.topic.pattern: matches no persistent topic. Add a [[journal.topic]], or remove "
            "the rule."
        )


@pytest.mark.parametrize(
    ("earlier", "later", "problem"),
    [
        (
            "name = 'a'\nsync = true",
            "name = 'a'\nsync = false",
            "name: duplicate name 'a'. Remove one of them.",
        ),
        (
            "pattern = '^a'\nsync = true",
            "pattern = '^a'\nsync = true",
            "pattern: duplicate pattern '^a'. Remove one of them.",
        ),
        (
            "pattern = '^a'\nsync = true",
            "name = 'ab'\nsync = false",
            "name: '^a' already matches 'ab' with sync = true. Move this rule before that one.",
        ),
        (
            "pattern = '^a'\nsync = false",
            "name = 'ab'\nsync = true",
            "name: '^a' already matches 'ab' with sync = false. Move this rule before that one.",
        ),
        (
            "pattern = '.*'\nsync = false",
            "pattern = '^a'\nsync = true",
            "pattern: '.*' already matches '^a' with sync = false. Move this rule before that one.",
        ),
    ],
)
def test_rule_behind_a_rule_with_the_same_topics_is_refused(
    tmp_path: Path, earlier: str, later: str, problem: str
) -> None:
    assert only(tmp_path, rules(earlier, later)) == f"destination.topic.{problem}"
    assert only(tmp_path, rules("name = 'x'\nsync = true", earlier, later)) == f"destination.topic.{problem}"


def test_rules_from_the_special_to_the_general_are_accepted(tmp_path: Path) -> None:
    text = rules(
        "name = 'ab'\nsync = true", "pattern = '^a/'\nsync = false", "pattern = '^a'\nsync = true",
        "pattern = 'z$'\nsync = false", "pattern = '.*'\nsync = false",
    )  # fmt: skip
    assert read(tmp_path, text)[1] == []


@pytest.mark.slow
def test_rules_and_patterns_have_limits(tmp_path: Path) -> None:
    names = [f"name = 't{number}'\nsync = true" for number in range(replication_rules_max + 1)]
    assert read(tmp_path, rules(*names[:-1]))[1] == []
    assert only(tmp_path, rules(*names)) == "destination.topic: too many topics (limit 1,024). Use patterns."
    patterns = [f"pattern = '^{number:03}'\nsync = true" for number in range(replication_patterns_max + 1)]
    assert read(tmp_path, rules(*patterns[:-1]))[1] == []
    assert only(tmp_path, rules(*patterns)) == (
        "destination.topic.pattern: too many patterns (limit 64). Merge some."
    )


# -- queues -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "queue", "shared"),
    [
        ("name = 'a'", QueueDefinition("work", underlying="a"), True),
        ("name = 'a'", QueueDefinition("a"), True),
        ("name = 'a'", QueueDefinition("work", underlying="b"), False),
        ("name = 'a/1'", QueueDefinition("work", underlying="^a/"), True),
        ("name = 'b'", QueueDefinition("work", underlying="^a/"), False),
        ("pattern = '^a'", QueueDefinition("work", underlying="a/1"), True),
        ("pattern = '^b'", QueueDefinition("work", underlying="a/1"), False),
        ("pattern = '^a'", QueueDefinition("work", underlying="^a/"), True),
        ("pattern = '^b'", QueueDefinition("work", underlying="^a/"), False),
    ],
)
def test_queue_over_replicated_topics_must_be_local(
    tmp_path: Path, rule: str, queue: QueueDefinition, shared: bool
) -> None:
    text = rules(f"{rule}\nsync = true")
    key, topic = rule.split(" = ")
    expected = (
        f"destination.topic.{key}: {topic} has messages of queue '{queue.name}'. Set replication = "
        '"local" in its [[queue]]: then each server delivers its own copy of each message.'
    )
    assert read(tmp_path, text, queues=(queue,))[1] == [expected] * shared
    assert read(tmp_path, text, queues=(queue,), local_queues=frozenset({queue.name}))[1] == []


def test_name_of_a_queue_with_another_topic_is_refused(tmp_path: Path) -> None:
    queue = QueueDefinition("work", underlying="a")
    text = rules("name = 'work'\nsync = true")
    assert only(tmp_path, text, queues=(queue,), local_queues=frozenset({"work"})) == (
        "destination.topic.name: 'work' is a queue over 'a', not a topic. Use the topic that its messages "
        "are published to."
    )


@pytest.mark.parametrize(
    ("line", "value", "problem"),
    [
        ("", None, ""),
        ("replication = 'local'", "local", ""),
        ("replication = 'distributed'", None, 'cannot be "distributed": not supported yet. Use "local".'),
        ("replication = 'group-local'", None, 'cannot be "group-local": not supported yet. Use "local".'),
        ("replication = 'lokal'", None, "must be one of \"local\", not 'lokal'. Did you mean 'local'?"),
    ],
)
def test_replication_of_a_queue_is_local_or_refused(
    tmp_path: Path, line: str, value: str | None, problem: str
) -> None:
    (tmp_path / "c.toml").write_text(f"[[queue]]\nname = 'work'\n{line}\n")
    problems = ConfigProblems()
    root = Section(read_document(tmp_path / "c.toml", {}, problems), "", problems)
    local: set[str] = set()
    assert read_queues(root.tables("queue") or [], None, {}, local)
    assert local == ({"work"} if value else set())
    assert [one.text for one in problems] == [problem] * bool(problem)
