"""Key checks: refuse messages for SOW topics without a valid key, before they reach the log."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tickertape.base.errors import BadSowKey
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, Bools, Int64s
from tickertape.engine.commands.body_validation import PartialRejection, refusing
from tickertape.engine.limits import sow_key_check_rows_max
from tickertape.engine.log_reads.log_reads import Steps
from tickertape.engine.sow.accepted import TopicKeys
from tickertape.engine.sow.registry import FrameKeys, StateRegistry
from tickertape.journal.reading.log_reader import find_bookmark
from tickertape.wire.commands import Publish


class CheckedKeys(NamedTuple):
    """Result of a check."""

    keys: FrameKeys | None
    """Keys of the messages that are left. None if none of them belongs to a SOW topic."""
    split: PartialRejection | None
    """The rejections, and the rest of the frame. None if all keys are valid."""


class KeyCheck:
    """Check of the keys of a frame against the SOW topics of a server, in pieces.

    Messages in `known` are duplicates. Those without a valid key are refused again, because a lost connection
    may have lost the refusal, unless the log has them from the time before the SOW topic was configured.
    `publisher` is the publisher of a sequenced frame. `numbers` are the numbers of the messages in the frame.
    None: all."""

    def __init__(
        self,
        states: StateRegistry,
        command: Publish,
        batch: MessageBatch,
        known: Bools,
        publisher: int,
        numbers: Sequence[int] | None,
    ) -> None:
        self._states = states
        self._command = command
        self._batch = batch
        self._known = known
        self._publisher = publisher
        self._keys: FrameKeys | None = None
        self._read = False
        self.numbers = numbers
        """Numbers of the messages in the frame. None: all."""
        self.checked: CheckedKeys | None = None
        """The result. None before the end of `look_up`."""

    def needs_look_up(self) -> bool:
        """Return whether the check needs several steps, or reads of the log."""
        if self._batch.count > sow_key_check_rows_max:
            return any(self._states.of(topic) is not None for topic in self._batch.topics)
        for _ in self._read_keys():
            pass
        return bool(self._doubted())

    def look_up(self) -> Steps[None]:
        """Read the keys, one piece for each yield, and look for known messages without a valid key."""
        yield from self._read_keys()
        keys = self._keys
        for row in self._doubted():
            assert keys is not None
            sequence = int(self._batch.sequences[row])
            if (yield from find_bookmark(self._states.view, self._publisher, sequence)) is not None:
                del keys.bad[row]
        self.checked = self._judged(keys)

    def close(self) -> None:
        """Nothing is left of a check that ends early."""

    def result(self) -> CheckedKeys:
        """Return the result, after a check in one step if necessary. Without a look-up, known messages count
        as messages of the log."""
        if self.checked is None:
            for _ in self._read_keys():
                pass
            for row in self._doubted():
                assert self._keys is not None
                del self._keys.bad[row]
            self.checked = self._judged(self._keys)
        return self.checked

    def _read_keys(self) -> Generator[None, Any, None]:
        """Read the keys, unless they are read."""
        if not self._read:
            self._keys = yield from self._states.read_keys(self._batch, self._known)
            self._read = True

    def _doubted(self) -> list[int]:
        """Return the known messages without a valid key."""
        keys = self._keys
        return [] if keys is None else sorted(row for row in keys.bad if self._known[row])

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
