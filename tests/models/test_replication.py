"""Model of replication: the design has no failure, and each planted defect has the failures of the table."""

from __future__ import annotations

import pytest

from tests.models.replication.judge import failures
from tests.models.replication.variants import VARIANTS, Variant

SEEDS_FULL = 3_000

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.fails], ids=lambda variant: variant.name)
def test_design_has_no_failure(variant: Variant, full: bool) -> None:
    found = failures(range(SEEDS_FULL if full else variant.seeds), variant.rules, variant.setup)
    assert not found.total(), found


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.fails], ids=lambda variant: variant.name)
def test_defect_has_the_failures_of_the_table(variant: Variant, full: bool) -> None:
    seeds = range(SEEDS_FULL) if full else range(variant.first, variant.first + variant.seeds)
    found = failures(seeds, variant.rules, variant.setup)
    assert variant.fails <= {kind for kind, count in found.items() if count}, found


def test_schedules_with_equal_seeds_are_equal() -> None:
    variant = VARIANTS[0]
    assert failures(range(20), variant.rules, variant.setup) == failures(
        range(20), variant.rules, variant.setup
    )
