"""Recovery of SOW topics: decides for each topic whether a checkpoint or the log gives the records.

Reference: docs/adr/0044-state-of-the-world.md, "Decisions at a start". All decisions precede the first write
of a start, so a refused start changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from tickertape.base.errors import JournalCorrupt, SowIncomplete
from tickertape.base.interfaces import Buffer
from tickertape.base.text_format import shown
from tickertape.batch.format import Labels
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.fold import StateFold, StoredRecords
from tickertape.journal.format.retired_state import RetiredManifest
from tickertape.journal.format.sow_blocks import DeadKeys, RecordBlock
from tickertape.journal.format.sow_checkpoint import RESTORE, StateFileEntry, StateManifest, state_directory
from tickertape.journal.reading.commit_search import find_commit
from tickertape.journal.reading.log_view import LogView, ReadRequest
from tickertape.journal.recovery.state_files import FoundState, ReadableFiles, StateBlocks


class StateAction(Enum):
    """Consequence of a decision."""

    LOAD = "load"
    """Load the files, and fold the log from P0 on."""
    FOLD = "fold"
    """Fold the log."""
    REFUSE = "refuse"
    """Refuse the start. Nothing changes."""
    KEEP = "keep"
    """Leave the files. The topic is not configured."""


class StateFacts(NamedTuple):
    """Everything that decides about one topic."""

    manifest: StateManifest | None
    checksum: int = 0
    """Checksum of the manifest."""
    damage: str = ""
    """Why the manifest cannot be read, or empty."""
    fingerprint: bytes = b""
    """Of the definition."""
    present: tuple[bool, ...] = ()
    """Whether the log, or `retired.bin`, has the commits of the files and, last, of the manifest."""
    intact: int = 0
    """Files before the first damaged one."""
    pruned: bool = False
    named: RetiredManifest | None = None
    """The checkpoint that `retired.bin` names for the topic."""
    first: int = 0
    """First position of the log."""
    configured: bool = True
    rebuild: bool = False


class StateDecision(NamedTuple):
    """The decision about one topic."""

    row: int
    """Number in the table of ADR 44."""
    action: StateAction
    because: str = ""
    """Reason for anything but a load of all files, for the report and for errors."""
    quarantine: bool = False
    files: int = 0
    """Number of files to load."""
    incomplete_because: str = ""


def decide(facts: StateFacts) -> StateDecision:
    """Return the decision about a topic. The reader refuses a manifest of a newer version (row 12)."""
    manifest = facts.manifest
    if facts.rebuild:
        rest = _rest(facts, "--rebuild-sow") if facts.pruned else ""
        has_files = manifest is not None or bool(facts.damage)
        return StateDecision(15, StateAction.FOLD, "--rebuild-sow requested a rebuild", has_files, 0, rest)
    if not facts.configured:
        return StateDecision(14, StateAction.KEEP, "no [[sow]] has this name")
    if facts.damage:
        return _else(facts, 13, 13, _cause(facts.damage))
    if manifest is None:
        if not facts.pruned:
            return StateDecision(5, StateAction.FOLD)
        if facts.named is not None:
            return StateDecision(6, StateAction.REFUSE, "its checkpoint is missing")
        return StateDecision(7, StateAction.FOLD, incomplete_because=_rest(facts, "no checkpoint yet"))
    if facts.pruned and manifest.start < facts.first:
        why = f"its checkpoint ends at position {manifest.start}, and the log starts at {facts.first}"
        return StateDecision(4, StateAction.REFUSE, why)
    if not facts.present[-1]:
        return _else(facts, 2, 3, "its checkpoint belongs to another end of the log")
    if manifest.fingerprint != facts.fingerprint:
        return _else(facts, 8, 9, "its definition has changed")
    if facts.intact < len(manifest.files):
        return _prefix(facts, manifest)
    if _is_older(facts, manifest, facts.checksum):
        return StateDecision(10, StateAction.REFUSE, "sow/ is older than the log")
    return StateDecision(1, StateAction.LOAD, files=len(manifest.files))


def _prefix(facts: StateFacts, manifest: StateManifest) -> StateDecision:
    """Return the decision about a checkpoint with a damaged file."""
    for count in range(facts.intact, 0, -1):
        entry = manifest.files[count - 1]
        usable = entry.start >= facts.first and facts.present[count - 1]
        if usable and not _is_older(facts, entry, None):
            why = "a file of its checkpoint is damaged, and the log replaces it"
            return StateDecision(11, StateAction.LOAD, why, files=count)
    return _else(facts, 11, 11, "a file of its checkpoint is damaged")


def _is_older(facts: StateFacts, at: StateManifest | StateFileEntry, checksum: int | None) -> bool:
    """Return whether `retired.bin` names a later checkpoint, or another one at the same position."""
    named = facts.named
    if named is None or named.position < at.end:
        return False
    if named.position > at.end:
        return True
    same = (named.commit, named.epoch, named.chain) == (at.commit, at.epoch, at.chain)
    return not same or (checksum is not None and checksum != named.checksum)


def _else(facts: StateFacts, whole: int, pruned: int, because: str) -> StateDecision:
    """Return the decision without a usable checkpoint."""
    if facts.pruned:
        return StateDecision(pruned, StateAction.REFUSE, because)
    return StateDecision(whole, StateAction.FOLD, because, quarantine=True)


def _cause(damage: str) -> str:
    """Return the cause in the text of an error, without its cure."""
    text = damage.removesuffix(RESTORE).rstrip(". ")
    return text[:1].lower() + text[1:]


def _rest(facts: StateFacts, cause: str) -> str:
    return f"{cause}: the state has only messages from position {facts.first} on"


# -- plan ---------------------------------------------------------------------------------------------


class TopicPlan(NamedTuple):
    """How the records of one topic are recovered."""

    incomplete_because: str = ""
    """Why the state does not have all messages, or empty."""
    manifest: StateManifest | None = None
    """The checkpoint to load."""
    checksum: int = 0
    whole: bool = False
    """Whether all files of the manifest are loaded."""
    files: tuple[StateBlocks, ...] = ()
    leftovers: tuple[str, ...] = ()
    """Names of files in the directory that the manifest does not name."""


class StatePlan(NamedTuple):
    """How the records of all topics are recovered."""

    topics: Mapping[str, TopicPlan]
    """By SOW name."""
    quarantine: tuple[str, ...]
    """Names of directories in `sow/` that the driver moves to quarantine, before its first other write."""
    forgotten: tuple[str, ...]
    """SOW topics whose checkpoint `retired.bin` names, and that are rebuilt. The driver removes the names, so
    that a checkpoint with the same end is not taken for another copy."""
    report: tuple[str, ...]
    """Lines for the log of the server."""


class StateFiles(NamedTuple):
    """Contents of `sow/`."""

    found: Mapping[str, FoundState]
    """By directory (`find_states`)."""
    stored: Mapping[str, ReadableFiles]
    """Files of each readable manifest, by directory."""


_NAMES_MAX: Final = 10
"""Names of further SOW topics in the error of a refused start."""
NO_STATE_FILES: Final = StateFiles({}, {})
Planning = Generator[ReadRequest, Buffer, StatePlan]


def plan_states(
    view: LogView,
    definitions: Iterable[SowDefinition],
    files: StateFiles,
    rebuild: frozenset[str] = frozenset(),
) -> Planning:
    """Decide about all topics. Raises `SowIncomplete` for a refused start."""
    topics: dict[str, TopicPlan] = {}
    quarantine: list[str] = []
    forgotten: list[str] = []
    report: list[str] = []
    refused: dict[str, str] = {}
    left = dict(files.found)
    for definition in definitions:
        directory = state_directory(definition.name)
        found = left.pop(directory, FoundState(directory, ()))
        facts = yield from _facts(view, definition, found, files.stored.get(directory))
        decision = decide(facts._replace(rebuild=definition.name in rebuild))
        if decision.action is StateAction.REFUSE:
            refused[definition.name] = decision.because
            continue
        if decision.quarantine:
            quarantine.append(directory)
        if facts.named is not None and definition.name in rebuild:
            forgotten.append(definition.name)
        report += _lines(definition.name, decision)
        topics[definition.name] = _plan(decision, found, files.stored.get(directory))
    if refused:
        raise SowIncomplete(_refusal(refused))
    for found in left.values():
        if found.manifest is None and not found.damage and not found.names:
            continue  # the directory of a topic that never had a checkpoint
        name = found.directory if found.manifest is None else found.manifest.topic
        report.append(f"Kept the checkpoint of {shown(name)} in sow/: no [[sow]] has this name.")
    return StatePlan(topics, tuple(quarantine), tuple(forgotten), tuple(report))


def _refusal(refused: Mapping[str, str]) -> str:
    """Return the error for SOW topics and the reasons of their refusals. It has the reason of the first."""
    (first, because), *others = refused.items()
    text = f"Cannot recover SOW topic {shown(first)}: {because.rstrip('.')}."
    if others:
        names = ", ".join([shown(name) for name, _ in others[:_NAMES_MAX]])
        more = f" and {len(others) - _NAMES_MAX:,} more" if len(others) > _NAMES_MAX else ""
        text += f" Others that cannot be recovered: {names}{more}."
    return f"{text} {RESTORE}"


def _lines(name: str, decision: StateDecision) -> Iterator[str]:
    """Yield the lines about a decision for the log of the server."""
    if decision.because:
        yield f"SOW topic {shown(name)}: {decision.because.rstrip('.')}."
    if decision.incomplete_because:
        yield (
            f"SOW topic {shown(name)} is not complete ({decision.incomplete_because}). Retention has removed "
            "older messages, so records whose last message was older are missing. Their number is unknown."
        )


def _plan(decision: StateDecision, found: FoundState, stored: ReadableFiles | None) -> TopicPlan:
    if decision.action is not StateAction.LOAD:
        return TopicPlan(decision.incomplete_because, leftovers=() if decision.quarantine else found.names)
    manifest = found.manifest
    assert manifest is not None
    assert stored is not None
    whole = decision.files == len(manifest.files)
    named = {entry.name for entry in manifest.files[: decision.files]}
    leftovers = tuple([name for name in found.names if name not in named])
    if not whole:
        last = manifest.files[decision.files - 1]
        fields = {name: getattr(last, name) for name in ("start", "end", "commit", "epoch", "chain")}
        manifest = msgspec.structs.replace(manifest, files=manifest.files[: decision.files], **fields)
    return TopicPlan(
        manifest.incomplete_because,
        manifest,
        found.checksum,
        whole,
        tuple(stored.files[: decision.files]),
        leftovers,
    )


def _facts(
    view: LogView, definition: SowDefinition, found: FoundState, stored: ReadableFiles | None
) -> Generator[ReadRequest, Buffer, StateFacts]:
    retired, manifest = view.retired, found.manifest
    named = None if retired is None else retired.manifests.get(definition.name)
    present: list[bool] = []
    ends = () if manifest is None else (*map(_end_of, manifest.files), _end_of(manifest))
    for end in ends:
        found_there = yield from _commit_is_present(view, end, named)
        present.append(found_there)
    return StateFacts(
        manifest,
        found.checksum,
        found.damage,
        definition.fingerprint(),
        tuple(present),
        0 if stored is None else len(stored.files),
        retired is not None,
        named,
        view.first_position,
    )


class _End(NamedTuple):
    """P1 and the commit that ends there."""

    position: int
    commit: tuple[int, int, int]


def _end_of(at: StateManifest | StateFileEntry) -> _End:
    return _End(at.end, (at.commit, at.epoch, at.chain))


def is_present(view: LogView, manifest: StateManifest) -> Generator[ReadRequest, Buffer, bool]:
    """Return whether the log, or `retired.bin`, has the commit at the end of a checkpoint."""
    named = None if view.retired is None else view.retired.manifests.get(manifest.topic)
    return (yield from _commit_is_present(view, _end_of(manifest), named))


def _commit_is_present(
    view: LogView, end: _End, named: RetiredManifest | None
) -> Generator[ReadRequest, Buffer, bool]:
    if named is not None and (named.position, (named.commit, named.epoch, named.chain)) == end:
        return True
    try:
        header = yield from find_commit(view, end.position)
    except JournalCorrupt:
        return False  # a checkpoint beside damage of the log proves nothing
    return header is not None and (header.number, header.epoch, header.crc) == end.commit


# -- load ---------------------------------------------------------------------------------------------


def load_files(fold: StateFold, files: Iterable[StateBlocks]) -> None:
    """Load the files of a checkpoint in their order. Each one was read to its end."""
    parts: list[StoredRecords | Labels] = []
    for blocks in files:
        for block in blocks:
            if isinstance(block, DeadKeys):
                parts.append(block.keys)
            else:
                parts.append(_stored(block))
    fold.load(parts)


def _stored(block: RecordBlock) -> StoredRecords:
    (bodies,) = block.bodies
    return StoredRecords(
        block.keys,
        block.positions,
        block.order_stamps,
        block.publishers,
        block.publisher_numbers,
        block.sequences,
        block.expirations,
        block.correlation_ids,
        bodies,
        block.body_offsets,
    )
