"""Server configuration: loads a file and arguments into a checked `Config`, rejects unknown keys.

Invariant: no key is ignored. An unknown, misspelt or contradictory key is reported with its file, line and
the allowed values. Only the configuration files themselves are opened.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import msgspec

from tickertape.base.client_limits import DEFAULT as CLIENT_LIMITS
from tickertape.base.client_limits import ClientLimits
from tickertape.base.errors import ConfigurationError
from tickertape.engine.limits import topic_names_bytes_max
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.journal.limits import segment_bytes_default, segment_bytes_min
from tickertape.payload import MESSAGE_TYPE_ALIASES, MESSAGE_TYPES, message_type
from tickertape.server.config.addresses import parse_admin, parse_host_name
from tickertape.server.config.archive import ArchiveConfig, read_archive
from tickertape.server.config.document import (
    MISSING,
    ConfigNode,
    ConfigProblem,
    ConfigProblems,
    Section,
    SourceLocation,
    check_choice,
    choice_of,
    flag_of,
    instance_name_of,
    kind_of,
    path_of,
    read_document,
    seconds_of,
    size_of,
    text_of,
)
from tickertape.server.config.limits import (
    SlowClientsConfig,
    TransactionsConfig,
    read_limits,
    read_slow_clients,
    read_transactions,
)
from tickertape.server.config.memory import sow_bytes_default
from tickertape.server.config.queues import read_queues
from tickertape.server.config.sow import read_sow
from tickertape.server.config.topics import read_name, read_recorded
from tickertape.server.config.transports import (
    BEYOND_LOOPBACK,
    Authentication,
    Transport,
    read_authentication,
    read_transports,
)
from tickertape.server.events import FORMATS, LEVELS, Format, Level
from tickertape.server.limits import drain_seconds_default, retained_segments_min

if TYPE_CHECKING:  # only servers that replicate import it
    from tickertape.server.config.replication import ReplicationConfig

SyncName = Literal["always", "interval", "never"]

ADMIN_OFF: Final = "off"
NAME_DEFAULT: Final = "tickertape"
DATA_DEFAULT: Final = "data"
SYNC_INTERVAL_DEFAULT: Final = 1.0
"""Seconds."""
SYNC_INTERVAL_MIN: Final = 0.001
"""Seconds."""
SYNC_NAMES: Final[tuple[SyncName, ...]] = ("always", "interval", "never")
MESSAGE_TYPES_LATER: Final = ("xml", "protobuf", "composite")

# Keys of planned features. They are rejected by name, so that they are never silently ignored.
SECTIONS_LATER: Final = (
    "action", "conflated_topic", "entitlement", "user", "view",
)  # fmt: skip
INSTANCE_LATER: Final = ("user",)
JOURNAL_LATER: Final = ("archive", "compression", "replication")

_NAME_OVERHEAD_BYTES: Final = 3
"""Encoding overhead of a name in the answer to a logon."""
COMMAND_LINE: Final = "command line"
"""File name shown for values given as arguments."""
_GIVEN: Final = SourceLocation(COMMAND_LINE, 0)
_CURE: Final = "Listen on 127.0.0.1, or set insecure = true in [admin] of a configuration file."


class InstanceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Name of the server and location of its log."""

    name: str = NAME_DEFAULT
    group: str | None = None
    """Name of the group of replicating servers. None: the name of the server."""
    data: str = DATA_DEFAULT
    """The data directory, relative to the working directory."""
    drain_seconds: float = msgspec.field(default=drain_seconds_default, name="drain_timeout")
    """Time limit of a stop for the delivery of persisted messages."""


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the transaction log."""

    sync: SyncName = "always"
    sync_interval: float = SYNC_INTERVAL_DEFAULT
    """Seconds. Used only with `sync = "interval"`."""
    segment_size: int = segment_bytes_default
    """Bytes."""
    write_on_loop: bool = False
    """Whether the event loop writes small commits even if the disk might wait."""
    create: bool = True
    retain: float | None = None
    """Minimum age of removed messages, in seconds. None: keep messages for ever."""
    retain_size: int | None = None
    """Size of the segment files, in bytes, above which the oldest are removed. None: no limit."""
    topics: list[str] | None = None
    """Names and patterns of the persistent topics. None: all topics."""


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a topic."""

    name: str
    message_type: str = MESSAGE_TYPES[0]
    """One of `MESSAGE_TYPES`."""
    validate: bool = False
    """Whether the server rejects bodies that do not match the message type."""


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the monitoring over HTTP."""

    listen: str | None = None
    """`http://host:port`, or `off`. None: the default address, if it is free."""
    insecure: bool = False
    """Whether an unencrypted address beyond loopback is allowed."""
    hosts: tuple[str, ...] = ()
    """Accepted host names of requests, besides IP addresses, the local host and the host of `listen`."""


class LoggingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the event log."""

    format: Format = "text"
    level: Level = "info"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A checked configuration. `Config()` has the defaults of a server without a configuration file."""

    instance: InstanceConfig = InstanceConfig()
    transports: list[Transport] = msgspec.field(default_factory=lambda: [Transport()])
    authentication: Authentication | None = None
    """Authentication of logons. None: every client may log on."""
    journal: JournalConfig = JournalConfig()
    topics: list[TopicConfig] = msgspec.field(default_factory=list)
    queues: list[QueueDefinition] = msgspec.field(default_factory=list)
    sow: list[SowDefinition] = msgspec.field(default_factory=list)
    """SOW topics in the order of the file."""
    slow_clients: SlowClientsConfig = SlowClientsConfig()
    transactions: TransactionsConfig = TransactionsConfig()
    limits: ClientLimits = CLIENT_LIMITS
    sow_bytes_max: int | None = None
    """Bytes that the records of all SOW topics may use. None: the default part of the memory."""
    archive: ArchiveConfig | None = None
    replication: ReplicationConfig | None = None
    """Replication to and from other servers. None: this server does not replicate."""
    admin: AdminConfig = AdminConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def sow_bytes(self) -> int:
        """Bytes that the records of all SOW topics may use."""
        return sow_bytes_default() if self.sow_bytes_max is None else self.sow_bytes_max

    def catalog(self) -> TopicCatalog:
        """Return the configured topics."""
        topics = self.journal.topics
        return TopicCatalog(
            recorded=None if topics is None else frozenset(topics),
            validated={topic.name: topic.message_type for topic in self.topics if topic.validate},
            message_types={topic.name: topic.message_type for topic in self.topics},
            queues=self.queues,
            sow=self.sow,
        )


def load_config(
    path: Path | str | None = None,
    *,
    name: str | None = None,
    data: str | None = None,
    listen: Sequence[str] = (),
    admin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Load the configuration of `path` (None: no file), overridden by the arguments.

    The argument `data` is relative to the working directory. In a file it is relative to that file. `listen`
    replaces all transports of the file. `environment` holds the variables for `${VAR}` (default: the
    environment of this process). Raises `ConfigurationError` with the first problem. `examine` returns all
    problems."""
    config, problems = examine(
        path, name=name, data=data, listen=listen, admin=admin, environment=environment
    )
    if config is None:
        listed = "" if path is None else f", listed by `tickertape check {path}`"
        more = f" (and {len(problems) - 1} more{listed})" if len(problems) > 1 else ""
        raise ConfigurationError(f"{problems[0]}{more}")
    return config


