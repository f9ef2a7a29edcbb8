"""Command group `journal`: inspect and prune a data directory.

Only `prune` locks or changes the directory, because a server may be running on it.
"""

from __future__ import annotations

import click

from tickertape.cli.support.command_group import LazyGroup, modules_in


@click.group(
    cls=LazyGroup,
    modules=modules_in(__name__, "dump", "find", "grep", "ls", "prune", "verify"),
    short_help="Look into a data directory, also beside a running server.",
)
def journal() -> None:
    """Look into a data directory, whether a server runs on it or not. Nothing is locked or changed, but by
    prune.

    \b
    tickertape journal ls data                                    the segments
    tickertape journal dump data --from 20261120T090000           messages as JSON lines
    tickertape journal grep data 'AAPL|MSFT' --count              how many messages match
    tickertape journal find data '4031722713208431|17|'           where a message lies
    tickertape journal verify data                                is everything whole?
    tickertape journal prune data --archived /srv/archive         remove what the archive has

    Of the segment that is being written, dump, grep and find show what is known to be on the disk.
    """
