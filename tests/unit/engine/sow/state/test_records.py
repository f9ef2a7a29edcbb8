"""Record table: columns by slot, growth, and compaction of bodies."""

from __future__ import annotations

import numpy as np

from tests.helpers.record_rows import int64s, record_rows
from tickertape.engine.limits import sow_block_bytes, sow_compaction_slots_max, sow_growth_rows
from tickertape.engine.sow.state.blocks import NO_VIEW, BodyBlocks, in_block
from tickertape.engine.sow.state.records import RecordRow, RecordTable

SMALL = 64


def body(number: int, size: int = 20) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def table_of(count: int, *, size: int = 20, expires: bool = False) -> RecordTable:
    """Return a table of small blocks with records in the slots from 0 on."""
    table = RecordTable(BodyBlocks(SMALL), expires=expires)
    bodies = [body(i, size) for i in range(count)]
    table.put(np.arange(count), record_rows(table.blocks, bodies, expires=expires))
    return table


def bodies_of(table: RecordTable) -> dict[int, bytes]:
    slots = table.live_slots(0, table.slot_end)
    return dict(zip(slots.tolist(), table.blocks.take(table.rows(slots).views), strict=True))


# -- put and drop -------------------------------------------------------------------------------------


def test_put_returns_previous_views_and_sets_all_columns() -> None:
    table = table_of(3, expires=True)
    before = table.rows(int64s([0, 1, 2]))
    rows = record_rows(table.blocks, [b"a", b"b" * 30], position=50, publisher=4, expires=True)
    replaced = table.put(int64s([2, 7]), rows)
    assert replaced.live.tolist() == [True, False]
    assert replaced.views.tolist() == [before.views[2].tolist(), [*NO_VIEW]]
    assert (table.record_count, table.slot_end) == (4, 8)
    assert table.live_slots(0, 100).tolist() == [0, 1, 2, 7]
    assert table.live_slots(1, 7).tolist() == [1, 2]
    stored = table.rows(int64s([7, 2]))
    assert table.blocks.take(stored.views) == [b"b" * 30, b"a"]
    assert stored.positions.tolist() == [51, 50]
    assert stored.order_stamps.tolist() == [51_000, 50_000]
    assert stored.publishers.tolist() == [4, 4]
    assert stored.sequences.tolist() == [58, 57]
    assert stored.lives is not None
    assert stored.lives.tolist() == [1_000_051, 1_000_050]


def test_put_of_no_slots_changes_nothing() -> None:
    table = table_of(2)
    replaced = table.put(int64s([]), record_rows(table.blocks, []))
    assert (len(replaced.live), replaced.views.shape) == (0, (0, 2))
    assert (table.record_count, table.slot_end) == (2, 2)


def test_scalar_put_equals_a_put_of_one_row() -> None:
    one, many = RecordTable(BodyBlocks(SMALL), expires=True), RecordTable(BodyBlocks(SMALL), expires=True)
    for number, slot in enumerate([3, 5, 3, 3]):
        rows = record_rows(many.blocks, [body(number)], position=number, publisher=number, expires=True)
        label = None if number == 2 else b"c%d" % number
        rows = rows._replace(labels=np.array([label], object))
        replaced = many.put(int64s([slot]), rows)
        view = one.blocks.append_one(body(number))
        row = RecordRow(view, number, 1_000 * number, number, number + 7, number + 1_000_000, label)
        assert [*one.put_one(slot, row)] == replaced.views[0].tolist()
    slots = int64s([3, 5])
    for mine, other in zip(one.rows(slots), many.rows(slots), strict=True):
        assert mine is not None
        assert other is not None
        assert mine.tolist() == other.tolist()
    assert (one.record_count, one.slot_end) == (many.record_count, many.slot_end) == (2, 6)
    assert one.blocks.take_owners(0).tolist() == many.blocks.take_owners(0).tolist() == [3, 5, 3]


def test_drop_empties_slots_and_returns_the_previous_views() -> None:
    table = table_of(4)
    before = table.rows(int64s([1, 3])).views
    replaced = table.drop(int64s([3, 1]))
    assert replaced.live.all()
    assert replaced.views.tolist() == before[::-1].tolist()
    assert table.record_count == 2
    assert table.live(int64s([0, 1, 2, 3])).tolist() == [True, False, True, False]
    assert table.rows(int64s([1, 3])).views.tolist() == [[*NO_VIEW]] * 2
    assert not table.drop(int64s([1])).live.any()
    assert (table.body(0), table.body(1), table.body(99)) == (body(0), None, None)


def test_rows_without_an_expiry_do_not_expire() -> None:
    table = table_of(2, expires=True)
    table.put(int64s([1]), record_rows(table.blocks, [b"x"]))
    lives = table.rows(int64s([0, 1])).lives
    assert lives is not None
    assert lives.tolist() == [1_000_000, 0]
    assert table_of(2).rows(int64s([0])).lives is None