def examine(
    path: Path | str | None = None,
    *,
    name: str | None = None,
    data: str | None = None,
    listen: Sequence[str] = (),
    admin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Config | None, ConfigProblems]:
    """Load a configuration like `load_config`, but return all problems. With problems, `Config` is None."""
    problems = ConfigProblems()
    root = ConfigNode({}, SourceLocation("", 0))
    if path is not None:
        root = read_document(Path(path), os.environ if environment is None else environment, problems)
    for table, key, value in (
        ("instance", "name", name),
        ("instance", "data", data),
        ("admin", "listen", admin),
    ):
        if value is not None:
            _override(root.value, table, key, value)
    if listen:
        tables = [ConfigNode({"listen": ConfigNode(uri, _GIVEN)}, _GIVEN) for uri in listen]
        root.value["transport"] = ConfigNode(tables, _GIVEN)
    config = _config(Section(root, "", problems), "" if path is None else str(path))
    # A missing key may be on a line with a syntax error.
    broken = {problem.location.file for problem in problems if not problem.key}
    problems[:] = [p for p in problems if p.text != MISSING or p.location.file not in broken]
    problems.sort(
        key=lambda p: (p.location.line > 0, p.location.file != str(path), p.location.file, p.location.line)
    )
    if problems.more:
        problems.extend(
            [ConfigProblem(SourceLocation(str(path), 0), "", f"and {problems.more} more problems")]
        )
    return (None if problems else config), problems


