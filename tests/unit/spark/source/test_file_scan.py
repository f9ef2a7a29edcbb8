"""Messages that a task takes from the commits of journal files: positions, topics and a filter."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadOption
from tickertape.base.limits import filter_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.journal.format.segment import CommitHeader, CommitKind
from tickertape.journal.offline.range_reader import StoredCommit
from tickertape.spark.source.file_scan import FileScan


def commit_of(first: int, *messages: tuple[str, bytes]) -> StoredCommit:
    builder = BatchBuilder()
    for topic, body in messages:
        builder.add(topic, body)
    batch: MessageBatch = builder.build(7, first_sequence=1)
    header = CommitHeader(CommitKind.DATA, 0, 0, 0, 0, 1, first, batch.count, batch.nbytes, 0, 0, 0, 0, 0)
    return StoredCommit(1, header, memoryview(batch.encode()))


def positions_of(scan: FileScan, commit: StoredCommit) -> list[int]:
    block = scan.block(commit)
    if block is None:
        return []
    if isinstance(block.positions, int):
        return list(range(block.positions, block.positions + block.messages))
    assert block.positions is not None
    return [int(position) for position in block.positions]


COMMIT = (("a", b'{"n": 1}'), ("b", b'{"n": 1}'), ("a", b'{"n": 2}'), ("a", b'{"n": 1}'))


def test_messages_are_selected_by_position_topic_and_filter() -> None:
    assert positions_of(FileScan("a", 11, 20, None, {}), commit_of(10, *COMMIT)) == [12, 13]
    assert positions_of(FileScan("a", 0, 13, "/n = 1", {}), commit_of(10, *COMMIT)) == [10]
    assert positions_of(FileScan("[ab]", 0, 20, "/n = 1", {}), commit_of(10, *COMMIT)) == [10, 11, 13]
    assert positions_of(FileScan("c", 0, 20, None, {}), commit_of(10, *COMMIT)) == []
    assert positions_of(FileScan("a", 0, 20, "/n = 3", {}), commit_of(10, *COMMIT)) == []


def test_filter_is_compiled_for_the_message_type_of_each_topic() -> None:
    commit = commit_of(0, ("a", b"35=D\x01"), ("b", b'{"35": "D"}'), ("b", b"35=D\x01"))
    assert positions_of(FileScan("[ab]", 0, 9, "/35 = 'D'", {"a": "fix"}), commit) == [0, 1]


def test_filter_as_long_as_a_server_may_accept_is_applied() -> None:
    text = "/n = 2 OR /n IN (" + ", ".join(f"'x{number:07}'" for number in range(600)) + ")"
    assert len(text) > filter_bytes_max
    assert positions_of(FileScan("a", 0, 20, text, {}), commit_of(10, *COMMIT)) == [12]


def test_filter_that_depends_on_the_subscriber_is_rejected() -> None:
    with pytest.raises(BadOption, match="CLIENT_NAME, USER, which only a server can evaluate"):
        FileScan("a", 0, 9, "USER() = 'ann' OR CLIENT_NAME() = 'x'", {})
