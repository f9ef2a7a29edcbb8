"""Planted defects are noticed: by a test that fails, not by an import that breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.harness import MutationError, copy_project, notice, planted, run_tests, source
from tests.mutations.mutation import Mutation
from tests.mutations.planted import MUTATIONS

_NAMES = [mutation.name for mutation in MUTATIONS]


def test_every_defect_has_its_place_and_changes_it() -> None:
    assert len(set(_NAMES)) == len(_NAMES)
    for mutation in MUTATIONS:
        text = source(mutation).read_text()
        assert planted(mutation, text) != text
        compile(planted(mutation, text), mutation.module, "exec")


def test_a_defect_without_its_place_is_told() -> None:
    mutation = Mutation("gone", "journal/jobs.py", "a line that is nowhere", "", ())
    with pytest.raises(MutationError, match="stands 0 times"):
        planted(mutation, source(mutation).read_text())


def test_their_tests_are_there() -> None:
    tests = {test.split("::")[0] for mutation in MUTATIONS for test in mutation.tests}
    missing = [test for test in sorted(tests) if not (Path(__file__).parents[1] / test).exists()]
    assert not missing


@pytest.mark.full
def test_without_a_defect_nothing_is_noticed(tmp_path: Path) -> None:
    copy_project(tmp_path)
    assert run_tests(tmp_path, sorted({test for m in MUTATIONS for test in m.tests})) is None


@pytest.mark.full
@pytest.mark.parametrize("mutation", MUTATIONS, ids=_NAMES)
def test_a_planted_defect_is_noticed(mutation: Mutation, tmp_path: Path) -> None:
    noticed = notice(mutation, tmp_path)
    assert noticed is not None, f"{mutation.name}: {', '.join(mutation.tests)} did not notice"
