"""Offsets of streaming queries: what a checkpoint holds, and what is none of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tickertape.base.errors import WrongJournal
from tickertape.spark.source.offsets import Offset, check_journal, read_offset


def test_an_offset_comes_back_from_the_checkpoint() -> None:
    offset = Offset("00ff", 2**53 + 1)
    assert read_offset(json.loads(json.dumps(offset.written()))) == offset
    assert offset.written() == {"journal": "00ff", "position": 2**53 + 1}


@pytest.mark.parametrize(
    "written",
    [{}, {"journal": "a"}, {"journal": 1, "position": 1}, {"journal": "a", "position": -1}, {"position": 4},
     {"journal": "a", "position": True}, {"journal": "a", "position": "1"}, {"logOffset": 3}],
)  # fmt: skip
def test_what_another_source_wrote_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(WrongJournal, match="another checkpointLocation"):
        read_offset(written)


def test_another_log_is_refused_with_both_names() -> None:
    check_journal(Offset("aa", 3), "aa")
    with pytest.raises(
        WrongJournal, match=r"position 3 of the log aa, .* the log bb\. .* start with another"
    ):
        check_journal(Offset("aa", 3), "bb")
