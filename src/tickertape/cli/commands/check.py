"""`check`: validate a configuration file. `serve` formats its problems with this module, too.

The command starts and creates nothing. It imports only the configuration package of the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tickertape.base.errors import ConfigurationError
from tickertape.cli.support.command_group import EXIT_ERROR, EXIT_USAGE
from tickertape.cli.support.output_options import output_option
from tickertape.cli.support.tables import counted
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.server.config.addresses import ADMIN_DEFAULT
from tickertape.server.config.archive import ArchiveConfig
from tickertape.server.config.config import Config, JournalConfig, examine
from tickertape.server.config.document import ConfigProblem, ConfigProblems, SourceLocation

if TYPE_CHECKING:
    from tickertape.server.config.replication import DestinationConfig, ReplicationConfig

_LABEL_WIDTH: Final = 14


@click.command(short_help="Check a configuration file.")
@click.argument("config", type=click.Path(), metavar="CONFIG.toml")
@click.argument("more", nargs=-1, type=click.Path(), metavar="")
@click.option(
    "--with",
    "others",
    multiple=True,
    type=click.Path(),
    metavar="OTHER.toml...",
    help="Also check the replication links between the servers of these configuration files.",
)
@output_option
@click.pass_context
def check(
    ctx: click.Context, config: str, more: tuple[str, ...], others: tuple[str, ...], as_json: bool
) -> None:
    """Check a configuration file without starting a server.

    The command lists every problem as FILE:LINE: KEY: PROBLEM, including problems of included files and
    variables. It also lists the first problem of the certificate and token files. For a valid file it prints
    a summary.

    With --with, it lists the problems of all files, and each reason for which the servers would refuse a link
    between them, in the words of the servers. Token and certificate files of the other servers are not read.

    Exit codes: 0 valid, 1 problems found, 2 bad usage, or CONFIG is not a readable file.

    \b
    tickertape check tickertape.toml
    tickertape check ny-1.toml --with ny-2.toml ny-3.toml
    tickertape check tickertape.toml --output json | jq '.problems[] | "\\(.file):\\(.line) \\(.text)"'
    """
    if more and not others:
        raise click.UsageError(f"Got unexpected extra argument ({more[0]}). Use --with for further files.")
    settings, problems = examine(config)
    settings = _check_links(config, settings, problems, (*others, *more))
    warnings: list[str] = []
    if settings is not None:
        unusable, warnings = _check_start(settings)
        if unusable:
            problems.append(ConfigProblem(SourceLocation(config, 0), "", unusable))
            settings = None
    if as_json:
        click.echo(_document(config, settings, problems, warnings))
    elif settings is not None:
        click.echo(f"{printable(config)}: valid")
        for line in _summary(settings):
            click.echo(line)
        for warning in warnings:
            click.echo(f"  {'warning':<{_LABEL_WIDTH}}{warning}")
    else:
        for line in problem_lines(problems):
            click.echo(line)
        click.echo(f"tickertape: {printable(config)}: {counted_problems(problems)}", err=True)
    if settings is None:
        ctx.exit(EXIT_ERROR if os.access(config, os.R_OK) and not os.path.isdir(config) else EXIT_USAGE)


def _check_links(
    file: str, settings: Config | None, problems: ConfigProblems, others: Sequence[str]
) -> Config | None:
    """Add the problems of other files, and of links between the servers. Return None with problems."""
    if not others:
        return settings
    from tickertape.server.config.topology import topology_problems

    found = [settings]
    for other in others:
        config, more = examine(other)
        problems.extend(more)
        found.append(config)
    configs = [config for config in found if config is not None]
    if len(configs) == len(found):
        for text in topology_problems(configs):
            problems.append(ConfigProblem(SourceLocation(file, 0), "", text))
    return None if problems else settings


def _check_start(settings: Config) -> tuple[str, list[str]]:
    """Return the first problem that a start would find (or an empty text), and warnings."""
    from tickertape.server.access.credentials import CredentialStore

    try:
        unrestricted = CredentialStore(settings).tokens_for_any_client
    except ConfigurationError as error:
        return str(error), []
    return "", [
        f"Token {name!r} may use every client name, including those of other tokens. Add clients = to it."
        for name in unrestricted
    ]


def problem_lines(problems: Iterable[ConfigProblem]) -> list[str]:
    """Return a line for each problem."""
    return [printable(str(problem)) for problem in problems]


def counted_problems(problems: ConfigProblems) -> str:
    """Return the number of problems as text."""
    # Above the limit, the last problem is only the count of the others.
    count = len(problems) + problems.more - (1 if problems.more else 0)
    return counted(count, "problem")


def printable(text: str) -> str:
    """Return `text` in valid UTF-8. File names may be invalid text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _document(config: str, settings: Config | None, problems: ConfigProblems, warnings: list[str]) -> bytes:
    rows = [
        {
            "file": printable(problem.location.file),
            "line": problem.location.line or None,
            "key": printable(problem.key),
            "text": printable(problem.text),
        }
        for problem in problems
    ]
    document = {"file": printable(config), "valid": settings is not None, "problems": rows}
    if warnings:
        document["warnings"] = warnings
    if settings is not None:
        admin = msgspec.structs.replace(settings.admin, listen=settings.admin.listen or ADMIN_DEFAULT)
        settings = msgspec.structs.replace(settings, admin=admin, archive=_without_secrets(settings.archive))
        configuration = msgspec.structs.asdict(settings)
        if settings.replication is not None:
            configuration["replication"] = _supported(settings.replication)
        del configuration["sow_bytes_max"]
        configuration["limits"] = {**settings.limits._asdict(), "sow_bytes_max": settings.sow_bytes}
        document["configuration"] = configuration
    return msgspec.json.encode(document)


