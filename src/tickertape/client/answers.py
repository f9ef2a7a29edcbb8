"""Owns what a server may answer to publishes: about frames that were sent, and sequences that are in them.

Must never settle anything: `publishing.py` does, after an answer was found sound. One that is not ends the
connection, and the publish store keeps what it has.
"""

from __future__ import annotations

from tickertape.base.errors import BadCommand
from tickertape.wire.commands import Persisted


def check_frame(frame: int, sent: int) -> None:
    """Raise `BadCommand` for an answer to a frame that is none of the `sent` ones."""
    if not 0 < frame <= sent:
        raise BadCommand(f"the server answered publish frame {frame}; {sent} were sent")


def check_persisted(command: Persisted, sent: int, known: int | None) -> None:
    """Raise `BadCommand` for a frame that is none of the `sent` ones, or a sequence above those `known` to be
    given; None where there are none."""
    if command.frame:
        check_frame(command.frame, sent)
    if known is not None and command.sequence > known:
        raise BadCommand(f"the server persisted sequence {command.sequence}; none above {known} was sent")
