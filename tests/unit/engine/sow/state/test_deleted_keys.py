"""Deleted keys: order of deletes, memory, and forgetting."""

from __future__ import annotations

import pytest

from tickertape.engine.sow.state import deleted_keys
from tickertape.engine.sow.state.deleted_keys import DeletedKeys


def test_deleted_keys_have_the_position_of_the_last_delete() -> None:
    keys = DeletedKeys()
    keys.add([b"a", b"b"], 5)
    keys.add([b"a"], 9)
    assert keys.keys_from(0) == [b"b", b"a"]
    assert keys.keys_from(6) == [b"a"]
    assert keys.keys_from(10) == []
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
    assert keys.keys_from(0) == [b"7", b"8", b"9"]
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
