"""State check: reads the checkpoints of SOW topics for `verify` and `ls`, without a lock.

A running server may replace a checkpoint meanwhile. Damage is therefore read again, and counts only if the
manifest is still the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base.errors import JournalError
from tickertape.base.interfaces import Disk
from tickertape.base.text_format import shown
from tickertape.journal.format.retired_state import RetiredState
from tickertape.journal.format.segment import SOW_DIRECTORY
from tickertape.journal.format.sow_checkpoint import MANIFEST_NAME, state_path
from tickertape.journal.offline.report import VerifyFinding
from tickertape.journal.recovery.state_files import FoundState, find_state, find_states, read_states

_LOOKS_MAX: Final = 5
"""Attempts to read a checkpoint that a server replaces."""


class StateFindings(NamedTuple):
    """Findings in `sow/`."""

    damage: list[VerifyFinding]
    notes: list[VerifyFinding]


def check_states(
    disk: Disk, journal_id: bytes, retired: RetiredState | None, *, through: bool
) -> StateFindings:
    """Check all manifests, and with `through` all of their files."""
    damage: list[VerifyFinding] = []
    notes: list[VerifyFinding] = []
    try:
        found = find_states(disk, journal_id)
        for directory, first in found.items():
            reason, state = _checked(disk, journal_id, first, through=through)
            path = f"{SOW_DIRECTORY}/{directory}"
            if reason:
                damage.append(VerifyFinding(path, 0, reason))
            elif state is not None:
                notes.append(VerifyFinding(path, 0, _summary(state)))
    except JournalError as error:  # a newer format
        damage.append(VerifyFinding(SOW_DIRECTORY, 0, str(error)))
        return StateFindings(damage, notes)
    damage += _older(found, retired)
    return StateFindings(damage, notes)


def _checked(
    disk: Disk, journal_id: bytes, state: FoundState, *, through: bool
) -> tuple[str, FoundState | None]:
    """Return the damage of a checkpoint, or empty, and the checkpoint."""
    reason = ""
    for _ in range(_LOOKS_MAX):
        reason = state.damage
        if not reason and through and state.manifest is not None:
            reason = read_states(disk, state.manifest).damage
        if not reason:
            return "", state
        later = find_state(disk, journal_id, state.directory)
        if later is None or later.checksum == state.checksum:
            return reason, later
        state = later
    return reason, state


def _summary(state: FoundState) -> str:
    manifest = state.manifest
    if manifest is None:
        return "no checkpoint yet: the SOW topic needs the log from its start"
    size = sum(entry.size for entry in manifest.files)
    files = "1 file" if len(manifest.files) == 1 else f"{len(manifest.files)} files"
    text = (
        f"checkpoint of SOW topic {shown(manifest.topic)}: {manifest.records:,} records, {size:,} bytes in "
        f"{files}, for the log from position {manifest.start} on"
    )
    return text if manifest.complete else f"{text}. Not complete: {manifest.incomplete_because}"


def _older(found: dict[str, FoundState], retired: RetiredState | None) -> list[VerifyFinding]:
    """Return the checkpoints that are missing or older than the removed segments require."""
    ends = {
        state.manifest.topic: state.manifest.end for state in found.values() if state.manifest is not None
    }
    damage: list[VerifyFinding] = []
    for topic, named in ({} if retired is None else retired.manifests).items():
        if ends.get(topic, -1) < named.position:
            what = (
                f"the removed segments require a checkpoint of SOW topic {shown(topic)} at position "
                f"{named.position} or later"
            )
            damage.append(VerifyFinding(state_path(topic, MANIFEST_NAME), 0, what))
    return damage
