"""Deleted keys: order of deletes, memory, and forgetting."""

from __future__ import annotations

import pytest

from tickertape.engine.sow.state import deleted_keys
from tickertape.engine.sow.state.deleted_keys import DeletedKeys


def listed(keys: DeletedKeys, since: int) -> list[bytes]:
    return [key for piece in keys.scan(since) for key in piece]


def test_deleted_keys_have_the_position_of_the_last_delete() -> None:
    keys = DeletedKeys()
    keys.add([b"a", b"b"], 5)
    keys.add([b"a"], 9)
    assert listed(keys, 0) == [b"b", b"a"]
    assert listed(keys, 6) == [b"a"]
    assert listed(keys, 10) == []
    assert len(keys) == 2


def test_deletes_below_a_position_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_keys, "sow_forget_keys_step_max", 3)
    keys = DeletedKeys()
    for position in range(10):
        keys.add([b"%d" % position], position)
    size = keys.nbytes
    keys.forget(7)
    lengths = []
    while keys.has_forgettable:
        keys.forget_step()
        lengths.append(len(keys))
    assert lengths == [7, 4, 3]
    assert listed(keys, 0) == [b"7", b"8", b"9"]
    assert keys.nbytes == size * 3 // 10
    keys.forget(100)
    for _ in range(2):
        keys.forget_step()
    assert (len(keys), keys.nbytes) == (0, 0)


def test_deletes_above_the_memory_are_lost_until_a_file_has_all_records() -> None:
    keys = DeletedKeys(bytes_max=1_000)
    for position in range(20):
        keys.add([b"%d" % position], position)
        assert keys.nbytes <= 1_000
    lost = keys.lost_below
    assert 0 < lost <= 20
    keys.forget(lost - 1)
    assert keys.lost_below == lost
    keys.forget(lost)
    assert keys.lost_below == 0


def test_pieces_of_a_scan_are_bounded_and_have_the_keys_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_keys, "sow_forget_keys_step_max", 3)
    keys = DeletedKeys()
    keys.add([b"%d" % number for number in range(10)], 5)
    scan = keys.scan(0)
    keys.add([b"1", b"new"], 9)
    keys.forget(100)
    states = [keys.has_forgettable]
    pieces = [*scan]
    states.append(keys.has_forgettable)
    assert states == [False, True], "the scan needs them"
    assert sorted(key for piece in pieces for key in piece) == sorted(b"%d" % number for number in range(10))
    assert max(map(len, pieces)) == 3
    assert sorted(listed(keys, 9)) == [b"1", b"new"]
    while keys.has_forgettable:
        keys.forget_step()
    assert (len(keys), keys.nbytes) == (0, 0)


def test_scan_keeps_deletes_that_exceed_the_memory_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_keys, "sow_forget_keys_step_max", 3)
    keys = DeletedKeys(bytes_max=2_000)
    keys.add([b"%d" % number for number in range(10)], 5)
    scan = keys.scan(0)
    keys.add([b"a%d" % number for number in range(10)], 6)
    assert keys.lost_below == 7
    assert sum(map(len, scan)) == 10
    steps = 0
    while keys.has_forgettable:
        keys.forget_step()
        steps += 1
    assert steps == 8, "the memory is freed in steps"
    assert len(keys) == 0


def test_dropped_scan_lets_keys_be_forgotten() -> None:
    keys = DeletedKeys()
    keys.add([b"a"], 5)
    scan = keys.scan(0)
    keys.forget(6)
    states = [keys.has_forgettable]
    del scan
    states.append(keys.has_forgettable)
    assert states == [False, True]
