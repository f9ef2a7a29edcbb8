"""The checks of `tickertape doctor`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.helpers.certificates import Authority
from tickertape.base.errors import ConfigurationError
from tickertape.security.certificates import not_after
from tickertape.server import diagnosis
from tickertape.server.config.archive import ArchiveConfig
from tickertape.server.config.config import Config, InstanceConfig, JournalConfig
from tickertape.server.config.transports import Authentication, Transport
from tickertape.server.diagnosis import Finding, clock, diagnose, existing, file_system, space, synced_write
from tickertape.server.sync_cost import SyncCost, measure

HASH = "0" * 64


def config(tmp_path: Path) -> Config:
    return Config(instance=InstanceConfig(data=str(tmp_path / "data")))


def test_measure_removes_the_test_file(tmp_path: Path) -> None:
    advanced: list[float] = []
    cost = measure(str(tmp_path), 0.0, advanced.append)
    assert (cost.writes, len(advanced), list(tmp_path.iterdir())) == (1, 1, [])
    assert cost.p50 == cost.p99 == cost.longest == advanced[0]


def test_measure_without_unnamed_files_removes_the_test_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # a kernel without O_TMPFILE ignores its own bit
    assert measure(str(tmp_path), 0.0, lambda _: None).writes == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_data_directory_is_measured_in_the_nearest_one_above(tmp_path: Path) -> None:
    assert existing(str(tmp_path / "a" / "b")) == str(tmp_path)
    assert not (tmp_path / "a").exists()


def test_file_system_of_proc_and_of_a_path_below_a_mount() -> None:
    assert file_system("/proc") == "proc"
    assert file_system("/") != ""


@pytest.mark.parametrize(
    ("p50", "p99", "level"), [(0.001, 0.004, "ok"), (0.001, 0.06, "warn"), (0.000_001, 0.000_002, "warn")]
)
def test_synced_write_is_judged_by_percentiles(p50: float, p99: float, level: str) -> None:
    found = synced_write(SyncCost(1_000, p50, p99, p99), "/d", "ext4", "always")
    assert found.level == level
    assert bool(found.cure) is (level != "ok")
    assert f"about {1 / p50:,.0f} messages a second" in found.text
    assert found.figures["p50_seconds"] == p50


@pytest.mark.parametrize(("segment", "level"), [(1 << 20, "ok"), (1 << 60, "fail")])
def test_space_is_judged_by_the_size_of_segments(tmp_path: Path, segment: int, level: str) -> None:
    assert space(Config(journal=JournalConfig(segment_size=segment)), str(tmp_path)).level == level


def test_clock_that_jumps_or_is_behind_the_log_fails(tmp_path: Path) -> None:
    assert clock(0.5, 5.0, str(tmp_path)).level == "fail"
    file = tmp_path / "0000000001.segment"
    file.touch()
    ahead = time.time() + 3_600
    os.utime(file, (ahead, ahead))
    found = clock(0.0, 5.0, str(tmp_path))
    assert found.level == "fail"
    assert "newer than the wall clock" in found.text


def test_unsynchronised_clock_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for unsynchronised, level in ((True, "warn"), (False, "ok")):
        monkeypatch.setattr(diagnosis, "_unsynchronised", lambda answer=unsynchronised: answer)
        assert clock(0.0, 5.0, str(tmp_path)).level == level


def levels(findings: list[Finding], check: str) -> list[str]:
    return [finding.level for finding in findings if finding.check == check]


def test_certificates_and_tokens_that_expire_are_reported(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[old]\nsha256 = "{HASH}"\nexpires = 2020-01-01T00:00:00Z\n'
        f'[later]\nsha256 = "{HASH}"\nexpires = 2900-01-01T00:00:00Z\n[never]\nsha256 = "{HASH}"\n'
    )
    tokens.chmod(0o600)
    certificate = Authority(tmp_path).issue("localhost", days=400).certificate
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    settings = Config(
        instance=InstanceConfig(data=str(tmp_path)),
        transports=[
            Transport(listen="tls://127.0.0.1:0", certificate=certificate, key="k"),
            Transport(listen="tls://127.0.0.1:0", certificate=str(wrong), key="k"),
            Transport(listen="tls://127.0.0.1:0", certificate=str(tmp_path / "absent"), key="k"),
        ],
        authentication=Authentication(tokens_file=str(tokens)),
    )
    findings = list(diagnose(settings, 0.0, lambda _: None))
    assert levels(findings, "certificate") == ["ok", "fail", "fail"]
    assert levels(findings, "token") == ["warn"]
    assert levels(findings, "versions") == ["ok"]


@pytest.mark.parametrize(
    "text", ["", "nothing", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"]
)
def test_file_without_a_certificate_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.pem"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="Cannot read certificate"):
        not_after(str(file))


def test_directory_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    findings = list(diagnose(config(tmp_path), 0.0, lambda _: None))
    assert levels(findings, "synced write") == ["fail"]


def test_diagnosis_does_not_open_the_archive(tmp_path: Path) -> None:
    settings = Config(instance=InstanceConfig(data=str(tmp_path)), archive=ArchiveConfig(location="s3://b/p"))
    assert levels(list(diagnose(settings, 0.0, lambda _: None)), "archive") == []
