"""Starts and stops of a server with SOW topics: each row of the decisions of ADR 44, by real processes."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.processes import files_of, run_tickertape
from tickertape.base.checksum import crc32c
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.log_fold import LogFold
from tickertape.engine.sow.snapshot import SowSnapshot
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.retired_state import encode_retired, read_retired
from tickertape.journal.format.sow_checkpoint import (
    MANIFEST_NAME,
    StateManifest,
    decode_manifest,
    encode_manifest,
    state_directory,
    state_path,
)
from tickertape.journal.reading.log_view import LogPart
from tickertape.server.admin.schema import SowState
from tickertape.server.config.config import Config, InstanceConfig
from tickertape.server.startup import open_instance
from tickertape.testing import RunningServer, running_server

pytestmark = pytest.mark.slow

JOURNAL: Final = '[journal]\nsegment_size = "1MB"\n'
RETAIN: Final = 'retain_size = "3MB"\n'
SOW: Final = '[[sow]]\nname = "orders"\nkey = ["/id"]\ncheckpoint_interval = "1s"\n'
OTHER_KEY: Final = SOW.replace('"/id"', '"/id", "/n"')
OTHER_NAME: Final = SOW.replace("orders", "fills")
MANIFEST: Final = state_path("orders", MANIFEST_NAME)
CURE: Final = "Restore sow/ from the backup, or start with --rebuild-sow NAME."
DOCS: Final = Path(__file__).parents[2] / "docs"
KEYS: Final = 20
RARE: Final = 9_999
"""Key with one message, at the start of the log."""

Harm = Callable[[Path], None]


def body(key: int, n: int) -> bytes:
    return msgspec.json.encode({"id": key, "n": n, "text": "x" * 1_000})


def orders_of(server: RunningServer) -> SowSnapshot:
    sow = stats_of(server).sow
    assert sow is not None
    (topic,) = sow.topics
    return topic


def has_checkpoint(server: RunningServer) -> bool:
    return orders_of(server).checkpoint.position is not None


def wait_for(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end, "the server does not reach the state"
        time.sleep(0.05)


def write_log(data: Path, *, pruned: bool) -> None:
    """Write a log of several segments with a checkpoint, and stop the server."""
    config = JOURNAL + (RETAIN if pruned else "") + SOW
    with running_server(data, config) as server, tt.Client("p", server.uri) as client:
        client.publish("orders", body(RARE, 0))
        for n in range(6 if pruned else 2):
            for _ in range(50):
                client.publish_batch("orders", [body(key, n) for key in range(KEYS)])
            client.publish_flush(timeout=20)
            if n == 0:
                wait_for(lambda: orders_of(server).checkpoint.position == orders_of(server).position)
                shutil.copytree(data / "sow", data.parent / "older")
        if pruned:
            wait_for(lambda: stats_of(server).journal.first_position > 0)
        wait_for(partial(has_checkpoint, server))
        assert orders_of(server).records == KEYS + 1
        server.stop()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Return a whole log (False) and a pruned one (True)."""
    found = {pruned: tmp_path_factory.mktemp("log") / "data" for pruned in (False, True)}
    for pruned, data in found.items():
        write_log(data, pruned=pruned)
    return found


def copied(log: Path, path: Path) -> Path:
    """Return a copy of a log, beside a copy of its earlier checkpoint."""
    shutil.copytree(log.parent / "older", path / "older")
    return Path(shutil.copytree(log, path / "data"))


class StartedServer(RunningServer):
    """A server with further options."""

    options: tuple[str, ...] = ()

    def _command(self) -> list[str]:
        return [*super()._command(), *self.options]


def started(data: Path, config: str, *options: str) -> Iterator[StartedServer]:
    """Start a server, and stop it afterwards."""
    file = data.parent / "tickertape.toml"
    file.write_text(config)
    server = StartedServer(data, file)
    server.options = options
    try:
        server.start()
        yield server
        assert server.stop() == 0
    finally:
        server.kill()
        server.release()


def found_at_start(data: Path, config: str, *options: str) -> tuple[SowState | None, str]:
    """Start a server, and return its state and the log of its start."""
    for server in started(data, config, *options):
        return stats_of(server).sow, server.errors()
    raise AssertionError("unreachable")


