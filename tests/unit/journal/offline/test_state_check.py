"""Checkpoints of SOW topics in `verify`, in `ls` and in the offline removal of segments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish
from tickertape.base.errors import BadOption, JournalCorrupt
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.retired_state import read_retired
from tickertape.journal.format.sow_checkpoint import (
    MANIFEST_NAME,
    decode_manifest,
    encode_manifest,
    state_directory,
    state_path,
)
from tickertape.journal.offline.verify import survey, verify
from tickertape.journal.retention import RetentionPolicy
from tickertape.server.offline_prune import OfflinePrune

ORDERS = SowDefinition("orders", key=("/id",), checkpoint_interval=1.0)
QUIET = SowDefinition("quiet", key=("/id",), checkpoint_interval=1.0)
MANIFEST = state_path("orders", MANIFEST_NAME)


def stored() -> SowEngine:
    """Return an engine with several segments, and a checkpoint in the middle of the log."""
    world = SowEngine(ORDERS, segment_bytes=8_192)
    peer = world.connect("p")
    for value in range(8):
        publish(
            peer,
            [("orders", msgspec.json.encode({"id": key, "v": value, "x": "x" * 200})) for key in range(20)],
        )
        world.settle()
        if value == 4:
            world.wake(1.1)
            world.settle()
    return world


def files_of(world: SowEngine) -> list[str]:
    return [path for path in world.disk.contents() if path.startswith("sow/") and path.endswith(".sow")]


def test_verify_and_ls_name_the_checkpoint() -> None:
    world = stored()
    start = world.broker.state_checkpoints.manifests()["orders"].position
    for report in (verify(world.disk), survey(world.disk)):
        assert report.whole
        (note,) = [note for note in report.notes if note.file.startswith("sow/")]
        assert note.what.startswith("checkpoint of SOW topic 'orders': 20 records, ")
        assert note.what.endswith(f"in 1 file, for the log from position {start} on")


def test_verify_reports_a_damaged_file_and_a_damaged_manifest() -> None:
    world = stored()
    (path,) = files_of(world)
    world.disk.harm(path, "zeros")
    assert survey(world.disk).whole
    (found,) = verify(world.disk).damage
    assert path in found.what
    world.disk.mend()
    world.disk.harm(MANIFEST, "zeros")
    for report in (verify(world.disk), survey(world.disk)):
        (found,) = report.damage
        assert "does not start like such a file" in found.what


def test_verify_reports_a_checkpoint_that_removed_segments_require() -> None:
    world = SowEngine(ORDERS, segment_bytes=8_192, retention=RetentionPolicy(size_bytes=20_000))
    peer = world.connect("p")
    for value in range(8):
        publish(
            peer,
            [("orders", msgspec.json.encode({"id": key, "v": value, "x": "x" * 200})) for key in range(20)],
        )
        world.settle()
        world.wake(61.0)
        world.settle()
    assert world.broker.retention.removed_segments
    assert verify(world.disk).whole
    world.disk.remove(MANIFEST)
    (found,) = verify(world.disk).damage
    assert found.file == MANIFEST
    assert "the removed segments require a checkpoint of SOW topic 'orders'" in found.what


def pruning(world: SowEngine, directory: Path, *forget: str) -> OfflinePrune:
    """Write the data directory, and open it with an archive that has the whole log."""
    for name in world.disk.names("sow"):
        (directory / "sow" / name).mkdir(parents=True)
    for path, data in world.disk.contents().items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    end = world.broker.journal.view.end_position
    archive: Any = SimpleNamespace(
        coverage=SimpleNamespace(begin=0, end=end, topics=()), place=SimpleNamespace(location="archive")
    )
    return OfflinePrune(str(directory), lambda _: archive, frozenset(forget))


def test_offline_removal_keeps_the_later_log_and_names_the_checkpoint(tmp_path: Path) -> None:
    world = stored()
    manifest = world.broker.state_checkpoints.manifests()["orders"]
    prune = pruning(world, tmp_path)
    plan = prune.plan(RetentionPolicy(), 0)
    assert plan.segments
    assert plan.segments[-1].end_position <= manifest.position
    assert plan.kept_by == f"SOW topic 'orders', which needs the log from position {manifest.position}"
    prune.remove(plan)
    prune.close()
    retired = read_retired(SystemDisk(tmp_path), world.broker.journal.journal_id)
    assert retired is not None
    assert retired.manifests == {"orders": manifest}


@pytest.mark.parametrize("harmed", ["manifest", "base"])
def test_offline_removal_is_refused_with_an_unreadable_checkpoint(tmp_path: Path, harmed: str) -> None:
    world = stored()
    contents = world.disk.contents()
    prune = pruning(world, tmp_path)
    path = tmp_path / (MANIFEST if harmed == "manifest" else files_of(world)[0])
    path.write_bytes(bytes(len(contents[path.relative_to(tmp_path).as_posix()])))
    cure = "To prune without this SOW topic, pass --forget-sow with its name."
    with pytest.raises(JournalCorrupt, match=rf"Cannot prune: .* Nothing was removed. {cure}"):
        prune.plan(RetentionPolicy(), 0)
    prune.close()


@pytest.mark.parametrize("harmed", ["nothing", "manifest", "no manifest"])
def test_offline_removal_ignores_a_forgotten_sow_topic(tmp_path: Path, harmed: str) -> None:
    world = stored()
    prune = pruning(world, tmp_path, "orders")
    if harmed == "manifest":
        (tmp_path / MANIFEST).write_bytes(b"?")
    elif harmed == "no manifest":
        (tmp_path / MANIFEST).unlink()
    plan = prune.plan(RetentionPolicy(), 0)
    assert plan.kept_by == ""
    assert len(plan.segments) == plan.archived > 1
    prune.remove(plan)
    prune.close()
    retired = read_retired(SystemDisk(tmp_path), world.broker.journal.journal_id)
    assert retired is not None
    assert retired.manifests == {}


def test_offline_removal_keeps_the_log_of_another_sow_topic(tmp_path: Path) -> None:
    world = stored()
    other = "0" * 32
    prune = pruning(world, tmp_path, "orders")
    (tmp_path / "sow" / other).mkdir()
    plan = prune.plan(RetentionPolicy(), 0)
    assert not plan.segments
    assert plan.kept_by.startswith(f"a SOW topic without a checkpoint in sow/{other}, which needs the log ")
    prune.close()


def test_forgotten_sow_topic_without_files_is_refused_with_a_near_name(tmp_path: Path) -> None:
    prune = pruning(stored(), tmp_path, "order")
    with pytest.raises(BadOption) as caught:
        prune.plan(RetentionPolicy(), 0)
    assert str(caught.value) == (
        "Cannot forget SOW topic 'order': sow/ has no files of it. Nothing was removed. "
        "Did you mean 'orders'? `tickertape journal ls` lists the SOW topics."
    )
    prune.close()


def test_offline_removal_keeps_everything_for_an_interrupted_first_checkpoint(tmp_path: Path) -> None:
    world = stored()
    world.disk.remove(MANIFEST)
    prune = pruning(world, tmp_path)
    plan = prune.plan(RetentionPolicy(), 0)
    assert not plan.segments
    assert plan.kept_by.startswith("a SOW topic without a checkpoint in sow/")
    prune.close()


def test_offline_removal_keeps_everything_for_a_topic_that_never_had_a_checkpoint(tmp_path: Path) -> None:
    world = SowEngine(ORDERS, segment_bytes=8_192)
    peer = world.connect("p")
    for value in range(8):
        publish(peer, [("orders", msgspec.json.encode({"id": value, "x": "x" * 4_000}))])
        world.settle()
    assert [note.what for note in verify(world.disk).notes] == [
        "no checkpoint yet: the SOW topic needs the log from its start"
    ]
    prune = pruning(world, tmp_path)
    plan = prune.plan(RetentionPolicy(), 0)
    assert plan.archived
    assert not plan.segments
    prune.close()


def test_verify_lists_each_checkpoint_once() -> None:
    names = [f"t{number}" for number in range(20)]
    world = SowEngine(*[SowDefinition(name, key=("/id",), checkpoint_interval=1.0) for name in names])
    publish(world.connect("p"), [(name, b'{"id":1}') for name in names])
    world.settle()
    world.wake(1.1)
    world.settle()
    listed: list[str] = []

    class Counted:
        def names(self, directory: str) -> list[str]:
            listed.append(directory)
            return world.disk.names(directory)

        def __getattr__(self, name: str) -> Any:
            return getattr(world.disk, name)

    disk: Any = Counted()
    assert verify(disk).whole
    assert len([one for one in listed if one.startswith("sow/")]) == 20


def test_offline_removal_is_refused_with_a_checkpoint_of_another_log(tmp_path: Path) -> None:
    world = stored()
    prune = pruning(world, tmp_path)
    path = tmp_path / MANIFEST
    journal_id = world.broker.journal.journal_id
    known = decode_manifest(path.read_bytes(), state_directory("orders"), journal_id)
    (file,) = known.files
    files = (msgspec.structs.replace(file, chain=known.chain ^ 1),)
    path.write_bytes(encode_manifest(msgspec.structs.replace(known, chain=known.chain ^ 1, files=files)))
    with pytest.raises(JournalCorrupt, match="ends with a commit that the log does not have"):
        prune.plan(RetentionPolicy(), 0)
    prune.close()