def _override(root: dict[str, ConfigNode], table: str, key: str, value: str) -> None:
    section = root.setdefault(table, ConfigNode({}, _GIVEN))
    if isinstance(section.value, dict):
        section.value[key] = ConfigNode(value, _GIVEN)


# -- sections -----------------------------------------------------------------------------------------


def _config(root: Section, file: str) -> Config:
    root.not_built(*SECTIONS_LATER)
    instance_table = root.table("instance")
    instance = _instance(instance_table, file)
    transports = read_transports(root)
    authentication = read_authentication(root)
    journal = _journal(root.table("journal"))
    topics = _topics(root)
    types = {topic.name: topic.message_type for topic in topics}
    local_queues: set[str] = set()
    queues = read_queues(
        root.tables("queue") or [],
        journal.topics,
        types,
        local_queues if root.has("replication") else None,
    )
    sow = read_sow(root.tables("sow") or [], journal.topics, types, queues)
    slow_clients = read_slow_clients(root.table("slow_clients"), file)
    transactions = read_transactions(root.table("transactions"))
    limits, sow_bytes_max = read_limits(root.table("limits"))
    archive_table = root.optional_table("archive")
    archive = None if archive_table is None else read_archive(archive_table, file)
    replicated = _ReplicatedTopics(journal.topics, types, queues, local_queues)
    replication = _replication(root, instance_table, instance.name, replicated)
    _check_links(root, accepts=any(one.replication for one in transports))
    admin = _admin(root.table("admin"))
    logging = _logging(root.table("logging"))
    _check_names(root, journal, [topic.name for topic in topics if topic.validate], queues, sow)
    root.finish("include")  # resolved by read_document
    return Config(
        instance=instance,
        transports=transports,
        authentication=authentication,
        journal=journal,
        topics=topics,
        queues=queues,
        sow=sow,
        slow_clients=slow_clients,
        transactions=transactions,
        limits=limits,
        sow_bytes_max=sow_bytes_max,
        archive=archive,
        replication=replication,
        admin=admin,
        logging=logging,
    )


def _instance(section: Section, file: str) -> InstanceConfig:
    section.not_built(*INSTANCE_LATER)
    name = section.value("name", instance_name_of, NAME_DEFAULT)
    group = section.value("group", instance_name_of, None)
    data = section.value("data", partial(path_of, noun="directory"), DATA_DEFAULT)
    drain = section.value("drain_timeout", seconds_of, drain_seconds_default)
    # `data` from a file, and the default, are relative to the file. An argument is relative to the working
    # directory.
    location = section.location("data")
    home = file if not section.has("data") else location.file if location.line else ""
    section.finish()
    return InstanceConfig(
        name=name, group=group, data=str(Path(home).parent / data) if home else data, drain_seconds=drain
    )


class _ReplicatedTopics(NamedTuple):
    """Other parts of the configuration that replication refers to, as `ReplicatingServer`."""

    recorded: Sequence[str] | None
    types: Mapping[str, str]
    queues: Sequence[QueueDefinition]
    local_queues: Collection[str]


def _replication(
    root: Section, instance: Section, name: str, topics: _ReplicatedTopics
) -> ReplicationConfig | None:
    section = root.optional_table("replication")
    if section is None:
        if instance.has("group"):
            instance.problem("group", "has no effect without a table [replication]. Remove it.")
        return None
    from tickertape.server.config.replicated_topics import ReplicatingServer
    from tickertape.server.config.replication import read_replication

    if root.has("sow"):
        root.problem(
            "sow",
            "cannot be combined with [replication]: messages of links do not change records yet. Remove one "
            "of them.",
        )
    local = frozenset(topics.local_queues)
    server = ReplicatingServer(
        name, instance.has("name"), topics.recorded, topics.types, topics.queues, local, waits=False
    )
    return read_replication(section, server)


def _check_links(root: Section, *, accepts: bool) -> None:
    """Report addresses for links without a table, and a table without links."""
    if not root.has("replication"):
        if accepts:
            root.problem(
                "transport",
                "An address with replication = true needs a table [replication], which may be empty. Add the "
                "table, or remove the key.",
            )
    elif not accepts and not root.table("replication").has("destination"):
        root.problem(
            "replication",
            "has no effect without a destination and without a [[transport]] with replication = true. Add "
            "one of them.",
        )


