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
from tickertape.engine.limits import sow_key_check_rows_max
from tickertape.engine.log_reads.log_reads import Steps
from tickertape.engine.sow.accepted import TopicKeys
from tickertape.engine.sow.registry import FrameKeys, StateRegistry
from tickertape.wire.commands import Publish


class CheckedKeys(NamedTuple):
    """Result of a check."""

    keys: FrameKeys | None
    """Keys of the messages that are left. None if none of them belongs to a SOW topic."""
    split: PartialRejection | None
    """The rejections, and the rest of the frame. None if all keys are valid."""


class KeyCheck:
    """Check of the keys of a frame against the SOW topics of a server, in pieces.

    The first `known` messages are not checked, because the log already has them. `numbers` are the numbers of
    the messages in the frame. None: all."""

    def __init__(
        self,
        states: StateRegistry,
        command: Publish,
        batch: MessageBatch,
        known: int,
        numbers: Sequence[int] | None,
    ) -> None:
        self._states = states
        self._command = command
        self._batch = batch
        self._known = known
        self.numbers = numbers
        """Numbers of the messages in the frame. None: all."""
        self.checked: CheckedKeys | None = None
        """The result. None before the end of `look_up`."""

    @property
    def is_large(self) -> bool:
        """Whether the check needs several steps."""
        if self._batch.count - self._known <= sow_key_check_rows_max:
            return False
        return any(self._states.of(topic) is not None for topic in self._batch.topics)

    def look_up(self) -> Steps[None]:
        """Read the keys, one piece for each yield."""
        keys = yield from self._states.read_keys(self._batch, self._known)
        self.checked = self._judged(keys)

    def close(self) -> None:
        """Nothing is left of a check that ends early."""

    def result(self) -> CheckedKeys:
        """Return the result, after a check in one step if necessary."""
        if self.checked is None:
            for _ in self.look_up():
                pass
        assert self.checked is not None
        return self.checked

    def _judged(self, keys: FrameKeys | None) -> CheckedKeys:
        if keys is None or not keys.bad:
            return CheckedKeys(keys, None)
        command, batch, bad = self._command, self._batch, sorted(keys.bad)
        error = BadSowKey(_text(command, batch, bad, keys.bad[bad[0]]))
        split = refusing(command, batch, bad, error, self.numbers)
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
