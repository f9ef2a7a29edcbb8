"""Key checks: refuse messages for SOW topics without a valid key, before they reach the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tickertape.base.errors import BadSowKey
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.commands.body_validation import PartialRejection, refusing
from tickertape.engine.sow.accepted import TopicKeys
from tickertape.engine.sow.registry import FrameKeys, StateRegistry
from tickertape.wire.commands import Publish


class CheckedKeys(NamedTuple):
    """Result of a check."""

    keys: FrameKeys | None
    """Keys of the messages that are left. None if none of them belongs to a SOW topic."""
    split: PartialRejection | None
    """The rejections, and the rest of the frame. None if all keys are valid."""


class KeyChecks:
    """Checks against the SOW topics of a server."""

    def __init__(self, states: StateRegistry) -> None:
        self._states = states

    def check(
        self, command: Publish, batch: MessageBatch, known: int, numbers: Sequence[int] | None
    ) -> CheckedKeys:
        """Check the keys of a frame, without the first `known` messages, which the log already has.

        `numbers` are the numbers of the messages in the frame. None: all."""
        keys = self._states.keys_of(batch, known)
        if keys is None or not keys.bad:
            return CheckedKeys(keys, None)
        bad = sorted(keys.bad)
        error = BadSowKey(_text(command, batch, bad, keys.bad[bad[0]]))
        split = refusing(command, batch, bad, error, numbers)
        if split.rest is None:
            return CheckedKeys(None, split)
        return CheckedKeys(_without(keys, bad, batch.count), split)


def _without(keys: FrameKeys, bad: list[int], count: int) -> FrameKeys:
    """Return the keys for the frame without the messages `bad`."""
    good = np.ones(count, np.bool_)
    good[bad] = False
    places: Int64s = np.cumsum(good, dtype=I8) - 1
    left = [TopicKeys(topic, places[rows], names) for topic, rows, names in keys.topics]
    return FrameKeys(left, {})


def _text(command: Publish, batch: MessageBatch, bad: list[int], reason: str) -> str:
    first = bad[0]
    which = f"with sequence {batch.sequences[first]}" if command.sequenced else f"number {first}"
    return (
        f"Cannot store {len(bad)} of {batch.count} messages: they have no valid key. The first is the one "
        f"{which} for {shown(batch.topic(first))}: {reason.rstrip('.')}. Correct the messages and publish "
        "them again."
    )