# -- harm ---------------------------------------------------------------------------------------------


def nothing(data: Path) -> None:
    """Change nothing."""


def remove_states(data: Path) -> None:
    shutil.rmtree(data / "sow")


def manifest_of(data: Path) -> StateManifest:
    journal = bytes.fromhex(read_identity(SystemDisk(data)).journal)
    return decode_manifest((data / MANIFEST).read_bytes(), state_directory("orders"), journal)


def another_end(data: Path) -> None:
    """Bind the checkpoint to a commit that the log does not have."""
    known = manifest_of(data)
    last = msgspec.structs.replace(known.files[-1], chain=known.files[-1].chain ^ 1)
    files = (*known.files[:-1], last)
    changed = msgspec.structs.replace(known, chain=known.chain ^ 1, files=files)
    (data / MANIFEST).write_bytes(encode_manifest(changed))


def older_copy(data: Path) -> None:
    """Use a copy of sow/ from before the removal of the first segments."""
    remove_states(data)
    shutil.copytree(data.parent / "older", data / "sow")


def later_retired(data: Path) -> None:
    """Let `retired.bin` name a later checkpoint, as after the restore of an older copy of sow/."""
    disk = SystemDisk(data)
    retired = read_retired(disk, bytes.fromhex(read_identity(disk).journal))
    assert retired is not None
    named = retired.manifests["orders"]
    later = {"orders": named._replace(position=manifest_of(data).end + 1)}
    (data / "retired.bin").write_bytes(encode_retired(retired._replace(manifests=later)))


def damaged_base(data: Path) -> None:
    path = data / state_path("orders", manifest_of(data).files[0].name)
    found = bytearray(path.read_bytes())
    found[len(found) // 2] ^= 1
    path.write_bytes(found)


def newer_version(data: Path) -> None:
    found = bytearray((data / MANIFEST).read_bytes())
    found[8] = 1
    found[12:16] = crc32c(found[16:], crc32c(found[:12])).to_bytes(4, "little")
    (data / MANIFEST).write_bytes(found)


def damaged_manifest(data: Path) -> None:
    (data / MANIFEST).write_bytes(b"?")


# -- starts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "pruned", "harm", "config", "line"),
    [
        (1, False, nothing, SOW, ""),
        (1, True, nothing, SOW, ""),
        (2, False, another_end, SOW, "its checkpoint belongs to another end of the log."),
        (5, False, remove_states, SOW, ""),
        (8, False, nothing, OTHER_KEY, "its definition has changed."),
        (11, False, damaged_base, SOW, "a file of its checkpoint is damaged."),
        (13, False, damaged_manifest, SOW, "it has 1 bytes."),
    ],
)
def test_start_restores_all_records(
    logs: dict[bool, Path], tmp_path: Path, row: int, pruned: bool, harm: Harm, config: str, line: str
) -> None:
    data = Path(shutil.copytree(logs[pruned], tmp_path / "data"))
    harm(data)
    sow, log = found_at_start(data, JOURNAL + (RETAIN if pruned else "") + config)
    assert sow is not None
    (topic,) = sow.topics
    assert topic.records == (2 * KEYS + 1 if config == OTHER_KEY else KEYS + 1)
    assert (topic.complete, sow.failure) == (True, None)
    assert ("WARNING recovery" in log) == bool(line)
    assert line in log
    assert bool(list(data.glob("quarantine/sow-*"))) == (row in (2, 8, 11, 13))


