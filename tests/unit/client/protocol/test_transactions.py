"""Commands of a client to commit a transaction, also after an unknown outcome."""

from __future__ import annotations

from typing import Any

import pytest

from tickertape.base.errors import (
    BadName,
    BadOption,
    Disconnected,
    JournalFull,
    LimitReached,
    StagingFailed,
    StagingFull,
    TickertapeError,
    TimedOut,
    TransactionBusy,
    TransactionTooLarge,
    TransactionUnknown,
    UsageError,
)
from tickertape.base.limits import client_name_bytes_max, message_bytes_max, publish_topics_max
from tickertape.batch import MessageBatch
from tickertape.client.limits import stage_frame_bytes
from tickertape.client.protocol.transactions import Steps, TransactionBuffer, onward
from tickertape.wire.commands import Abort, Ack, Command, Commit, Committed, Prepare, Stage, Staged
from tickertape.wire.frames import encode_frame


def gathered(*bodies: bytes) -> TransactionBuffer:
    made = TransactionBuffer("p", "t")
    for body in bodies:
        made.publish("a", body)
    return made


def asked(steps: Steps, answer: object = None) -> Command:
    make, batch = onward(steps, answer)
    command = make(1)
    assert isinstance(command, Stage) is (batch is not None)
    return command


def until_commit(steps: Steps, answer: object = None) -> Commit:
    """Stage and prepare."""
    stage = asked(steps, answer)
    assert isinstance(stage, Stage)
    prepare = asked(steps, Ack(id=1))
    assert isinstance(prepare, Prepare)
    commit = asked(steps, Staged(id=1, messages=1))
    assert isinstance(commit, Commit)
    assert (stage.part,) == (prepare.part,) == commit.parts
    return commit


def test_attempt_after_interrupted_attempt_stages_under_another_part() -> None:
    made = gathered(b"1")
    first, second = made.committing(), made.committing()
    begun = asked(first)
    assert isinstance(begun, Stage)
    assert isinstance(asked(second), Abort)
    assert begun.part not in until_commit(second, Ack(id=1)).parts


def test_second_attempt_drops_the_parts_of_the_first() -> None:
    """The old parts would count against the limit of the second attempt."""
    made = gathered(b"1")
    steps = made.committing()
    begun = asked(steps)
    assert isinstance(begun, Stage)
    with pytest.raises(TimedOut, match="Nothing was published"):
        onward(steps, TimedOut("late"))
    assert not made.uncertain
    again = made.committing()
    drop = asked(again)
    assert isinstance(drop, Abort)
    assert drop.transaction == made.key
    stage = asked(again, Ack(id=1))
    assert isinstance(stage, Stage)
    assert stage.part != begun.part


NO_SPACE = (TransactionTooLarge("full"), StagingFull("full"), LimitReached("many parts"))


@pytest.mark.parametrize("error", NO_SPACE)
def test_parts_of_an_earlier_process_are_dropped_for_staging_space(error: TickertapeError) -> None:
    made = gathered()
    made.publish_batch("a", [b"1"])
    made.publish_batch("a", [b"2"])
    steps = made.committing()
    assert isinstance(asked(steps), Stage)
    assert isinstance(asked(steps, Ack(id=1)), Stage)
    assert isinstance(asked(steps, error), Abort)
    for answer in (Ack(id=1), Ack(id=1)):
        assert isinstance(asked(steps, answer), Stage)
    assert isinstance(asked(steps, Ack(id=1)), Prepare)
    assert isinstance(asked(steps, Staged(id=1, messages=2)), Commit)


@pytest.mark.parametrize("error", NO_SPACE)
def test_transaction_beyond_staging_space_is_staged_twice_at_most(error: TickertapeError) -> None:
    made = gathered(b"1")
    for kinds in ((Stage, Abort, Stage), (Abort, Stage)):
        steps = made.committing()
        answer: object = None
        for kind in kinds:
            command = asked(steps, answer)
            assert isinstance(command, kind)
            answer = error if isinstance(command, Stage) else Ack(id=1)
        with pytest.raises(type(error)):
            onward(steps, answer)
        assert not made.uncertain


def test_partially_staged_transaction_is_not_committed() -> None:
    """A part was dropped between two frames."""
    made = gathered()
    made.publish_batch("a", [b"1", b"2"])
    made.publish_batch("a", [b"3"])
    steps = made.committing()
    assert isinstance(asked(steps), Stage)
    assert isinstance(asked(steps, Ack(id=1)), Stage)
    assert isinstance(asked(steps, Ack(id=1)), Prepare)
    with pytest.raises(TransactionUnknown, match="only 1 of the transaction's 3 messages"):
        asked(steps, Staged(id=1, messages=1))
    assert not made.uncertain


def test_unanswered_commit_is_repeated_before_staging() -> None:
    made = gathered(b"1")
    commit = until_commit(made.committing())
    again = made.committing()
    assert asked(again) == commit
    with pytest.raises(StopIteration) as done:
        onward(again, Committed(id=1, messages=1))
    assert made.committed(done.value.value).message_count == 1
    with pytest.raises(UsageError, match="is finished"):
        asked(made.committing())


@pytest.mark.parametrize("error", [TransactionUnknown("another server"), StagingFailed("damaged")])
def test_transaction_unknown_to_the_server_is_staged_completely(error: TickertapeError) -> None:
    made = gathered(b"1")
    commit = until_commit(made.committing())
    again = made.committing()
    assert asked(again) == commit
    assert isinstance(asked(again, error), Abort)
    stage = asked(again, Ack(id=1))
    assert isinstance(stage, Stage)
    assert stage.part not in commit.parts


