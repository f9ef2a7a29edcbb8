"""Offsets of streaming queries in checkpoints, and refused offsets of other sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tickertape.base.errors import WrongJournal
from tickertape.spark.source.offsets import Offset, check_journal, read_offset


def test_offset_round_trips_through_a_checkpoint() -> None:
    offset = Offset("00ff", 2**53 + 1)
    assert read_offset(json.loads(json.dumps(offset.written()))) == offset
    assert offset.written() == {"journal": "00ff", "position": 2**53 + 1}


@pytest.mark.parametrize(
    "written",
    [{}, {"journal": "a"}, {"journal": 1, "position": 1}, {"journal": "a", "position": -1}, {"position": 4},
     {"journal": "a", "position": True}, {"journal": "a", "position": "1"}, {"logOffset": 3}],
)  # fmt: skip
def test_offset_of_another_source_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(WrongJournal, match="another checkpointLocation"):
        read_offset(written)


def test_offset_of_another_log_is_refused_with_both_names() -> None:
    check_journal(Offset("aa", 3), "aa")
    with pytest.raises(
        WrongJournal, match=r"position 3 of the log 'aa', .* the log 'bb'\. .* start with another"
    ):
        check_journal(Offset("aa", 3), "bb")
