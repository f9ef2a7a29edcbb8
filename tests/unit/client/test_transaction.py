"""What a client asks to have a transaction committed, and what it asks when it does not know the outcome."""

from __future__ import annotations

import pytest

from tickertape.base.errors import (
    BadOption,
    Disconnected,
    JournalFull,
    StagingFailed,
    TickertapeError,
    TimedOut,
    TransactionBusy,
    TransactionUnknown,
    UsageError,
)
from tickertape.client.transaction import Gathering, Steps, onward
from tickertape.wire.commands import Ack, Command, Commit, Committed, Prepare, Stage, Staged


def gathered(*bodies: bytes) -> Gathering:
    made = Gathering("p", "t")
    for body in bodies:
        made.publish("a", body)
    return made


def asked(steps: Steps, answer: object = None) -> Command:
    make, batch = onward(steps, answer)
    command = make(1)
    assert isinstance(command, Stage) is (batch is not None)
    return command


def until_commit(steps: Steps) -> Commit:
    """Stage and prepare."""
    stage = asked(steps)
    assert isinstance(stage, Stage)
    prepare = asked(steps, Ack(id=1))
    assert isinstance(prepare, Prepare)
    commit = asked(steps, Staged(id=1, messages=1))
    assert isinstance(commit, Commit)
    assert (stage.part,) == (prepare.part,) == commit.parts
    return commit


def test_an_attempt_that_was_cut_short_stages_under_another_name() -> None:
    made = gathered(b"1")
    first, second = made.committing(), made.committing()
    begun = asked(first)
    assert isinstance(begun, Stage)
    assert begun.part not in until_commit(second).parts


def test_what_is_not_staged_as_a_whole_is_not_committed() -> None:
    """Somebody dropped what was staged between two frames."""
    made = gathered()
    made.publish_batch("a", [b"1", b"2"])
    made.publish_batch("a", [b"3"])
    steps = made.committing()
    assert isinstance(asked(steps), Stage)
    assert isinstance(asked(steps, Ack(id=1)), Stage)
    assert isinstance(asked(steps, Ack(id=1)), Prepare)
    with pytest.raises(TransactionUnknown, match="1 of 3 messages"):
        asked(steps, Staged(id=1, messages=1))
    assert not made.uncertain


def test_a_commit_that_was_asked_for_is_asked_for_again_before_anything_is_staged() -> None:
    made = gathered(b"1")
    commit = until_commit(made.committing())
    again = made.committing()
    assert asked(again) == commit
    with pytest.raises(StopIteration) as done:
        onward(again, Committed(id=1, messages=1))
    assert made.committed(done.value.value).messages == 1
    with pytest.raises(UsageError, match="this transaction is over"):
        asked(made.committing())


@pytest.mark.parametrize("error", [TransactionUnknown("another server"), StagingFailed("damaged")])
def test_a_server_that_does_not_have_it_is_told_all_of_it_once_more(error: TickertapeError) -> None:
    made = gathered(b"1")
    commit = until_commit(made.committing())
    again = made.committing()
    assert asked(again) == commit
    stage = asked(again, error)
    assert isinstance(stage, Stage)
    assert stage.part not in commit.parts


def test_a_first_attempt_that_the_server_does_not_know_fails() -> None:
    steps = gathered(b"1").committing()
    until_commit(steps)
    with pytest.raises(TransactionUnknown, match="expired"):
        onward(steps, TransactionUnknown("expired"))


def test_names_are_text() -> None:
    with pytest.raises(BadOption, match="is text, not int"):
        Gathering("p", 5)  # type: ignore[arg-type]
    assert gathered().key.name == "t"
    assert Gathering("p", None).key.name != Gathering("p", None).key.name


def test_it_cannot_be_aborted_once_it_was_committed() -> None:
    made = gathered(b"1")
    made.committed(Committed(id=1, repeated=True))
    with pytest.raises(UsageError, match="was committed"):
        made.abort()


@pytest.mark.parametrize("error", [TimedOut("late"), Disconnected("gone"), TransactionBusy("by another")])
def test_it_cannot_be_aborted_while_it_may_be_in_the_log(error: TickertapeError) -> None:
    made = gathered(b"1")
    steps = made.committing()
    until_commit(steps)
    assert made.uncertain
    with pytest.raises(type(error)):
        onward(steps, error)
    with pytest.raises(UsageError, match="may be in the log: commit it again"):
        made.abort()
    again = made.committing()
    asked(again)
    with pytest.raises(JournalFull):
        onward(again, JournalFull("full"))
    made.abort()
    assert made.aborted


def test_what_is_added_after_a_commit_that_was_refused_is_committed_too() -> None:
    made = gathered(b"1")
    steps = made.committing()
    commit = until_commit(steps)
    with pytest.raises(JournalFull):
        onward(steps, JournalFull("full"))
    made.publish("a", b"2")
    staged = []
    again = made.committing()
    answer: object = None
    while batch := (step := onward(again, answer))[1]:
        staged.append(batch.count)
        answer = Ack(id=1)
    assert sum(staged) == 2
    prepare = step[0](1)
    assert isinstance(prepare, Prepare)
    assert prepare.part not in commit.parts


def test_nothing_is_added_to_what_may_be_in_the_log() -> None:
    made = gathered(b"1")
    until_commit(made.committing())
    with pytest.raises(UsageError, match="was asked for and not answered"):
        made.publish("a", b"2")
    with pytest.raises(UsageError, match="was asked for and not answered"):
        made.publish_batch("a", [b"2"])
    with pytest.raises(UsageError, match="was asked for and not answered"):
        made.publish_arrow("a", ["2"])
    assert len(made) == 1