def test_first_attempt_unknown_to_the_server_fails() -> None:
    steps = gathered(b"1").committing()
    until_commit(steps)
    with pytest.raises(TransactionUnknown, match="expired"):
        onward(steps, TransactionUnknown("expired"))


def test_transaction_names_must_be_text_and_default_to_unique() -> None:
    with pytest.raises(BadOption, match=r"of type int\. Use str"):
        TransactionBuffer("p", 5)  # type: ignore[arg-type]
    assert gathered().key.name == "t"
    assert TransactionBuffer("p", "9" * 18, "s").key.name == "9" * 18
    assert TransactionBuffer("p", "ä" * 127).key.name == "ä" * 127
    assert TransactionBuffer("p", None).key.name != TransactionBuffer("p", None).key.name


@pytest.mark.parametrize(
    ("publisher", "name", "space", "kind"),
    [
        (5, "n", "", BadName),
        ("", "n", "", BadName),
        ("\ud800", "n", "", BadName),
        ("p" * (client_name_bytes_max + 1), "n", "", BadName),
        ("p", "", "", BadOption),
        ("p", b"n", "", BadOption),
        ("p", "\ud800", "", BadOption),
        ("p", "ä" * 128, "", BadOption),
        ("p", "1", b"q", BadOption),
        ("p", "1", None, BadOption),
        ("p", "1", "\ud800", BadOption),
        ("p", "1", "q" * 256, BadOption),
        ("p", "x", "q", BadOption),
        ("p", "-1", "q", BadOption),
        ("p", "²", "q", BadOption),
        ("p", "1" * 19, "q", BadOption),
        ("p", None, "q", BadOption),
    ],
)
def test_invalid_transaction_names_raise_at_once(
    publisher: Any, name: Any, space: Any, kind: type[TickertapeError]
) -> None:
    with pytest.raises(kind):
        TransactionBuffer(publisher, name, space)


def frames_of(made: TransactionBuffer) -> list[MessageBatch]:
    steps = made.committing()
    frames = []
    answer: object = None
    while (step := onward(steps, answer))[1] is not None:
        frames.append(step[1])
        answer = Ack(id=1)
    return frames


def test_stage_frame_has_at_most_the_maximum_topics() -> None:
    made = gathered()
    topics = [f"t{number}" for number in range(2 * publish_topics_max + 1)]
    for topic in topics:
        made.publish(topic, b"1")
        made.publish(topic, b"2")
    frames = frames_of(made)
    assert [len(frame.topics) for frame in frames] == [publish_topics_max, publish_topics_max, 1]
    assert sum(frame.count for frame in frames) == len(made) == 2 * len(topics)


@pytest.mark.parametrize("before", [1, 300, 900])
def test_message_of_maximum_size_has_a_separate_stage_frame(before: int) -> None:
    made = gathered()
    label = "ä" * 2_000
    for _ in range(before):
        made.publish("a", bytes(1_000))
    made.publish("t" * 1_000, bytes(message_bytes_max), correlation_id=label, sow_key=label)
    made.publish("a", b"last")
    frames = frames_of(made)
    assert [frame.count for frame in frames] == [before, 1, 1]
    for frame in frames:
        encode_frame(Stage(id=1, transaction=made.key, part="p"), frame)


def test_small_messages_share_stage_frames() -> None:
    made = gathered()
    for number in range(3_000):
        made.publish("a", bytes(1_000), correlation_id=f"c{number}")
    sizes = [frame.nbytes for frame in frames_of(made)]
    assert len(sizes) == 3
    assert all(stage_frame_bytes * 0.99 < size <= stage_frame_bytes for size in sizes[:-1])


def test_abort_of_committed_transaction_raises() -> None:
    made = gathered(b"1")
    made.committed(Committed(id=1, repeated=True))
    with pytest.raises(UsageError, match="was already committed"):
        made.aborting()


@pytest.mark.parametrize("error", [TimedOut("late"), Disconnected("gone"), TransactionBusy("by another")])
def test_abort_with_unknown_commit_outcome_raises(error: TickertapeError) -> None:
    made = gathered(b"1")
    steps = made.committing()
    until_commit(steps)
    assert made.uncertain
    with pytest.raises(type(error)):
        onward(steps, error)
    with pytest.raises(UsageError, match=r"outcome of its commit is unknown\. Commit it again"):
        made.aborting()
    again = made.committing()
    asked(again)
    with pytest.raises(JournalFull):
        onward(again, JournalFull("full"))
    made.aborting()
    assert made.aborted


def test_messages_added_after_rejected_commit_are_committed() -> None:
    made = gathered(b"1")
    steps = made.committing()
    commit = until_commit(steps)
    with pytest.raises(JournalFull):
        onward(steps, JournalFull("full"))
    made.publish("a", b"2")
    staged = []
    again = made.committing()
    assert isinstance(asked(again), Abort)
    while batch := (step := onward(again, Ack(id=1)))[1]:
        staged.append(batch.count)
    assert sum(staged) == 2
    prepare = step[0](1)
    assert isinstance(prepare, Prepare)
    assert prepare.part not in commit.parts


def test_publish_with_unknown_commit_outcome_raises() -> None:
    made = gathered(b"1")
    until_commit(made.committing())
    with pytest.raises(UsageError, match="outcome of its commit is unknown"):
        made.publish("a", b"2")
    with pytest.raises(UsageError, match="outcome of its commit is unknown"):
        made.publish_batch("a", [b"2"])
    with pytest.raises(UsageError, match="outcome of its commit is unknown"):
        made.publish_arrow("a", ["2"])
    assert len(made) == 1
