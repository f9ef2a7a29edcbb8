"""Comparison with other brokers on real servers: the installed ones, and ours beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.peers import __main__ as program
from tests.bench.peers.contenders import CONTENDERS, OURS
from tests.bench.peers.results import load
from tests.bench.peers.rows import PROOF_MILLISECONDS
from tests.bench.peers.slow_disk import SlowDisk

QUICK = ("--quick", "--seconds", "0.6")
SERVERS = {contender.peer: contender.server for contender in CONTENDERS if contender.name != OURS}


def run(directory: Path, *arguments: str) -> int:
    return program.main(
        [*QUICK, "--directory", str(directory / "servers"), "--file", str(directory / "r.json"), *arguments]
    )


@pytest.mark.full
def test_quick_run_measures_ours_and_resumes_without_a_second_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("--rows", "one-in-flight", "native-window", "--contenders", "nats")
    assert run(tmp_path, *rows) in (0, 1)  # 1 if the installed server of NATS fails
    results = load(tmp_path / "r.json")
    for row, key in (("one-in-flight", "p50"), ("one-in-flight-written", "p99"), ("native-window", "rate")):
        (ours,) = (found for name, found in results.rows[row].items() if name.startswith("tickertape"))
        assert ours.failed == ""
        assert ours.values(key)[0] > 0
    assert not (tmp_path / "servers").exists()
    assert "### All figures" in capsys.readouterr().out
    run(tmp_path, "--resume", *rows)
    assert load(tmp_path / "r.json") == results


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("peer", SERVERS)
def test_quick_run_measures_an_installed_peer(peer: str, tmp_path: Path) -> None:
    if missing := SERVERS[peer].missing():
        pytest.skip(f"{missing}: script/bench peers installs it")
    assert run(tmp_path, "--contenders", peer, "--rows", "batches", "replay", "queue") == 0
    for row, found in load(tmp_path / "r.json").rows.items():
        (theirs,) = (measured for key, measured in found.items() if key.startswith(f"{peer}/"))
        assert theirs.turns or theirs.failed.startswith("finishes nothing"), (row, theirs)


@pytest.mark.full
def test_slow_disk_delays_each_sync(tmp_path: Path) -> None:
    try:
        disk = SlowDisk(tmp_path / "slow", 64 << 20)
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no slow disk on this machine: {error}")
    try:
        file = os.open(disk.mount / "file", os.O_RDWR | os.O_CREAT, 0o600)
        os.write(file, b"x")
        disk.set_delay(0.05)
        before = disk.flushes
        os.fsync(file)
        os.close(file)
        assert disk.flushes > before
    finally:
        disk.close()
    assert not os.path.ismount(disk.mount)


@pytest.mark.full
@pytest.mark.timeout(180)
def test_acknowledgements_that_survive_a_crash_of_the_machine_wait_for_a_slow_sync(tmp_path: Path) -> None:
    assert run(tmp_path, "--rows", "proof") == 0
    results = load(tmp_path / "r.json")
    if not results.rows.get("proof-written", {}):
        pytest.skip("; ".join(results.notes))
    for name, synced in (("proof-synced", True), ("proof-written", False)):
        for key, measured in results.rows[name].items():
            median = measured.median("p50")
            assert median is not None
            assert (median >= PROOF_MILLISECONDS * 1e3) == synced, (name, key, median)