def _supported(replication: ReplicationConfig) -> dict[str, object]:
    """Return the keys of replication that the server supports."""
    from tickertape.server.config.replication import OF_ACKNOWLEDGEMENTS, OF_WAITS

    keys = {key: value for key, value in _fields(replication).items() if key not in OF_WAITS}
    keys["destinations"] = [
        {key: value for key, value in _fields(one).items() if key not in OF_ACKNOWLEDGEMENTS}
        for one in replication.destinations
    ]
    return keys


def _fields(table: msgspec.Struct) -> dict[str, object]:
    return msgspec.structs.asdict(table)


def _without_secrets(archive: ArchiveConfig | None) -> ArchiveConfig | None:
    """Return a copy with masked storage options, because any of them may be a credential."""
    if archive is None:
        return None
    return msgspec.structs.replace(archive, storage_options=dict.fromkeys(archive.storage_options, "***"))


def _archive_text(archive: ArchiveConfig) -> str:
    needed = "" if archive.require else ", not required"
    return f"{archive.location}{needed}, refreshed every {archive.refresh:g} s"


def _retention_text(journal: JournalConfig) -> str:
    age = f"messages younger than {journal.retain:,g} s" if journal.retain else ""
    size = f"at most {journal.retain_size:,} bytes of segments" if journal.retain_size else ""
    return ", ".join(part for part in (age, size) if part)


def _limits_text(settings: Config) -> str:
    limits = settings.limits
    return (
        f"messages of {limits.message_bytes_max:,} bytes, filters of {limits.filter_bytes_max:,} bytes, "
        f"{limits.subscriptions_per_connection_max:,} subscriptions a connection"
    )


def _sow_text(sow: SowDefinition) -> str:
    pattern = "" if sow.pattern is None else f" and {sow.pattern}"
    key = "key " + ", ".join(sow.key) if sow.key else "explicit keys"
    life = "" if sow.expiration is None else f", expiration {sow.expiration}"
    if isinstance(sow.expiration, int):
        life = f", expire after {sow.expiration / 1000:g} s"
    return f"{sow.name}{pattern}, {key}{life}"


def _slow_clients_text(settings: Config) -> str:
    slow = settings.slow_clients
    directory = slow.path(settings.instance.data)
    disk = f"then {slow.disk_limit:,} on disk in {directory}" if slow.disk_limit else "no spilling to disk"
    age = "" if slow.age_limit is None else f", for {slow.age_limit:g} s"
    return f"{slow.memory_limit:,} bytes in memory, {slow.connection_limit:,} a connection, {disk}{age}"


def _transactions_text(settings: Config) -> str:
    staged = settings.transactions
    return (
        f"{staged.disk_limit:,} bytes of staged messages, {staged.bytes_max:,} a transaction, "
        f"expire after {staged.expire_after:g} s"
    )


def _destinations(settings: Config) -> tuple[DestinationConfig, ...]:
    return () if settings.replication is None else settings.replication.destinations


def _destination_text(destination: DestinationConfig) -> str:
    topics = ", ".join(rule.topic for rule in destination.rules)
    policy = destination.policy
    downgrade = "" if policy is None else f", downgraded after {policy.after:g} s"
    return f"{destination.name} at {', '.join(destination.addresses)}, topics {topics}{downgrade}"


def _stores_text(settings: Config) -> str:
    """Return the number of messages that publish stores must hold, or an empty text."""
    needed = None if settings.replication is None else settings.replication.stored_messages_max
    return "" if needed is None else f"publish stores must hold {needed:,} messages until a downgrade"


def _queue_text(queue: QueueDefinition) -> str:
    over = "" if queue.topic == queue.name else f" over {queue.topic}"
    lease = "" if queue.lease_period is None else f", leased for {queue.lease_period:g} s"
    dead = "" if queue.dead_letter is None else f", dead letters to {queue.dead_letter}"
    return f"{queue.name}{over}, {queue.semantics}, {queue.sharing}{lease}{dead}"


def _summary(settings: Config) -> list[str]:
    journal = settings.journal
    sync = f"every {journal.sync_interval:g} s" if journal.sync == "interval" else journal.sync
    topics = "all topics" if journal.topics is None else ", ".join(journal.topics) or "no topic"
    validated = [f"{topic.name} ({topic.message_type})" for topic in settings.topics if topic.validate]
    rows = [
        ("instance", settings.instance.name),
        ("data", settings.instance.data + ("" if journal.create else " (must exist)")),
        *(("listen", transport.listen) for transport in settings.transports),
        ("admin", settings.admin.listen or ADMIN_DEFAULT),
        *(("destination", _destination_text(one)) for one in _destinations(settings)),
        *([("stores", _stores_text(settings))] if _stores_text(settings) else []),
        ("journal", f"{topics} persistent, sync {sync}, segments of {journal.segment_size:,} bytes"),
        *([("retain", _retention_text(journal))] if journal.retain or journal.retain_size else []),
        *([("archive", _archive_text(settings.archive))] if settings.archive is not None else []),
        ("slow_clients", _slow_clients_text(settings)),
        ("limits", _limits_text(settings)),
        ("transactions", _transactions_text(settings)),
        *([("validate", ", ".join(validated))] if validated else []),
        *(("queue", _queue_text(queue)) for queue in settings.queues),
        *(("sow", _sow_text(sow)) for sow in settings.sow),
        *([("sow_bytes_max", f"{settings.sow_bytes:,}")] if settings.sow else []),
    ]
    return [f"  {name:<{_LABEL_WIDTH}}{text}" for name, text in rows]
