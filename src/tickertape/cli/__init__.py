"""Owns the command `tickertape`: commands, options, what is printed, exit codes.

Must never do the work itself: a command reads its options, calls the layer that does it, and prints.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line of this process and end it with its exit code."""
    from tickertape.cli.group import cli

    cli(prog_name="tickertape")
