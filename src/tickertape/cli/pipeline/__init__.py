"""Command group `pipeline`: Spark jobs over the log.

Spark is imported when a command runs, so help and other commands work without it.
"""

from __future__ import annotations

import click

from tickertape.cli.support.command_group import LazyGroup, modules_in


@click.group(
    cls=LazyGroup,
    modules=modules_in(__name__, "archive", "audit", "compact", "init", "run")
    | {"compact": f"{__name__}.archive"},
    short_help="Run Spark jobs over the log.",
)
def pipeline() -> None:
    """Run Spark jobs over the log, on this machine or on a cluster (--master).

    They need Java 17 or later and: pip install 'tickertape[spark]'

    \b
    tickertape pipeline archive --to /srv/archive            the log into a Delta table, exactly once
    tickertape pipeline audit tcp://127.0.0.1:9007           is every message there, once, in order?
    tickertape pipeline compact /srv/archive                 an archive's small files into few
    tickertape pipeline init last-flights                    a declarative pipeline project
    tickertape pipeline run last-flights                     run it
    """
