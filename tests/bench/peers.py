"""Figures of other brokers, measured by an external program: runs it, and parses its output.

Must never measure, nor know any broker. The program prints one figure per line, such as `redis publish 98,000
msg/s` or `redis publish p50 41 us p99 80 us`. Every other line (versions, failures) is a note above the
table.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

PEERS_SECONDS_MAX = 600

_FIGURE = re.compile(r"(?P<what>\S.*?)\s+(?P<figure>[\d,.]+ [a-zA-Z]+/s|p50 [\d,.]+ \S+.*)")


class Peers(NamedTuple):
    """The output of the program."""

    notes: list[str]
    rows: list[tuple[str, str]]


def read_peers(source: str) -> Peers:
    """Return the contents of the file `source`, or the output of the command `source`.

    Raises `ValueError` when it has no figure, `OSError` or `subprocess.SubprocessError` when it cannot run.
    """
    if Path(source).is_file():
        text = Path(source).read_text(encoding="utf-8")
        if text.startswith("#!"):
            raise ValueError(f"that is a program: give the command that runs it, such as 'sh {source}'")
        return parse_peers(text)
    command = shlex.split(source)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PEERS_SECONDS_MAX, check=True)
    return parse_peers(done.stdout)


def parse_peers(text: str) -> Peers:
    """Parse the notes and figures in `text`. Raises `ValueError` without a figure."""
    peers = Peers([], [])
    for line in filter(None, map(str.strip, text.splitlines())):
        found = _FIGURE.fullmatch(line)
        if found is None:
            peers.notes.append(line.lstrip("# "))
        else:
            peers.rows.append((re.sub(r"\s+", " ", found["what"]), found["figure"]))
    if not peers.rows:
        raise ValueError("the peers' program printed no figure")
    return peers
