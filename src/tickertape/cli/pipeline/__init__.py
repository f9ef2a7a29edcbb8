"""Command group `pipeline`: Spark jobs on the log.

Commands import Spark when they run, so help and other commands work without it.
"""

from __future__ import annotations

import click

from tickertape.cli.support.command_group import LazyGroup
from tickertape.cli.support.command_table import PIPELINE


@click.group(
    cls=LazyGroup,
    table=PIPELINE,
    short_help="Run Spark jobs on the log.",
)
def pipeline() -> None:
    """Run Spark jobs on the log, on this machine or on a cluster (--master).

    Requirements: Java 17 or later, and pip install 'tickertape[spark]'

    \b
    tickertape pipeline archive --to /srv/archive            archive the log to a Delta table
    tickertape pipeline audit tcp://127.0.0.1:9007           find gaps, duplicates and broken order
    tickertape pipeline compact /srv/archive                 merge the small files of an archive
    tickertape pipeline init last-flights                    create a declarative pipeline project
    tickertape pipeline run last-flights                     run it
    """
