"""Text output of `journal prune`."""

from __future__ import annotations

import pytest

from tickertape.archive.schema import Coverage
from tickertape.cli.journal.prune import _echo
from tickertape.server.offline_prune import PrunePlan


def test_prune_output_has_positions_in_the_form_that_journal_find_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = PrunePlan([], first_position=1_198_220, end_position=1_250_019, archived=0, kept_by="")
    _echo(plan, Coverage("0" * 32, 1_200_000, 1_250_019, ""), "data", "archive", dry_run=True)
    assert capsys.readouterr().out.splitlines() == [
        "archive has positions 1200000 to 1250019 (exclusive)",
        "would be removed: nothing",
        "the log starts at position 1198220, before the start of this archive",
        "the log in data has positions 1198220 to 1250019 (exclusive)",
    ]
