"""Model of replication: the design has no failure, and each planted defect has the failures of the table."""

from __future__ import annotations

from itertools import count

import pytest

from tests.models.replication.clients import Subscriber
from tests.models.replication.instance import Connection, Instance
from tests.models.replication.judge import failures
from tests.models.replication.link import Link
from tests.models.replication.rules import Rules
from tests.models.replication.variants import VARIANTS, Variant

SEEDS_FULL = 3_000
DESIGN_SEEDS_FULL = 300

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.fails], ids=lambda variant: variant.name)
def test_design_has_no_failure(variant: Variant, full: bool) -> None:
    found = failures(range(DESIGN_SEEDS_FULL if full else variant.seeds), variant.rules, variant.setup)
    assert not any(found.values()), found


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


@pytest.mark.parametrize(("rules", "delivered"), [(Rules(), {1, 2, 3}), (Rules(missing="held back"), {2, 3})])
def test_subscriber_of_a_new_log_resumes_before_missing_messages(rules: Rules, delivered: set[int]) -> None:
    ids = count(1)
    source, other, new = (Instance(name, rules, ids) for name in range(3))
    connection = Connection(None)
    other.accept(1, 1, connection)
    other.accept(1, 2, connection)
    other.commit()
    other.sync()
    Link(other, source, sync=False).move(100)
    source.accept(1, 3, Connection(2))
    source.commit()
    source.report()
    source.sync()
    source.remove(source.log.commits[2])  # the first start and the messages of the link
    Link(source, new, sync=False).move(100)
    new.sync()
    subscriber = Subscriber(rules)
    subscriber.connect(new)
    subscriber.read(100)
    subscriber.connect(other)  # by a place that the source reported
    subscriber.read(100)
    assert {sequence for _, sequence in subscriber.delivered} == delivered
