"""Decisions about downgrades and upgrades."""

from __future__ import annotations

import pytest

from tickertape.engine.replication.levels.policy import DowngradePolicy
from tickertape.journal.format.replication_records import LevelReason, LevelRecord, level

POLICY = DowngradePolicy(after=300.0, grace=60.0, upgrade_below=150.0)


def _record(reason: LevelReason = "policy", *, downgraded: bool = True) -> LevelRecord:
    return level("b", 100, 40, reason, downgraded=downgraded)


@pytest.mark.parametrize(
    ("age", "uptime", "expected"),
    [(300.0, 60.0, True), (299.0, 1e6, None), (1e6, 59.0, None), (None, 1e6, None)],
)
def test_synchronous_link_is_downgraded_after_the_age_and_the_grace(
    age: float | None, uptime: float, expected: bool | None
) -> None:
    assert POLICY.decide(None, 40, age, uptime) is expected
    assert POLICY.decide(_record(downgraded=False), 40, age, uptime) is expected


@pytest.mark.parametrize(
    ("covered", "age", "expected"),
    [(100, None, False), (100, 149.0, False), (100, 150.0, None), (99, None, None), (99, 1.0, None)],
)
def test_downgrade_ends_when_the_destination_has_passed_the_record_and_is_close(
    covered: int, age: float | None, expected: bool | None
) -> None:
    assert POLICY.decide(_record(), covered, age, 0.0) is expected


def test_downgrade_of_an_operator_does_not_end_by_policy() -> None:
    assert POLICY.decide(_record("operator"), 1_000, None, 1e6) is None