@pytest.mark.parametrize(
    ("row", "harm", "config", "code", "cause"),
    [
        (3, another_end, SOW, "sow_incomplete", "its checkpoint belongs to another end of the log"),
        (4, older_copy, SOW, "sow_incomplete", ", and the log starts at "),
        (6, remove_states, SOW, "sow_incomplete", "its checkpoint is missing"),
        (9, nothing, OTHER_KEY, "sow_incomplete", "its definition has changed"),
        (10, later_retired, SOW, "sow_incomplete", "sow/ is older than the log"),
        (11, damaged_base, SOW, "sow_incomplete", "a file of its checkpoint is damaged"),
        (12, newer_version, SOW, "journal_version", "newer format"),
        (13, damaged_manifest, SOW, "sow_incomplete", "it has 1 bytes"),
    ],
)
def test_start_of_a_pruned_log_without_a_usable_checkpoint_is_refused_and_changes_nothing(
    logs: dict[bool, Path], tmp_path: Path, row: int, harm: Harm, config: str, code: str, cause: str
) -> None:
    data = copied(logs[True], tmp_path)
    harm(data)
    before = files_of(data)
    file = tmp_path / "tickertape.toml"
    file.write_text(JOURNAL + RETAIN + config)
    exit_code, out, err = run_tickertape("serve", str(file), "--data", str(data), "--admin", "off")
    assert (exit_code, out) == (5, "")
    (line,) = [line for line in err.splitlines() if "start_refused" in line]
    assert f"code={code} " in line
    assert cause in line
    if code == "sow_incomplete":
        assert "Cannot recover SOW topic 'orders': " in line
        assert line.endswith(f'. {CURE}"')
        assert line.count(CURE) == 1
    after = files_of(data)
    del after[data / "lock"], before[data / "lock"]
    assert after == before


def test_new_sow_topic_on_a_pruned_log_starts_and_is_not_complete(
    logs: dict[bool, Path], tmp_path: Path
) -> None:
    """Rows 7 and 14: a new topic, and the checkpoint of one that is not configured any more."""
    data = Path(shutil.copytree(logs[True], tmp_path / "data"))
    config = JOURNAL + RETAIN + OTHER_NAME
    before = (data / MANIFEST).read_bytes()
    sow, log = found_at_start(data, config)
    assert sow is not None
    (topic,) = sow.topics
    assert not topic.complete
    assert topic.incomplete_because is not None
    assert topic.incomplete_because.startswith(
        "no checkpoint yet: the state has only messages from position "
    )
    assert "Kept the checkpoint of 'orders' in sow/: no [[sow]] has this name." in log
    assert "SOW topic 'fills' is not complete (no checkpoint yet: " in log
    assert (data / MANIFEST).read_bytes() == before


@pytest.mark.parametrize(
    "harm", [remove_states, damaged_manifest, another_end, damaged_base, later_retired, nothing]
)
def test_rebuild_of_a_pruned_log_restores_the_rest_and_reports_the_loss(
    logs: dict[bool, Path], tmp_path: Path, harm: Harm
) -> None:
    """Row 15, and the starts after it."""
    data = Path(shutil.copytree(logs[True], tmp_path / "data"))
    harm(data)
    config = JOURNAL + RETAIN + SOW
    for server in started(data, config, "--rebuild-sow", "orders"):
        topic = orders_of(server)
        reason = topic.incomplete_because
        assert reason is not None
        assert reason.startswith("--rebuild-sow: the state has only messages from position ")
        assert (topic.records, topic.complete) == (KEYS, False)
        assert f"SOW topic 'orders' is not complete ({reason}). " in server.errors()
        assert "whose last message was older are missing. Their number is unknown." in server.errors()
        wait_for(partial(has_checkpoint, server))
    assert bool(list(data.glob("quarantine/sow-*"))) == (harm is not remove_states)
    sow, _ = found_at_start(data, config)
    assert sow is not None
    (topic,) = sow.topics
    assert (topic.records, topic.complete, topic.incomplete_because) == (KEYS, False, reason)


def test_rebuild_of_a_whole_log_restores_all_records(logs: dict[bool, Path], tmp_path: Path) -> None:
    data = Path(shutil.copytree(logs[False], tmp_path / "data"))
    sow, log = found_at_start(data, JOURNAL + SOW, "--rebuild-sow", "orders")
    assert sow is not None
    (topic,) = sow.topics
    assert (topic.records, topic.complete) == (KEYS + 1, True)
    assert "SOW topic 'orders': --rebuild-sow requested a rebuild." in log
    assert "not complete" not in log


