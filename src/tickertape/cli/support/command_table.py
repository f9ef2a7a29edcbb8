"""Table of all commands: the module and the one-line summary of each, for help without imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class CommandEntry(NamedTuple):
    """Place and summary of one command."""

    module: str
    """Module that defines the command, as an attribute with the name of the command (`_` for `-`)."""
    summary: str
    """Text in the list of commands, the same as `short_help` of the command."""


CommandTable = Mapping[str, CommandEntry]
"""Entries of one group by name, in the order of the help text."""


def _package(name: str, summaries: dict[str, str]) -> dict[str, CommandEntry]:
    """Return the entries of commands with a module each in the package `name`."""
    return {command: CommandEntry(f"{name}.{command}", text) for command, text in summaries.items()}


def _module(name: str, summaries: dict[str, str]) -> dict[str, CommandEntry]:
    """Return the entries of commands that are all in the module `name`."""
    return {command: CommandEntry(name, text) for command, text in summaries.items()}


_COMMANDS: Final = "tickertape.cli.commands"

ROOT: Final[CommandTable] = (
    _package(
        _COMMANDS,
        {
            "serve": "Start a server.",
            "check": "Check a configuration file.",
            "doctor": "Check disk, clock, limits and certificates of this machine.",
            "publish": "Publish lines, and wait until they are persisted.",
            "subscribe": "Print the messages of a topic, live or from the log.",
            "sow": "Print the records of a SOW topic, or the messages of a queue.",
        },
    )
    | _module(f"{_COMMANDS}.sow", {"sow-delete": "Delete records of a SOW topic."})
    | _module(f"{_COMMANDS}.publish", {"delta-publish": "Publish changed fields of records."})
    | _package(
        _COMMANDS,
        {
            "query": "Run SQL over the records of SOW topics.",
            "ack": "Acknowledge, release or reject queue messages.",
            "queue": "Inspect and empty queues, and requeue dead letters.",
        },
    )
    | _package(
        "tickertape.cli",
        {
            "journal": "Inspect a data directory (safe while the server runs).",
            "pipeline": "Run Spark jobs on the log.",
        },
    )
    | _package(
        _COMMANDS,
        {
            "token": "Create access tokens for clients and links.",
            "health": "Check whether a server is ready (for scripts).",
            "stats": "Show statistics of a running server.",
            "topics": "List the topics of a running server.",
            "replication": "Inspect and control replication links, and compare logs.",
            "monitoring": "Write a Grafana dashboard and Prometheus alert rules.",
            "filter": "Explain a filter, or test it on lines.",
            "error": "Explain an error code.",
            "completion": "Print the completion script of a shell.",
        },
    )
)

QUEUE: Final[CommandTable] = _module(
    f"{_COMMANDS}.queue",
    {
        "browse": "List waiting messages without consuming them.",
        "ls": "List the queues of a running server.",
        "purge": "Acknowledge all messages of a queue, or all that match a filter.",
        "requeue": "Republish dead letters to their original topics.",
    },
)

JOURNAL: Final[CommandTable] = _package(
    "tickertape.cli.journal",
    {
        "dump": "Print messages or commit headers.",
        "find": "Locate a message in the journal.",
        "grep": "Search bodies or topics for a regular expression.",
        "ls": "List the segments.",
        "prune": "Remove archived segments of a stopped server.",
        "verify": "Verify all checksums and report corruption.",
    },
)

PIPELINE: Final[CommandTable] = {
    "archive": CommandEntry(
        "tickertape.cli.pipeline.archive", "Write the log to a Delta table, exactly once."
    ),
    "audit": CommandEntry(
        "tickertape.cli.pipeline.audit", "Find gaps and duplicates of each publisher, or compare two logs."
    ),
    "compact": CommandEntry(
        "tickertape.cli.pipeline.archive", "Merge small files of an archive, and remove unused files."
    ),
    "init": CommandEntry("tickertape.cli.pipeline.init", "Create a declarative pipeline project."),
    "run": CommandEntry("tickertape.cli.pipeline.run", "Run a declarative pipeline project."),
}

TOKEN: Final[CommandTable] = _module(
    f"{_COMMANDS}.token", {"new": "Create an access token (shown only once)."}
)

REPLICATION: Final[CommandTable] = _module(
    f"{_COMMANDS}.replication",
    {
        "ls": "List the links of a running server.",
        "holes": "List the messages that other servers have, and a running server lacks.",
        "downgrade": "Let acknowledgements no longer wait for a destination.",
        "upgrade": "Let acknowledgements wait for a destination again.",
        "pause": "Send nothing to a destination until it is resumed.",
        "resume": "Resume a paused link.",
    },
) | _module(f"{_COMMANDS}.replication_compare", {"compare": "Compare the messages of two data directories."})

FILTER: Final[CommandTable] = _module(
    f"{_COMMANDS}.filter",
    {
        "explain": "Explain the meaning, fields and cost of a filter.",
        "test": "Print the lines that a filter matches.",
    },
)