def test_columns_grow_while_results_are_held() -> None:
    table = table_of(3)
    slots = int64s([0, 1, 2])
    held = [table.rows(slots), table.copy_range(0, 3).rows, *(table.live(slots), table.live_slots(0, 3))]
    held_views = table.put(slots[:1], record_rows(table.blocks, [b"new"]))
    high = 3 * sow_growth_rows
    table.put(int64s([high]), record_rows(table.blocks, [body(9)]))
    table.put_one(high + sow_growth_rows, RecordRow(table.blocks.append_one(body(10)), 0, 0, 0, 0))
    assert len(held) == 4
    assert held_views.live.all()
    assert table.slot_end == high + sow_growth_rows + 1
    assert bodies_of(table) == {
        0: b"new", 1: body(1), 2: body(2), high: body(9), high + sow_growth_rows: body(10)
    }  # fmt: skip
    assert table.nbytes == 45 * table.slot_end


def test_results_are_copies() -> None:
    table = table_of(3)
    piece = table.copy_range(0, 3)
    table.rows(int64s([0, 1, 2])).views[:] = 0
    piece.rows.views[:] = 0
    piece.live[:] = False
    table.live(int64s([0]))[:] = False
    assert bodies_of(table) == {i: body(i) for i in range(3)}


def test_copy_of_a_range_ends_at_the_highest_used_slot() -> None:
    table = table_of(5)
    table.drop(int64s([3]))
    piece = table.copy_range(2, 100)
    assert piece.low == 2
    assert piece.live.tolist() == [True, False, True]
    assert table.blocks.take(piece.rows.views[piece.live]) == [body(2), body(4)]
    assert piece.rows.positions.tolist()[::2] == [2, 4]
    assert len(table.copy_range(7, 100).live) == 0


def test_publisher_numbers_are_stable() -> None:
    table = RecordTable(BodyBlocks(SMALL))
    ids = [2**64 - 1 - 5 * i for i in range(40)]
    assert [table.publishers.number(i) for i in ids] == [*range(40)]
    assert [table.publishers.number(i) for i in reversed(ids)] == [*range(39, -1, -1)]
    assert table.publishers.ids(np.array([39, 0, 7], np.uint32)).tolist() == [ids[39], ids[0], ids[7]]


# -- compaction ---------------------------------------------------------------------------------------


def replace(table: RecordTable, slots: list[int], first: int, size: int = 20) -> None:
    """Give slots new bodies and drop the previous ones."""
    bodies = [body(first + i, size) for i in range(len(slots))]
    table.blocks.drop(table.put(int64s(slots), record_rows(table.blocks, bodies)).views)


def test_compaction_moves_live_bodies_and_frees_blocks() -> None:
    table = table_of(30)  # three in a block
    slots = [i for i in range(30) if i % 3]
    table.blocks.drop(table.drop(int64s(slots)).views)
    assert table.blocks.block_count == 10
    steps = 0
    while table.compact_step():
        steps += 1
    assert steps == 10  # the open block is closed by the first moved body that does not fit
    assert table.blocks.block_count == 4
    assert bodies_of(table) == {i: body(i) for i in range(0, 30, 3)}
    assert table.blocks.live_bytes == 200


def test_compaction_leaves_records_in_other_blocks() -> None:
    table = table_of(6)
    replace(table, [0, 1], 100)
    before = table.rows(int64s([0, 1])).views
    assert in_block(before, 2).all()
    assert table.compact_step() == 16 * 3 + 20
    assert table.rows(int64s([0, 1])).views.tolist() == before.tolist()
    assert bodies_of(table) == {0: body(100), 1: body(101)} | {i: body(i) for i in range(2, 6)}
    assert table.compact_step() == 0


def test_compaction_moves_a_record_once_when_claimed_twice() -> None:
    table = table_of(1)
    replace(table, [0], 100)
    replace(table, [0], 200)
    replace(table, [1, 2], 300)
    table.blocks.drop(table.drop(int64s([2])).views)
    assert table.compact_step() == 16 * 3 + 20
    assert table.blocks.live_bytes == 40
    assert bodies_of(table) == {0: body(200), 1: body(300)}


def test_compaction_of_short_bodies_or_no_records_has_no_work() -> None:
    table = table_of(50, size=12)
    table.drop(np.arange(50))
    assert table.compact_step() == 0


def test_compaction_step_copies_less_than_half_a_block() -> None:
    table = RecordTable(BodyBlocks())
    generator = np.random.default_rng(3)
    for start in range(0, 40_000, 2_000):
        slots = generator.permutation(4_000)[:2_000]
        rows = record_rows(table.blocks, [body(start + i, 200) for i in range(2_000)])
        table.blocks.drop(table.put(slots, rows).views)
    steps = 0
    before = bodies_of(table)
    while work := table.compact_step():
        steps += 1
        assert work < 16 * sow_compaction_slots_max + sow_block_bytes // 2
        assert table.blocks.live_bytes == 200 * table.record_count
    assert steps > 3
    assert bodies_of(table) == before
    assert table.blocks.nbytes <= 2 * table.blocks.live_bytes + sow_block_bytes
