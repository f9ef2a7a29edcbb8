"""State files at a start: directories, damage, quarantine, and names that an earlier process did not sync."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish
from tests.helpers.tiers import parts
from tests.simulation.journal_world import FailingDisk, PowerLost
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.journal.commit.jobs import DiskJobExecutor, PublishState
from tickertape.journal.format.sow_checkpoint import (
    MANIFEST_NAME,
    UNFINISHED_NAME,
    retired_manifest,
    state_directory,
    state_path,
)
from tickertape.journal.recovery.state_files import (
    find_states,
    make_durable,
    prepare_directories,
    read_states,
    set_aside_state,
)

DIRECTORY = state_directory("orders")


def stored() -> SowEngine:
    """Return an engine with a base."""
    world = SowEngine(SowDefinition("orders", key=("/id",), checkpoint_interval=1.0), segment_bytes=1 << 20)
    publish(world.connect("p"), [("orders", msgspec.json.encode({"id": key})) for key in range(9)])
    world.settle()
    world.wake(1.1)
    world.settle()
    return world


def test_found_checkpoint_has_the_entry_of_a_removal() -> None:
    world = stored()
    found = find_states(world.disk, world.broker.journal.journal_id)
    assert {*found} == {DIRECTORY}
    manifest, checksum = found[DIRECTORY].manifest, found[DIRECTORY].checksum
    assert manifest is not None
    assert retired_manifest(manifest, checksum) == world.broker.state_checkpoints.manifests()["orders"]
    manifest = found[DIRECTORY].manifest
    assert manifest is not None
    files = read_states(world.disk, manifest)
    assert (len(files.files), files.damage) == (1, "")


def test_checkpoint_of_another_journal_is_damage() -> None:
    world = stored()
    (found,) = find_states(world.disk, b"other journal id").values()
    assert found.manifest is None
    assert "it belongs to another journal" in found.damage


def test_data_directory_without_checkpoints_has_none() -> None:
    world = SowEngine()
    assert find_states(world.disk, world.broker.journal.journal_id) == {}


def test_quarantined_checkpoint_keeps_all_files() -> None:
    world = stored()
    before = sorted(world.disk.names(f"sow/{DIRECTORY}"))
    aside = set_aside_state(world.disk, DIRECTORY)
    assert world.disk.names("sow") == []
    assert sorted(world.disk.names(aside)) == before
    assert aside.startswith(f"quarantine/sow-{DIRECTORY}-")


@pytest.mark.parametrize("seed", parts(20, 6))
def test_manifest_that_a_killed_process_renamed_is_durable_after_the_start(seed: int) -> None:
    """A removal of segments relies on it, and a later power loss must not bring the earlier one back."""
    world = stored()
    path = state_path("orders", MANIFEST_NAME)
    journal_id = world.broker.journal.journal_id
    old = world.disk.contents()[path]
    publish(world.connect("q"), [("orders", msgspec.json.encode({"id": 1, "v": 2}))])
    world.settle()
    world.wake(1.1)
    while not (world.jobs and isinstance(world.jobs[0], PublishState)):
        if world.jobs:
            world.run_job()
        else:
            world.work()
    calls = 0
    while True:  # up to the call behind the rename
        disk = world.disk.kill_clone()
        with suppress(PowerLost):
            DiskJobExecutor(FailingDisk(disk, calls), lambda: 1).run(world.jobs[0])
        if disk.contents()[path] != old:
            break
        calls += 1
    disk = disk.kill_clone()
    new = disk.contents()[path]
    make_durable(disk, find_states(disk, journal_id).values())
    left = disk.crash_clone(Random(seed))
    assert left.contents()[path] == new
    manifest = find_states(left, journal_id)[DIRECTORY].manifest
    assert manifest is not None
    assert not read_states(left, manifest).damage


@pytest.mark.parametrize("seed", parts(10, 3))
def test_directory_of_a_topic_without_a_checkpoint_survives_a_power_loss(seed: int) -> None:
    world = stored()
    prepare_directories(world.disk, (), ["other"])
    left = world.disk.crash_clone(Random(seed))
    assert state_directory("other") in left.names("sow")


def test_start_removes_a_file_that_no_process_finished() -> None:
    world = stored()
    unfinished = state_path("orders", UNFINISHED_NAME)
    world.disk.close(world.disk.open(unfinished, create=True))
    kept = {*world.disk.contents()} - {unfinished}
    world.reopen()
    assert {path for path in world.disk.contents() if path.startswith("sow/")} <= kept
