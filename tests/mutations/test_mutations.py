"""Planted defects are noticed: by a test that fails, not by an import that breaks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import TIERS
from tests.mutations import __main__ as driver
from tests.mutations.__main__ import row
from tests.mutations.gate import GATE, GOALS, SLICE, is_promise
from tests.mutations.harness import MutationError, Noticed, copy_project, notice, planted, run_tests, source
from tests.mutations.mutation import Mutation
from tests.mutations.planted import MUTATIONS

EVERY_RUN = 1
"""Of the slice: beside other tests each takes up to a minute."""
_NAMES = [mutation.name for mutation in MUTATIONS]


def test_planted_defects_have_one_place_each_and_change_the_source() -> None:
    assert len(set(_NAMES)) == len(_NAMES)
    for mutation in MUTATIONS:
        text = source(mutation).read_text()
        assert planted(mutation, text) != text
        compile(planted(mutation, text), mutation.module, "exec")


def test_planted_defect_without_a_source_text_is_reported() -> None:
    mutation = Mutation("gone", "journal/commit/jobs.py", "a line that does not exist", "", (), "R1", "unit")
    with pytest.raises(MutationError, match="occurs 0 times"):
        planted(mutation, source(mutation).read_text())


def test_planted_defects_name_existing_test_files() -> None:
    tests = {test.split("::")[0] for mutation in MUTATIONS for test in mutation.tests}
    missing = [test for test in sorted(tests) if not (Path(__file__).parents[1] / test).exists()]
    assert not missing


def test_planted_defects_break_documented_guarantees() -> None:
    assert not [mutation for mutation in MUTATIONS if not is_promise(mutation.promise)]
    wrong = ("R7", "R99", "behaviour 0", "behaviour 999", "invariant 0", "invariant", "goal 1", "")
    assert not [text for text in wrong if is_promise(text)]


def test_goals_of_the_gate_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (R\d.*?) \|", page, re.MULTILINE)
    written = {goal for row in rows for goal in re.findall(r"R\d+", row)}
    assert written - {*GOALS} <= {"R7", "R17", "R18", "R20", "R23", "R24", "R25", "R26", "R27"}


def test_planted_defects_name_a_tier_of_the_named_tests() -> None:
    for mutation in MUTATIONS:
        assert mutation.tier in TIERS
        assert (Path(__file__).parents[1] / mutation.tier).is_dir()
        assert any(test.startswith(f"{mutation.tier}/") for test in mutation.tests), mutation.name


def test_gate_has_a_defect_for_each_goal() -> None:
    of_name = {mutation.name: mutation for mutation in MUTATIONS}
    assert not {*GATE} - {*of_name}
    assert len({*GATE}) == len(GATE) >= 25
    assert not {*GOALS} - {of_name[name].promise for name in GATE}
    assert {*SLICE} < {*GATE}
    assert len({*SLICE}) == 5


def test_mutation_report_row_has_tier_seconds_and_failing_test() -> None:
    mutation = Mutation("x", "journal/commit/jobs.py", "", "", (), "R9", "simulation")
    assert row(mutation, None, 1.6).split() == ["x", "R9", "simulation", "2", "SURVIVES"]
    noticed = Noticed("tests.unit.journal.test_disk_jobs::test_it", "assert 1 == 2\nmore")
    assert noticed.tier == "unit"
    assert row(mutation, noticed, 0).endswith(" unit.journal.test_disk_jobs::test_it  assert 1 == 2")


def test_mutation_runner_exit_code_reports_survivors_and_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = dict[str, Noticed | None]()

    def notice(mutation: Mutation, _: Path) -> Noticed | None:
        if mutation.name not in answers:
            raise MutationError("no place")
        return answers[mutation.name]

    monkeypatch.setattr(driver, "notice", notice)
    some = [mutation for mutation in MUTATIONS if mutation.name in SLICE]
    answers |= {m.name: Noticed(f"tests.{m.tier}.test_x::test_y", "") for m in some}
    assert driver.main(["--slice"]) == 0
    answers[SLICE[0]] = Noticed("tests.nowhere.test_x::test_y", "")
    assert driver.main(["--slice"]) == 1
    assert "0 of 5 survive, 1 were noticed in another tier" in capsys.readouterr().out
    answers[SLICE[0]] = None
    assert driver.main([SLICE[0]]) == 1
    assert "1 of 1 survive" in capsys.readouterr().out
    del answers[SLICE[0]]
    assert driver.main([SLICE[0]]) == 1
    assert "shows nothing: no place" in capsys.readouterr().out
    assert driver.main(["no such name"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SLICE[:EVERY_RUN])
def test_planted_defect_of_the_slice_is_detected_in_the_expected_tier(name: str, tmp_path: Path) -> None:
    (mutation,) = [mutation for mutation in MUTATIONS if mutation.name == name]
    noticed = notice(mutation, tmp_path)
    assert noticed is not None, f"{name}: {', '.join(mutation.tests)} did not notice"
    assert noticed.tier == mutation.tier


@pytest.mark.full
@pytest.mark.parametrize("folder", sorted({test.split("/")[0] for m in MUTATIONS for test in m.tests}))
def test_project_copy_without_a_defect_passes_all_tests(folder: str, tmp_path: Path) -> None:
    copy_project(tmp_path)
    tests = {test for m in MUTATIONS for test in m.tests if test.split("/")[0] == folder}
    assert run_tests(tmp_path, sorted(tests)) is None


@pytest.mark.full
@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.name not in SLICE], ids=lambda m: m.name)
def test_planted_defect_is_detected_in_the_expected_tier(mutation: Mutation, tmp_path: Path) -> None:
    noticed = notice(mutation, tmp_path)
    assert noticed is not None, f"{mutation.name}: {', '.join(mutation.tests)} did not notice"
    assert noticed.tier == mutation.tier
