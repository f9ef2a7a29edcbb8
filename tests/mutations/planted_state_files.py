"""Planted defects of checkpoint files of SOW topics.

Must never hold one without an effect that a user could see.
"""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_BLOCKS = "journal/format/sow_blocks.py"
_CHECKPOINT = "journal/format/sow_checkpoint.py"
_TESTS = (
    "unit/journal/format/test_sow_checkpoint.py",
    "unit/journal/format/test_sow_manifest.py",
    "unit/journal/format/test_sow_blocks.py",
)

STATE_FILE_MUTATIONS: Final = (
    Mutation(
        "the checksum of a block of a state file is not verified",
        _CHECKPOINT,
        "    if crc32c(payload) != checksum:\n",
        "    if crc32c(payload) == -1:\n",
        (*_TESTS, "property/test_sow_checkpoint.py"),
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "exchanged blocks of a state file are read",
        _CHECKPOINT,
        "        self._checksum = crc32c(checksum, self._checksum)\n",
        "        self._checksum ^= crc32c(checksum)\n",
        _TESTS,
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "the totals of a state file are not compared",
        _CHECKPOINT,
        "        if source[end:] != totals.trailer():\n",
        "        if not totals.trailer():\n",
        _TESTS,
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "a state file of another journal is read",
        _CHECKPOINT,
        "    if found.journal_id != manifest.journal_id:\n",
        "    if not found.journal_id:\n",
        _TESTS,
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "a manifest of another journal is read",
        _CHECKPOINT,
        "        if manifest.journal_id != journal_id:\n",
        "        if not manifest.journal_id:\n",
        _TESTS,
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "offsets of a state file are not checked",
        _BLOCKS,
        "    if (offsets[1:] < offsets[:-1]).any():\n",
        "    if len(offsets) < 2:\n",
        (
            *_TESTS,
            "fuzz/test_fuzz.py::test_target_with_mutated_input_raises_only_allowed_exceptions[state_file]",
        ),
        promise="R12",
        tier="unit",
    ),
    Mutation(
        "a checkpoint without one of its deltas is read",
        _CHECKPOINT,
        "(name.since != before.start or _is_before(entry, before))",
        "_is_before(entry, before)",
        _TESTS,
        promise="R3",
        tier="unit",
    ),
    Mutation(
        "dead keys of a state file are read behind its records",
        _CHECKPOINT,
        "(not self._delta or self._counts[_RECORDS])",
        "not self._delta",
        _TESTS,
        promise="R3",
        tier="unit",
    ),
)
