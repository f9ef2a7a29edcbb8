"""The table of docs/formats/journal.md, one test for each row, on real files of a small log."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from crc32c import crc32c

from tests.simulation.journal_log import JOURNAL_ID, Driver, Log, disk_with, messages_in, small_log
from tests.simulation.journal_world import FailingDisk, PowerLost, Trace
from tickertape.base.errors import (
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalVersion,
    NotAJournal,
    WrongJournal,
)
from tickertape.journal.format.identity import open_identity
from tickertape.journal.format.log_end import CLEAN_SHUTDOWN_FILE, LAST_SEGMENT_FILE, CleanShutdown
from tickertape.journal.format.segment import (
    decode_commit,
    decode_footer,
    decode_segment_header,
    encode_commit,
    encode_segment_header,
    footer_bytes,
    segment_path,
)
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.recovery.recovery import RecoveryAction, decide, recover_journal
from tickertape.journal.recovery.survey import survey_segments
from tickertape.testing.disk import StrictDisk

DOCUMENT = Path(__file__).parents[4] / "docs" / "formats" / "journal.md"
Files = dict[str, bytes]
FIRST, ACTIVE, RESERVED = segment_path(1), segment_path(2), segment_path(3)

LOG: Log = small_log(3, marks=True)
EVERYTHING = LOG.sealed + [message for _, messages in LOG.commits for message in messages]


def stopped() -> Files:
    """The same log after a clean stop."""
    return _stopped()[0]


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def relinked(data: bytes, **changes: int | bytes) -> bytes:
    """A segment with another header, valid."""
    header, _ = decode_segment_header(data[:segment_header_bytes])
    return patched(data, 0, encode_segment_header(header._replace(**changes))[0])  # type: ignore[arg-type]


def without_readable_index(data: bytes) -> bytes:
    """A sealed segment whose index is nonsense, under checksums that hold."""
    footer = decode_footer(data[-footer_bytes:])
    assert footer is not None
    seal = decode_commit(data, footer.seal_offset)
    assert seal is not None
    body = bytearray(data[footer.seal_offset + commit_header_bytes :])
    body[: footer.index_bytes] = bytes([0xC1]) * footer.index_bytes
    encoded, _ = encode_commit(seal._replace(body_crc=crc32c(bytes(body))))
    return patched(data, footer.seal_offset, encoded + bytes(body))


class Row(NamedTuple):
    """A row of the table: files and the expected outcome."""

    seen: str
    """The state as documented."""
    make: Callable[[], Files]
    outcome: type[Exception] | str
    """Exception of the refusal, or a text of the report (empty: no report)."""
    kept: bool = True
    """All written messages are present."""


def files(**changes: bytes | None) -> Files:
    """The killed log, some of its files replaced or (None) removed."""
    names = {"first": FIRST, "active": ACTIVE, "reserved": RESERVED, "identity": "identity.json"}
    made = dict(LOG.files)
    for name, data in changes.items():
        made.pop(names[name], None)
        if data is not None:
            made[names[name]] = data
    return made


def unnoted(made: Files) -> Files:
    """Return the files without the note of the last started segment, as earlier versions left them."""
    return {path: data for path, data in made.items() if path != LAST_SEGMENT_FILE}


LAST_DATA = LOG.commits[-2][0] - 40
"""Offset of a byte in the last commit of messages, which a mark follows."""
HALF_WRITE = bytes(commit_header_bytes) + Random(1).randbytes(300)
ACTIVE_DATA = LOG.files[ACTIVE]
USED = ACTIVE_DATA[: LOG.used]

UNBEGUN = "the segment that `begun.bin` names is missing, empty, or has no valid header"
MISSING = (
    "a number missing: the first (1, or the one behind `through` of `retired.bin`), "
    "or one between two segments"
)

ROWS = [
    Row("identity missing, directory empty", dict, "", kept=False),
    Row("identity missing, directory not empty", lambda: files(identity=None), NotAJournal),
    Row("header of a newer format", lambda: files(active=_newer(ACTIVE_DATA)), JournalVersion),
    Row(
        "header of another journal, or another number than the name",
        lambda: files(active=relinked(ACTIVE_DATA, journal_id=bytes(16))),
        WrongJournal,
    ),
    Row(
        "header of another journal, or another number than the name",
        lambda: files(active=relinked(ACTIVE_DATA, number=7)),
        WrongJournal,
    ),
    Row(MISSING, lambda: files(first=None), JournalCorrupt),
    Row(
        MISSING,
        lambda: {**files(active=None), segment_path(4): relinked(ACTIVE_DATA, number=4)},
        JournalCorrupt,
    ),
    Row(
        "a segment whose header does not continue the seal before it",
        lambda: files(active=relinked(ACTIVE_DATA, previous_chain=1)),
        JournalCorrupt,
    ),
    Row(
        "a segment whose header does not continue the seal before it",
        lambda: files(active=relinked(ACTIVE_DATA, first_position=1)),
        JournalCorrupt,
    ),
    Row(
        "an unsealed segment before a begun one",
        lambda: files(first=LOG.files[FIRST][:-1]),
        JournalCorrupt,
    ),
    Row(
        "no valid header, but commits in the file or a later begun segment",
        lambda: files(active=patched(ACTIVE_DATA, 20, b"\xff")),
        JournalCorrupt,
    ),
    Row(
        "no valid header, but commits in the file or a later begun segment",
        lambda: files(first=bytes(4096)),
        JournalCorrupt,
    ),
    Row("sealed segment: header, link, seal and length agree", stopped, ""),
    Row("last segment unsealed, zeros after its last valid commit", files, "no clean stop"),
    Row(
        "last segment unsealed, other bytes after its last valid commit, "
        "and no later commit says that they were durable",
        lambda: files(active=patched(ACTIVE_DATA, LOG.used, HALF_WRITE)),
        f"{len(HALF_WRITE)} bytes of an unfinished write at {LOG.used}",
    ),
    Row(
        "last segment unsealed, an invalid commit k, "
        "and a later valid commit with `synced through` of at least k",
        lambda: files(active=patched(ACTIVE_DATA, LAST_DATA, b"\xff\x00\xff")),
        JournalCorrupt,
    ),
    Row("last segment sealed but not cut", lambda: _with_last(stopped(), lambda data: data + bytes(900)), ""),
    Row(
        "last segment sealed, other bytes than zeros behind its seal",
        lambda: _with_last(stopped(), lambda data: data + bytes(90) + b"of somebody" + bytes(900)),
        "101 bytes after its seal, moved to quarantine/",
    ),
    *(
        Row(
            "the segment that `end.json` names is missing, empty, or not sealed as it says",
            make,
            JournalCorrupt,
        )
        for make in (
            lambda: _ended(lambda _: None),
            lambda: _ended(lambda _: b""),
            lambda: _ended(lambda _: bytes(4096)),
            lambda: _ended(lambda data: data[:100]),
            lambda: _ended(lambda data: data[: len(data) // 2]),
            lambda: _ended(lambda data: data[:-1]),
            lambda: _ended(lambda data: data, commit=1),
            lambda: {"identity.json": LOG.files["identity.json"], CLEAN_SHUTDOWN_FILE: stopped_at()},
        )
    ),
    Row(
        "`end.json` unreadable",
        lambda: {**stopped(), CLEAN_SHUTDOWN_FILE: b'{"segment":'},
        "end.json cannot be read",
    ),
    Row("last segment sealed but not cut", lambda: _ended(lambda data: data + bytes(900)), ""),
    Row("sealed segment: header, link, seal and length agree", lambda: _ended(lambda data: data), ""),
    *(
        Row("no valid header and no commits, but another file behind it", make, JournalCorrupt)
        for make in (
            lambda: unnoted(files(active=b"", reserved=bytes(8192))),
            lambda: unnoted(files(active=bytes(8192), reserved=bytes(8192))),
            lambda: unnoted(files(active=bytes(8192), reserved=b"")),
            lambda: unnoted(files(active=Random(2).randbytes(700), reserved=b"")),
        )
    ),
    *(
        Row(
            "the segment that `begun.bin` names is missing, empty, or has no valid header",
            make,
            JournalCorrupt,
        )
        for make in (
            lambda: files(active=None),
            lambda: files(active=b""),
            lambda: files(active=bytes(8192)),
            lambda: files(active=Random(2).randbytes(700)),
            lambda: files(active=ACTIVE_DATA[:100]),
            lambda: files(first=None, active=None),
        )
    ),
    Row(
        "`begun.bin` unreadable",
        lambda: {**files(), LAST_SEGMENT_FILE: bytes(512)},
        "begun.bin cannot be read",
    ),
    Row("`begun.bin` unreadable", lambda: {**files(), LAST_SEGMENT_FILE: b""}, "begun.bin cannot be read"),
    Row(MISSING, lambda: unnoted(files(first=None, active=None, reserved=b"")), JournalCorrupt),
    Row(
        "a reserve that has the name `NNNNNNNNNN.segment.again`",
        lambda: {**files(reserved=None), f"{RESERVED}.again": bytes(8192)},
        "no clean stop",
    ),
    Row("last file all zeros", lambda: {**files(reserved=bytes(8192))}, "no clean stop"),
    Row(
        "last file without a valid header and without commits",
        lambda: {**unnoted(stopped()), RESERVED: Random(2).randbytes(700)},
        "segment 3: interrupted creation",
    ),
    Row(
        "last file without a valid header and without commits",
        lambda: {**unnoted(stopped()), RESERVED: b"TKT"},
        "segment 3",
    ),
    Row(
        "index in a seal unreadable though its checksum holds",
        lambda: _with_last(stopped(), without_readable_index),
        "",
    ),
]
ELSEWHERE = {
    "directory held by another process",
    "identity of another instance",
    "`retired.bin` damaged, or larger than its bound",
    "`retired.bin` of another journal; of a newer format",
    "the first segment does not begin as `retired.bin` says",
    "segments up to `through` of `retired.bin`",
    "last segment unsealed, and the last valid commits are a chain without its end",
}
"""Rows with separate tests: below, in test_identity.py, test_retired_state.py and test_chains.py."""


def _stopped() -> tuple[Files, CleanShutdown]:
    disk = disk_with(LOG.files)
    driver = Driver(disk)
    driver.journal.commits.close(driver.now())
    driver.run()
    reached = driver.journal.commits.clean_shutdown
    assert reached is not None
    return {
        path: data for path, data in disk.contents().items() if not path.startswith("quarantine")
    }, reached


def stopped_at(commit: int | None = None) -> bytes:
    """Return the clean-shutdown record of that stop."""
    reached = _stopped()[1]
    return msgspec.json.encode(reached if commit is None else msgspec.structs.replace(reached, commit=commit))


def _ended(change: Callable[[bytes], bytes | None], commit: int | None = None) -> Files:
    """Return the log after a clean stop, with the sealed segment changed afterwards."""
    made, reached = _stopped()
    path = segment_path(reached.segment)
    data = change(made.pop(path))
    if data is not None:
        made[path] = data
    return {**made, CLEAN_SHUTDOWN_FILE: stopped_at(commit)}


def _with_last(made: Files, change: Callable[[bytes], bytes]) -> Files:
    path = max(path for path, data in made.items() if path.endswith(".segment") and data.strip(b"\0"))
    return {**made, path: change(made[path])}


def _newer(data: bytes) -> bytes:
    head = bytearray(data[: segment_header_bytes - 4])
    head[8] = 1
    return patched(data, 0, bytes(head) + crc32c(bytes(head)).to_bytes(4, "little"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.seen[:60])
def test_recovery_of_each_documented_state_has_the_documented_outcome(row: Row) -> None:
    made = row.make()
    disk = disk_with(made)
    before = disk.contents()
    if not isinstance(row.outcome, str):
        with pytest.raises((JournalError, WrongJournal)) as caught:
            Driver(disk)
        assert type(caught.value) is row.outcome
        after = {path: data for path, data in disk.contents().items() if path != "lock"}
        assert after == {path: data for path, data in before.items() if path != "lock"}, "nothing was changed"
        return
    driver = Driver(disk)
    if row.outcome:
        assert row.outcome in "\n".join(driver.recovered.report)
    else:
        assert driver.recovered.report == []
    assert messages_in(driver.journal, disk) == (EVERYTHING if row.kept else [])
    _nothing_is_deleted(before, disk.contents())
    disk.close_all()
    again = Driver(disk)
    assert messages_in(again.journal, disk) == (EVERYTHING if row.kept else [])


@pytest.mark.parametrize(
    ("change", "cause"),
    [({"journal_id": bytes(16)}, "belongs to another journal"), ({"number": 7}, "has segment number 7")],
)
def test_segment_of_another_journal_or_number_is_refused_with_the_cause(
    change: dict[str, Any], cause: str
) -> None:
    with pytest.raises(WrongJournal, match=rf"{cause}\. Move the file"):
        Driver(disk_with(files(active=relinked(ACTIVE_DATA, **change))))


def _nothing_is_deleted(before: Files, after: Files) -> None:
    """Every byte that was not zero is still somewhere: in its file, or in quarantine."""
    aside = [data for path, data in after.items() if path.startswith("quarantine/")]
    for path, data in before.items():
        if path == LAST_SEGMENT_FILE:
            continue  # its number only rises
        kept = after.get(path, b"")
        same = next(
            (i for i, (a, b) in enumerate(zip(data, kept, strict=False)) if a != b), min(len(data), len(kept))
        )
        rest = data[same:].strip(b"\0")
        assert not rest or any(rest in copy for copy in aside), path


def test_every_row_of_the_document_has_a_test() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split("## Recovery")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)[1:]
    assert {row.seen for row in ROWS} | ELSEWHERE == set(rows)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda data: data + b"x" * 50, "50 bytes follow its recorded end"),
        (lambda data: data[:-30], "its last 30 bytes are missing"),
        (lambda data: data[:-30] + bytes(30), "later segment exists"),
    ],
)
def test_segment_without_a_final_seal_is_refused_with_the_cause(
    change: Callable[[bytes], bytes], cause: str
) -> None:
    disk = disk_with(files(first=change(LOG.files[FIRST])))
    with pytest.raises(JournalCorrupt, match=f"does not end with a valid seal.*{cause}"):
        Driver(disk)


def test_directory_locked_by_another_process_is_refused_unchanged() -> None:
    disk = disk_with(LOG.files)
    Driver(disk)
    before = disk.contents()
    with pytest.raises(JournalLocked, match="test"):
        open_identity(disk, owner="second", create=True, new_id=JOURNAL_ID)
    assert disk.contents() == before


def test_start_does_not_read_commits_of_sealed_segments() -> None:
    disk = disk_with({path: data for path, data in unnoted(stopped()).items() if path != RESERVED})
    read: list[range] = []
    original = disk.read

    def counted(handle: int, offset: int, size: int) -> bytes:
        read.append(range(offset, offset + size))
        return original(handle, offset, size)

    disk.read = counted  # type: ignore[method-assign]
    recover_journal(disk, JOURNAL_ID)
    assert read
    assert not any(segment_header_bytes in part for part in read), (
        "no first commit: only headers, seals, footers"
    )


def test_decide_returns_the_recovery_actions_without_disk_access() -> None:
    disk = disk_with({**files(), RESERVED: bytes(4096)})
    seen, unknown = survey_segments(disk, JOURNAL_ID)
    assert unknown == []
    assert [step for _, step in decide(seen)] == [
        RecoveryAction.USE,
        RecoveryAction.FINISH,
        RecoveryAction.ADOPT,
    ]


def test_recovery_keeps_and_reports_unknown_files() -> None:
    disk = disk_with({**files(), "journal/notes.txt": b"mine", "journal/3.segment": b"x"})
    driver = Driver(disk)
    assert driver.recovered.unknown == ["3.segment", "notes.txt"]
    assert disk.contents()["journal/notes.txt"] == b"mine"


def test_missing_journal_directory_is_refused_as_corrupt() -> None:
    disk = StrictDisk(Random(0))
    handle = disk.open("identity.json", create=True)
    disk.write(handle, 0, [LOG.files["identity.json"]])
    with pytest.raises(JournalCorrupt, match="journal"):
        Driver(disk)


def test_recovery_on_a_full_disk_needs_no_space_for_the_seal() -> None:
    disk = disk_with(LOG.files)
    disk.space_bytes = disk.used_bytes
    open_identity(disk, owner="x", create=False, new_id=JOURNAL_ID)
    recovered = recover_journal(disk, JOURNAL_ID)
    assert recovered.end.segment == 2


def test_unfinished_write_is_quarantined_once_despite_interrupted_recoveries() -> None:
    made = files(active=patched(ACTIVE_DATA, LOG.used, HALF_WRITE))
    for nth in range(1, 40):
        disk = disk_with(made)
        for operation in ("write", "sync", "truncate", "rename", "sync_directory"):
            disk.fail(operation, nth, errno.EIO)
        starts = 0
        while True:
            starts += 1
            assert starts < 10
            try:
                driver = Driver(disk)
                break
            except OSError:
                disk = disk.kill_clone(Random(nth)).crash_clone(Random(nth))
        tails = [data for path, data in disk.contents().items() if path.endswith(".tail")]
        assert tails == [HALF_WRITE]
        assert messages_in(driver.journal, disk) == EVERYTHING


def test_log_time_does_not_follow_the_clock_of_a_segment_without_messages() -> None:
    """The wall clock steps back by an hour before a segment starts and the power fails."""
    disk = disk_with(stopped())
    driver = Driver(disk)
    last = driver.recovered.end.timestamp
    disk.close_all()
    path = max(driver_path for driver_path in disk.contents() if driver_path.endswith(".segment"))
    handle = disk.open(path)
    header, _ = decode_segment_header(disk.read(handle, 0, segment_header_bytes))
    disk.write(handle, 0, [encode_segment_header(header._replace(created=last - 3_600_000_000))[0]])
    assert recover_journal(disk, JOURNAL_ID).end.timestamp == last


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_messages_shown_after_a_failed_sync_and_restart_survive_power_loss(operation: str, nth: int) -> None:
    """The second process must sync pages that a failed sync left in the cache."""
    for seed in range(6):
        disk = disk_with(LOG.files)
        driver = Driver(disk)
        disk.fail(operation, nth, errno.EIO)
        messages = [EVERYTHING[0]._replace(publisher=50, sequence=n, body=bytes(900)) for n in range(1, 30)]
        for message in messages:
            try:
                driver.publish([message])
            except OSError:  # the driver does not report it: the process ends here
                break
        else:
            pytest.fail("the fault did not happen")
        disk = disk.kill_clone(Random(seed))
        shown = messages_in(Driver(disk).journal, disk)
        disk = disk.crash_clone(Random(seed))
        assert messages_in(Driver(disk).journal, disk) == shown


def test_file_names_created_by_a_killed_process_are_made_durable() -> None:
    """The first start is killed at any operation. Power loss keeps the messages of the second start."""
    for operations in range(1, 18):
        for seed in range(4):
            disk = StrictDisk(Random(seed))
            with contextlib.suppress(PowerLost):
                Driver(FailingDisk(disk, operations, Trace()))
            disk = disk.kill_clone(Random(seed))
            Driver(disk).publish(EVERYTHING)
            disk = disk.crash_clone(Random(seed))
            driver = Driver(disk)
            assert messages_in(driver.journal, disk) == EVERYTHING
