"""Command line `tickertape`.

A command parses its options, calls another package, and prints the result.
"""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line of this process and end it with its exit code."""
    open_standard_streams()
    from tickertape.cli.support.command_group import cli

    cli(prog_name="tickertape")


def open_standard_streams() -> None:
    """Make the three standard streams usable.

    A closed stream is replaced by the null device. Otherwise the next opened file, for example a segment of
    the log, would get its descriptor. Characters that a stream cannot encode are written escaped.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
