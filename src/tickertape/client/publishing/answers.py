"""Owns what a server may answer to publishes: about frames that were sent, and sequences that are in them.

Must never settle anything: `publishing.py` does, after an answer was found sound. One that is not ends the
connection, and the publish store keeps what it has.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.errors import BadCommand
from tickertape.client.publishing.send_buffer import FrameInFlight
from tickertape.wire.commands import Persisted, Processed, Rejected


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


def check_processed(command: Processed, frame: FrameInFlight) -> None:
    """Raise `BadCommand` for a frame that a store keeps: only a `Persisted` or `Rejected` settles it."""
    if frame.batch is not None:
        raise BadCommand(f"the server processed publish frame {command.frame}, which is to be persisted")


def check_rejected(command: Rejected, frame: FrameInFlight) -> None:
    """Raise `BadCommand` when it names messages that are not in the frame, or no longer."""
    named = len(command.refused)
    if frame.batch is None:
        fits = named <= frame.messages and len(set(command.refused)) == named
    else:
        sequences = np.unique(np.array(command.refused, np.uint64))
        fits = len(sequences) == named and bool(np.isin(sequences, frame.batch.sequences).all())
    if not fits:
        raise BadCommand(f"the server refused messages that are not in publish frame {command.frame}")
