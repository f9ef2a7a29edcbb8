"""Command group `journal`: inspect and prune a data directory.

Only `prune` locks or changes the directory, because a server may be running on it.
"""

from __future__ import annotations

import click

from tickertape.cli.support.command_group import LazyGroup
from tickertape.cli.support.command_table import JOURNAL


@click.group(
    cls=LazyGroup,
    table=JOURNAL,
    short_help="Inspect a data directory (safe while the server runs).",
)
def journal() -> None:
    """Inspect a data directory (safe while the server runs). Only prune locks or changes the directory.

    \b
    tickertape journal ls data                                    list the segments
    tickertape journal dump data --from 20261120T090000           print messages
    tickertape journal grep data 'AAPL|MSFT' --count              count matching messages
    tickertape journal find data '4031722713208431|17|'           locate a message
    tickertape journal verify data                                verify all checksums
    tickertape journal prune data --archived /srv/archive         remove archived segments

    For the active segment, dump, grep and find show synced messages only, unless you pass --unsynced.
    """
