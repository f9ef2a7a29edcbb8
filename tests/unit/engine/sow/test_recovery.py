"""Decisions at a start: each row of the table of ADR 44, and refused starts of a real engine."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish
from tickertape.base.checksum import crc32c
from tickertape.base.errors import JournalVersion, SowIncomplete
from tickertape.batch.format import Int64s
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.recovery import StateAction, StateDecision, StateFacts, decide
from tickertape.engine.sow.state.fold import Source, StateFold
from tickertape.journal.format.retired_state import RetiredManifest
from tickertape.journal.format.segment import segment_path
from tickertape.journal.format.sow_checkpoint import (
    MANIFEST_NAME,
    StateFileEntry,
    StateManifest,
    base_name,
    delta_name,
    manifest_checksum,
    state_path,
)
from tickertape.journal.retention import RetentionPolicy

_PRINT = b"fingerprint"
_CHECKSUM = 99


def entry(name: str, start: int, end: int) -> StateFileEntry:
    return StateFileEntry(
        name=name, size=96, checksum=1, start=start, end=end, commit=end, epoch=2, chain=end + 7
    )


FILES = (
    entry(base_name(20), 10, 20),
    entry(delta_name(10, 40), 30, 40),
    entry(delta_name(30, 60), 50, 60),
)
MANIFEST = StateManifest(
    journal_id=bytes(16),
    start=50,
    end=60,
    commit=60,
    epoch=2,
    chain=67,
    topic="t",
    fingerprint=_PRINT,
    complete=True,
    incomplete_because="",
    records=1,
    order_stamp=1,
    files=FILES,
)
FACTS = StateFacts(MANIFEST, _CHECKSUM, fingerprint=_PRINT, present=(True,) * 4, intact=3)
"""The facts of row 1, without removed segments."""
PRUNED = FACTS._replace(pruned=True, first=30)
NO_MANIFEST = FACTS._replace(manifest=None, present=(), intact=0)
ABSENT = (True, True, True, False)


def named(position: int, *, checksum: int = _CHECKSUM, chain: int | None = None) -> RetiredManifest:
    """Return an entry of `retired.bin`."""
    return RetiredManifest(position, position, 2, position + 7 if chain is None else chain, checksum)


@pytest.mark.parametrize(
    ("row", "facts", "action", "quarantine", "files"),
    [
        (1, FACTS, StateAction.LOAD, False, 3),
        (1, PRUNED, StateAction.LOAD, False, 3),
        (1, PRUNED._replace(first=50), StateAction.LOAD, False, 3),
        (1, PRUNED._replace(named=named(40)), StateAction.LOAD, False, 3),
        (1, PRUNED._replace(named=named(60)), StateAction.LOAD, False, 3),
        (2, FACTS._replace(present=ABSENT), StateAction.FOLD, True, 0),
        (3, PRUNED._replace(present=ABSENT), StateAction.REFUSE, False, 0),
        (4, PRUNED._replace(first=51), StateAction.REFUSE, False, 0),
        (4, PRUNED._replace(first=51, present=ABSENT), StateAction.REFUSE, False, 0),
        (5, NO_MANIFEST, StateAction.FOLD, False, 0),
        (6, NO_MANIFEST._replace(pruned=True, named=named(20)), StateAction.REFUSE, False, 0),
        (7, NO_MANIFEST._replace(pruned=True, first=30), StateAction.FOLD, False, 0),
        (8, FACTS._replace(fingerprint=b"other"), StateAction.FOLD, True, 0),
        (9, PRUNED._replace(fingerprint=b"other"), StateAction.REFUSE, False, 0),
        (10, PRUNED._replace(named=named(61)), StateAction.REFUSE, False, 0),
        (10, PRUNED._replace(named=named(60, checksum=98)), StateAction.REFUSE, False, 0),
        (10, PRUNED._replace(named=named(60, chain=1)), StateAction.REFUSE, False, 0),
        (11, FACTS._replace(intact=2), StateAction.LOAD, False, 2),
        (11, FACTS._replace(intact=2, present=(True, False, True, True)), StateAction.LOAD, False, 1),
        (11, FACTS._replace(intact=0), StateAction.FOLD, True, 0),
        (11, PRUNED._replace(intact=2), StateAction.LOAD, False, 2),
        (11, PRUNED._replace(intact=2, named=named(40, checksum=5)), StateAction.LOAD, False, 2),
        (11, PRUNED._replace(intact=2, named=named(41)), StateAction.REFUSE, False, 0),
        (11, PRUNED._replace(intact=1), StateAction.REFUSE, False, 0),
        (13, NO_MANIFEST._replace(damage="bad"), StateAction.FOLD, True, 0),
        (13, NO_MANIFEST._replace(damage="bad", pruned=True), StateAction.REFUSE, False, 0),
        (14, PRUNED._replace(configured=False), StateAction.KEEP, False, 0),
        (15, PRUNED._replace(rebuild=True, first=70, named=named(90)), StateAction.FOLD, True, 0),
        (15, NO_MANIFEST._replace(rebuild=True, pruned=True), StateAction.FOLD, False, 0),
        (15, FACTS._replace(rebuild=True), StateAction.FOLD, True, 0),
    ],
)
def test_decision_at_a_start_follows_the_row_of_the_table(
    row: int, facts: StateFacts, action: StateAction, quarantine: bool, files: int
) -> None:
    found = decide(facts)
    assert (found.row, found.action, found.quarantine, found.files) == (row, action, quarantine, files)
    assert bool(found.because) == (row not in (1, 5, 7))
    assert bool(found.incomplete_because) == (row in (7, 15) and facts.pruned)


def test_decision_of_a_new_topic_names_the_first_position() -> None:
    found = decide(NO_MANIFEST._replace(pruned=True, first=30))
    assert found.incomplete_because == "no checkpoint yet: the state has only messages from position 30 on"
    assert isinstance(found, StateDecision)


# -- a real engine ------------------------------------------------------------------------------------

ORDERS = SowDefinition("orders", key=("/id",), checkpoint_interval=1.0)
CURE = "Restore sow/ from the backup, or start with --rebuild-sow NAME."


def body(key: int, value: int) -> bytes:
    return msgspec.json.encode({"id": key, "v": value, "text": "x" * 300})


def stored(*more: SowDefinition, pruned: bool, deltas: int = 1, latest: int = 77) -> SowEngine:
    """Return an engine with a checkpoint: a base, and deltas of one record each."""
    retention = RetentionPolicy(size_bytes=20_000 if pruned else 1 << 30)
    world = SowEngine(ORDERS, *more, segment_bytes=8_192, retention=retention)
    peer = world.connect("p")
    publish(peer, [("orders", body(30, 0))])
    for value in range(4):
        publish(peer, [("orders", body(key, value)) for key in range(20)])
        world.settle()
    world.wake(1.1)
    world.settle()
    if pruned:
        world.wake(70.0)
        world.settle()
        world.wake(1.1)
        world.settle()
        assert world.broker.retention.removed_segments
    for number in range(deltas):
        publish(peer, [("orders", body(number, latest))])
        world.settle()
        world.wake(1.1)
        world.settle()
    assert "orders" in world.broker.state_checkpoints.manifests()
    return world


def named_files(world: SowEngine) -> list[str]:
    """Return the paths of the base and the deltas of the topic, in order."""
    names = world.disk.names(state_path("orders", "").rstrip("/"))
    return [state_path("orders", name) for name in names if name != MANIFEST_NAME]


def refused(world: SowEngine, *sow: SowDefinition, reason: str) -> None:
    """Start, and check the refusal and that the start wrote nothing in sow/."""
    before = {path: data for path, data in world.disk.contents().items() if path.startswith("sow/")}
    with pytest.raises(SowIncomplete) as caught:
        world.reopen(*sow)
    assert str(caught.value) == f"Cannot recover SOW topic 'orders': {reason}. {CURE}"
    assert caught.value.code == "sow_incomplete"
    after = {path: data for path, data in world.disk.contents().items() if path.startswith("sow/")}
    assert after == before


def restarted(world: SowEngine, *sow: SowDefinition) -> None:
    """Restart, and check that the records are the same as before."""
    before = world.records("orders")
    world.reopen(*sow)
    assert world.records("orders") == before


def quarantined(world: SowEngine) -> bool:
    return any(path.startswith("quarantine/sow-") for path in world.disk.contents())


@pytest.mark.parametrize("pruned", [False, True])
def test_start_with_a_checkpoint_folds_only_the_later_log(pruned: bool) -> None:
    world = stored(pruned=pruned)
    restarted(world)
    manifest = world.plan.topics["orders"].manifest
    assert manifest is not None
    assert [entry.name[:4] for entry in manifest.files] == ["base", "delt"]
    assert manifest.start > 80
    assert not world.report
    assert not world.state("orders").incomplete_because
    retired = world.broker.journal.view.retired
    assert [*({} if retired is None else retired.manifests)] == ["orders"] * pruned


@pytest.mark.parametrize("deltas", [0, 1])
def test_start_with_a_lost_or_another_end_of_the_log_folds_the_log(deltas: int) -> None:
    world = stored(pruned=False)
    other = stored(pruned=False, deltas=deltas, latest=78)
    for path, data in world.disk.contents().items():
        if path.startswith("sow/"):
            write(other, path, data)
    for path in named_files(other):
        if path not in named_files(world):
            other.disk.remove(path)
    restarted(other)
    assert quarantined(other)
    assert "belongs to another end of the log" in other.report[0]
    assert not other.plan.topics["orders"].files


def test_start_folds_a_large_commit_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SowEngine(ORDERS, segment_bytes=1 << 22)
    publish(world.connect("p"), [("orders", body(key, 0)) for key in range(5_000)])
    world.settle()
    folded: list[int] = []
    fold_keys = StateFold.publish

    def counted(fold: StateFold, keys: list[bytes], source: Source, rows: Int64s) -> None:
        folded.append(len(keys))
        fold_keys(fold, keys, source, rows)

    monkeypatch.setattr(StateFold, "publish", counted)
    restarted(world)
    assert folded == [5_000]


def write(world: SowEngine, path: str, data: bytes) -> None:
    """Write a whole file, and make it durable."""
    directory, _, name = path.rpartition("/")
    handle = world.disk.open(path, create=name not in world.disk.names(directory))
    world.disk.truncate(handle, 0)
    world.disk.write(handle, 0, [data])
    world.disk.sync(handle)
    world.disk.close(handle)
    world.disk.sync_directory(directory)


def test_start_of_a_pruned_log_without_a_checkpoint_is_refused() -> None:
    world = stored(pruned=True)
    for path in (*named_files(world), state_path("orders", MANIFEST_NAME)):
        world.disk.remove(path)
    refused(world, reason="its checkpoint is missing")
    world.rebuild = frozenset({"orders"})
    world.reopen()
    assert len(world.records("orders")) == 20
    assert world.state("orders").incomplete_because.startswith("--rebuild-sow: ")


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("deltas", [0, 1])
def test_rebuilt_topic_gets_a_checkpoint_without_a_new_message(pruned: bool, deltas: int) -> None:
    world = stored(pruned=pruned, deltas=deltas)
    before = world.records("orders")
    world.rebuild = frozenset({"orders"})
    world.reopen()
    world.wake(1.1)
    world.settle()
    manifest = world.broker.state_checkpoints.look("orders").manifest
    assert manifest is not None
    assert manifest.end == world.broker.journal.commits.persisted_end
    world.rebuild = frozenset()
    world.reopen()
    assert world.plan.topics["orders"].whole
    assert bool(world.state("orders").incomplete_because) == pruned
    assert len(world.records("orders")) == len(before) - pruned


def test_start_after_a_rebuild_without_a_checkpoint_restores_the_rest_of_the_log() -> None:
    world = stored(pruned=True, deltas=0)
    world.rebuild = frozenset({"orders"})
    world.reopen()
    world.rebuild = frozenset()
    restarted(world)
    assert world.state("orders").incomplete_because.startswith("no checkpoint yet: ")


@pytest.mark.parametrize("lost", ["base", MANIFEST_NAME])
def test_topic_with_a_damaged_checkpoint_gets_another_one_without_a_new_message(lost: str) -> None:
    world = stored(pruned=False)
    (path, *_) = [path for path in world.disk.contents() if path.startswith("sow/") and lost in path]
    write(world, path, b"damage")
    world.reopen()
    assert quarantined(world)
    world.wake(1.1)
    world.settle()
    restarted(world)
    assert world.plan.topics["orders"].whole


@pytest.mark.parametrize(("count", "names"), [(2, "'t1', 't2'"), (12, "'t9', 't10' and 2 more")])
def test_refused_start_names_all_sow_topics_without_a_checkpoint(count: int, names: str) -> None:
    others = [SowDefinition(f"t{n}", key=("/id",), checkpoint_interval=1.0) for n in range(1, count + 1)]
    world = stored(*others, pruned=True)
    for path in [path for path in world.disk.contents() if path.startswith("sow/")]:
        world.disk.remove(path)
    with pytest.raises(SowIncomplete) as caught:
        world.reopen()
    assert str(caught.value).startswith("Cannot recover SOW topic 'orders': its checkpoint is missing. ")
    assert str(caught.value).endswith(f"{names}. {CURE}")


def test_start_with_an_older_copy_of_the_checkpoint_is_refused() -> None:
    world = stored(pruned=True, deltas=0)
    older = {path: data for path, data in world.disk.contents().items() if path.startswith("sow/")}
    peer = world.connect("q")
    for value in range(8):
        publish(peer, [("orders", body(key, value)) for key in range(20)])
        world.settle()
        world.wake(61.0)
        world.settle()
    for path in named_files(world):
        world.disk.remove(path)
    for path, data in older.items():
        write(world, path, data)
    with pytest.raises(SowIncomplete, match="Restore sow/ from the backup"):
        world.reopen()


def test_start_with_another_definition_folds_a_whole_log_and_refuses_a_pruned_one() -> None:
    other = replace(ORDERS, key=("/id", "/v"))
    world = stored(pruned=False)
    world.reopen(other)
    assert quarantined(world)
    assert len(world.records("orders")) > 40
    refused(stored(pruned=True), other, reason="its definition has changed")


@pytest.mark.parametrize("pruned", [False, True])
def test_start_with_a_damaged_delta_loads_the_earlier_files(pruned: bool) -> None:
    world = stored(pruned=pruned)
    base, delta = named_files(world)
    world.disk.harm(delta, "unreadable", 0, 1)
    restarted(world)
    assert len(world.plan.topics["orders"].files) == 1
    assert any("a file of its checkpoint is damaged" in line for line in world.report)
    publish(world.connect("q"), [("orders", body(5, 500))])
    world.settle()
    world.wake(1.1)
    world.settle()
    (path,) = named_files(world)  # a base replaces both
    assert path != base
    world.disk.mend()
    restarted(world)
    assert world.plan.topics["orders"].whole


def test_start_with_a_damaged_base_folds_a_whole_log_and_refuses_a_pruned_one() -> None:
    world = stored(pruned=False)
    world.disk.harm(named_files(world)[0], "zeros")
    restarted(world)
    assert quarantined(world)
    world = stored(pruned=True)
    world.disk.harm(named_files(world)[0], "zeros")
    refused(world, reason="a file of its checkpoint is damaged")


def test_start_with_a_newer_manifest_is_refused_and_changes_nothing() -> None:
    world = stored(pruned=False)
    path = state_path("orders", MANIFEST_NAME)
    data = bytearray(world.disk.contents()[path])
    data[8] = 1
    write(world, path, resealed(bytes(data)))
    with pytest.raises(JournalVersion, match="newer format"):
        world.reopen()
    assert not quarantined(world)


def resealed(data: bytes) -> bytes:
    """Return a manifest with the right checksum."""
    return data[:12] + crc32c(data[16:], crc32c(data[:12])).to_bytes(4, "little") + data[16:]


def test_start_with_a_damaged_manifest_folds_a_whole_log_and_refuses_a_pruned_one() -> None:
    for pruned in (False, True):
        world = stored(pruned=pruned)
        path = state_path("orders", MANIFEST_NAME)
        data = world.disk.contents()[path]
        assert manifest_checksum(data)
        write(world, path, data[:-1] + b"?")
        if pruned:
            with pytest.raises(SowIncomplete, match="does not match its checksum"):
                world.reopen()
        else:
            restarted(world)
            assert quarantined(world)


def test_checkpoint_of_a_topic_that_is_not_configured_stays_without_a_pin() -> None:
    world = stored(pruned=True)
    retired = world.broker.journal.view.retired
    assert retired is not None
    before = named_files(world)
    world.reopen(SowDefinition("other", key=("/id",), checkpoint_interval=1.0))
    assert "Kept the checkpoint of 'orders' in sow/: no [[sow]] has this name." in world.report
    peer = world.connect("q")
    for value in range(8):
        publish(peer, [("unkept", body(key, value)) for key in range(20)])
        world.settle()
        world.wake(61.0)
        world.settle()
    assert world.broker.retention.removed_segments
    later = world.broker.journal.view.retired
    assert later is not None
    assert later.manifests["orders"] == retired.manifests["orders"]
    assert named_files(world) == before


def test_new_topic_on_a_pruned_log_has_the_rest_and_is_not_complete() -> None:
    world = SowEngine(segment_bytes=8_192, retention=RetentionPolicy(size_bytes=20_000))
    peer = world.connect("p")
    for value in range(8):
        publish(peer, [("orders", body(key, value)) for key in range(20)])
        world.settle()
    world.wake(70.0)
    world.settle()
    world.reopen(ORDERS)
    first = world.broker.journal.view.first_position
    assert first > 0
    reason = f"no checkpoint yet: the state has only messages from position {first} on"
    assert world.state("orders").incomplete_because == reason
    world.wake(1.1)
    world.settle()
    restarted(world)
    assert world.state("orders").incomplete_because == reason


def test_damage_of_the_log_stops_the_topic_and_keeps_the_pin() -> None:
    world = stored(pruned=False, deltas=0)
    peer = world.connect("q")
    for value in range(4):
        publish(peer, [("orders", body(key, value)) for key in range(20)])
        while world.jobs:
            world.run_job()
    manifest = world.broker.state_checkpoints.manifests()["orders"]
    number = len(world.broker.journal.view.segments)
    assert number > 2
    handle = world.disk.open(segment_path(number - 1))
    world.disk.write(handle, 3_000, [b"?"])
    world.reopen()
    assert any(line.startswith("SOW topics are not served: ") for line in world.report)
    assert world.broker.states.fold.failure is not None
    pin = world.broker.state_checkpoints.oldest_needed()
    assert pin is not None
    assert pin.position <= manifest.position
    world.connect("r")