def test_verify_and_ls_note_the_checkpoint_as_the_backup_page_shows(logs: dict[bool, Path]) -> None:
    note = re.compile(
        r"^note     sow/[0-9a-f]{32}: checkpoint of SOW topic '\w+': [\d,]+ records, [\d,]+ bytes in "
        r"\d+ files?, for the log from position \d+ on$",
        re.MULTILINE,
    )
    assert note.search((DOCS / "operations/backup.md").read_text(encoding="utf-8"))
    for command in ("verify", "ls"):
        code, out, _ = run_tickertape("journal", command, str(logs[True]))
        assert code == 0
        assert note.search(out)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (remove_states, "the removed segments require a checkpoint of SOW topic 'orders' at position"),
        (damaged_manifest, "it has 1 bytes"),
        (damaged_base, "does not match its checksum"),
    ],
)
def test_verify_reports_a_missing_or_damaged_checkpoint(
    logs: dict[bool, Path], tmp_path: Path, harm: Harm, text: str
) -> None:
    data = Path(shutil.copytree(logs[True], tmp_path / "data"))
    harm(data)
    code, out, _ = run_tickertape("journal", "verify", str(data))
    assert code == 1
    found = [line for line in out.splitlines() if line.startswith("CORRUPT  sow/")]
    assert text in found[0]


def test_damage_of_the_log_stops_the_sow_topics_and_serves_the_rest(
    logs: dict[bool, Path], tmp_path: Path
) -> None:
    """Row 16."""
    data = Path(shutil.copytree(logs[False], tmp_path / "data"))
    remove_states(data)
    path = min((data / "journal").iterdir())
    found = bytearray(path.read_bytes())
    found[200_000] ^= 1
    path.write_bytes(found)
    for server in started(data, JOURNAL + SOW):
        sow = stats_of(server).sow
        assert sow is not None
        assert sow.failure is not None
        assert "does not match its checksum" in sow.failure
        assert "SOW topics are not served: " in server.errors()
        with tt.Client("p", server.uri) as client:
            client.publish("fills", b"1")
            client.publish_flush(timeout=10)


# -- stops --------------------------------------------------------------------------------------------


def folded_at_start(data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Open a copy of a data directory. Return the messages that the start folds, and the records."""
    copy = Path(shutil.copytree(data, data.parent / "copy"))
    counts: list[int] = []
    take = LogFold.take

    def taking(fold: LogFold, part: LogPart) -> None:
        counts.append(part.batch.count)
        take(fold, part)

    config = Config(instance=InstanceConfig(data=str(copy)), sow=[SowDefinition("orders", key=("/id",))])
    with monkeypatch.context() as patched:
        patched.setattr(LogFold, "take", taking)
        opened = open_instance(config)
    (topic,) = opened.broker.states.topics
    opened.executor.close()
    opened.disk.close_all()
    shutil.rmtree(copy)
    return sum(counts), topic.fold.records.record_count


@pytest.mark.parametrize("clean", [True, False])
def test_start_folds_messages_after_a_kill_and_none_after_a_clean_stop(
    clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    for messages in (KEYS, 2 * KEYS):  # a base, then a delta
        with running_server(data, SOW.replace("1s", "1h")) as server:
            with tt.Client("p", server.uri) as client:
                client.publish_batch("orders", [body(n % KEYS, n) for n in range(messages)])
                client.publish_flush(timeout=20)
            if clean:
                assert server.stop() == 0
                assert "sow_checkpoint" not in server.errors()
            else:
                server.kill()
        folded, records = folded_at_start(data, monkeypatch)
        assert records == KEYS
        assert (folded == 0) == clean


def test_clean_stop_does_not_wait_for_checkpoints_longer_than_the_drain_timeout(tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = "[instance]\ndrain_timeout = 0\n" + SOW.replace("1s", "1h")
    with running_server(data, config) as server:
        with tt.Client("p", server.uri) as client:
            client.publish_batch("orders", [body(key, 0) for key in range(KEYS)])
            client.publish_flush(timeout=20)
        assert server.stop() == 0
        assert "WARNING sow_checkpoint_left " in server.errors()
        assert "end_not_recorded" not in server.errors()
    sow, log = found_at_start(data, SOW)
    assert sow is not None
    assert sow.topics[0].records == KEYS
    assert "WARNING recovery" not in log
