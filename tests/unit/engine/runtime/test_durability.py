"""Durability of messages at the destinations of synchronous links."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickertape.engine.runtime.durability import NO_LINKS, SyncLinks
from tickertape.wire.commands import weaker

END = 100


def test_acknowledgement_without_links_waits_for_this_log_only() -> None:
    links = SyncLinks(["a", "b"])
    assert links.horizon(NO_LINKS, END) == END
    assert links.level(NO_LINKS, END, "local") == "local"
    assert links.level(NO_LINKS, END, "written") == "written"


def test_acknowledgement_waits_for_all_links_of_the_topic() -> None:
    links = SyncLinks(["a", "b", "c"])
    both = links.link_set([0, 2])
    assert links.durable(0, 50, "local")
    assert links.horizon(both, END) == 0
    assert links.durable(2, 40, "local")
    assert links.horizon(both, END) == 40
    assert links.horizon(links.link_set([0]), END) == 50
    assert links.horizon(both, 30) == 30
    assert not links.durable(2, 40, "local")


def test_acknowledgement_by_any_link_waits_for_the_fastest() -> None:
    links = SyncLinks(["a", "b"], required=1)
    both = links.link_set([0, 1])
    links.durable(1, 60, "local")
    assert links.horizon(both, END) == 60
    links.downgrade(1)
    assert links.horizon(both, END) == 0
    links.downgrade(0)
    assert links.horizon(both, END) == END


def test_downgraded_link_holds_up_nothing_until_the_upgrade() -> None:
    links = SyncLinks(["a", "b"])
    both = links.link_set([0, 1])
    links.durable(0, 70, "local")
    links.downgrade(1)
    assert links.is_downgraded(1)
    assert links.horizon(both, END) == 70
    assert links.level(both, 70, "local") == "replicated(1)"
    links.upgrade(1)
    assert not links.is_downgraded(1)
    assert links.horizon(both, END) == 0


def test_level_is_the_weakest_of_the_counted_disks() -> None:
    links = SyncLinks(["a", "b"])
    both = links.link_set([0, 1])
    links.durable(0, 70, "local")
    links.durable(1, 80, "local")
    assert links.level(both, 70, "local") == "replicated(2)"
    assert links.level(both, 75, "local") == "replicated(1)"
    assert links.level(both, 90, "local") == "local"
    assert links.level(both, 70, "written") == "written"
    links.durable(1, 85, "written")
    assert links.level(both, 70, "local") == "written"
    assert links.level(links.link_set([0]), 70, "local") == "replicated(1)"


def test_link_that_starts_lower_holds_up_acknowledgements() -> None:
    links = SyncLinks(["a"])
    links.durable(0, 70, "local")
    links.reset(0, 20)
    assert links.horizon(links.link_set([0]), END) == 20


_steps = st.lists(st.tuples(st.sampled_from("dxu"), st.integers(0, 3), st.integers(1, 120)), max_size=20)


@given(_steps, st.sets(st.integers(0, 3)), st.sampled_from((None, 1, 2, 3)), st.integers(0, 120))
def test_horizon_equals_a_count_of_disks(
    steps: list[tuple[str, int, int]], numbers: set[int], required: int | None, position: int
) -> None:
    links = SyncLinks(["a", "b", "c", "d"], required)
    disks, down = dict.fromkeys(range(4), 0), set[int]()
    for what, link, value in steps:
        if what == "d":
            disks[link] = max(disks[link], value)
            links.durable(link, value, "local")
        elif what == "x":
            down.add(link)
            links.downgrade(link)
        else:
            down.discard(link)
            links.upgrade(link)
    counted = [disks[link] for link in numbers - down]
    needed = len(counted) if required is None else min(required, len(counted))
    of_links = links.link_set(sorted(numbers))
    acknowledged = sum(disk >= position for disk in counted) >= needed
    assert (links.horizon(of_links, 120) >= position) == acknowledged


def test_weaker_of_two_levels_has_fewer_disks() -> None:
    levels = ["written", "local", "replicated(1)", "replicated(2)", "replicated(10)"]
    for at, level in enumerate(levels):
        for above in levels[at:]:
            assert weaker(level, above) == weaker(above, level) == level


def test_unknown_level_counts_as_local() -> None:
    for unknown in ("", "replicated", "replicated()", "replicated(x)", "replicated(9999999999)", "other"):
        assert weaker(unknown, "written") == "written"
        assert weaker(unknown, "replicated(1)") == unknown


def test_links_that_acknowledgements_need_are_all_or_any_n() -> None:
    assert SyncLinks(["a", "b"]).lacks(2, 1)
    assert not SyncLinks(["a", "b"]).lacks(2, 2)
    assert not SyncLinks(["a", "b"], required=1).lacks(2, 1)
    assert SyncLinks(["a", "b"], required=1).lacks(1, 0)


def test_destination_without_a_level_counts_as_written() -> None:
    links = SyncLinks(["a"])
    only = links.link_set([0])
    links.reset(0, 20)
    assert links.level(only, 20, "local") == "written"
    assert not links.durable(0, 20, "local")
    assert links.level(only, 20, "local") == "replicated(1)"
