"""One flipped bit in every byte of a journal: never altered data, never a log that is silently shorter."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pytest

from tests.simulation.journal_log import Log, Message, messages_in, reopened, small_log
from tickertape.base.errors import JournalCorrupt, JournalError, WrongJournal
from tickertape.journal.format.log_end import LAST_SEGMENT_FILE
from tickertape.journal.format.segment import decode_footer, footer_bytes, segment_path
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes

SEED = 11
Outcome = Literal["refused", "read refused", "nothing lost"]


def flipped(contents: bytes, offset: int) -> bytes:
    """Return `contents` with one bit of the byte at `offset` flipped. The bit depends on the offset."""
    return contents[:offset] + bytes([contents[offset] ^ (1 << offset % 8)]) + contents[offset + 1 :]


def outcome(log: Log, path: str, offset: int, expected: list[Message]) -> Outcome:
    """Open and read the log with one flip. Delivered messages must be the written ones, in order."""
    refusal: JournalError | WrongJournal | None = None
    found: list[Message] = []
    opened = False
    try:
        journal, disk, _ = reopened(log.with_file(path, flipped(log.files[path], offset)))
        opened = True
        found = messages_in(journal, disk)
    except (JournalError, WrongJournal) as error:
        refusal = error
    if refusal is None:
        assert found == expected
        return "nothing lost"
    if isinstance(refusal, JournalCorrupt):
        assert refusal.file, "it names the file"
        assert refusal.file in str(refusal)
    if not opened:
        return "refused"
    assert isinstance(refusal, JournalCorrupt)
    assert refusal.file == path
    assert refusal.offset <= offset, "it names where the damaged commit begins"
    return "read refused"


LOGS_FULL = 9
STRIDE = 7
"""Without --full, one flip in this many bytes of commits, which are alike. Odd, so that all bits occur."""


def passed_over(part: str, offset: int, full: bool) -> bool:
    """Return whether the run skips an offset: never with --full, never in headers and seals."""
    return part in ("commits", "whole") and offset > 0 and offset % STRIDE > 0 and not full


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With --full, several logs of nearly 8 KiB each."""
    if "log" in metafunc.fixturenames:
        logs = LOGS_FULL if metafunc.config.getoption("--full") else 1
        metafunc.parametrize("log", range(SEED, SEED + logs), indirect=True, scope="module")


@pytest.fixture(scope="module")
def log(request: pytest.FixtureRequest) -> Log:
    seed: int = request.param
    return small_log(seed, marks=True)


@pytest.fixture(scope="module")
def expected(log: Log) -> list[Message]:
    return log.sealed + [message for _, messages in log.commits for message in messages]


@pytest.mark.slow
def test_sealed_segment_with_any_flipped_bit_is_refused_at_start_or_by_readers(
    log: Log, expected: list[Message], full: bool
) -> None:
    path = segment_path(1)
    contents = log.files[path]
    footer = decode_footer(contents[-footer_bytes:])
    assert footer is not None
    seen: dict[str, Counter[Outcome]] = {"header": Counter(), "commits": Counter(), "seal": Counter()}
    for offset in range(len(contents)):
        part = "header" if offset < segment_header_bytes else "commits"
        part = part if offset < footer.seal_offset else "seal"
        if passed_over(part, offset, full):
            continue
        seen[part][outcome(log, path, offset, expected)] += 1
    # A segment that another one follows has no dead byte but those between its commits, and it has none of
    # those.
    assert set(seen["header"]) == {"refused"}
    assert set(seen["commits"]) == {"read refused"}
    assert set(seen["seal"]) == {"refused"}


@pytest.mark.slow
def test_active_segment_with_any_flipped_bit_is_refused_or_loses_nothing(
    log: Log, expected: list[Message], full: bool
) -> None:
    path = segment_path(log.last_segment)
    last_mark = log.used - commit_header_bytes
    seen: dict[str, Counter[Outcome]] = {"whole": Counter(), "mark": Counter(), "dead": Counter()}
    for offset in [*range(log.used + 64), len(log.files[path]) - 1]:
        part = "whole" if offset < last_mark else "mark" if offset < log.used else "dead"
        if passed_over(part, offset - segment_header_bytes, full):
            continue
        seen[part][outcome(log, path, offset, expected)] += 1
    assert set(seen["whole"]) == {"refused"}, "a mark follows: damage is never taken for an unfinished write"
    # A damaged last mark carries no message, and only reserved zeros follow it.
    assert set(seen["mark"]) == {"nothing lost"}
    assert set(seen["dead"]) == {"nothing lost"}


@pytest.mark.slow
def test_cleanly_stopped_log_with_any_flipped_bit_is_refused_by_readers_or_loses_nothing(
    expected: list[Message], log: Log, full: bool
) -> None:
    """After a clean stop the last segment is sealed: damage is found by readers, and in the seal it costs
    nothing."""
    disk = reopened(log.files)[1]
    files = disk.contents()
    sealed = log._replace(files={name: data for name, data in files.items() if "quarantine" not in name})
    path = segment_path(log.last_segment)
    contents = sealed.files[path]
    footer = decode_footer(contents[-footer_bytes:])
    assert footer is not None
    # The next run began another one and noted it: as it was before that.
    del sealed.files[segment_path(log.last_segment + 1)], sealed.files[LAST_SEGMENT_FILE]
    seen: dict[str, Counter[Outcome]] = {"commits": Counter(), "mark": Counter(), "seal": Counter()}
    last_mark = footer.seal_offset - commit_header_bytes
    for offset in range(segment_header_bytes, len(contents)):
        part = "commits" if offset < last_mark else "mark" if offset < footer.seal_offset else "seal"
        if passed_over(part, offset, full):
            continue
        seen[part][outcome(sealed, path, offset, expected)] += 1
    assert set(seen["commits"]) == {"read refused"}
    assert set(seen["mark"]) == {"nothing lost"}, "no message is in the mark or after it"
    assert set(seen["seal"]) == {"nothing lost"}


@pytest.mark.slow
def test_identity_file_with_any_flipped_bit_is_refused_or_loses_nothing(
    log: Log, expected: list[Message]
) -> None:
    contents = log.files["identity.json"]
    seen = Counter(outcome(log, "identity.json", offset, expected) for offset in range(len(contents)))
    assert set(seen) <= {"refused", "nothing lost"}
    # Blanks, and the case of a hexadecimal digit, mean nothing.
    assert seen["nothing lost"] < 16