def _check_names(
    root: Section,
    journal: JournalConfig,
    validated: Sequence[str],
    queues: Sequence[QueueDefinition],
    sow: Sequence[SowDefinition],
) -> None:
    """Report too many names for the answer to a logon, which holds them in one frame."""
    queue_names = [queue.name for queue in queues]
    keyed = [text for one in sow for text in (one.name, one.pattern) if text is not None]
    names = [*validated, *keyed, *queue_names, *(journal.topics or ())]
    if journal.topics is not None:
        names += queue_names  # with the persistent topics once more
    total = sum(len(name.encode()) + _NAME_OVERHEAD_BYTES for name in names)
    if total > topic_names_bytes_max:
        root.problem(
            "journal" if journal.topics else "topic",
            f"Too many names: persistent topics, validated topics, SOW topics and queues take {total} bytes "
            f"(limit {topic_names_bytes_max}). Use shorter names, or patterns.",
        )


def _journal(section: Section) -> JournalConfig:
    section.not_built(*JOURNAL_LATER)
    found = section.values(
        sync=choice_of(SYNC_NAMES),
        sync_interval=_sync_interval,
        segment_size=partial(size_of, example="256MB", least=segment_bytes_min),
        write_on_loop=flag_of,
        create=flag_of,
        retain=_retain,
        retain_size=partial(size_of, example="256MB"),
    )
    journal = JournalConfig(**found)
    sync, size, retain_size = journal.sync, journal.segment_size, journal.retain_size
    known = {key for key in ("sync", "segment_size") if key in found or not section.has(key)}
    if "sync" in known and sync != "interval" and section.has("sync_interval"):
        cure = 'Set sync = "interval", or remove the key.'
        section.problem("sync_interval", f'has no effect with sync = "{sync}". {cure}')
    least = retained_segments_min * size
    if "segment_size" in known and retain_size is not None and retain_size < least:
        reason = f"{retained_segments_min} times segment_size ({size:,} bytes)"
        section.problem("retain_size", f"must be at least {least:,} bytes, {reason}, not {retain_size:,}")
    topics = section.tables("topic")
    section.finish()
    return msgspec.structs.replace(journal, topics=None if topics is None else read_recorded(topics))


def _admin(section: Section) -> AdminConfig:
    listen = section.value("listen", _admin_listen, None)
    insecure = section.value("insecure", flag_of, section.has("insecure"))
    hosts = section.value("hosts", _host_names, AdminConfig().hosts)
    section.finish()
    if listen not in (None, ADMIN_OFF) and not insecure and not parse_admin(listen).loopback:
        section.problem("listen", f"{listen} {BEYOND_LOOPBACK} {_CURE}")
    return AdminConfig(listen=listen, insecure=insecure, hosts=hosts)


def _logging(section: Section) -> LoggingConfig:
    found = section.values(format=choice_of(FORMATS), level=choice_of(LEVELS))
    section.finish()
    return LoggingConfig(**found)


def _topics(root: Section) -> list[TopicConfig]:
    topics: list[TopicConfig] = []
    taken: set[str] = set()
    for section in root.tables("topic") or []:
        kind = section.value("message_type", _message_type, MESSAGE_TYPES[0])
        validate = section.value("validate", flag_of, False)
        topics.append(TopicConfig(name=read_name(section, taken), message_type=kind, validate=validate))
    return topics


# -- values -------------------------------------------------------------------------------------------


def _admin_listen(value: Any) -> str | None:
    if value != ADMIN_OFF:
        parse_admin(text_of(value))
    return cast("str", value)


def _host_names(value: Any) -> tuple[str, ...]:
    names = [member.value for member in value] if isinstance(value, list) else [value]
    return tuple(parse_host_name(text_of(name)) for name in names)


def _sync_interval(value: Any) -> float:
    seconds = seconds_of(value)
    if seconds < SYNC_INTERVAL_MIN:
        raise ConfigurationError(f"must be at least 1 ms, not {kind_of(value)}")
    return seconds


def _retain(value: Any) -> float:
    seconds = seconds_of(value)
    if seconds <= 0:
        raise ConfigurationError(
            f'must be above 0, such as "7d", not {kind_of(value)}. Remove the key to keep all messages.'
        )
    return seconds


def _message_type(value: Any) -> str:
    if value in MESSAGE_TYPES_LATER:
        types = ", ".join(f'"{name}"' for name in MESSAGE_TYPES)
        raise ConfigurationError(f'Cannot use message type "{value}": not supported yet. Use one of {types}.')
    if not isinstance(value, str) or value not in MESSAGE_TYPE_ALIASES:
        check_choice(value, MESSAGE_TYPES)
    return message_type(value).name
